"""What explain and explain_backward say of a call, on a machine without a GPU."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import pytest
import torch

import tbe_aot
from tbe_aot import SGD, Adam, Explanation, RowwiseAdagrad, TableBatchedEmbeddingBags, TableSpec
from tests.operators.support import Lookup, make_lookup
from tests.operators.training import OPTIMIZERS, make_training

pytest.importorskip("tbe_aot._launcher")
SORT = ["linearise_lookups", "sort_pass", "find_runs"]


def bags(*dims: int, **options: Any) -> TableBatchedEmbeddingBags:
    tables = [TableSpec(f"t{number}", 50, dim) for number, dim in enumerate(dims)]
    return TableBatchedEmbeddingBags(tables, **{"optimizer": SGD(), **options})


def batch(features: int, lookups: int, bags_each: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    indices = torch.randint(0, 50, (lookups,))
    return indices, torch.linspace(0, lookups, features * bags_each + 1).long()


def two_tables(batch_sizes: list[list[int]] | None = None) -> Lookup:
    return make_lookup([8, 5], [20, 30], [2, 0, 1, 3, 5, 1], batch_sizes=batch_sizes)


def kernels(explanation: Explanation) -> list[str]:
    """The kernels launched, each once where it follows itself."""
    names = [launch.variant.partition("__")[0] for launch in explanation.launches]
    return [name for name, _ in groupby(names)]


def test_every_launch_of_a_step_is_named_in_order_with_a_reason():
    module = bags(16, 64, 64, optimizer=Adam())
    explanation = module.explain_backward(*batch(3, 500))
    assert explanation.arch in {"sm90", "sm100"}
    updates = ["sum_chunks", "update_short_runs", "update_long_runs"]
    assert kernels(explanation) == [*SORT, "advance_counters", *updates]
    assert len(explanation.launches) == len(explanation.reasons)
    for launch, reason in zip(explanation.launches, explanation.reasons, strict=True):
        assert reason.startswith(f"{launch.variant} on grid ({launch.grid[0]}, ")
        assert reason in str(explanation)
        assert launch.block[0] % 32 == 0
    wide, narrow = (launch.variant for launch in explanation.launches[-2:])
    assert wide == "update_long_runs__fp32_d64_aligned_adam"
    assert narrow == "update_long_runs__fp32_d16_aligned_adam"
    assert explanation.notes == ()


@pytest.mark.parametrize("lookups_are_transposed", [False, True])
def test_how_long_runs_are_updated_is_said(lookups_are_transposed):
    arguments = make_training(make_lookup([40], [20], [200, 100]), "rowwise_adagrad").arguments()
    if lookups_are_transposed:
        names = ("features", "layout", "indices", "offsets", "per_sample_weights", "pooling")
        arguments["transposed"] = torch.ops.tbe_aot.transpose_indices(*map(arguments.get, names))
    fused = ["sum_and_update_long_runs", "update_short_runs"]
    two = ["sum_chunks", "update_short_runs", "update_long_runs"]
    for choice, updates, why in (
        ("auto", fused, "one launch because a kernel does both for such rows"),
        ("always", fused, "one launch because fused_long_runs is always"),
        ("never", two, "two launches because fused_long_runs is never"),
    ):
        explanation = tbe_aot.explain_backward(**arguments, fused_long_runs=choice)
        assert kernels(explanation) == ([] if lookups_are_transposed else SORT) + updates
        reason = explanation.reasons[-len(updates)]
        assert "the sums of the chunks of long runs" in reason
        assert reason.endswith(f"; {why}")
    adam = make_training(make_lookup([40], [20], [200, 100]), "adam").arguments()
    explanation = tbe_aot.explain_backward(**adam, fused_long_runs="always")
    assert kernels(explanation)[-3:] == two
    why = "two launches because no kernel does both for this optimizer"
    assert explanation.reasons[-3].endswith(f"; {why}")


def test_few_lookups_have_no_long_runs_and_none_no_launches():
    module = bags(16, optimizer=RowwiseAdagrad())
    assert kernels(module.explain_backward(*batch(1, 127))) == [*SORT, "update_short_runs"]
    nothing = module.explain_backward(*batch(1, 0))
    assert nothing.launches == ()
    assert nothing.reasons == ("no row is updated: there are no lookups",)


def test_what_makes_variants_generic_is_named():
    even = bags(64, 24, 8, 16, weights_dtype=torch.float16)
    assert even.explain_backward(*batch(4, 50)).notes == ()
    shifted = bags(64, 20, 12, weights_dtype=torch.float16).explain_backward(*batch(3, 50))
    assert ["generic" in launch.variant for launch in shifted.launches[-3:]] == [False, True, True]
    cause = "has generic variants because of dims or columns that are no multiples of 8"
    assert shifted.notes == (
        f"bucket 16 {cause}: feature 2 has dim 12 at column 84",
        f"bucket 32 {cause}: feature 1 has dim 20 at column 64",
    )
    wide = bags(64, 1, weights_dtype=torch.float16).explain_backward(*batch(2, 50))
    assert all("generic" in launch.variant for launch in wide.launches[-2:])
    assert "all variants are generic because rows of the gradient have 65 columns" in wide.notes[0]
    many = bags(*[3] * 5).explain_backward(*batch(5, 50))
    assert many.notes[1].endswith("feature 2 has dim 3 at column 6 and 2 more")


@pytest.mark.parametrize(
    ("grad", "variant", "notes"),
    [
        pytest.param(None, "fp16_fp32_d64_plain_aligned", [], id="default"),
        pytest.param(torch.ones(4, 64).half(), "fp16_fp16_d64_plain_aligned", [], id="half"),
        pytest.param(
            torch.ones(4, 64).bfloat16(),
            "fp16_fp32_d64_plain_aligned",
            ["the gradient is torch.bfloat16: it is widened to float32 first"],
            id="widened",
        ),
        pytest.param(
            torch.ones(257)[1:].view(4, 64), "fp16_fp32_d64_plain_generic", [], id="shifted"
        ),
        # Copied first.
        pytest.param(
            torch.ones(257)[1:].view(64, 4).t(), "fp16_fp32_d64_plain_aligned", [], id="strided"
        ),
    ],
)
def test_the_gradient_decides(grad, variant, notes):
    module = bags(64, weights_dtype=torch.float16, small_tables="never")
    explanation = module.explain_backward(*batch(1, 50), grad_output=grad)
    assert variant in explanation.launches[-1].variant
    assert list(explanation.notes) == notes


def test_sample_weights_make_factored_variants():
    explanation = bags(64).explain_backward(*batch(1, 50), torch.ones(50, requires_grad=True))
    assert "factored" in explanation.launches[-1].variant


def test_arch_and_multiprocessors():
    module = bags(64)
    call = batch(1, 1_000_000)
    by_arch = [module.explain_backward(*call, arch=arch) for arch in ("sm90", "sm100")]
    assert [explanation.arch for explanation in by_arch] == ["sm90", "sm100"]
    one, two = (
        module.explain_backward(*call, arch="sm90", multiprocessors=count).launches[-1].grid[0]
        for count in (1, 2)
    )
    assert two == 2 * one
    assert by_arch[0].launches[-1].grid[0] == 132 * one
    for count in (None, 1):
        with pytest.raises(ValueError, match="no arch 'sm80' in this build"):
            module.explain_backward(*call, arch="sm80", multiprocessors=count)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("batch_sizes", [None, [[3, 0], [1, 2]]], ids=["even", "vbe"])
def test_the_operators_arguments_are_taken_and_none_is_changed(optimizer, batch_sizes):
    training = make_training(two_tables(batch_sizes), optimizer)
    before = training.snapshot()
    explanation = tbe_aot.explain_backward(**training.arguments())
    assert training.equals(before)
    assert kernels(explanation)[:3] == SORT
    formula = {"sgd": "rowwise", "rowwise_adagrad": "rowwise"}.get(optimizer, optimizer)
    assert explanation.launches[-1].variant.endswith(f"_{formula}")


def test_what_is_transposed_already_is_not_transposed_again():
    arguments = make_training(two_tables(), "sgd").arguments()
    names = ("features", "layout", "indices", "offsets", "per_sample_weights", "pooling")
    transposed = torch.ops.tbe_aot.transpose_indices(*(arguments[name] for name in names))
    explanation = tbe_aot.explain_backward(**arguments, transposed=transposed)
    assert kernels(explanation) == ["update_short_runs"]


def test_refusals_are_the_operators():
    with pytest.raises(RuntimeError, match="the module has no optimizer"):
        bags(16, optimizer=None).explain_backward(*batch(1, 10))
    with pytest.raises(RuntimeError, match=r"has shape \[4, 15\], expected \[4, 16\]"):
        bags(16).explain_backward(*batch(1, 10), grad_output=torch.ones(4, 15))
    arguments = make_training(two_tables(), "sgd").arguments()
    with pytest.raises(RuntimeError, match="optimizer is 'lamb', expected 'sgd', "):
        tbe_aot.explain_backward(**{**arguments, "optimizer": "lamb"})


@pytest.mark.parametrize("bounds_check", ["none", "warning"])
def test_a_variable_batch(bounds_check):
    tables = [TableSpec("a", 100, 64), TableSpec("b", 40, 5)]
    sizes = [[2, 1], [0, 4]]
    module = TableBatchedEmbeddingBags(tables, optimizer=SGD(lr=0.1), bounds_check=bounds_check)
    indices, offsets = torch.arange(14) % 40, torch.arange(8) * 2
    explained = module.explain(indices, offsets, batch_size_per_feature_per_rank=sizes, arch="sm90")
    lookups = [launch for launch in explained.launches if launch.variant.startswith("forward__")]
    assert len(lookups) == 2
    assert all(launch.grid[0] * 32 >= 4 for launch in lookups)
    # Indices of short bags are checked by the lookup.
    assert len(explained.launches) - 2 == (0 if bounds_check == "none" else 2)
    backward = module.explain_backward(
        indices, offsets, batch_size_per_feature_per_rank=sizes, arch="sm90"
    )
    updates = [v.variant for v in backward.launches if v.variant.startswith("update_short_runs")]
    # Rows of a 1-D gradient of odd widths do not all start at multiples of 16 bytes.
    assert len(updates) == 2
    assert all("_generic_" in update for update in updates)
    with pytest.raises(RuntimeError, match=r"expected 9|elements, expected"):
        module.explain(indices, offsets, batch_size_per_feature_per_rank=[[2, 1], [1, 4]])


def test_a_table_that_is_not_looked_up_keeps_no_path_away():
    tables = [TableSpec("a", 40, 64), TableSpec("b", 100_000, 64)]
    module = TableBatchedEmbeddingBags(
        tables, feature_tables=["a"], weights_dtype=torch.float16, bounds_check="none"
    )
    (launch,) = module.explain(torch.arange(400) % 40, torch.arange(11) * 40, arch="sm90").launches
    assert launch.variant.startswith("forward_small_table__")


def test_a_lookup_of_a_trained_module_is_explained_too():
    assert bags(16).explain(*batch(1, 10)).launches[-1].variant.startswith("forward__fp32_d16_")
