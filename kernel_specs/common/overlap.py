"""Overlapping the launches of one operator, which read the same inputs and write different parts of the output.

Programmatic dependent launch: a launch that says so may start when every program of the launch before it has called
`start_next` (or ended), and it must not end before that one has, or the work after the operator would start too early.
Both are under a branch: the instructions take as long as a short program, and a launch of its own needs neither.
"""

import triton
import triton.language as tl
from triton import knobs
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

# The interpreter runs one launch after the other and knows neither instruction.
INTERPRETED = tl.constexpr(knobs.runtime.interpret)


@triton.jit
def start_next(overlap):
    """Let the next launch start, if bit 0 of ``overlap`` says that it may."""
    if not INTERPRETED:
        if overlap & 1 != 0:
            gdc_launch_dependents()


@triton.jit
def wait_for_previous(overlap):
    """Wait until the launch before has ended, if bit 1 of ``overlap`` says that this one overlaps it."""
    if not INTERPRETED:
        if overlap & 2 != 0:
            gdc_wait()
