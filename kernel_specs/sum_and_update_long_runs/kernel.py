"""`sum_chunks` and `update_long_runs` in one launch, for SGD and row-wise Adagrad on aligned rows.

    partials[slot] = sum over the chunk's lookups i of
        factor_i * clamp(gradient[positions_i : positions_i + D] / gradient_scale)
    g = sum over the run's chunks of partials[slot of the chunk]
    row, state = optimizer(row, g, state)

A program takes one chunk at a time and stores its partial sum. Then it counts: the one that finds all other chunks of
the run counted adds the partial sums, in their order, whichever chunk came last, and updates the row. Sums and steps
are those of the two kernels, and so are the bits (`common.chunks` and `common.optimizers.rowwise` say how).

How the last one sees what the others stored, in the terms of PTX's memory model:

- All threads store their part of the partial sum, then meet at a barrier. The thread that counts does so after it: with
  acq_rel at the scope of the GPU, which releases what it knows of, the other threads' stores before the barrier too.
- The count that reads the highest number of the others has acquired what they released: each count reads from the one
  before it, and such a chain passes on what was released at its head.
- The number comes to all threads of the program through another barrier, before they load a partial sum.

ptxas makes a fence before the count and drops the lines of the L1 cache after it. The loads do not rely on that: they
go to the L2 cache (`common.chunks`). A test looks for all of these in the machine code.

A run of one chunk needs neither: its sum is in registers.
"""

import triton
import triton.language as tl
from common.chunks import sum_chunk, sum_partials
from common.gradients import clip_limit, load_scale
from common.optimizers.rowwise import load_rowwise_state, rowwise
from common.overlap import begin, wait_for_previous
from common.rounding import load_rounding_key
from common.table_rows import columns_of_rows, find_rows, store_rows


@triton.jit
def sum_and_update_long_runs_kernel(
    weights,  # 1-D, every table
    partials,  # [chunk_slots, partial_stride] fp32
    counters,  # [chunk_slots], 0 before the launch: chunks that are done of the run whose first chunk has the slot
    gradient,  # of the output
    momentum1,  # fp32, a number per row; read if adagrad
    learning_rate,  # [1] fp32
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
    chunk_starts,  # [chunk_slots], -1 for none
    chunk_runs,  # [chunk_slots], -1 for none
    group_slots,  # slots of this launch
    chunk_slots,
    partial_stride,  # at least BUCKET, a multiple of 16
    eps,
    l2_decay,
    decoupled_decay,
    clip,  # bound of the gradient's elements, infinite for none
    adagrad,  # row-wise Adagrad rather than SGD
    scaled,
    checked,
    stochastic,  # rows are rounded by chance
    overlap,  # see common.overlap
    WEIGHT_DTYPE: tl.constexpr,
    GRADIENT_DTYPE: tl.constexpr,
    BUCKET: tl.constexpr,
    FACTORED: tl.constexpr,
    ROWS: tl.constexpr,
    UNROLL: tl.constexpr,
    PARTIALS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    # 16 bytes in elements: of the weights, what divides rows and dims; of the gradient, no more.
    UNIT: tl.constexpr = 4 if WEIGHT_DTYPE == "fp32" else 8
    GRADIENT_UNIT: tl.constexpr = 4 if GRADIENT_DTYPE == "fp32" else 8

    begin(overlap)
    first = tl.load(run_begins)
    end = tl.load(run_begins + group_slots)
    end = tl.where(tl.load(found_inf, mask=checked != 0, other=0.0) != 0, first, end)
    scale = load_scale(gradient_scale, scaled)
    limit = clip_limit(clip, scale)
    unscale = 1.0 / scale
    rate = tl.load(learning_rate)
    stride = partial_stride.to(tl.int64)
    column = tl.arange(0, BUCKET)
    for chunk_slot in range(tl.program_id(0), chunk_slots, tl.num_programs(0)):
        run = tl.load(chunk_runs + chunk_slot)
        if (run >= first) & (run < end):
            start = tl.load(chunk_starts + chunk_slot)
            run_start = tl.load(run_starts + run)
            run_stop = tl.load(run_starts + run + 1)
            slot = tl.load(run_slots + run)
            stop = tl.where(run_stop - start < 2 * CHUNK, run_stop, start + CHUNK)
            total = sum_chunk(
                gradient,
                features,
                positions,
                factors,
                slot,
                start,
                stop,
                limit,
                unscale,
                column,
                FACTORED,
                GRADIENT_UNIT,
                ROWS,
                UNROLL,
            )
            chunks = (run_stop - run_start) // CHUNK
            first_slot = run_start // CHUNK
            total = total[None, :]
            done = 0
            if chunks > 1:
                partial = tl.multiple_of(chunk_slot * stride, 16)
                tl.store(partials + partial + column[None, :], total)
                tl.debug_barrier()
                done = tl.atomic_add(counters + first_slot, 1, sem="acq_rel", scope="gpu")
            if done == chunks - 1:
                # Blocks of one row: what follows is written for blocks.
                live = tl.full([1], 1, tl.int1)
                block_run = run + tl.zeros([1], tl.int32)
                row = tl.load(run_rows + block_run)
                element, dim = find_rows(features, slot + tl.zeros([1], tl.int32), row, live, UNIT)
                mask = columns_of_rows(dim, live, column, UNIT)
                position = element[:, None] + column[None, :]
                value = tl.load(weights + position, mask=mask, other=0.0).to(tl.float32)
                state = load_rowwise_state(momentum1, row, live, adagrad)
                if chunks > 1:
                    total = sum_partials(partials, first_slot, chunks, stride, column, PARTIALS)
                value = rowwise(
                    value,
                    total,
                    state,
                    momentum1,
                    row,
                    live,
                    dim,
                    rate,
                    eps,
                    l2_decay,
                    decoupled_decay,
                    adagrad,
                    ONE_ROW=True,
                )
                # Here: it would take a register of those for the sum.
                rounding_key = load_rounding_key(
                    rounding_seed, stochastic, weights.dtype.element_ty
                )
                store_rows(
                    weights, position, value, mask, row, column, rounding_key, stochastic, ""
                )
    wait_for_previous(overlap)
