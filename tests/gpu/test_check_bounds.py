"""The bounds-check kernels against the oracle and the CPU operator, on good and on bad lookups."""

from __future__ import annotations

import pytest
import torch

from tests import oracle
from tests.gpu import installed
from tests.gpu.bounds import DAMAGES, ROWS, WIDTHS, check, make
from tests.gpu.support import make_lookup, make_tables


@pytest.mark.parametrize("vbe", [False, True], ids=["batch", "vbe"])
@pytest.mark.parametrize("index_dtype", WIDTHS, ids=str)
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("mode", ["ignore", "warning"])
def test_repairs_copies_as_the_oracle_does(mode, damage, index_dtype, vbe, cuda):
    lookup = make(cuda, index_dtype, vbe=vbe)
    damage(lookup.indices, lookup.offsets)
    indices, offsets = lookup.indices.clone(), lookup.offsets.clone()
    count = torch.full((1,), 5, dtype=torch.int64, device=cuda)
    checked_indices, checked_offsets = check(lookup, mode, count if mode == "warning" else None)
    expected = oracle.check_bounds(indices.cpu(), offsets.cpu(), ROWS, lookup.bag_counts)
    assert torch.equal(checked_offsets.cpu(), expected.offsets)
    assert torch.equal(checked_indices.cpu(), expected.indices)
    if mode == "warning":
        assert count.item() == 5 + expected.invalid_indices
    # The caller's tensors are never written, and the copies share no memory with them.
    assert torch.equal(lookup.indices, indices)
    assert torch.equal(lookup.offsets, offsets)
    assert checked_indices.data_ptr() != lookup.indices.data_ptr()
    assert checked_offsets.data_ptr() != lookup.offsets.data_ptr()


@pytest.mark.parametrize("index_dtype", WIDTHS, ids=str)
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda f: f.__name__)
def test_equals_the_cpu_operator(damage, index_dtype, cuda):
    lookup = make(cuda, index_dtype)
    damage(lookup.indices, lookup.offsets)
    count, cpu_count = (
        torch.zeros(1, dtype=torch.int64, device=cuda),
        torch.zeros(1, dtype=torch.int64),
    )
    on_gpu = check(lookup, "warning", count)
    on_cpu = torch.ops.tbe_aot.check_bounds(
        lookup.indices.cpu(),
        lookup.offsets.cpu(),
        lookup.features.cpu(),
        lookup.layout,
        "warning",
        cpu_count,
    )
    assert torch.equal(on_gpu[0].cpu(), on_cpu[0])
    assert torch.equal(on_gpu[1].cpu(), on_cpu[1])
    assert count.item() == cpu_count.item()


def test_many_lookups_are_all_checked(cuda):
    """More lookups and offsets than one block of any of the kernels handles."""
    tables = make_tables((1000, 50), (4, 4), torch.float32, cuda)
    lengths = torch.randint(0, 21, (60_000,), generator=torch.Generator().manual_seed(3))
    lookup = make_lookup(tables, (0, 1), installed.buckets(), lengths)
    lookup.indices[::7] = 1001
    expected = lookup.indices.clone()
    expected[::7] = 0
    count = torch.zeros(1, dtype=torch.int64, device=cuda)
    indices, offsets = check(lookup, "warning", count)
    assert torch.equal(indices, expected)
    assert torch.equal(offsets, lookup.offsets)
    assert count.item() == -(-lookup.indices.numel() // 7)
    lookup.offsets[1000::1000] = -1
    _, offsets = check(lookup, "ignore")
    steps = torch.diff(offsets)
    assert steps.min() >= 0
    assert (offsets[0].item(), offsets[-1].item()) == (0, indices.numel())


def test_a_table_without_rows_gives_pruned_rows(cuda):
    tables = make_tables((0, 5), (16, 16), torch.float32, cuda)
    lookup = make_lookup(tables, (0, 1), installed.buckets(), torch.tensor([2, 1, 2, 0]))
    lookup.indices.copy_(torch.tensor([0, 3, -1, 4, 5]))
    indices, _ = check(lookup, "ignore")
    assert indices.tolist() == [-1, -1, -1, 4, 0]


@pytest.mark.parametrize("index_dtype", WIDTHS, ids=str)
def test_nothing_to_look_up(index_dtype, cuda):
    tables = make_tables((4,), (16,), torch.float32, cuda)
    lookup = make_lookup(
        tables,
        (0,),
        installed.buckets(),
        torch.zeros(3, dtype=torch.int64),
        index_dtype=index_dtype,
    )
    indices, offsets = check(lookup, "warning")
    assert indices.numel() == 0
    assert offsets.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("mode", ["none", "ignore", "warning", "fatal"])
def test_no_bags(mode, cuda):
    """torchrec 2773, FBGEMM 3750."""
    tables = make_tables((4, 5), (16, 16), torch.float32, cuda)
    none = torch.zeros(0, dtype=torch.int64)
    lookup = make_lookup(tables, (0, 1), installed.buckets(), none)
    indices, offsets = check(lookup, mode)
    assert indices.numel() == 0
    assert offsets.tolist() == [0]


@pytest.mark.parametrize("offset_dtype", WIDTHS, ids=str)
@pytest.mark.parametrize("index_dtype", WIDTHS, ids=str)
def test_offsets_of_the_other_width(index_dtype, offset_dtype, cuda):
    """torchrec 2263, FBGEMM 1969: the copies have the width of the indices."""
    lookup = make(cuda, index_dtype)
    lookup.indices[0] = 1000
    offsets = lookup.offsets.to(offset_dtype)
    metadata = (lookup.features, lookup.layout)
    checked = torch.ops.tbe_aot.check_bounds(lookup.indices, offsets, *metadata, "warning")
    assert [tensor.dtype for tensor in checked] == [index_dtype, index_dtype]
    assert checked[0].tolist() == [0, *lookup.indices[1:].tolist()]
    assert torch.equal(checked[1], lookup.offsets)


@pytest.mark.parametrize("name", ["indices", "offsets", "invalid_count", "vbe_bag_offsets"])
def test_a_cpu_tensor_beside_cuda_features_is_named(name, cuda):
    """torchrec 995."""
    lookup = make(cuda, torch.int64, vbe=True)
    assert lookup.vbe is not None
    tensors = {
        "indices": lookup.indices,
        "offsets": lookup.offsets,
        "invalid_count": torch.zeros(1, dtype=torch.int64, device=cuda),
        "vbe_bag_offsets": lookup.vbe.bag_offsets,
    }
    tensors[name] = tensors[name].cpu()
    indices, offsets, count, bag_offsets = tensors.values()
    message = f"{name} is on cpu, expected {cuda}, the device of features"
    with pytest.raises(RuntimeError, match=f"tbe_aot::check_bounds: {message}"):
        torch.ops.tbe_aot.check_bounds(
            indices, offsets, lookup.features, lookup.layout, "warning", count, bag_offsets
        )


@pytest.mark.parametrize("index_dtype", WIDTHS, ids=str)
def test_fatal_names_the_first_bad_index_and_leaves_the_context_usable(index_dtype, cuda):
    """torchrec 575: a catchable error, not a device-side assertion."""
    lookup = make(cuda, index_dtype)
    bag = next(b for b in range(41, 80) if lookup.ends[b + 1] > lookup.ends[b])
    lookup.indices[lookup.ends[bag]] = 23
    lookup.indices[-1] = -9
    with pytest.raises(RuntimeError) as raised:
        check(lookup, "fatal")
    message = str(raised.value)
    for part in ("feature 1", f"bag {bag - 40}", "23"):
        assert part in message
    lookup.indices[lookup.ends[bag]] = 22
    lookup.indices[-1] = 0
    indices, offsets = check(lookup, "fatal")
    assert torch.equal(indices, lookup.indices)
    assert torch.equal(offsets, lookup.offsets)


def test_fatal_names_bad_offsets(cuda):
    lookup = make(cuda, torch.int64)
    lookup.offsets[7] = -3
    with pytest.raises(RuntimeError, match=r"offsets.*7|7.*offsets"):
        check(lookup, "fatal")


def test_fatal_in_a_capture_raises_at_once(cuda):
    lookup = make(cuda, torch.int64)
    check(lookup, "warning")
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="captur"), torch.cuda.graph(graph):
        check(lookup, "fatal")
    torch.cuda.synchronize()
    assert torch.equal(check(lookup, "ignore")[0], lookup.indices)


@pytest.mark.parametrize("index_dtype", WIDTHS, ids=str)
def test_capture_and_replay(index_dtype, cuda):
    """A captured check sees the indices of the replay, and counts them again."""
    lookup = make(cuda, index_dtype)
    count = torch.zeros(1, dtype=torch.int64, device=cuda)
    check(lookup, "warning", count)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        indices, offsets = check(lookup, "warning", count)
    unharmed = lookup.offsets.clone()
    lookup.indices[0] = 10_000
    lookup.offsets[-1] += 100
    for replay in (1, 2):
        graph.replay()
        torch.cuda.synchronize()
        assert count.item() == replay
        assert indices[0].item() == 0
        assert torch.equal(offsets, unharmed)


def test_none_gives_clones(cuda):
    lookup = make(cuda, torch.int64)
    lookup.indices[0] = 10_000
    indices, offsets = check(lookup, "none")
    assert torch.equal(indices, lookup.indices)
    assert torch.equal(offsets, lookup.offsets)
    assert indices.data_ptr() != lookup.indices.data_ptr()


def test_ignore_and_warning_do_not_synchronise(cuda):
    lookup = make(cuda, torch.int64)
    count = torch.zeros(1, dtype=torch.int64, device=cuda)
    check(lookup, "warning", count)
    torch.cuda.set_sync_debug_mode("error")
    try:
        check(lookup, "warning", count)
        check(lookup, "ignore")
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_every_variant_of_the_checks_was_run(cuda):
    """Both index widths of every kernel but the forward; this test runs what the others of this file may not have."""
    for index_dtype in WIDTHS:
        lookup = make(cuda, index_dtype)
        lookup.offsets[-1] += 1
        check(lookup, "warning")
    names = {
        entry["name"]
        for kernel in ("check_offsets", "repair_offsets", "check_indices")
        for entry in installed.built_variants(kernel)
    }
    assert len(names) == 6
    assert names <= installed.loaded(cuda)
