"""Lookups with a bounds check, in the lookup and before it: equal results, counts and updates, in every mode."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tbe_aot
from tests import oracle
from tests.gpu import installed
from tests.gpu.bounds import DAMAGES, ROWS, WIDTHS, check, make
from tests.gpu.samples import lookup_for
from tests.gpu.support import DTYPES, TOLERANCE, Lookup, make_lookup, make_tables, worst_error

WAYS = ["auto", "never", "always"]
Damage = Callable[[torch.Tensor, torch.Tensor], None]


def draw(
    device: torch.device, index_dtype: torch.dtype, *, vbe: bool = False, short: bool = True
) -> Lookup:
    """Features on three tables of fp16, in bags of few or of many lookups."""
    tables = make_tables(ROWS, (16, 8, 32), torch.float16, device)
    batch_sizes = [[40, 3], [0, 11], [5, 0]] if vbe else None
    bags = 59 if vbe else 120
    longest = 3 if short else 90
    lengths = torch.randint(0, longest, (bags,), generator=torch.Generator().manual_seed(1))
    return make_lookup(
        tables,
        (0, 1, 2),
        installed.buckets(),
        lengths,
        index_dtype=index_dtype,
        batch_sizes=batch_sizes,
        pruned=0.1,
    )


def draw_small(device: torch.device, index_dtype: torch.dtype) -> Lookup:
    """A small table by long bags."""
    tables = make_tables((40,), (72,), torch.float16, device)
    lengths = torch.randint(0, 300, (100,), generator=torch.Generator().manual_seed(2))
    return make_lookup(
        tables, (0,), installed.buckets(), lengths, index_dtype=index_dtype, pruned=0.1
    )


def expect_equal_ways(lookup: Lookup, pooling: str, **options: Any) -> list[torch.Tensor]:
    """Run each way, compare result, offsets, count and the caller's tensors; the results."""
    device = lookup.indices.device
    before = lookup.indices.clone(), lookup.offsets.clone()
    count = torch.zeros(1, dtype=torch.int64, device=device)
    indices, offsets = check(lookup, "warning", count)
    results = []
    for way in WAYS:
        counted = torch.full((1,), 5, dtype=torch.int64, device=device)
        pooled, checked = lookup.run_checked(
            pooling, invalid_count=counted, fused_checks=way, **options
        )
        assert torch.equal(checked, offsets)
        assert counted.item() == 5 + count.item()
        results.append(pooled)
        ignored, checked = lookup.run_checked(
            pooling, invalid_count=counted, fused_checks=way, bounds_mode="ignore", **options
        )
        assert torch.equal(ignored, pooled)
        assert counted.item() == 5 + count.item()
    assert torch.equal(lookup.indices, before[0])
    assert torch.equal(lookup.offsets, before[1])
    arguments = lookup.arguments(pooling)
    arguments[3:5] = [indices, offsets]
    assert torch.equal(results[1], torch.ops.tbe_aot.forward(*arguments, **options))
    return results


@pytest.mark.parametrize("pooling", ["sum", "mean"])
@pytest.mark.parametrize("vbe", [False, True], ids=["batch", "vbe"])
@pytest.mark.parametrize("index_dtype", WIDTHS, ids=str)
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda f: f.__name__)
def test_short_bags(damage: Damage, index_dtype, vbe, pooling, cuda):
    lookup = draw(cuda, index_dtype, vbe=vbe)
    damage(lookup.indices, lookup.offsets)
    auto, never, always = expect_equal_ways(lookup, pooling)
    assert torch.equal(auto, never)
    assert torch.equal(always, never)


@pytest.mark.parametrize("index_dtype", WIDTHS, ids=str)
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda f: f.__name__)
def test_long_bags(damage: Damage, index_dtype, cuda):
    lookup = draw(cuda, index_dtype, short=False)
    damage(lookup.indices, lookup.offsets)
    auto, never, always = expect_equal_ways(lookup, "sum")
    assert torch.equal(auto, never)
    torch.testing.assert_close(always, never, rtol=1e-5, atol=1e-2)


@pytest.mark.parametrize("index_dtype", WIDTHS, ids=str)
@pytest.mark.parametrize("damage", DAMAGES[:4], ids=lambda f: f.__name__)
def test_small_tables(damage: Damage, index_dtype, cuda):
    lookup = draw_small(cuda, index_dtype)
    damage(lookup.indices, lookup.offsets)
    if index_dtype == torch.int64 and damage is not DAMAGES[0]:
        # Rows of the table, by their low words.
        lookup.indices[1], lookup.indices[5] = 2**32, 2**32 + 3
    auto, never, always = expect_equal_ways(lookup, "mean", small_tables="always")
    assert torch.equal(auto, never)
    assert torch.equal(always, never)


def test_every_checked_variant_repairs_and_counts(cuda):
    """All that the build holds; tests/gpu/test_forward_variants.py compares them with float64 where nothing is bad."""
    variants = [installed.Variant.of(entry) for entry in installed.built_variants("forward")]
    checked = [variant for variant in variants if variant.checked]
    assert checked
    for number, variant in enumerate(checked):
        lookup = lookup_for(variant, number, cuda, odd=number % 2 == 1)
        good = lookup.indices.clone()
        bad = torch.zeros_like(good, dtype=torch.bool)
        bad[::5] = True
        strange = torch.where(torch.arange(good.numel(), device=cuda) % 2 == 0, 2**31 - 1, -2)
        repaired = lookup_for(variant, number, cuda, odd=number % 2 == 1)
        repaired.indices.copy_(torch.where(bad, 0, good))
        lookup.indices.copy_(torch.where(bad, strange.to(good.dtype), good))
        count = torch.zeros(1, dtype=torch.int64, device=cuda)
        for pooling, output_dtype in itertools.product(("sum", "mean"), DTYPES.values()):
            pooled, _ = lookup.run_checked(pooling, output_dtype, invalid_count=count)
            assert worst_error(pooled, repaired, pooling) <= TOLERANCE[output_dtype], variant.name
        assert count.item() == 6 * int(bad.sum()), variant.name
        assert variant.name in installed.loaded(cuda)


# --- Modules ----------------------------------------------------------------------------------------

BAGS = [[20, 3], [0, 11], [5, 0]]


def modules(
    device: torch.device, mode: str, way: str, *, small: bool
) -> list[tbe_aot.TableBatchedEmbeddingBags]:
    """Trained modules with equal tables: one that checks, one that trusts."""
    rows = (40,) if small else ROWS
    tables = [tbe_aot.TableSpec(f"t{t}", count, 64) for t, count in enumerate(rows)]
    options: dict[str, Any] = {
        "weights_dtype": torch.float16,
        "optimizer": tbe_aot.RowwiseAdagrad(lr=0.5),
        "small_tables": "always" if small else "never",
        "device": device,
    }
    first = tbe_aot.TableBatchedEmbeddingBags(
        tables, bounds_check=mode, fused_checks=way, **options
    )
    second = tbe_aot.TableBatchedEmbeddingBags(tables, bounds_check="none", **options)
    second.load_state_dict(first.state_dict())
    return [first, second]


def same(
    first: tbe_aot.TableBatchedEmbeddingBags, second: tbe_aot.TableBatchedEmbeddingBags
) -> bool:
    return torch.equal(first.weights, second.weights) and torch.equal(
        first.get_buffer("momentum1"), second.get_buffer("momentum1")
    )


@pytest.mark.parametrize("kind", ["batch", "vbe", "small"])
@pytest.mark.parametrize("index_dtype", WIDTHS, ids=str)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mode", ["none", "ignore", "warning", "fatal"])
@pytest.mark.parametrize("damage", DAMAGES[:4], ids=lambda f: f.__name__)
def test_cases_23_to_26_of_a_trained_module(damage: Damage, mode, way, index_dtype, kind, cuda):
    """torchrec 575, FBGEMM 3979 and FBGEMM's bounds tests, with -1 in the middle of bags."""
    module, expected = modules(cuda, mode, way, small=kind == "small")
    sizes = BAGS if kind == "vbe" else None
    counts = [sum(sizes) for sizes in BAGS] if kind == "vbe" else [30] * len(module.table_specs)
    rows = [table.rows for table in module.table_specs]
    generator = torch.Generator().manual_seed(4)
    lengths = torch.randint(0, 6, (sum(counts),), generator=generator)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    indices = torch.randint(-1, 7, (int(offsets[-1]),), generator=generator)
    # Without a check the caller is trusted: that would be no test but an access to any memory.
    if damage is not DAMAGES[0] and mode != "none":
        damage(indices, offsets)
        indices[3] = rows[0]
    repaired = oracle.check_bounds(indices, offsets, rows, counts)
    is_bad = bool(repaired.invalid_indices or repaired.invalid_offsets)
    given = [tensor.to(index_dtype).to(cuda) for tensor in (indices, offsets)]
    right = [tensor.to(index_dtype).to(cuda) for tensor in (repaired.indices, repaired.offsets)]
    if is_bad and mode == "fatal":
        with pytest.raises(RuntimeError, match="expected"):
            module(*given, None, sizes)
        # The context lives, and nothing was updated.
        torch.cuda.synchronize()
        assert same(module, expected)
        assert module.invalid_index_count() == repaired.invalid_indices
        given = right
    before = [tensor.clone() for tensor in given]
    pooled, wanted = module(*given, None, sizes), expected(*right, None, sizes)
    assert torch.equal(pooled, wanted)
    gradient = torch.linspace(-1, 1, pooled.numel(), device=cuda).view(pooled.shape)
    pooled.backward(gradient)
    wanted.backward(gradient)
    assert same(module, expected)
    assert all(torch.equal(a, b) for a, b in zip(given, before, strict=True))
    counted = repaired.invalid_indices if mode in {"warning", "fatal"} else 0
    assert module.invalid_index_count() == counted


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["batch", "small"])
def test_a_captured_training_step_checks_each_replay(way, kind, cuda):
    module, expected = modules(cuda, "warning", way, small=kind == "small")
    rows = module.table_specs[0].rows
    offsets = torch.arange(31 if kind == "batch" else 21, device=cuda) * 2
    indices = torch.randint(0, 7, (int(offsets[-1]),), device=cuda)
    module.preload()
    gradient = torch.ones(
        (offsets.numel() - 1) // len(module.table_specs), 64 * len(module.table_specs), device=cuda
    )
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # torch's own first use of autograd on a stream
        module(indices, offsets).backward(gradient)
        expected(indices, offsets).backward(gradient)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        module(indices, offsets).backward(gradient)
    indices[5], indices[6] = rows, -9
    good = indices.clone()
    good[5:7] = 0
    for replay in (1, 2):
        graph.replay()
        expected(good, offsets).backward(gradient)
        torch.cuda.synchronize()
        assert same(module, expected)
        assert module.invalid_index_count() == 2 * replay


def test_fatal_raises_inside_a_capture(cuda):
    module, expected = modules(cuda, "fatal", "always", small=False)
    offsets = torch.arange(31, device=cuda)
    indices = torch.zeros(30, dtype=torch.int64, device=cuda)
    module(indices, offsets)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="captur"), torch.cuda.graph(graph):
        module(indices, offsets)
    torch.cuda.synchronize()
    assert same(module, expected)
    assert torch.equal(module(indices, offsets), expected(indices, offsets))


@pytest.mark.parametrize("way", WAYS)
def test_nothing_waits_for_the_device(way, cuda):
    lookup = draw(cuda, torch.int64)
    count = torch.zeros(1, dtype=torch.int64, device=cuda)
    lookup.run_checked(invalid_count=count, fused_checks=way)
    torch.cuda.set_sync_debug_mode("error")
    try:
        lookup.run_checked(invalid_count=count, fused_checks=way)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("way", WAYS)
def test_a_busy_device_reads_no_offset_too_early(way, cuda):
    """Launches start beside those whose copies they read: with stale memory behind the copies it shows who did not wait."""
    lookup = draw(cuda, torch.int64)
    lookup.offsets[7] = -3
    lookup.indices[::3] = 1000
    wanted, offsets = lookup.run_checked(fused_checks=way)
    for _ in range(200):
        poison = [torch.full_like(lookup.offsets, 2**40) for _ in range(4)]
        poison += [torch.full_like(lookup.indices, 2**40) for _ in range(4)]
        del poison
        pooled, checked = lookup.run_checked(fused_checks=way)
        assert torch.equal(pooled, wanted)
        assert torch.equal(checked, offsets)


def test_no_bags_and_no_lookups(cuda):
    lookup = make(cuda, torch.int64)
    none = torch.zeros(0, dtype=torch.int64, device=cuda)
    metadata = (lookup.tables.weights, lookup.features, lookup.layout)
    pooled, offsets = torch.ops.tbe_aot.forward_checked(
        *metadata, none, torch.tensor([5], device=cuda)
    )
    assert pooled.shape == (0, lookup.layout[2])
    assert offsets.tolist() == [0]
    pooled, offsets = torch.ops.tbe_aot.forward_checked(
        *metadata, none, torch.full((7,), 3, device=cuda)
    )
    assert not pooled.any()
    assert offsets.tolist() == [0] * 7
