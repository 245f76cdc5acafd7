"""One step of the optimizer for every row of a small table that a bag has.

    g = sum over the chunks of the batch of partials[row, chunk]
    row, state = optimizer(row, g, state)   if any chunk used the row

`sum_small_table` made the partial sums. A program takes one row, TILE chunks a step; the sums of a tile's places are
added in a fixed tree, so equal partial sums give equal bits. fp32 arithmetic; the row is rounded once.
"""

import triton
import triton.language as tl
from common.optimizers.choose import load_state, load_step, updated_rows
from common.overlap import begin, wait_for_previous
from common.rounding import load_rounding_key
from common.table_rows import columns_of_rows, find_rows, store_rows


@triton.jit
def update_small_table_kernel(
    weights,  # 1-D, every table
    partials,  # [rows, chunks, BUCKET] fp32
    used,  # [rows, chunks], 0 where no bag of the chunk has the row
    momentum1,  # fp32, a number per row or per weight, as the optimizer needs
    momentum2,  # fp32, a number per weight
    learning_rate,  # [1] fp32
    step,  # [1] int64, number of this update; read by adam
    found_inf,  # [1] fp32, read if checked: nothing changes unless it is 0
    rounding_seed,  # [1] int64, read if stochastic
    features,  # [1, 8] int64
    chunks,
    eps,
    beta1,  # fp64
    beta2,  # fp64
    l2_decay,
    decoupled_decay,
    adagrad,  # row-wise Adagrad rather than SGD
    checked,
    stochastic,  # rows are rounded by chance
    overlap,  # see common.overlap
    WEIGHT_DTYPE: tl.constexpr,
    BUCKET: tl.constexpr,
    OPTIMIZER: tl.constexpr,
    TILE: tl.constexpr,
):
    begin(overlap)
    table_row = tl.program_id(0).to(tl.int64)
    first = tl.multiple_of(table_row * chunks * BUCKET, 16)
    column = tl.arange(0, BUCKET)
    chunk = tl.arange(0, TILE)
    total = tl.zeros([TILE, BUCKET], tl.float32)
    uses = tl.zeros([TILE], tl.int32)
    for _ in range(0, chunks, TILE):
        exists = chunk < chunks
        uses |= tl.load(used + table_row * chunks + chunk, mask=exists, other=0)
        place = first + (chunk * BUCKET)[:, None] + column[None, :]
        total += tl.load(partials + place, mask=exists[:, None], other=0.0)
        chunk += TILE
    stopped = tl.load(found_inf, mask=checked != 0, other=0.0) != 0
    if (tl.max(uses, axis=0) > 0) & (not stopped):
        # Blocks of one row: what follows is written for blocks. Their bytes are few: no wide loads, so that any dim will do.
        live = tl.full([1], 1, tl.int1)
        slot = tl.zeros([1], tl.int32)
        row = tl.load(features + 7) + table_row + tl.zeros([1], tl.int64)
        element, dim = find_rows(features, slot, row, live, 1)
        mask = columns_of_rows(dim, live, column, 1)
        position = element[:, None] + column[None, :]
        value = tl.load(weights + position, mask=mask, other=0.0).to(tl.float32)
        # Padding of a gradient may be in the partial sums' columns from the dim on, but nothing of it is added.
        gradient = tl.where(mask, tl.sum(total, axis=0)[None, :], 0.0)
        this_step = load_step(
            momentum1,
            momentum2,
            step,
            learning_rate,
            eps,
            beta1,
            beta2,
            l2_decay,
            decoupled_decay,
            adagrad,
            OPTIMIZER,
        )
        value = updated_rows(
            value,
            gradient,
            load_state(this_step, row, live, OPTIMIZER),
            this_step,
            row,
            position,
            live,
            mask,
            dim,
            OPTIMIZER,
            ONE_ROW=True,
        )
        rounding_key = load_rounding_key(rounding_seed, stochastic, weights.dtype.element_ty)
        store_rows(weights, position, value, mask, row, column, rounding_key, stochastic, "")
    wait_for_previous(overlap)
