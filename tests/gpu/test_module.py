"""The module on a CUDA device."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tbe_aot
from tests.gpu import installed

TABLES = [
    tbe_aot.TableSpec("user", 1000, 64),
    tbe_aot.TableSpec("item", 500, 33),
    tbe_aot.TableSpec("shop", 7, 128),
]
FEATURES = ["item", "user", "item", "shop"]


def bags(device: torch.device, **options: Any) -> tbe_aot.TableBatchedEmbeddingBags:
    return tbe_aot.TableBatchedEmbeddingBags(
        TABLES, feature_tables=FEATURES, device=device, **options
    )


def lookups(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(0, 9, (len(FEATURES) * 50,), generator=generator)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    indices = torch.randint(0, 7, (int(offsets[-1]),), generator=generator)
    return indices.to(device), offsets.to(device)


@pytest.mark.parametrize("weights_dtype", [torch.float32, torch.bfloat16], ids=str)
def test_equals_embedding_bags(weights_dtype, cuda):
    module = bags(cuda, weights_dtype=weights_dtype, pooling="mean")
    indices, offsets = lookups(cuda)
    parts = []
    for feature, table in enumerate(FEATURES):
        mine = offsets[feature * 50 : feature * 50 + 51]
        parts.append(
            torch.nn.functional.embedding_bag(
                indices[mine[0] : mine[-1]],
                module.table(table).float(),
                mine - mine[0],
                mode="mean",
                include_last_offset=True,
            )
        )
    torch.testing.assert_close(
        module(indices, offsets), torch.cat(parts, dim=1), rtol=1e-5, atol=1e-5
    )


def test_moves_between_devices(cuda):
    module = bags(torch.device("cpu"), weights_dtype=torch.float16)
    indices, offsets = lookups(torch.device("cpu"))
    expected = module(indices, offsets)
    module.to(cuda)
    output = module(indices.to(cuda), offsets.to(cuda))
    torch.testing.assert_close(output.cpu(), expected, rtol=1e-5, atol=1e-5)
    module.half().float()
    output = module(indices.to(cuda), offsets.to(cuda))
    torch.testing.assert_close(output.cpu(), expected, rtol=1e-5, atol=1e-5)


def test_counts_invalid_indices_by_default(cuda):
    module = bags(cuda)
    indices, offsets = lookups(cuda)
    indices[:3] = 10_000
    module(indices, offsets)
    assert module.invalid_index_count() == 3


@pytest.mark.parametrize("bad", [500, -7])
def test_an_index_out_of_bounds_in_each_mode(bad, cuda):
    """torchrec 575: row 0 is read instead, or nothing is."""
    module = bags(cuda, bounds_check="none")
    indices, offsets = lookups(cuda)
    # The first lookup is one in "item", of 500 rows.
    good, wrong = indices.clone(), indices.clone()
    good[0], wrong[0] = 0, bad
    repaired = module(good, offsets)
    for mode in ("ignore", "warning"):
        module.bounds_check = mode
        assert torch.equal(module(wrong, offsets), repaired)
    assert module.invalid_index_count() == 1
    module.bounds_check = "fatal"
    with pytest.raises(RuntimeError, match=f"index {bad} at position 0"):
        module(wrong, offsets)
    assert torch.equal(module(good, offsets), repaired)


@pytest.mark.parametrize("bounds_check", ["none", "ignore", "warning", "fatal"])
def test_no_bags(bounds_check, cuda):
    """torchrec 2773, FBGEMM 3750."""
    module = bags(cuda, bounds_check=bounds_check)
    nothing = torch.zeros(0, dtype=torch.int64, device=cuda)
    output = module(nothing, torch.zeros(1, dtype=torch.int64, device=cuda))
    assert output.shape == (0, 33 + 64 + 33 + 128)
    torch.cuda.synchronize()


@pytest.mark.parametrize("bounds_check", ["none", "warning"])
def test_inputs_on_the_cpu_are_named(bounds_check, cuda):
    """torchrec 995."""
    module = bags(cuda, bounds_check=bounds_check)
    indices, offsets = lookups(cuda)
    with pytest.raises(RuntimeError, match=f"indices is on cpu, expected {cuda}"):
        module(indices.cpu(), offsets.cpu())
    with pytest.raises(RuntimeError, match=f"offsets is on cpu, expected {cuda}"):
        module(indices, offsets.cpu())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripted_saved_and_loaded(cuda, tmp_path):
    """FBGEMM 719, 1988; loaded on the device and on the CPU."""
    module = bags(cuda, weights_dtype=torch.float16, output_dtype=torch.bfloat16).eval()
    indices, offsets = lookups(cuda)
    weights = torch.rand(indices.shape, device=cuda)
    sizes = [[20, 30], [50, 0], [1, 49], [25, 25]]
    calls = ((), (weights,), (None, sizes))
    torch.jit.script(module).save(str(tmp_path / "bags.pt"))
    loaded = torch.jit.load(str(tmp_path / "bags.pt"), map_location=cuda)
    # Profiling and then optimising executors: more than two calls.
    for _ in range(4):
        for call in calls:
            assert torch.equal(loaded(indices, offsets, *call), module(indices, offsets, *call))
    on_cpu = torch.jit.load(str(tmp_path / "bags.pt"), map_location="cpu")
    output = on_cpu(indices.cpu(), offsets.cpu())
    torch.testing.assert_close(output, module(indices, offsets).cpu(), rtol=8e-3, atol=8e-3)


def test_preload_loads_what_it_says(cuda):
    module = bags(cuda)
    names = set(module.preload())
    assert names
    assert names <= installed.loaded(cuda)
    indices, offsets = lookups(cuda)
    planned = {launch.variant for launch in module.explain(indices, offsets).launches}
    assert planned <= names


def test_explains_for_the_device_that_it_is_on(cuda):
    assert bags(cuda).explain(*lookups(cuda)).arch == installed.arch()
