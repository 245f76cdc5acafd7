"""The module: construction, tables, state dict, moves between dtypes and devices, and its results."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch

from tbe_aot import SGD, TableBatchedEmbeddingBags, TableSpec, make_features
from tbe_aot._operator_rules import OPTIMIZERS
from tbe_aot.inspection import BOUNDS_KERNELS, kernels_of
from tests import oracle

TABLES = [TableSpec("user", 20, 16), TableSpec("item", 30, 5)]
FEATURES = ["user", "item", "user"]
OFFSETS = torch.tensor([0, 2, 2, 3, 5, 9, 10])
INDICES = torch.tensor([1, 19, 3, 29, 0, 5, 5, -1, 7, 2])


def bags(**options: object) -> TableBatchedEmbeddingBags:
    torch.manual_seed(0)
    return TableBatchedEmbeddingBags(TABLES, feature_tables=FEATURES, **options)  # type: ignore[arg-type]


def verify(
    module: TableBatchedEmbeddingBags, per_sample_weights: torch.Tensor | None = None
) -> None:
    tables = [oracle.Feature(module.table(name)) for name in FEATURES]
    expected, scale = oracle.forward(tables, INDICES, OFFSETS, per_sample_weights, module.pooling)
    assert oracle.within_tolerance(module(INDICES, OFFSETS, per_sample_weights), expected, scale)


@pytest.mark.parametrize("bounds_check", ["none", "ignore", "warning", "fatal"])
@pytest.mark.parametrize("pooling", ["sum", "mean"])
@pytest.mark.parametrize("output_dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("weights_dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_results(weights_dtype, output_dtype, pooling, bounds_check):
    module = bags(
        weights_dtype=weights_dtype,
        output_dtype=output_dtype,
        pooling=pooling,
        bounds_check=bounds_check,
    )
    assert module(INDICES, OFFSETS).dtype == output_dtype
    verify(module)
    verify(module, torch.rand(INDICES.numel()))


def test_tables_are_views_with_padded_rows():
    module = bags(weights_dtype=torch.float16)
    assert [tuple(view.shape) for view in module.table_views().values()] == [(20, 16), (30, 5)]
    assert module.table("item").stride() == (8, 1)
    module.table("item").fill_(7)
    assert torch.equal(module.weights.view(-1)[20 * 16 :][:6], torch.tensor([7.0] * 5 + [0]).half())
    verify(module)


def test_reset_parameters_draws_from_the_documented_range():
    module = bags()
    for spec in TABLES:
        view = module.table(spec.name)
        assert view.abs().max() <= spec.rows**-0.5
        assert view.std() > 0.2 * spec.rows**-0.5
    first = module.weights.clone()
    module.reset_parameters()
    assert not torch.equal(module.weights, first)


def test_the_state_dict_holds_unpadded_tables():
    module = bags(weights_dtype=torch.bfloat16)
    state = module.state_dict()
    assert {key: tuple(value.shape) for key, value in state.items()} == {
        "user.weight": (20, 16),
        "item.weight": (30, 5),
    }
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    other = bags(weights_dtype=torch.bfloat16)
    other.reset_parameters()
    other.load_state_dict(torch.load(file))
    assert torch.equal(other.weights, module.weights)


def test_the_state_dict_is_that_of_embedding_bags():
    plain = {spec.name: torch.nn.EmbeddingBag(spec.rows, spec.dim, mode="sum") for spec in TABLES}
    reference = torch.nn.ModuleDict(plain)
    module = bags()
    module.load_state_dict(reference.state_dict())
    assert torch.equal(module.table("item"), plain["item"].weight)
    module.reset_parameters()
    reference.load_state_dict(module.state_dict())
    assert torch.equal(module.table("item"), plain["item"].weight)
    nested = torch.nn.Sequential(module)
    assert set(nested.state_dict()) == {"0.user.weight", "0.item.weight"}


def test_loading_reports_what_does_not_fit():
    module = bags()
    with pytest.raises(RuntimeError, match=r"Missing key.*item.weight"):
        module.load_state_dict({"user.weight": torch.zeros(20, 16)})
    with pytest.raises(RuntimeError, match=r"Unexpected key.*other"):
        module.load_state_dict(module.state_dict() | {"other": torch.zeros(1)})
    with pytest.raises(RuntimeError, match=r"item.weight: \[30, 6\] in the checkpoint, \[30, 5\]"):
        module.load_state_dict(module.state_dict() | {"item.weight": torch.zeros(30, 6)})
    missing, unexpected = module.load_state_dict({"other": torch.zeros(1)}, strict=False)
    assert (sorted(missing), unexpected) == (["item.weight", "user.weight"], ["other"])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_another_dtype_lays_tables_out_anew(dtype):
    module = bags()
    before = {name: view.clone() for name, view in module.table_views().items()}
    module.to(dtype)
    assert module.weights_dtype == module.weights.dtype == dtype
    assert module.table("item").stride() == (8, 1)
    for name, view in module.table_views().items():
        assert torch.equal(view, before[name].to(dtype))
    verify(module)
    verify(module.float())


def test_a_dtype_without_kernels_is_refused_and_changes_nothing():
    module = bags()
    with pytest.raises(ValueError, match=r"weights_dtype is torch.float64, expected torch.float32"):
        module.double()
    assert module.weights.dtype == torch.float32
    verify(module)


def test_materialised_from_meta():
    module = bags(device="meta")
    assert module.weights.is_meta
    with pytest.raises(RuntimeError, match="meta device: call to_empty"):
        module.load_state_dict(bags().state_dict())
    module.to_empty(device="cpu")
    module.load_state_dict(bags().state_dict())
    assert module.invalid_index_count() == 0
    verify(module)


def test_copies_and_moves():
    module = bags()
    verify(copy.deepcopy(module))
    verify(module.to("cpu"))
    module.table("user").zero_()
    verify(module)
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    verify(torch.load(file, weights_only=False))


def test_invalid_indices_are_counted():
    module = bags()
    indices = INDICES.clone()
    indices[[0, 4]] = torch.tensor([20, -3])
    module(indices, OFFSETS)
    module(indices, OFFSETS)
    assert module.invalid_index_count() == 4
    module.reset_invalid_index_count()
    assert module.invalid_index_count() == 0
    module.bounds_check = "ignore"
    module(indices, OFFSETS)
    assert module.invalid_index_count() == 0


def test_fatal_raises():
    with pytest.raises(RuntimeError, match=r"index 30 at position 3 \(feature 1, bag 1\)"):
        bags(bounds_check="fatal")(INDICES + (INDICES == 29), OFFSETS)


def test_a_variable_batch():
    module = bags()
    sizes = [[1, 1], [0, 2], [1, 1]]
    expected, scale = oracle.forward_vbe(
        [oracle.Feature(module.table(name)) for name in FEATURES], INDICES, OFFSETS, sizes
    )
    out = module(INDICES, OFFSETS, None, sizes)
    assert out.shape == expected.shape
    assert oracle.within_tolerance(out, expected, scale)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ([[1, 1], [0, 2]], "batch sizes are given for 2 features, expected 3"),
        ([[1, 1], [2], [1, 1]], "feature 1 has batch sizes for 1 ranks, feature 0 for 2"),
        ([[1, 1], [3, -1], [1, 1]], "feature 1 has a batch size of -1"),
        ([[1, 1], [0, 2], [1, 2]], "expected 7, one per bag|vbe_output_offsets has 7 elements"),
    ],
)
def test_a_variable_batch_that_does_not_fit(sizes, message):
    with pytest.raises(RuntimeError, match=message):
        bags(bounds_check="none")(INDICES, OFFSETS, None, sizes)


def test_without_an_optimizer_weights_that_require_grad_are_refused():
    module = bags()
    assert not module.weights.requires_grad
    sample_weights = torch.rand(INDICES.numel(), requires_grad=True)
    module(INDICES, OFFSETS, sample_weights.detach())
    module.requires_grad_()
    with pytest.raises(
        RuntimeError, match="weights requires grad, but this operator has no gradient"
    ):
        module(INDICES, OFFSETS)
    with torch.no_grad():
        module(INDICES, OFFSETS, sample_weights)
    top = torch.nn.Linear(37, 1)
    top(module.requires_grad_(False)(INDICES, OFFSETS)).sum().backward()
    assert top.weight.grad is not None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pooling": "max"}, "pooling is 'max', expected one of 'sum', 'mean'"),
        ({"bounds_check": "raise"}, "bounds_check is 'raise', expected one of 'none'"),
        ({"output_dtype": torch.float64}, "output_dtype is torch.float64, expected one of"),
        ({"weights_dtype": torch.int8}, "weights_dtype is torch.int8, expected torch.float32"),
        (
            {"feature_tables": ["nobody"]},
            "feature_tables names nobody, expected some of user, item",
        ),
        ({"feature_tables": []}, "feature_tables is empty"),
    ],
)
def test_construction_refuses(options, message):
    with pytest.raises(ValueError, match=message):
        TableBatchedEmbeddingBags(TABLES, **options)


@pytest.mark.parametrize(
    ("name", "rows", "dim", "message"),
    [
        ("", 1, 1, "expected a name without dots"),
        ("a.b", 1, 1, "expected a name without dots"),
        ("t", -1, 1, "table 't' has -1 rows"),
        ("t", 1, 0, "table 't' has dim 0, expected 1 to 2048"),
        ("t", 1, 2049, "table 't' has dim 2049, expected 1 to 2048"),
        ("t", 1.5, 1, "table 't' has rows 1.5, expected an integer"),
        ("t", 1, True, "table 't' has dim True, expected an integer"),
    ],
)
def test_a_table_refuses(name, rows, dim, message):
    with pytest.raises(ValueError, match=message):
        TableSpec(name, rows, dim)


def test_tables_are_named_apart():
    with pytest.raises(ValueError, match="given more than once: t"):
        TableBatchedEmbeddingBags([TableSpec("t", 1, 1), TableSpec("t", 2, 1)])
    with pytest.raises(ValueError, match="no tables given"):
        TableBatchedEmbeddingBags([])


def test_tables_and_features_may_come_from_generators():
    module = TableBatchedEmbeddingBags(
        (TableSpec(name, 10, 4) for name in "ab"), feature_tables=iter("aba")
    )
    assert module.feature_tables == ("a", "b", "a")
    assert module(torch.arange(3), torch.arange(4)).shape == (1, 12)


def test_features_are_grouped_by_bucket_and_alignment():
    tables = [TableSpec("wide", 5, 16), TableSpec("wider", 6, 33), TableSpec("odd", 7, 1)]
    module = TableBatchedEmbeddingBags([*tables, TableSpec("widest", 8, 64)])
    # Output columns 0, 16, 49 and 50 of 114: whole vectors of 4 elements nowhere.
    assert module.layout[6:] == [16, 1, 2, 64, 1, 2]
    assert module.features[:, 0].tolist() == [0, 2, 1, 3]
    assert module.features[:, 5].tolist() == [0, 49, 16, 50]
    assert module.features[:, 7].tolist() == [0, 5, 12, 18]
    assert module.metadata.first_global_rows == [0, 12, 5, 18]


@pytest.mark.parametrize(
    ("dims", "dtype", "groups"),
    [
        ([16, 8, 64], torch.float32, [16, 2, 2, 64, 2, 1]),
        ([16, 8, 64], torch.float16, [16, 2, 2, 64, 2, 1]),
        ([16, 12, 4], torch.float32, [16, 2, 3]),
        # Dims, columns or the width are no whole vectors of 8.
        ([16, 12, 4], torch.float16, [16, 1, 2, 16, 2, 1]),
        ([16, 12], torch.bfloat16, [16, 1, 2]),
        ([16, 5, 11], torch.float32, [16, 1, 2, 16, 2, 1]),
        ([5, 16, 11], torch.float32, [16, 1, 3]),
        ([16, 5], torch.float32, [16, 1, 2]),
    ],
)
def test_gradients_of_whole_vectors(dims, dtype, groups):
    specs = [TableSpec(f"t{i}", 4, dim) for i, dim in enumerate(dims)]
    assert make_features(specs, None, dtype).layout[6:] == groups


def test_features_of_one_table_are_in_one_group():
    tables = [TableSpec("a", 3, 8), TableSpec("b", 5, 4), TableSpec("none", 7, 8)]
    tables += [TableSpec("c", 9, 3), TableSpec("d", 11, 5), TableSpec("empty", 0, 4)]
    # At columns 0, 8, 11, 16, 24, 28, 36 and 40 of 44.
    looked_up = ["a", "c", "d", "a", "b", "a", "empty", "b"]
    metadata = make_features(tables, looked_up)
    assert metadata.layout[:6] == [1, 8, 44, 3 * 8 + 5 * 4 + 7 * 8 + 9 * 4 + 11 * 8, 35, 11]
    assert metadata.layout[6:] == [16, 1, 2, 16, 2, 6]
    slots = metadata.features[:, [0, 6, 7]].tolist()
    assert slots == [
        [1, 3, 0],
        [2, 4, 9],
        [0, 0, 20],
        [3, 0, 20],
        [5, 0, 20],
        [4, 1, 23],
        [7, 1, 23],
        [6, 5, 28],
    ]
    assert metadata.first_global_rows == [20, 23, 28, 0, 9, 28]
    # One odd column of a table, and the whole table reads its gradients element by element.
    assert make_features(tables, ["a", "d", "a", "c"]).layout[6:] == [16, 1, 4]


def test_explain_names_every_launch():
    pytest.importorskip("tbe_aot._launcher")
    explanation = bags(bounds_check="none").explain(INDICES, OFFSETS)
    assert explanation.arch in {"sm90", "sm100"}
    assert len(explanation.launches) == len(explanation.reasons) == 1
    for launch in explanation.launches:
        assert launch.variant.startswith("forward__fp32_d16_i64_unweighted_")
        assert launch.variant in str(explanation)
    with pytest.raises(RuntimeError, match="per_sample_weights has 1 elements"):
        bags().explain(INDICES, OFFSETS, torch.ones(1))


def test_preload_on_a_cpu_loads_nothing():
    assert bags().preload() == []


SMALL_TABLE_KERNELS = ("forward_small_table", "sum_small_table", "update_small_table")


@pytest.mark.parametrize(
    ("rows", "dim", "dtype", "axes"),
    [
        (64, 128, torch.float16, {"bf16": ["fp16"], "bucket": ["d128"], "rows": ["e64"]}),
        (1, 64, torch.bfloat16, {"bf16": ["bf16"], "bucket": ["d64"], "rows": ["e64"]}),
        (65, 100, torch.float16, {"bf16": ["fp16"], "bucket": ["d128"], "rows": ["e256"]}),
        (64, 256, torch.float16, {"bf16": ["fp16"], "bucket": ["d256"], "rows": ["e64"]}),
        (257, 128, torch.float16, None),
        (64, 63, torch.float16, None),
        (64, 257, torch.float16, None),
        (64, 128, torch.float32, None),
    ],
)
def test_preload_knows_the_kernel_of_a_small_table(rows, dim, dtype, axes):
    pytest.importorskip("tbe_aot._launcher")
    tables = [TableSpec("a", rows, dim)]
    layout = TableBatchedEmbeddingBags(tables, weights_dtype=dtype).layout
    trusting = axes and axes | {"checked": ["trusting"]}
    assert kernels_of(dtype, layout, bounds_check=False).get("forward_small_table") == trusting
    before = kernels_of(dtype, layout, bounds_check=True, fused_checks="never")
    assert before.get("forward_small_table") == trusting
    checked = axes and axes | {"checked": ["trusting", "checked"]}
    assert kernels_of(dtype, layout, bounds_check=True).get("forward_small_table") == checked
    trained = kernels_of(dtype, layout, bounds_check=False, optimizer="sgd")
    updates = axes is not None and axes["rows"] == ["e64"] and axes["bucket"] != ["d256"]
    expected = {"weight_dtype": axes["bf16"], "bucket": axes["bucket"]} if updates else None
    optimizer = {"optimizer": ["rowwise"]}
    assert trained.get("update_small_table") == (expected and expected | optimizer)
    summing = {"gradient_dtype": ["fp32"], "bucket": axes["bucket"]} if updates else None
    assert trained.get("sum_small_table") == summing
    half = kernels_of(dtype, layout, bounds_check=False, optimizer="sgd", output_dtype=dtype)
    if updates:
        assert sorted(half["sum_small_table"]["gradient_dtype"]) == sorted({"fp32", *axes["bf16"]})
    two = TableBatchedEmbeddingBags([*tables, TableSpec("b", 4, dim)], weights_dtype=dtype).layout
    assert "forward_small_table" not in kernels_of(dtype, two, bounds_check=False)


@pytest.mark.parametrize("small_tables", ["auto", "never", "always"])
def test_small_tables_reaches_the_operator(small_tables):
    pytest.importorskip("tbe_aot._launcher")
    module = TableBatchedEmbeddingBags(
        [TableSpec("a", 10, 64)],
        weights_dtype=torch.float16,
        small_tables=small_tables,
        bounds_check="none",
        optimizer=SGD(),
    )
    indices, offsets = torch.randint(0, 10, (130,)), torch.tensor([0, 10, 130])
    (launch,) = module.explain(indices, offsets, arch="sm90").launches
    kernel = "forward" if small_tables == "never" else "forward_small_table"
    assert launch.variant.startswith(f"{kernel}__")
    launches = module.explain_backward(indices, offsets, arch="sm90").launches
    names = [launch.variant.partition("__")[0] for launch in launches]
    ours = ["sum_small_table", "update_small_table"]
    assert (names == ours) == (small_tables != "never")
    assert set(ours).isdisjoint(names) == (small_tables == "never")
    (launch,) = module.explain(indices[:10], torch.tensor([0, 10, 10]), arch="sm90").launches
    kernel = "forward_small_table" if small_tables == "always" else "forward"
    assert launch.variant.startswith(f"{kernel}__")
    expected = TableBatchedEmbeddingBags([TableSpec("a", 10, 64)], weights_dtype=torch.float16)
    expected.table("a").copy_(module.table("a"))
    assert torch.equal(module(indices, offsets), expected(indices, offsets))


def test_hoisted_lookups_of_a_small_table_are_explained_as_they_are_updated():
    pytest.importorskip("tbe_aot._launcher")
    module = TableBatchedEmbeddingBags(
        [TableSpec("a", 10, 64)],
        weights_dtype=torch.float16,
        hoist_transpose=True,
        optimizer=SGD(),
    )
    batch = torch.randint(0, 10, (130,)), torch.tensor([0, 10, 130])
    launches = module.explain_backward(*batch, arch="sm90").launches
    assert not any("small_table" in launch.variant for launch in launches)


def test_small_tables_is_one_of_three():
    with pytest.raises(ValueError, match="small_tables is 'often', expected one of"):
        TableBatchedEmbeddingBags([TableSpec("a", 10, 64)], small_tables="often")


@pytest.mark.parametrize("fused_long_runs", ["auto", "never", "always"])
def test_fused_long_runs_reaches_the_operator(fused_long_runs):
    pytest.importorskip("tbe_aot._launcher")
    module = TableBatchedEmbeddingBags(
        [TableSpec("a", 10, 64)], fused_long_runs=fused_long_runs, optimizer=SGD()
    )
    # 256 lookups a row on average.
    many, few = torch.randint(0, 10, (2560,)), torch.randint(0, 10, (2559,))
    for indices, one_launch in (
        (many, fused_long_runs == "always"),
        (few, fused_long_runs != "never"),
    ):
        offsets = torch.tensor([0, 10, indices.numel()])
        launches = module.explain_backward(indices, offsets, arch="sm90").launches
        names = {launch.variant.partition("__")[0] for launch in launches}
        assert ("sum_and_update_long_runs" in names) == one_launch
        assert ({"sum_chunks", "update_long_runs"} <= names) == (not one_launch)
        module(indices, offsets).sum().backward()


def test_fused_long_runs_is_one_of_three():
    with pytest.raises(ValueError, match="fused_long_runs is 'often', expected one of"):
        TableBatchedEmbeddingBags([TableSpec("a", 10, 64)], fused_long_runs="often")


@pytest.mark.parametrize(
    ("dims", "optimizer", "buckets"),
    [
        ((40, 300, 8, 128), "sgd", ["d64", "d128"]),
        ((256,), "rowwise_adagrad", ["d256"]),
        ((64,), "adam", None),
        ((32, 512), "sgd", None),
    ],
)
def test_preload_knows_the_kernel_of_long_runs(dims, optimizer, buckets):
    pytest.importorskip("tbe_aot._launcher")
    tables = [TableSpec(f"t{i}", 9, dim) for i, dim in enumerate(dims)]
    layout = TableBatchedEmbeddingBags(tables, weights_dtype=torch.float16).layout
    kernels = kernels_of(torch.float16, layout, bounds_check=False, optimizer=optimizer)
    expected = {"weight_dtype": ["fp16"], "gradient_dtype": ["fp32"], "bucket": buckets}
    assert kernels.get("sum_and_update_long_runs") == (expected if buckets else None)


@pytest.mark.parametrize("work_stealing", ["never", "always"])
def test_work_stealing_reaches_the_operator(work_stealing):
    pytest.importorskip("tbe_aot._launcher")
    tables = [TableSpec("a", 1000, 64), TableSpec("b", 1000, 256)]
    module = TableBatchedEmbeddingBags(
        tables, weights_dtype=torch.float16, work_stealing=work_stealing
    )
    indices, offsets = torch.randint(0, 1000, (8,)), torch.arange(9)
    for arch in ("sm90", "sm100"):
        explanation = module.explain(indices, offsets, arch=arch)
        kernels = [launch.variant.partition("__")[0] for launch in explanation.launches]
        steals = work_stealing == "always" and arch == "sm100"
        looked_up = ["forward", "forward_work_stealing" if steals else "forward"]
        # It checks no index itself: a launch before it does.
        checks = ["check_offsets", "repair_offsets", *(["check_indices"] if steals else [])]
        assert kernels == [*checks, *looked_up]
        assert ("no work stealing because" in str(explanation)) == (work_stealing == "always")
    expected = TableBatchedEmbeddingBags(tables, weights_dtype=torch.float16)
    expected.load_state_dict(module.state_dict())
    assert torch.equal(module(indices, offsets), expected(indices, offsets))


def test_work_stealing_is_one_of_two():
    with pytest.raises(ValueError, match="work_stealing is 'auto', expected one of"):
        TableBatchedEmbeddingBags([TableSpec("a", 10, 64)], work_stealing="auto")


@pytest.mark.parametrize(
    ("dims", "dtype", "axes"),
    [
        ((64, 128), torch.float16, {"bf16": ["fp16"], "bucket": ["d64", "d128"]}),
        ((5, 256), torch.bfloat16, {"bf16": ["bf16"], "bucket": ["d16"]}),
        ((256,), torch.float16, None),
        ((64,), torch.float32, None),
    ],
)
def test_preload_knows_the_kernel_of_work_stealing(dims, dtype, axes):
    pytest.importorskip("tbe_aot._launcher")
    tables = [TableSpec(f"t{dim}", 1000, dim) for dim in dims]
    layout = TableBatchedEmbeddingBags(tables, weights_dtype=dtype).layout
    asked = kernels_of(dtype, layout, bounds_check=False, work_stealing="always")
    assert asked.get("forward_work_stealing") == axes
    assert "forward_work_stealing" not in kernels_of(dtype, layout, bounds_check=False)


def test_preload_knows_the_kernels_of_lookups_and_of_training():
    native = pytest.importorskip("tbe_aot._launcher")
    layout = bags(weights_dtype=torch.float16).layout

    def names(**options: Any) -> set[str]:
        kernels = kernels_of(torch.float16, layout, **options)
        return {
            variant.name
            for kernel, axes in kernels.items()
            for variant in native.variants(kernel, "sm90")
            if all(
                set(variant.name.split("__")[1].split("_")) & set(labels)
                for labels in axes.values()
            )
        }

    looked_up = names(bounds_check=False)
    assert looked_up
    lookups = {name for name in looked_up if name.startswith("forward__fp16_d16_")}
    assert lookups
    assert all(name.endswith("_trusting") for name in lookups)
    # Whose weights may need a gradient, with an optimizer or without.
    others = looked_up - lookups
    assert others
    assert all(name.startswith("per_sample_weights_gradient__fp16_") for name in others)
    checked = names(bounds_check=True, fused_checks="never")
    assert {name.partition("__")[0] for name in checked - looked_up} == set(BOUNDS_KERNELS)
    fused = names(bounds_check=True)
    assert fused > checked
    assert all(name.endswith("_short_checked") for name in fused - checked)
    everything = {kernel.name for kernel in native.kernels()}
    for optimizer, traits in OPTIMIZERS.items():
        kernels = kernels_of(
            torch.float16, layout, bounds_check=True, optimizer=optimizer, work_stealing="always"
        )
        assert kernels.keys() == everything - {*SMALL_TABLE_KERNELS, "sum_and_update_long_runs"}
        assert kernels["update_short_runs"] == {
            "weight_dtype": ["fp16"],
            "gradient_dtype": ["fp32"],
            "bucket": ["d16"],
            "optimizer": [traits.kernel_formula],
        }
        assert kernels["find_runs"] == {"key_width": ["k32"]}
    half = kernels_of(
        torch.float16, layout, bounds_check=False, optimizer="sgd", output_dtype=torch.float16
    )
    assert sorted(half["sum_chunks"]["gradient_dtype"]) == ["fp16", "fp32"]
    many_rows = [*layout[:4], 2**31 - 1, *layout[5:]]
    wide = kernels_of(torch.float16, many_rows, bounds_check=False, optimizer="sgd")
    assert wide["sort_pass"] == {"key_width": ["k64"]}


def test_repr_shows_tables_and_options():
    assert "user[20, 16], item[30, 5]; 3 features, torch.float32 -> torch.float32" in repr(bags())


def test_fused_checks_is_one_of_three():
    with pytest.raises(ValueError, match="fused_checks is 'often', expected one of"):
        TableBatchedEmbeddingBags([TableSpec("a", 10, 64)], fused_checks="often")


@pytest.mark.parametrize("bounds_check", ["none", "ignore", "warning", "fatal"])
@pytest.mark.parametrize("fused_checks", ["auto", "never", "always"])
def test_fused_checks_reaches_the_operator(fused_checks, bounds_check):
    pytest.importorskip("tbe_aot._launcher")
    module = TableBatchedEmbeddingBags(
        [TableSpec("a", 1000, 64)], fused_checks=fused_checks, bounds_check=bounds_check
    )
    for lookups, is_short in ((10, True), (500, False)):
        offsets = torch.linspace(0, lookups, 11).long()
        explanation = module.explain(torch.arange(lookups), offsets, arch="sm90")
        names = [launch.variant for launch in explanation.launches]
        if bounds_check in {"none", "fatal"}:
            assert len(names) == 1
            assert names[0].endswith("_trusting")
            continue
        fused = fused_checks == "always" or (fused_checks == "auto" and is_short)
        kernels = [name.partition("__")[0] for name in names]
        assert kernels[:2] == ["check_offsets", "repair_offsets"]
        assert ("check_indices" in kernels) == (not fused)
        assert names[-1].endswith("_short_checked") == fused
