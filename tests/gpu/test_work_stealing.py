"""Work stealing: to the bit as the general kernel. On a GPU whose blocks cannot, that kernel runs."""

from __future__ import annotations

import pytest
import torch

import tbe_aot
from tests.gpu import installed
from tests.gpu.support import TOLERANCE, Lookup, make_lookup, make_tables, worst_error

DTYPES = [torch.float16, torch.bfloat16]
OUTPUT_DTYPES = ["float32", "float16", "bfloat16"]


def draw(
    device: torch.device,
    dims: tuple[int, ...] = (64, 40),
    *,
    dtype: torch.dtype = torch.float16,
    bags: int = 4000,
    longest: int = 2,
    index_dtype: torch.dtype = torch.int64,
    vbe: bool = False,
) -> Lookup:
    """Short bags: so many that far more blocks are asked for than a device holds at once."""
    tables = make_tables((5000,) * len(dims), dims, dtype, device)
    generator = torch.Generator().manual_seed(bags)
    batch_sizes = [[bags, t + 3] for t in range(len(dims))] if vbe else None
    count = sum(map(sum, batch_sizes)) if batch_sizes else bags * len(dims)
    return make_lookup(
        tables,
        tuple(range(len(dims))),
        installed.buckets(),
        torch.randint(0, longest + 1, (count,), generator=generator),
        index_dtype=index_dtype,
        batch_sizes=batch_sizes,
        pruned=0.05,
    )


def both(
    lookup: Lookup, pooling: str = "sum", output_dtype: str = "float32"
) -> tuple[torch.Tensor, torch.Tensor]:
    """(work stealing, general) results; the second one is right."""
    arguments = lookup.arguments(pooling, getattr(torch, output_dtype))
    stealing, general = (
        torch.ops.tbe_aot.forward(*arguments, work_stealing=choice)
        for choice in ("always", "never")
    )
    assert worst_error(general, lookup, pooling) <= TOLERANCE[general.dtype]
    return stealing, general


def test_which_kernel_runs(device):
    native = pytest.importorskip("tbe_aot._launcher")
    steals = bool(native.variants("forward_work_stealing", native.device_arch(device.index or 0)))
    module = tbe_aot.TableBatchedEmbeddingBags(
        [tbe_aot.TableSpec("a", 1000, 64)],
        weights_dtype=torch.float16,
        work_stealing="always",
        bounds_check="none",
        device=device,
    )
    indices = torch.randint(0, 1000, (8,), device=device)
    explanation = module.explain(indices, torch.arange(0, 9, 2, device=device))
    kernel = "forward_work_stealing" if steals else "forward"
    assert explanation.launches[0].variant.startswith(f"{kernel}__")
    loaded = {name.partition("__")[0] for name in module.preload()}
    assert ("forward_work_stealing" in loaded) == steals


@pytest.mark.parametrize("pooling", ["sum", "mean"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dims", [(16, 9), (32, 17), (64, 40), (128, 65), (128, 64, 32, 16), (7,)])
def test_buckets_and_dtypes(dims, dtype, pooling, device):
    for bags in (1, 15, 16, 129, 40_000):
        stealing, general = both(draw(device, dims, dtype=dtype, bags=bags), pooling)
        assert torch.equal(stealing, general)


@pytest.mark.parametrize("vbe", [False, True])
@pytest.mark.parametrize("output_dtype", OUTPUT_DTYPES)
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64], ids=str)
def test_outputs_and_indices(index_dtype, output_dtype, vbe, device):
    lookup = draw(device, (64, 57, 8), index_dtype=index_dtype, vbe=vbe)
    for pooling in ("sum", "mean"):
        stealing, general = both(lookup, pooling, output_dtype)
        assert torch.equal(stealing, general)


@pytest.mark.parametrize("longest", [20, 300])
def test_longer_bags_are_within_the_error(longest, device):
    lookup = draw(device, bags=2000, longest=longest)
    stealing, _ = both(lookup)
    assert worst_error(stealing, lookup, "sum") <= TOLERANCE[torch.float32]


def test_equal_calls_give_equal_bits_whichever_block_takes_over_which(device):
    arguments = draw(device, (128, 64), bags=20_000, longest=6).arguments()
    first = torch.ops.tbe_aot.forward(*arguments, work_stealing="always")
    for _ in range(50):
        again = torch.ops.tbe_aot.forward(*arguments, work_stealing="always")
        assert torch.equal(again, first)
