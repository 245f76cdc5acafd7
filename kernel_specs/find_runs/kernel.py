"""The runs of the sorted lookups: stretches of equal keys, each the lookups of one row.

Run r is the sorted lookups run_starts[r] .. run_starts[r + 1]; its row is run_rows[r], in the table of the feature in
row run_slots[r] of ``features`` (the last one whose first_global_row is not after it). Rows s, s + 1, ... of ``features``
own the runs from run_begins[s]; run_begins[T] is the number of runs that own a row: pruned lookups, whose key is
total_rows, come last and form one more run, of slot T.

A run of CHUNK lookups or more is long, and cut into chunks of CHUNK, the last taking the rest too: lookup j starts a
chunk if it is a multiple of CHUNK after the start of its run and the run goes on for CHUNK lookups. Starts lie at least
CHUNK apart, so that entry j // CHUNK of the chunk arrays is free for it: no counter, and the chunks of a run side by
side. Pruned lookups have no chunks.

One program owns TILE sorted lookups; how many runs start before it, and where the latest does, comes by look-back.
"""

import triton
import triton.language as tl
from common.look_back import count_and_last_before
from common.overlap import begin, wait_for_previous


@triton.jit
def _later(count, last, next_count, next_last):
    return count + next_count, tl.maximum(last, next_last)


@triton.jit
def _first_global_row(features, slot, feature_count, total_rows, needed):
    """The first row of each slot; total_rows for slot T, which pruned lookups belong to."""
    mask = needed & (slot < feature_count)
    return tl.load(features + slot * 8 + 7, mask=mask, other=total_rows)


@triton.jit
def find_runs_kernel(
    keys,  # [N], ascending
    values,  # [N] int32, number of each sorted lookup, read only if factored
    lookup_positions,  # [N] int32, in lookup order, read only if factored
    lookup_factors,  # [N] fp32, in lookup order, read only if factored
    positions,  # [N] int32, written only if factored
    factors,  # [N] fp32, written only if factored
    run_starts,  # [N + 1] int32
    run_rows,  # [N] int64
    run_slots,  # [N] int32
    run_begins,  # [T + 1] int32
    chunk_starts,  # [ceil(N / CHUNK)] int32
    chunk_runs,  # [ceil(N / CHUNK)] int32
    status,  # [tiles] int64, 0
    features,  # [T, 8] int64
    lookups,  # N, at least 1
    feature_count,  # T
    total_rows,
    search_steps,  # 2^search_steps >= T + 1
    factored,
    overlap,
    TILE: tl.constexpr,
    WINDOW: tl.constexpr,
    CHUNK: tl.constexpr,
):
    CHUNKS: tl.constexpr = TILE // CHUNK

    begin(overlap)
    tile = tl.program_id(0)
    lookup = tile * TILE + tl.arange(0, TILE)
    exists = lookup < lookups
    if factored != 0:
        value = tl.load(values + lookup, mask=exists, other=0)
        position = tl.load(lookup_positions + value, mask=exists, other=0)
        factor = tl.load(lookup_factors + value, mask=exists, other=0.0)
        tl.store(positions + lookup, position, mask=exists)
        tl.store(factors + lookup, factor, mask=exists)

    key = tl.load(keys + lookup, mask=exists, other=-1)
    key_before = tl.load(keys + lookup - 1, mask=exists & (lookup > 0), other=-1)
    chunk_end = lookup + (CHUNK - 1)
    key_at_chunk_end = tl.load(keys + chunk_end, mask=chunk_end < lookups, other=-1)
    starts = exists & (key != key_before)
    # Places are counted from 1, so that 0 says that no run starts in the tile.
    count, start = tl.associative_scan(
        (starts.to(tl.int32), tl.where(starts, lookup + 1, 0)), 0, _later
    )
    count_in_tile = tl.max(count, axis=0)
    runs_before, start_before = count_and_last_before(
        status, tile, count_in_tile, tl.max(start, axis=0), WINDOW
    )
    run = runs_before + count - 1
    start = tl.maximum(start, start_before) - 1

    slot = tl.zeros([TILE], tl.int32)
    slot_after = slot + feature_count + 1
    for _ in range(search_steps):
        middle = (slot + slot_after) // 2
        not_after = _first_global_row(features, middle, feature_count, total_rows, starts) <= key
        slot = tl.where(not_after, middle, slot)
        slot_after = tl.where(not_after, slot_after, middle)
    tl.store(run_starts + run, lookup, mask=starts)
    tl.store(run_rows + run, key.to(tl.int64), mask=starts)
    tl.store(run_slots + run, slot, mask=starts)
    is_last = lookup == lookups - 1
    tl.store(run_starts + run + 1, lookup + 1, mask=is_last)

    starts_slot = starts & (
        _first_global_row(features, slot, feature_count, total_rows, starts) > key_before
    )
    if tl.max((starts_slot | is_last).to(tl.int32), axis=0) != 0:
        _store_run_begins(
            run_begins, keys, features, run, runs_before + count_in_tile, tile, lookups,
            feature_count, total_rows, TILE,
        )  # fmt: skip

    starts_chunk = (
        exists & ((lookup - start) % CHUNK == 0) & (key_at_chunk_end == key) & (key < total_rows)
    )
    chunk = tile * CHUNKS + tl.arange(0, CHUNKS)
    chunk_start = tl.reshape(tl.where(starts_chunk, lookup, -1), [CHUNKS, CHUNK])
    chunk_run = tl.reshape(tl.where(starts_chunk, run, -1), [CHUNKS, CHUNK])
    chunk_exists = chunk < tl.cdiv(lookups, CHUNK)
    tl.store(chunk_starts + chunk, tl.max(chunk_start, axis=1), mask=chunk_exists)
    tl.store(chunk_runs + chunk, tl.max(chunk_run, axis=1), mask=chunk_exists)
    wait_for_previous(overlap)


@triton.jit
def _store_run_begins(
    run_begins, keys, features, run, runs, tile, lookups, feature_count, total_rows,
    TILE: tl.constexpr,
):  # fmt: skip
    """Store the first run of each slot whose first row lies after the keys before the tile, up to its last key.

    The last tile also stores the slots after its last key: nothing belongs to them. ``run`` [TILE] is the run of each
    lookup, ``runs`` how many there are up to the end of the tile.
    """
    SLOTS: tl.constexpr = 128
    first = tile * TILE
    size = tl.minimum(lookups - first, TILE)
    before = tl.load(keys + first - 1, mask=tile > 0, other=-1)
    last = tl.load(keys + first + size - 1).to(tl.int64)
    last = tl.where(first + size == lookups, total_rows, last)
    for first_slot in range(0, feature_count + 1, SLOTS):
        slot = first_slot + tl.arange(0, SLOTS)
        row = _first_global_row(features, slot, feature_count, total_rows, slot >= 0)
        owned = (slot <= feature_count) & (row > before) & (row <= last)
        # How many keys of the tile are before the row: a binary search, by falling powers of two.
        below = tl.zeros([SLOTS], tl.int32)
        step = tl.full([], TILE, tl.int32)
        while step > 0:
            place = below + step
            mask = owned & (place <= size)
            smaller = mask & (tl.load(keys + first + place - 1, mask=mask, other=0) < row)
            below = tl.where(smaller, place, below)
            step = step // 2
        run_of_row = tl.gather(run, tl.minimum(below, TILE - 1), axis=0)
        tl.store(run_begins + slot, tl.where(below < size, run_of_row, runs), mask=owned)
