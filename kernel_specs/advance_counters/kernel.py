"""Count an update, unless a gradient is not finite: the step of an optimizer that needs one, the seed of the rounding.

A launch of its own before the updates, so that each of their programs reads the numbers of this update.
"""

import triton
import triton.language as tl
from common.overlap import begin, wait_for_previous


@triton.jit
def advance_counters_kernel(
    step,  # [1] int64, read and written if counts_steps
    rounding_seed,  # [1] int64, read and written if stochastic
    found_inf,  # [1] fp32, read if checked: both stay unless it is 0
    counts_steps,
    stochastic,
    checked,
    overlap,  # see common.overlap
):
    begin(overlap)
    updates = tl.where(tl.load(found_inf, mask=checked != 0, other=0.0) != 0, 0, 1)
    tl.store(step, tl.load(step, mask=counts_steps != 0) + updates, mask=counts_steps != 0)
    seed = tl.load(rounding_seed, mask=stochastic != 0)
    tl.store(rounding_seed, seed + updates, mask=stochastic != 0)
    wait_for_previous(overlap)
