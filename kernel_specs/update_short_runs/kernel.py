"""One step of the optimizer for every row that fewer than CHUNK lookups use.

    g = sum over the run's lookups i, in their order, of factor_i * clamp(gradient[positions_i : positions_i + D])
    row, state = optimizer(row, g, state)

A run is the lookups of one row, side by side in sorted order: ``run_starts[r] .. run_starts[r + 1]``. Longer runs are
left to `sum_chunks` and `update_long_runs`. Gradients are clamped as they come, multiplied by
``gradient_scale``, and divided by it before they are added. fp32 arithmetic; the row is rounded once.

A program owns RUNS runs at a time, in lockstep, and goes on to the tile ``num_programs`` further. A row's bits depend
on its run alone, not on its neighbours in the tile. What describes the next tile, its first positions too, is loaded
while this one is summed: otherwise each tile waits for three loads that depend on each other.

All loads of a tile are on their way before the first is waited for. That takes a barrier: ptxas moves the loads of the
rows below the sum, which does not use them, and each tile would wait for memory twice. Nothing moves across a barrier.
"""

import triton
import triton.language as tl
from common.gradients import (
    clip_limit,
    load_factors,
    load_gradients,
    load_scale,
    share_of_lookups,
)
from common.optimizers.choose import load_state, load_step, updated_rows
from common.overlap import begin, wait_for_previous
from common.rounding import load_rounding_key
from common.table_rows import columns_of_rows, find_rows, store_rows


@triton.jit
def update_short_runs_kernel(
    weights,  # 1-D, every table
    gradient,  # of the output
    momentum1,  # fp32, a number per row or per weight, as the optimizer needs
    momentum2,  # fp32, a number per weight
    learning_rate,  # [1] fp32
    step,  # [1] int64, number of this update; read by adam
    gradient_scale,  # [1] fp32, read if scaled
    found_inf,  # [1] fp32, read if checked: nothing changes unless it is 0
    rounding_seed,  # [1] int64, read if stochastic
    features,  # [T, 8] int64
    positions,  # [N], sorted: first element of each lookup's bag in the gradient
    factors,  # [N] fp32, sorted; read if FACTORED
    run_starts,  # [runs + 1]
    run_rows,  # [runs] int64
    run_slots,  # [runs]
    run_begins,  # first run of each slot, from this launch's first one on
    group_slots,  # slots of this launch
    eps,
    beta1,  # fp64
    beta2,  # fp64
    l2_decay,
    decoupled_decay,
    clip,  # bound of the gradient's elements, infinite for none
    adagrad,  # row-wise Adagrad rather than SGD
    scaled,
    checked,
    stochastic,  # rows are rounded by chance
    overlap,  # see common.overlap
    WEIGHT_DTYPE: tl.constexpr,
    BUCKET: tl.constexpr,
    FACTORED: tl.constexpr,
    ALIGNED: tl.constexpr,
    OPTIMIZER: tl.constexpr,
    RUNS: tl.constexpr,
    UNROLL: tl.constexpr,
    EVICTION: tl.constexpr,
    CHUNK: tl.constexpr,
):
    # 16 bytes of weights in elements: what divides an aligned launch's rows, dims and positions.
    UNIT: tl.constexpr = (4 if WEIGHT_DTYPE == "fp32" else 8) if ALIGNED else 1

    begin(overlap)
    first = tl.load(run_begins)
    end = tl.load(run_begins + group_slots)
    end = tl.where(tl.load(found_inf, mask=checked != 0, other=0.0) != 0, first, end)
    scale = load_scale(gradient_scale, scaled)
    limit = clip_limit(clip, scale)
    unscale = 1.0 / scale
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
    rounding_key = load_rounding_key(rounding_seed, stochastic, weights.dtype.element_ty)

    column = tl.arange(0, BUCKET)
    lane = tl.arange(0, RUNS)
    stride = tl.num_programs(0) * RUNS
    first += tl.program_id(0) * RUNS
    exists = first + lane < end
    start = tl.load(run_starts + first + lane, mask=exists, other=0)
    stop = tl.load(run_starts + first + lane + 1, mask=exists, other=0)
    row = tl.load(run_rows + first + lane, mask=exists, other=0)
    slot = tl.load(run_slots + first + lane, mask=exists, other=0)
    position = tl.load(positions + start, mask=exists, other=0)
    for tile in range(first, end, stride):
        run = tile + lane
        live = (run < end) & (stop - start < CHUNK)
        element, dim = find_rows(features, slot, row, live, UNIT)
        mask = columns_of_rows(dim, live, column, UNIT)

        gradients = load_gradients(gradient, position, live, mask, column, UNIT)
        factor = load_factors(factors, start, live, FACTORED)
        weight_position = element[:, None] + column[None, :]
        value = tl.load(weights + weight_position, mask=mask, other=0.0, eviction_policy=EVICTION)
        state = load_state(this_step, row, live, OPTIMIZER)
        next_run = run + stride
        exists = next_run < end
        next_start = tl.load(run_starts + next_run, mask=exists, other=0)
        next_stop = tl.load(run_starts + next_run + 1, mask=exists, other=0)
        lookup = start + 1
        position = tl.load(positions + lookup, mask=live & (lookup < stop), other=0)
        tl.debug_barrier()
        # Added to 0, as all others are: a sum of -0 would tell how many steps the neighbours made it take.
        total = 0.0 + share_of_lookups(gradients, factor, limit, unscale, FACTORED)
        for _ in range(1, tl.max(tl.where(live, stop - start, 0), axis=0), UNROLL):
            for _ in tl.static_range(UNROLL):
                used = live & (lookup < stop)
                gradients = load_gradients(gradient, position, used, mask, column, UNIT)
                factor = load_factors(factors, lookup, used, FACTORED)
                lookup += 1
                position = tl.load(positions + lookup, mask=live & (lookup < stop), other=0)
                total += share_of_lookups(gradients, factor, limit, unscale, FACTORED)
        # Not before the sum, whose registers all of these would take.
        position = tl.load(positions + next_start, mask=exists, other=0)
        next_row = tl.load(run_rows + next_run, mask=exists, other=0)
        next_slot = tl.load(run_slots + next_run, mask=exists, other=0)
        value = updated_rows(
            value.to(tl.float32),
            total,
            state,
            this_step,
            row,
            weight_position,
            live,
            mask,
            dim,
            OPTIMIZER,
        )
        store_rows(
            weights, weight_position, value, mask, row, column, rounding_key, stochastic, EVICTION
        )
        start, stop, row, slot = next_start, next_stop, next_row, next_slot
    wait_for_previous(overlap)
