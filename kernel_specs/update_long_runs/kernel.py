"""One step of the optimizer for every row that at least CHUNK lookups use.

    g = sum over the run's chunks of partials[slot of the chunk]
    row, state = optimizer(row, g, state)

`sum_chunks` made the partial sums; the chunks of a run have consecutive slots, so a program that finds the first one
has found all. They are added in their order: a row's bits depend on its run alone. fp32 arithmetic; the row is rounded once.
"""

import triton
import triton.language as tl
from common.chunks import sum_partials
from common.optimizers.choose import load_state, load_step, updated_rows
from common.overlap import begin, wait_for_previous
from common.rounding import load_rounding_key
from common.table_rows import columns_of_rows, find_rows, store_rows


@triton.jit
def update_long_runs_kernel(
    weights,  # 1-D, every table
    partials,  # [chunk_slots, partial_stride] fp32
    momentum1,  # fp32, a number per row or per weight, as the optimizer needs
    momentum2,  # fp32, a number per weight
    learning_rate,  # [1] fp32
    step,  # [1] int64, number of this update; read by adam
    found_inf,  # [1] fp32, read if checked: nothing changes unless it is 0
    rounding_seed,  # [1] int64, read if stochastic
    features,  # [T, 8] int64
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
    ALIGNED: tl.constexpr,
    OPTIMIZER: tl.constexpr,
    PARTIALS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    # 16 bytes of weights in elements: what divides an aligned launch's rows and dims.
    UNIT: tl.constexpr = (4 if WEIGHT_DTYPE == "fp32" else 8) if ALIGNED else 1

    begin(overlap)
    first = tl.load(run_begins)
    end = tl.load(run_begins + group_slots)
    end = tl.where(tl.load(found_inf, mask=checked != 0, other=0.0) != 0, first, end)
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
    stride = partial_stride.to(tl.int64)
    column = tl.arange(0, BUCKET)
    for chunk_slot in range(tl.program_id(0), chunk_slots, tl.num_programs(0)):
        run = tl.load(chunk_runs + chunk_slot)
        if (run >= first) & (run < end):
            start = tl.load(run_starts + run)
            if start == tl.load(chunk_starts + chunk_slot):
                chunks = (tl.load(run_starts + run + 1) - start) // CHUNK
                # Blocks of one row: what follows is written for blocks.
                live = tl.full([1], 1, tl.int1)
                block_run = run + tl.zeros([1], tl.int32)
                row = tl.load(run_rows + block_run)
                element, dim = find_rows(features, tl.load(run_slots + block_run), row, live, UNIT)
                mask = columns_of_rows(dim, live, column, UNIT)
                position = element[:, None] + column[None, :]
                value = tl.load(weights + position, mask=mask, other=0.0).to(tl.float32)
                state = load_state(this_step, row, live, OPTIMIZER)
                total = sum_partials(partials, chunk_slot, chunks, stride, column, PARTIALS)
                value = updated_rows(
                    value,
                    total,
                    state,
                    this_step,
                    row,
                    position,
                    live,
                    mask,
                    dim,
                    OPTIMIZER,
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
