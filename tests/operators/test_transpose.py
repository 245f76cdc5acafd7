"""transpose_indices on the CPU: its format, what it refuses, and updates that are given what it returned."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from tests.operators.support import INDEX_DTYPES, Lookup, fake, make_lookup, refusals
from tests.operators.training import OPTIMIZERS, Training, make_training, vbe_of
from tests.transposed import section_sizes, section_starts, take_apart, transpose

transpose_indices = torch.ops.tbe_aot.transpose_indices
OPCHECKS = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
RAGGED = [3, 0, 1, 200, 0, 5, 300, 2, 0, 140, 1, 7]


def arguments(lookup: Lookup, pooling: str = "sum") -> list[Any]:
    vbe: tuple[Any, ...] = (None, None, 0)
    if lookup.batch_sizes is not None:
        vbe = vbe_of(lookup)[:3]
    metadata = lookup.metadata
    return [
        metadata.features,
        metadata.layout,
        lookup.indices,
        lookup.offsets,
        lookup.per_sample_weights,
        pooling,
        *vbe,
    ]


def verify(lookup: Lookup, pooling: str = "sum") -> torch.Tensor:
    """Compare the operator with the plain loops; what it returned."""
    given = arguments(lookup, pooling)
    bag_offsets, output_offsets = (None if x is None else x.tolist() for x in given[6:8])
    expected = transpose(
        lookup.metadata.features,
        lookup.metadata.layout,
        lookup.indices,
        lookup.offsets,
        lookup.per_sample_weights,
        pooling,
        bag_offsets,
        output_offsets,
    )
    words: torch.Tensor = transpose_indices(*given)
    factored = lookup.per_sample_weights is not None or pooling == "mean"
    features = len(lookup.metadata.feature_tables)
    actual = take_apart(words, lookup.indices.numel(), features, factored=factored)
    assert actual.differences(expected) == []
    return words


@pytest.mark.parametrize("index_dtype", INDEX_DTYPES)
@pytest.mark.parametrize("pooling", ["sum", "mean"])
@pytest.mark.parametrize("weighted", [False, True])
def test_format(index_dtype, pooling, weighted):
    for pruned in (0.0, 0.3):
        lookup = make_lookup(
            [4, 40, 8],
            [5, 700, 3],
            RAGGED,
            index_dtype=index_dtype,
            weighted=weighted,
            pruned=pruned,
        )
        verify(lookup, pooling)


def test_features_that_share_a_table():
    lookup = make_lookup([8, 16], [30, 9], RAGGED, feature_tables=[1, 0, 1, 0, 1, 0], pruned=0.1)
    words = verify(lookup)
    parts = take_apart(words, lookup.indices.numel(), 6, factored=False)
    # A row belongs to the last feature of its table.
    assert set(parts.run_slots) == {2, 5, 6}


@pytest.mark.parametrize("weighted", [False, True])
def test_variable_batch(weighted):
    sizes = [[2, 3], [0, 1], [4, 2]]
    verify(make_lookup([4, 40, 8], [5, 70, 3], RAGGED, batch_sizes=sizes, weighted=weighted))


@pytest.mark.parametrize("rows", [[0, 5, 700], [5, 0, 700], [5, 700, 0]])
def test_a_table_without_rows(rows):
    lengths = [length for count in rows for length in ([3, 150] if count else [0, 0])]
    verify(make_lookup([4, 4, 4], rows, lengths))


@pytest.mark.parametrize("length", [1, 127, 128, 129, 255, 256, 257, 600])
def test_one_row_has_all_lookups(length):
    verify(make_lookup([4], [1], [length]))


def test_pruned_lookups_alone():
    lookup = make_lookup([4], [9], [1, 300])
    verify(lookup.with_(indices=torch.full_like(lookup.indices, -1)))


def test_lookups_of_no_bag_count_as_pruned():
    lookup = make_lookup([4, 8], [5, 7], [2, 2, 2, 2])
    pooled = lookup.with_(offsets=torch.tensor([2, 3, 3, 4, 6]))
    words = verify(pooled, "mean")
    parts = take_apart(words, 8, 2, factored=True)
    assert parts.run_rows[-1] == 12
    assert parts.run_starts[-2:] == [4, 8]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("bags", [0, 3])
def test_no_lookups(weighted, bags):
    lookup = make_lookup([4, 8], [5, 7], [0] * 2 * bags, weighted=weighted)
    words = verify(lookup)
    assert words.shape == (8,)
    assert words[0] == 0
    assert words[4:7].tolist() == [0, 0, 0]


def test_tensors_of_any_strides():
    lookup = make_lookup([4, 8], [5, 7], RAGGED, weighted=True)
    assert lookup.per_sample_weights is not None
    strided = lookup.with_(
        indices=lookup.indices.repeat_interleave(2)[::2],
        offsets=lookup.offsets.int().repeat_interleave(3)[::3],
        per_sample_weights=lookup.per_sample_weights.double().repeat_interleave(2)[::2],
    )
    assert torch.equal(verify(strided), verify(lookup))


# --- Given to an update ------------------------------------------------------------------------------


def with_transposed(training: Training) -> Training:
    lookup = training.lookup
    words = transpose_indices(*arguments(lookup, training.pooling))
    return replace(training, options={**training.options, "transposed": words})


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("pooling", ["sum", "mean"])
@pytest.mark.parametrize("weighted", [False, True])
def test_an_update_gives_equal_bits_with_and_without(optimizer, pooling, weighted):
    lookup = make_lookup([4, 40, 8], [5, 700, 3], RAGGED, weighted=weighted, pruned=0.1)
    alone = make_training(lookup, optimizer, pooling=pooling, gradient_clip=0.7)
    given = with_transposed(make_training(lookup, optimizer, pooling=pooling, gradient_clip=0.7))
    alone.run()
    given.run()
    assert given.equals(alone.mutated())


def test_an_update_of_a_variable_batch_with_what_was_transposed():
    lookup = make_lookup([4, 8], [5, 7], RAGGED, batch_sizes=[[2, 3], [4, 3]])
    with_transposed(make_training(lookup, "adam")).verify()


@pytest.mark.parametrize("bags", [0, 2])
def test_an_update_without_lookups_counts(bags):
    training = with_transposed(make_training(make_lookup([4], [5], [0] * bags), "adam"))
    before = training.snapshot()
    training.run()
    assert training.step is not None
    assert training.step.tolist() == [5]
    training.step.fill_(4)
    assert training.equals(before)


def test_found_inf_changes_nothing_with_what_was_transposed():
    training = make_training(make_lookup([4], [5], [3, 4]), "adam", found_inf=torch.ones(1))
    given = with_transposed(training)
    before = given.snapshot()
    given.run()
    assert given.equals(before)


def forged(training: Training, section: str, entry: int, value: int) -> Training:
    lookup = training.lookup
    words = training.options["transposed"].clone()
    features = len(lookup.metadata.feature_tables)
    starts, _ = section_starts(
        section_sizes(lookup.indices.numel(), features, factored=training.pooling == "mean")
    )
    words[starts[section] + entry] = value
    return replace(training, options={"transposed": words})


@pytest.mark.parametrize(
    ("section", "entry", "value", "message"),
    [
        ("run_rows", 0, 12, "run 0 is of global row 12 in slot 0, lookups 0 to"),
        ("run_rows", 1, -1, "run 0 is of global row -4294967296 in slot 0"),
        ("run_rows", 1, 1, "run 0 is of global row 4294967"),
        ("run_rows", 2, 0, "run 1 is of global row 0 in slot 0"),
        ("positions", 0, 21, "lookup 0 has the gradient from element 21 of 24 on"),
        ("positions", 0, -4, "lookup 0 has the gradient from element 4294967292 of 24 on"),
        ("run_starts", 0, 1, "run 0 starts at lookup 1"),
        ("run_starts", 1, 400, "run 0 is of global row 0 in slot 0, lookups 0 to 400"),
        ("run_starts", 1, 0, "run 0 is of global row 0 in slot 0, lookups 0 to 0"),
        ("run_slots", 0, 1, "run 0 is of global row 0 in slot 1"),
        ("run_begins", 0, 1, "it has 6 runs of 10 lookups"),
        ("run_begins", 1, -1, "it has 6 runs of 10 lookups"),
        ("run_begins", 2, 11, "it has 11 runs of 10 lookups"),
    ],
)
def test_what_is_not_of_these_lookups_is_refused(section, entry, value, message):
    lookup = make_lookup([4, 8], [3, 7], [2, 3, 1, 4])
    lookup.indices.copy_(torch.tensor([0, 2, 1, 1, 0, 0, 1, 6, 6, 6]))
    training = forged(with_transposed(make_training(lookup, "adam")), section, entry, value)
    before = training.snapshot()
    expected = "tbe_aot::backward_update: transposed is not what transpose_indices returned for these arguments: "
    with pytest.raises(RuntimeError) as error:
        training.run()
    assert str(error.value).startswith(expected + message)
    assert training.equals(before)


def update_refusal(training: Training, transposed: torch.Tensor) -> str:
    """The message, the same of an eager call and of the fake; nothing was changed."""
    before = training.snapshot()
    given = {**training.arguments(), "transposed": transposed}
    update = torch.ops.tbe_aot.backward_update
    with pytest.raises(RuntimeError) as eager:
        update(**given)
    with FakeTensorMode() as mode, pytest.raises(RuntimeError) as traced:
        update(**{name: fake(value, mode) for name, value in given.items()})
    assert str(eager.value) == str(traced.value)
    assert training.equals(before)
    return str(eager.value).removeprefix("tbe_aot::backward_update: ")


def test_the_tensor_must_be_one_for_these_lookups():
    training = make_training(make_lookup([4, 8], [5, 7], [2, 3, 1, 4]), "sgd")
    other = transpose_indices(*arguments(make_lookup([4, 8], [5, 7], [2, 3, 1, 5])))
    assert other.numel() == 72
    for transposed, message in (
        (other, "transposed has 72 elements, expected 68 for these lookups"),
        (other.long(), "transposed is int64, expected int32"),
        (other[None], "transposed has 2 dimensions, expected 1"),
        (
            other.repeat_interleave(2)[::2],
            "transposed is not contiguous, expected contiguous memory",
        ),
    ):
        assert update_refusal(training, transposed) == message


# --- Refusals ----------------------------------------------------------------------------------------


def wide_batch() -> dict[int, Any]:
    """A result of 2^32 + 2048 elements, of which no tensor takes memory."""
    lookup = make_lookup([2048], [1], [0])
    metadata = lookup.metadata
    return {
        0: metadata.features,
        1: metadata.layout,
        2: lookup.indices,
        3: torch.zeros(1, dtype=torch.int64).expand(2**21 + 2),
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({0: torch.zeros(2, 7).long()}, "features has shape [2, 7], expected [2, 8]"),
        ({0: torch.zeros(2, 8)}, "features is float32, expected int64"),
        ({1: [1, 2, 12]}, "layout has 3 integers"),
        (
            {1: [1, 2, 2**31, 76, 12, 7, 16, 1, 2]},
            "layout says 2147483648 columns, expected less than 2147483648",
        ),
        ({2: torch.zeros(4)}, "indices is float32, expected int32 or int64"),
        ({3: torch.zeros(4).long()}, "offsets has 4 elements, expected T*B+1 with T = 2 features"),
        ({4: torch.ones(3)}, "per_sample_weights has 3 elements, expected 4, one per index"),
        ({5: "max"}, "pooling is 'max', expected 'sum' or 'mean'"),
        ({6: torch.zeros(2).long()}, "vbe_bag_offsets has 2 elements, expected 3"),
        ({7: torch.zeros(4).long()}, "vbe_output_offsets has 4 elements, expected none"),
        ({8: 2}, "vbe_max_batch is 2, expected 0 without vbe_bag_offsets"),
        (
            {2: torch.zeros(1, dtype=torch.int64).expand(2**30)},
            "indices has 1073741824 elements, expected less than 1073741824",
        ),
        (
            wide_batch(),
            "the result of forward has 4294969344 elements, expected at most 4294967296",
        ),
    ],
)
def test_refused(changes, message):
    given = arguments(make_lookup([4, 8], [5, 7], [1, 2, 0, 1]))
    for position, value in changes.items():
        given[position] = value
    eager, traced = refusals("transpose_indices", given)
    assert eager == traced
    assert message in eager


def test_offsets_are_checked_on_a_cpu():
    offsets = torch.tensor([0, 1, 9, 9, 9])
    lookup = make_lookup([4, 8], [5, 7], [1, 2, 0, 1]).with_(offsets=offsets)
    with pytest.raises(RuntimeError) as error:
        transpose_indices(*arguments(lookup))
    message = "offsets has 1 and 9 for feature 0, bag 1"
    assert str(error.value).startswith(f"tbe_aot::transpose_indices: {message}")


@pytest.mark.parametrize("index_dtype", INDEX_DTYPES)
def test_an_index_out_of_bounds_counts_as_the_check_replaces_it(index_dtype):
    # The third table has no rows: no row 0.
    lookup = make_lookup([4, 8, 4], [5, 7, 0], [1, 2, 0, 2, 1, 2], index_dtype=index_dtype)
    lookup.indices[2], lookup.indices[3], lookup.indices[5] = 5, -7, 2**31 - 1
    checked, _ = torch.ops.tbe_aot.check_bounds(
        lookup.indices, lookup.offsets, lookup.metadata.features, lookup.metadata.layout
    )
    assert checked.tolist()[2:] == [0, 0, checked[4], -1, -1, -1]
    repaired = transpose_indices(*arguments(lookup.with_(indices=checked), "mean"))
    assert torch.equal(transpose_indices(*arguments(lookup, "mean")), repaired)


# --- Tracing -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("present", [False, True])
@pytest.mark.parametrize("vbe", [False, True])
def test_opcheck(present, vbe):
    lookup = make_lookup(
        [4, 8],
        [5, 7],
        [1, 2, 0, 3],
        weighted=present,
        batch_sizes=[[1, 1], [2, 0]] if vbe else None,
    )
    given = arguments(lookup, "mean" if present else "sum")
    torch.library.opcheck(transpose_indices.default, tuple(given), test_utils=OPCHECKS)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_opcheck_of_an_update_with_what_was_transposed(optimizer):
    training = with_transposed(make_training(make_lookup([4, 8], [5, 7], [1, 2, 0, 3]), optimizer))
    operator = torch.ops.tbe_aot.backward_update.default
    torch.library.opcheck(operator, (), training.arguments(), test_utils=OPCHECKS)


@pytest.mark.parametrize("pooling", ["sum", "mean"])
def test_the_size_is_a_formula_of_the_number_of_lookups(pooling):
    lookup = make_lookup([4, 8], [5, 7], RAGGED)
    given = arguments(lookup, pooling)
    shapes = ShapeEnv()
    with FakeTensorMode(shape_env=shapes) as mode:
        traced = [fake(value, mode) for value in given]
        traced[2] = torch.empty(shapes.create_unbacked_symint(), dtype=torch.int64)
        words = transpose_indices(*traced)
    assert isinstance(words.shape[0], torch.SymInt)
