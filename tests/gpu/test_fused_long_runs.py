"""Long runs in one launch, over and over beside other work: the bits of the two launches, every time.

What would go wrong without a fence or with a stale cache line: the program that counts last adds a partial sum that is
not there yet. So the memory that holds partial sums is full of NaN before each update, every run has several chunks,
which neighbouring programs do at the same time, and another stream keeps the memory busy.
"""

from __future__ import annotations

import pytest
import torch

import tbe_aot

pytestmark = pytest.mark.gpu

DIM, ROWS, CHUNK = 128, 1500, 128
REPETITIONS = 1000


def words(lookups: int) -> int:
    """int32 words that an update of long runs of such rows works in, its lookups being transposed."""
    chunks = -(-lookups // CHUNK)
    return -(-chunks // 4) * 4 + chunks * DIM


@pytest.mark.parametrize("optimizer", ["sgd", "rowwise_adagrad"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=["fp16", "fp32"])
def test_every_repetition_has_the_bits_of_two_launches(
    device: torch.device, dtype: torch.dtype, optimizer: str
) -> None:
    generator = torch.Generator().manual_seed(3)
    # From two chunks a run to eight, between rows of one chunk and of few lookups.
    uses = torch.randint(2 * CHUNK, 9 * CHUNK, (ROWS,), generator=generator)
    uses[::7], uses[3::7] = 150, 5
    on_gpu = device.type == "cuda"
    if not on_gpu:
        uses = uses[:30]
    rows = uses.numel()
    tables = tbe_aot.make_features(
        [tbe_aot.TableSpec("one", rows, DIM)], weights_dtype=dtype, device=device
    )
    indices = torch.repeat_interleave(torch.arange(rows), uses)
    indices = indices[torch.randperm(indices.numel(), generator=generator)].to(device)
    bags = 2048
    offsets = torch.linspace(0, indices.numel(), bags + 1).long().to(device)
    features = tables.features
    before = torch.randn(tables.weights_numel, generator=generator).to(device, dtype)
    momentum = torch.rand(rows, generator=generator).to(device)
    rate = torch.full([1], 0.1, device=device)
    gradient = (torch.randn(bags, DIM, generator=generator) / 16).to(device)
    transposed = torch.ops.tbe_aot.transpose_indices(features, tables.layout, indices, offsets)

    def update(weights: torch.Tensor, state: torch.Tensor, long_runs: str) -> None:
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
            long_runs=long_runs,
        )

    right, right_state = before.clone(), momentum.clone()
    update(right, right_state, "two_launches")
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
        torch.full((words(indices.numel()),), torch.nan, device=device)
        update(weights, state, "fused")
        wrong += (weights.view(word) != right.view(word)).any() | (state != right_state).any()
    if other is not None:
        other.synchronize()
    assert wrong.item() == 0
