"""step += 1, unless a gradient is not finite: the count of updates of an optimizer that needs one.

A launch of its own before the updates, so that each of their programs reads the number of this update.
"""

import triton
import triton.language as tl
from common.overlap import begin, wait_for_previous


@triton.jit
def advance_step_kernel(
    step,  # [1] int64
    found_inf,  # [1] fp32, read if checked: the step stays unless it is 0
    checked,
    overlap,  # see common.overlap
):
    begin(overlap)
    skipped = tl.load(found_inf, mask=checked != 0, other=0.0) != 0
    tl.store(step, tl.load(step) + tl.where(skipped, 0, 1))
    wait_for_previous(overlap)
