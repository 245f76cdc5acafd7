"""The operators under opcheck, torch.export, torch.compile and AOTInductor, with dynamic numbers of lookups and bags."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
import torch.fx.experimental._config as symbolic_shapes_config
from torch.export import Dim

from tbe_aot import TableBatchedEmbeddingBags, TableSpec
from tests.operators.support import Lookup, make_lookup

TABLES = [TableSpec("user", 20, 16), TableSpec("item", 30, 5)]
OPCHECKS = (
    "test_schema",
    "test_autograd_registration",
    "test_faketensor",
    "test_aot_dispatch_dynamic",
)


def batch(bags: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """(indices, offsets) of ``bags`` bags for each of three features, on tables of 20 rows or more."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 4, (3 * bags,), generator=generator)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    return torch.randint(0, 20, (int(offsets[-1]),), generator=generator), offsets


def module(**options: object) -> TableBatchedEmbeddingBags:
    return TableBatchedEmbeddingBags(
        TABLES,
        feature_tables=["user", "item", "user"],
        **options,  # type: ignore[arg-type]
    ).eval()


NO_LOOKUPS = (torch.empty(0, dtype=torch.int64), torch.zeros(13, dtype=torch.int64))
BATCHES = [batch(4), batch(2, 1), batch(9, 2), NO_LOOKUPS]
# Sizes that torch specialises, unless it is told not to.
SMALL_BATCHES = [batch(1), batch(0)]


def export(bags: torch.nn.Module) -> torch.export.ExportedProgram:
    """Export for any number of lookups and bags, 0 and 1 included."""
    dynamic = {"indices": {0: Dim.AUTO}, "offsets": {0: Dim.AUTO}}
    with symbolic_shapes_config.patch(backed_size_oblivious=True):  # type: ignore[attr-defined]
        return torch.export.export(bags, BATCHES[0], dynamic_shapes=dynamic)


@pytest.mark.parametrize("vbe", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_fbgemm_3240_3755_3368_opcheck_forward(weighted, vbe):
    sizes = [[1, 1], [2, 0]] if vbe else None
    lookup = make_lookup([8, 5], [9, 9], [1, 2, 0, 3], weighted=weighted, batch_sizes=sizes)
    args = [arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in lookup.arguments()]
    torch.library.opcheck(torch.ops.tbe_aot.forward.default, tuple(args), test_utils=OPCHECKS)


@pytest.mark.parametrize("mode", ["none", "ignore", "warning", "fatal"])
@pytest.mark.parametrize(("counted", "vbe"), list(itertools.product([False, True], repeat=2)))
def test_fbgemm_3240_3755_3368_opcheck_check_bounds(counted, vbe, mode):
    sizes = [[1, 1], [2, 0]] if vbe else None
    lookup = make_lookup([8, 5], [9, 9], [1, 2, 0, 3], batch_sizes=sizes)
    args = (
        lookup.indices,
        lookup.offsets,
        lookup.metadata.features.clone(),
        lookup.metadata.layout,
        mode,
        torch.zeros(1, dtype=torch.int64) if counted else None,
        torch.tensor([0, 2, 4]) if vbe else None,
    )
    torch.library.opcheck(torch.ops.tbe_aot.check_bounds.default, args, test_utils=OPCHECKS)


class Operator(torch.nn.Module):
    """The forward operator alone, with every dynamic input."""

    def __init__(self, lookup: Lookup) -> None:
        super().__init__()
        self.register_buffer("weights", lookup.weights)
        self.register_buffer("features", lookup.metadata.features)
        self.layout = lookup.metadata.layout

    def forward(self, indices, offsets, per_sample_weights):
        return torch.ops.tbe_aot.forward(
            self.weights, self.features, self.layout, indices, offsets, per_sample_weights, "mean"
        )


def test_export_names_the_dims_of_a_dynamic_batch(tmp_path):
    first = make_lookup([8, 5], [9, 9], [1, 2, 0, 3], weighted=True)
    lookups, bags = Dim("lookups"), Dim("bags")
    exported = torch.export.export(
        Operator(first),
        (first.indices, first.offsets, first.per_sample_weights),
        dynamic_shapes={
            "indices": {0: lookups},
            "offsets": {0: 2 * bags + 1},
            "per_sample_weights": {0: lookups},
        },
    )
    torch.export.save(exported, tmp_path / "lookup.pt2")
    loaded = torch.export.load(tmp_path / "lookup.pt2").module()
    other = make_lookup([8, 5], [9, 9], [2, 2, 2, 0, 1, 4, 5, 0], weighted=True)
    args = (other.indices, other.offsets, other.per_sample_weights)
    assert torch.equal(loaded(*args), Operator(other)(*args))
    with pytest.raises(AssertionError, match="Guard failed"):
        loaded(other.indices, other.offsets[:-1], other.per_sample_weights)


@pytest.mark.parametrize("bounds_check", ["none", "warning", "fatal"])
def test_export_saved_and_loaded(bounds_check, tmp_path):
    bags = module(bounds_check=bounds_check, output_dtype=torch.float16)
    torch.export.save(export(bags), tmp_path / "bags.pt2")
    loaded = torch.export.load(tmp_path / "bags.pt2").module()
    for inputs in BATCHES + SMALL_BATCHES:
        assert torch.equal(loaded(*inputs), bags(*inputs))


def test_decompositions_keep_the_operators():
    # It counts, so torch calls it by way of an operator of its own.
    checked = [
        str(node.args[0])
        for node in export(module()).run_decompositions().graph.nodes
        if "auto_functionalized" in str(node.target)
    ]
    assert checked == ["tbe_aot.forward_checked.default"]
    unchecked = export(module(bounds_check="none")).run_decompositions().graph.nodes
    assert "tbe_aot.forward.default" in [str(node.target) for node in unchecked]


def test_export_of_a_variable_batch():
    bags = module()
    sizes = [[1, 1], [2, 0], [0, 3]]
    indices, offsets = torch.arange(7), torch.arange(8)
    exported = torch.export.export(bags, (indices, offsets, None, sizes))
    loaded = exported.module()
    assert torch.equal(loaded(indices, offsets, None, sizes), bags(indices, offsets, None, sizes))


@pytest.mark.parametrize("weighted", [False, True])
def test_compile_without_graph_break_or_recompilation(weighted):
    bags = module()
    torch._dynamo.reset()
    compiled = torch.compile(bags, fullgraph=True, dynamic=True)

    def verify(indices: torch.Tensor, offsets: torch.Tensor) -> None:
        sample_weights = torch.rand(indices.numel()) if weighted else None
        torch.testing.assert_close(
            compiled(indices, offsets, sample_weights), bags(indices, offsets, sample_weights)
        )

    with torch._dynamo.config.patch(error_on_recompile=True):
        for inputs in (batch(4), batch(2, 1), batch(9, 2)):
            verify(*inputs)
    # torch compiles sizes 0 and 1 anew.
    for inputs in [NO_LOOKUPS, *SMALL_BATCHES]:
        verify(*inputs)


def test_compile_counts_invalid_indices_as_eager_does():
    bags = module()
    torch._dynamo.reset()
    compiled = torch.compile(bags, fullgraph=True)
    indices, offsets = BATCHES[0]
    indices = indices.clone()
    indices[0] = 1000
    compiled(indices, offsets)
    assert bags.invalid_index_count() == 1


def test_compile_inside_a_model_whose_lookups_are_data_dependent():
    bags = module()

    def select(indices: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        kept = indices[indices < 10]
        pooled: torch.Tensor = bags(kept, offsets.clamp(max=kept.numel()))
        return pooled

    torch._dynamo.reset()
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(select, fullgraph=True, dynamic=True)
        torch.testing.assert_close(compiled(*BATCHES[2]), select(*BATCHES[2]))


def test_a_refusal_reaches_the_user_of_a_compiled_module():
    bags = module()
    torch._dynamo.reset()
    compiled = torch.compile(bags, fullgraph=True)
    with pytest.raises(Exception, match=r"offsets has 5 elements, expected T\*B\+1 with T = 3"):
        compiled(torch.arange(4), torch.arange(5))


@pytest.mark.slow
def test_aot_inductor_package(tmp_path: Path):
    bags = module()
    with torch.no_grad():
        package = torch._inductor.aoti_compile_and_package(
            export(bags), package_path=str(tmp_path / "bags.pt2")
        )
        loaded = torch._inductor.aoti_load_package(package)
        for inputs in BATCHES + SMALL_BATCHES:
            torch.testing.assert_close(loaded(*inputs), bags(*inputs))


def test_fakes_know_shapes_and_dtypes():
    lookup = make_lookup([8, 5], [9, 9], [1, 2, 0, 3], batch_sizes=[[1, 1], [2, 0]])
    for output_dtype in (torch.float32, torch.float16, torch.bfloat16):
        real = lookup.forward(output_dtype=output_dtype)
        with torch._subclasses.FakeTensorMode() as mode:
            args = [
                mode.from_tensor(arg) if isinstance(arg, torch.Tensor) else arg
                for arg in lookup.arguments(output_dtype=output_dtype)
            ]
            traced = torch.ops.tbe_aot.forward(*args)
        assert (traced.shape, traced.dtype) == (real.shape, real.dtype)
    meta = [arg.to("meta") if isinstance(arg, torch.Tensor) else arg for arg in lookup.arguments()]
    assert torch.ops.tbe_aot.forward(*meta).is_meta
