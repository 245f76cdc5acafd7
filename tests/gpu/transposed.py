"""What ``transpose_indices`` returns for lookups that are too many for the plain loops of ``tests/transposed.py``."""

from __future__ import annotations

import torch

from tests.gpu.training import Training
from tests.transposed import CHUNK, Transposed
from tests.transposed import take_apart as take_words_apart


def is_factored(training: Training) -> bool:
    """Whether lookups have factors of their own."""
    return training.pooling == "mean" or training.lookup.per_sample_weights is not None


def take_apart(words: torch.Tensor, training: Training) -> Transposed:
    """What ``transpose_indices`` returned for the training's lookups, without what is unspecified."""
    lookup = training.lookup
    return take_words_apart(
        words.cpu(),
        lookup.indices.numel(),
        lookup.features.shape[0],
        factored=is_factored(training),
    )


def reference(training: Training) -> Transposed:
    """The same from torch's own stable sort, on the CPU; every lookup has to be in a bag."""
    lookup = training.lookup
    entries = lookup.features.cpu()
    total_rows, slots = lookup.layout[4], entries.shape[0]
    lookups = lookup.indices.numel()
    indices = lookup.indices.cpu().long()
    keys = torch.full((lookups,), total_rows)
    positions = torch.zeros(lookups, dtype=torch.int64)
    factors = torch.ones(lookups)
    if lookup.per_sample_weights is not None:
        factors = lookup.per_sample_weights.cpu().float().clone()
    first_bags = [sum(lookup.bag_counts[:f]) for f in range(slots)]
    for feature, _, _, _, _, column, _, first_row in entries.tolist():
        bag, count = first_bags[feature], lookup.bag_counts[feature]
        start, end = lookup.ends[bag], lookup.ends[bag + count]
        lengths = torch.tensor(lookup.ends[bag : bag + count + 1]).diff()
        owner = torch.repeat_interleave(torch.arange(count), lengths)
        index = indices[start:end]
        keys[start:end] = torch.where(index >= 0, index + first_row, total_rows)
        if lookup.vbe is None:
            positions[start:end] = owner * lookup.layout[2] + column
        else:
            positions[start:end] = lookup.vbe.output_offsets.cpu()[bag + owner]
        if training.pooling == "mean":
            factors[start:end] /= lengths[owner].float()

    order = torch.sort(keys, stable=True).indices
    rows, lengths = torch.unique_consecutive(keys[order], return_counts=True)
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    first_rows = entries[:, 7].contiguous()
    run_slots = torch.searchsorted(first_rows, rows, right=True) - 1
    run_slots[rows == total_rows] = slots
    chunk_starts = torch.full((-(-lookups // CHUNK),), -1)
    chunk_runs = chunk_starts.clone()
    for run in torch.nonzero((lengths >= CHUNK) & (rows < total_rows)).flatten().tolist():
        at = int(starts[run]) + torch.arange(int(lengths[run]) // CHUNK) * CHUNK
        chunk_starts[at // CHUNK] = at
        chunk_runs[at // CHUNK] = run
    return Transposed(
        run_rows=rows.tolist(),
        # The low 32 bits, as the kernels keep them.
        positions=positions[order].to(torch.int32).tolist(),
        run_starts=starts.tolist(),
        run_slots=run_slots.tolist(),
        run_begins=torch.searchsorted(run_slots, torch.arange(slots + 1)).tolist(),
        chunk_starts=chunk_starts.tolist(),
        chunk_runs=chunk_runs.tolist(),
        factors=factors[order].view(torch.int32).tolist() if is_factored(training) else [],
    )
