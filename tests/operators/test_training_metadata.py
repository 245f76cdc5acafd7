"""Metadata that wraps around or contradicts itself: the backward's operators refuse it on a CPU as forward does, and change nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import tbe_aot
from tests.operators.support import INDEX_DTYPES, WEIGHT_DTYPES, Lookup, make_lookup, make_tables
from tests.operators.training import (
    OPTIMIZERS,
    Training,
    make_optimizer,
    make_training,
    state_views,
)

HUGE = (-(2**63), -1, 2**31, 2**60, 2**61, 2**62, 2**63 - 8, 2**63 - 1)
COMMON = (
    "weights",
    "features",
    "layout",
    "indices",
    "offsets",
    "pooling",
    "vbe_bag_offsets",
    "vbe_output_offsets",
    "vbe_max_batch",
)


def two_tables(**options: Any) -> Lookup:
    return make_lookup([4, 8], [5, 7], [1, 2, 0, 1], **options)


def forged(training: Training, row: int, column: int, value: int) -> torch.Tensor:
    features = training.lookup.metadata.features.clone()
    features[row, column] = value
    return features


def refusals(training: Training, **changes: Any) -> list[str]:
    """What backward_update and per_sample_weights_gradient say, without their names; that neither changed anything."""
    arguments = training.arguments() | changes
    before = training.snapshot()
    said = []
    for operator, names in (
        ("backward_update", tuple(arguments)),
        ("per_sample_weights_gradient", ("grad_output", *COMMON)),
    ):
        with pytest.raises(RuntimeError) as error:
            getattr(torch.ops.tbe_aot, operator)(
                **{name: value for name, value in arguments.items() if name in names}
            )
        name, _, message = str(error.value).partition(": ")
        assert name == f"tbe_aot::{operator}"
        said.append(message)
    assert training.equals(before)
    return said


def expect_as_forward(training: Training, **changes: Any) -> str:
    """The message, the same for the operators of the backward as for forward."""
    arguments = training.arguments() | changes
    given = {name: value for name, value in arguments.items() if name in COMMON}
    if "vbe_bag_offsets" in given:
        given["vbe_output_numel"] = training.grad_output.numel()
    with pytest.raises(RuntimeError) as error:
        torch.ops.tbe_aot.forward(**given)
    message = str(error.value).removeprefix("tbe_aot::forward: ")
    assert refusals(training, **changes) == [message, message]
    return message


# Features: position, weight_offset, row_pitch, dim, rows, output_column.
@pytest.mark.parametrize("column", range(6))
@pytest.mark.parametrize("value", HUGE)
def test_metadata_of_any_size(column, value):
    for row in (0, 1):
        training = make_training(two_tables(), "adam")
        message = expect_as_forward(training, features=forged(training, row, column, value))
        assert message.startswith("features ")


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("value", [*HUGE, 2**63 - 7])
def test_global_rows_of_any_size(optimizer, value):
    for row in (0, 1):
        training = make_training(two_tables(), optimizer)
        for message in refusals(training, features=forged(training, row, 7, value)):
            assert message.startswith(f"features says that feature {row} has ")
            assert f" global rows from {value} on, expected " in message


def test_global_rows_of_another_table():
    training = make_training(two_tables(), "rowwise_adagrad")
    for message in refusals(training, features=forged(training, 1, 7, 4)):
        assert message == (
            "features says that feature 1 has 7 global rows from 4 on, expected those of feature 0, which comes before"
            " it, if they share a table, else some within 5 to 11"
        )


def test_global_rows_that_fall_from_slot_to_slot():
    training = make_training(make_lookup([4, 4, 4], [5, 7, 6], [1, 2, 1]), "rowwise_adagrad")
    features = training.lookup.metadata.features.clone()
    features[1:, 7] = torch.tensor([11, 5])
    for message in refusals(training, features=features):
        assert message.startswith("features says that feature 2 has 6 global rows from 5 on")
        assert "those of feature 1, which comes before it" in message


def test_a_table_without_rows_may_be_anywhere():
    for rows in ([0, 5, 7], [5, 0, 7], [5, 7, 0]):
        lookup = make_lookup([4, 4, 4], rows, [2 if count else 0 for count in rows])
        make_training(lookup, "rowwise_adagrad").verify()


def test_a_table_in_two_groups():
    training = make_training(make_lookup([8], [5], [1, 2], feature_tables=[0, 0]), "sgd")
    layout = [*training.lookup.metadata.layout[:6], 16, 1, 1, 16, 2, 1]
    for message in refusals(training, layout=layout):
        assert message == (
            "layout puts feature 0 and feature 1, which share a table, into two groups, expected one"
        )


def laid_out(dims: list[int], rows: list[int], starts: list[int], pitches: list[int]) -> Training:
    """An update of two tables that lie in the weights as told; each that has rows is looked up twice."""
    lookup = make_lookup(dims, rows, [2 if count else 0 for count in rows])
    metadata = lookup.metadata
    features, layout = metadata.features.clone(), list(metadata.layout)
    features[:, 1], features[:, 2] = torch.tensor(starts), torch.tensor(pitches)
    numel = max(
        start + (count - 1) * pitch + dim
        for start, count, pitch, dim in zip(starts, rows, pitches, dims, strict=True)
    )
    layout[3], layout[7] = numel, 0
    metadata = replace(
        metadata,
        features=features,
        layout=layout,
        table_offsets=starts,
        row_pitches=pitches,
        weights_numel=numel,
    )
    weights = torch.randn(numel, generator=torch.Generator().manual_seed(5))
    lookup = lookup.with_(weights=weights, metadata=metadata)
    return make_training(lookup.with_(tables=state_views(lookup, weights)), "adagrad")


@pytest.mark.parametrize(
    ("dims", "rows", "starts", "pitches"),
    [
        ([4, 4], [5, 7], [0, 16], [4, 4]),  # Table 1 starts in the last row of table 0.
        ([4, 4], [5, 7], [27, 0], [4, 4]),
        ([4, 4], [5, 5], [0, 0], [4, 4]),  # One table under two numbers.
        ([4, 4], [5, 5], [0, 3], [8, 8]),
        ([4, 4], [5, 5], [0, 5], [8, 8]),
        ([4, 4], [5, 5], [0, 4], [8, 12]),
        ([4, 4], [5, 1], [0, 14], [8, 4]),
        ([9, 4], [1, 5], [0, 4], [9, 8]),
        ([4, 4], [1, 1], [0, 3], [4, 4]),
    ],
)
def test_tables_that_overlap_in_the_weights(dims, rows, starts, pitches):
    for message in refusals(laid_out(dims, rows, starts, pitches)):
        assert message == (
            "features says that rows of feature 0 and of feature 1 overlap in the weights,"
            " expected one table or no element in common"
        )


@pytest.mark.parametrize(
    ("dims", "rows", "starts", "pitches"),
    [
        ([4, 4], [5, 7], [0, 20], [4, 4]),
        ([4, 4], [5, 7], [28, 0], [4, 4]),
        ([4, 4], [5, 5], [0, 4], [8, 8]),  # Columns of one matrix.
        ([4, 4], [5, 5], [4, 0], [8, 8]),
        ([3, 4], [5, 3], [0, 11], [8, 8]),
        ([4, 4], [5, 3], [0, 4], [8, 16]),
        ([4, 4], [5, 1], [0, 12], [8, 4]),
        ([4, 4], [5, 0], [0, 2], [4, 4]),
    ],
)
def test_tables_that_do_not_overlap(dims, rows, starts, pitches):
    laid_out(dims, rows, starts, pitches).verify()


def test_rows_that_wrap_around():
    training = make_training(make_lookup([4], [5], [1]), "rowwise_adagrad")
    # Times the pitch of 4 elements: 4 in 64 bits.
    features = forged(training, 0, 4, 2**62 + 1)
    message = expect_as_forward(training, features=features, indices=torch.tensor([2**40]))
    assert "feature 0 has 4611686018427387905 rows" in message


@pytest.mark.parametrize(
    ("position", "value", "message"),
    [
        (2, 13, "layout says 13 columns, features has 12"),
        (2, 11, "not within 84 weights, or not columns 4 on of 11"),
        (6, 7, "layout puts feature 1 of 8 elements into bucket 7"),
    ],
)
def test_a_layout_of_other_features(position, value, message):
    training = make_training(make_lookup([4, 8], [7, 7], [1, 2, 0, 1]), "adagrad")
    layout = list(training.lookup.metadata.layout)
    layout[position] = value
    grad = torch.ones(2, layout[2])
    assert message in expect_as_forward(training, layout=layout, grad_output=grad)


def test_output_columns_that_overlap():
    training = make_training(make_lookup([4, 4], [5, 7], [1, 2, 0, 1]), "sgd")
    message = expect_as_forward(training, features=forged(training, 1, 5, 0))
    assert "output column 0: " in message
    assert "not columns 4 on of 8" in message


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_metadata_of_another_weight_dtype(dtype):
    training = make_training(make_lookup([4], [5], [1]), "sgd")
    message = expect_as_forward(training, weights=training.lookup.weights.to(dtype))
    assert message.startswith("layout says that feature 0 is aligned, but its rows start at ")
    assert "expected multiples of 8" in message


def test_output_rows_that_are_not_aligned():
    training = make_training(make_lookup([4, 6], [5, 5], [1, 1]), "sgd")
    layout = [*training.lookup.metadata.layout[:6], 16, 2, 2]
    message = expect_as_forward(training, layout=layout)
    # The width alone demotes both features.
    assert message.startswith("layout says that output rows of feature 0 are aligned")
    assert message.endswith("of 10, expected multiples of 4")


def test_gradient_rows_of_a_variable_batch_that_are_not_aligned():
    training = make_training(two_tables(batch_sizes=[[1], [3]]), "sgd")
    arguments = training.arguments()
    assert arguments["layout"][7] == 2
    shifted = torch.cat([arguments["grad_output"], torch.zeros(1)])
    offsets = arguments["vbe_output_offsets"] + 1
    for message in refusals(training, grad_output=shifted, vbe_output_offsets=offsets):
        assert message == (
            "vbe_output_offsets puts feature 0, bag 0 at element 1, expected a multiple of 4 where layout says of"
            " every feature that its output rows are aligned"
        )


def test_a_feature_with_more_bags_than_said():
    training = make_training(two_tables(batch_sizes=[[1], [3]]), "sgd")
    message = expect_as_forward(training, vbe_max_batch=2)
    assert message == "vbe_max_batch is 2, too few for the 3 bags of feature 1"


@pytest.mark.parametrize("index_dtype", INDEX_DTYPES)
@pytest.mark.parametrize(
    "offsets", [[0, 3, 2, 3, 4], [-1, 1, 2, 3, 4], [0, 1, 2, 3, 9], [0, 1, 2**32 + 2, 3, 4]]
)
def test_offsets_out_of_bounds(offsets, index_dtype):
    lookup = make_lookup([4, 4], [5, 5], [1, 1, 1, 1], index_dtype=index_dtype)
    training = make_training(lookup, "adam")
    message = expect_as_forward(training, offsets=torch.tensor(offsets))
    assert message.startswith("offsets has ")


@pytest.mark.parametrize("dtype", WEIGHT_DTYPES)
def test_subnormal_numbers_count_on_every_thread(dtype):
    rows, dim = 4096, 64
    weights, metadata, _ = make_tables([tbe_aot.TableSpec("a", rows, dim)], dtype=dtype)
    tiny = torch.finfo(dtype).smallest_normal
    weights.fill_(tiny / 4)
    lookups = (metadata.features, metadata.layout, torch.arange(rows), torch.arange(rows + 1))
    grad = torch.full((rows, dim), tiny / 4)
    optimizer = make_optimizer("sgd", learning_rate=1.0)
    rate, scale = torch.tensor([optimizer.learning_rate]), torch.tensor([2.0])
    sample_weights = torch.full((rows,), torch.finfo(torch.float32).smallest_normal / 2)
    factors = torch.ones(rows, dim) * 2.0**20
    torch.set_flush_denormal(True)
    try:
        dots = torch.ops.tbe_aot.per_sample_weights_gradient(
            torch.ones(rows, dim), weights, *lookups
        )
        torch.ops.tbe_aot.backward_update(
            grad, weights, *lookups, "sgd", rate, gradient_clip=1.0, gradient_scale=scale
        )
        once = weights.clone()
        weights.zero_()
        torch.ops.tbe_aot.backward_update(
            factors, weights, *lookups, "sgd", rate, per_sample_weights=sample_weights
        )
    finally:
        torch.set_flush_denormal(False)
    assert torch.equal(dots, torch.full((rows,), dim * tiny / 4))
    assert torch.equal(once, torch.full_like(once, tiny / 8))
    assert torch.equal(weights, (-factors.flatten() * sample_weights[0]).to(dtype))


def test_a_subnormal_eps_and_a_subnormal_found_inf_count():
    lookup = make_lookup([4], [5], [1])
    tiny = torch.finfo(torch.float32).smallest_normal / 4
    training = make_training(
        lookup, make_optimizer("adagrad", eps=tiny), grad_output=torch.zeros(1, 4)
    )
    assert training.momentum1 is not None
    training.momentum1.zero_()
    stopped = training.snapshot()
    arguments = training.arguments()
    torch.set_flush_denormal(True)
    try:
        torch.ops.tbe_aot.backward_update(**arguments, found_inf=torch.tensor([tiny]))
        training.run()
    finally:
        torch.set_flush_denormal(False)
    assert training.equals(stopped)
