"""Long runs in one launch: the bits of two launches, for every variant, and over and over beside other work.

What would go wrong without a fence or with a stale cache line: the program that counts last adds a partial sum that is
not there yet. So the memory that holds partial sums is full of NaN before each update, every run has several chunks,
which neighbouring programs do at the same time, and another stream keeps the memory busy.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import tbe_aot
from tests.gpu import installed
from tests.gpu.backward_calls import PAIRS
from tests.gpu.support import DTYPES, make_lookup, make_tables
from tests.gpu.training import Training, make_gradient, make_optimizer, make_training

CHUNK = 128
KERNEL = "sum_and_update_long_runs"
REPETITIONS = 1000
# From one chunk to many, at the edges of chunks and of the partial sums that are added at once, between short runs.
USES = (128, 1, 129, 255, 256, 127, 257, 511, 512, 513, 1023, 1024, 1025, 2, 1153, 2100, 5000)
# Two of each bucket, the whole of it and less; multiples of 8.
DIMS = (64, 40, 128, 72, 256, 200)
BUCKETS = ("d64", "d128", "d256")
BAGS = 100


def make_long_runs(
    device: torch.device,
    dtype: torch.dtype,
    gradient: torch.dtype,
    dims: tuple[int, ...] = DIMS,
    optimizer: str = "rowwise_adagrad",
    decay: str = "none",
    *,
    factored: bool = False,
    **options: Any,
) -> Training:
    """An update of a table of each dim, whose row r has USES[r] lookups."""
    tables = make_tables([len(USES)] * len(dims), dims, dtype, device)
    ends = torch.linspace(0, sum(USES), BAGS + 1).long()
    lookup = make_lookup(
        tables,
        range(len(dims)),
        installed.buckets(),
        torch.diff(ends).repeat(len(dims)),
        weighted=factored,
    )
    generator = torch.Generator().manual_seed(1)
    rows = torch.repeat_interleave(torch.arange(len(USES)), torch.tensor(USES))
    drawn = [rows[torch.randperm(rows.numel(), generator=generator)] for _ in dims]
    lookup.indices.copy_(torch.cat(drawn))
    # Small enough that sums over long runs stay about 1, where the tolerances are the same for all.
    grad = make_gradient(lookup, torch.float32) / 64
    if "gradient_scale" in options:
        grad *= options["gradient_scale"]
    return make_training(
        lookup,
        make_optimizer(optimizer, decay),
        grad_output=grad.to(gradient),
        **options,
    )


def launched(training: Training, choice: str) -> list[str]:
    """The variants of an update that sum or update long runs, by their names."""
    plan = tbe_aot.explain_backward(
        **training.arguments(), fused_long_runs=choice, arch=installed.arch()
    )
    names = [launch.variant for launch in plan.launches]
    return [name for name in names if "long_runs" in name]


OPTIONS: list[dict[str, Any]] = [
    {"optimizer": "sgd"},
    {"optimizer": "sgd", "decay": "l2", "gradient_clip": 0.01},
    {"optimizer": "sgd", "decay": "decoupled", "gradient_scale": 8.0},
    {},
    {"decay": "l2", "gradient_scale": 8.0, "gradient_clip": 0.01},
    {"decay": "decoupled", "found_inf": 0.0},
    {"decay": "l2", "rounding_seed": 7},
    {"optimizer": "sgd", "decay": "decoupled", "rounding_seed": 8},
]


@pytest.mark.parametrize("factored", [False, True], ids=["plain", "factored"])
@pytest.mark.parametrize(("weights", "gradient"), PAIRS)
def test_every_variant_has_the_bits_of_two_launches(weights, gradient, factored, device):
    dtype = DTYPES[weights]
    for options in OPTIONS:
        numbers: dict[str, Any] = {
            name: torch.tensor([options[name]], device=device)
            for name in ("gradient_scale", "found_inf")
            if name in options
        }
        seed = options.get("rounding_seed")
        others: dict[str, Any] = {**options, **numbers}
        others.pop("rounding_seed", None)
        training = make_long_runs(device, dtype, DTYPES[gradient], factored=factored, **others)
        kind = "factored" if factored else "plain"
        # Gradients with a factor of the widest rows take two launches.
        buckets = BUCKETS[:2] if factored else BUCKETS
        expected = {f"{KERNEL}__{weights}_{gradient}_{bucket}_{kind}" for bucket in buckets}
        assert {name for name in launched(training, "always") if name.startswith(KERNEL)} == (
            expected
        )
        assert not any(name.startswith(KERNEL) for name in launched(training, "never"))
        before = training.snapshot()
        after = {}
        for choice in ("never", "always"):
            training.restore(before)
            drawn = None if seed is None else torch.tensor([seed], device=device)
            if seed is None and choice == "always":
                # Against float64 as well.
                training.verify(fused_long_runs=choice)
            else:
                training.run(fused_long_runs=choice, rounding_seed=drawn)
            after[choice] = training.snapshot()
        assert training.equals(after["never"]), options
        assert not training.equals(before)


def words(lookups: int, dim: int) -> int:
    """int32 words that an update of long runs of such rows works in, its lookups being transposed."""
    chunks = -(-lookups // CHUNK)
    return -(-chunks // 4) * 4 + chunks * dim


@pytest.mark.parametrize("optimizer", ["sgd", "rowwise_adagrad"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=["fp16", "fp32"])
def test_every_repetition_has_the_bits_of_two_launches(dtype, optimizer, device):
    dim, rows = 128, 1500
    generator = torch.Generator().manual_seed(3)
    # From two chunks a run to eight, between rows of one chunk and of few lookups.
    uses = torch.randint(2 * CHUNK, 9 * CHUNK, (rows,), generator=generator)
    uses[::7], uses[3::7] = 150, 5
    on_gpu = device.type == "cuda"
    if not on_gpu:
        uses, rows = uses[:30], 30
    tables = tbe_aot.make_features(
        [tbe_aot.TableSpec("one", rows, dim)], weights_dtype=dtype, device=device
    )
    indices = torch.repeat_interleave(torch.arange(rows), uses)
    indices = indices[torch.randperm(indices.numel(), generator=generator)].to(device)
    bags = 2048
    offsets = torch.linspace(0, indices.numel(), bags + 1).long().to(device)
    features = tables.features
    before = torch.randn(tables.weights_numel, generator=generator).to(device, dtype)
    momentum = torch.rand(rows, generator=generator).to(device)
    rate = torch.full([1], 0.1, device=device)
    gradient = (torch.randn(bags, dim, generator=generator) / 16).to(device)
    transposed = torch.ops.tbe_aot.transpose_indices(features, tables.layout, indices, offsets)

    def update(weights: torch.Tensor, state: torch.Tensor, choice: str) -> None:
        torch.ops.tbe_aot.backward_update(
            gradient,
            weights,
            features,
            tables.layout,
            indices,
            offsets,
            optimizer,
            rate,
            state if optimizer == "rowwise_adagrad" else None,
            transposed=transposed,
            fused_long_runs=choice,
        )

    right, right_state = before.clone(), momentum.clone()
    update(right, right_state, "never")
    assert not torch.equal(right, before)
    assert bool(right.isfinite().all())
    weights, state = before.clone(), momentum.clone()
    wrong = torch.zeros(1, dtype=torch.int64, device=device)
    word = torch.int16 if dtype.itemsize == 2 else torch.int32
    busy = torch.zeros(32 << 20 if on_gpu else 1, device=device)
    other = torch.cuda.Stream() if on_gpu else None
    for _ in range(REPETITIONS if on_gpu else 2):
        if other is not None:
            with torch.cuda.stream(other):
                busy.add_(1)
        weights.copy_(before)
        state.copy_(momentum)
        # Freed at once: the update is given the same memory.
        torch.full((words(indices.numel(), dim),), torch.nan, device=device)
        update(weights, state, "always")
        wrong += (weights.view(word) != right.view(word)).any() | (state != right_state).any()
    if other is not None:
        other.synchronize()
    assert wrong.item() == 0


@pytest.mark.parametrize("hoisted", [False, True])
def test_a_captured_graph_counts_from_zero_in_every_replay(hoisted, cuda):
    training = make_long_runs(cuda, torch.float16, torch.float16)
    before = training.snapshot()
    training.run(fused_long_runs="never")
    right = training.snapshot()
    transposed = training.transpose() if hoisted else None
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        training.run(fused_long_runs="always", transposed=transposed)
    for _ in range(5):
        training.restore(before)
        graph.replay()
        assert training.equals(right)


@pytest.mark.parametrize("hoisted", [False, True])
def test_one_memset_clears_what_is_counted(hoisted, cuda):
    """One of its own only where the lookups were transposed before."""
    training = make_long_runs(cuda, torch.float16, torch.float16)
    training.run(fused_long_runs="always", transposed=training.transpose())
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as recorded:
        transposed = training.transpose() if hoisted else None
        training.run(fused_long_runs="always", transposed=transposed)
        torch.cuda.synchronize()
    names = [event.name for event in recorded.events()]
    assert sum(name.startswith("Memset") for name in names) == 1 + hoisted, sorted(set(names))
    assert sum(name.startswith(KERNEL) for name in names) == 3
