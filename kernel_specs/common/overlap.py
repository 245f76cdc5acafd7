"""Overlapping one launch with the next.

Programmatic dependent launch: a launch that says so may start when every program of the launch before it has called
`start_next` or `begin` (or ended). Two ways to use it:

- The launches of one operator read the same inputs and write different parts of the output: each starts at once, and
  calls `wait_for_previous` last, because a launch must not end before the one before it has, or the work after the
  operator would start too early.
- A launch reads what an earlier one of the operator wrote: it starts early, and waits first, in `begin`. That hides the
  launch. It waits even if the launch just before it already did: its own wait is what makes the memory visible to it.

All is under a branch: the instructions take as long as a short program, and a launch of its own needs none of them.
``overlap`` is the sum of 1 (the next launch may start), 2 (wait last) and 4 (wait first).
"""

import triton
import triton.language as tl
from triton import knobs
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

# The interpreter runs one launch after the other and knows neither instruction.
INTERPRETED = tl.constexpr(knobs.runtime.interpret)


@triton.jit
def begin(overlap):
    """Wait for the launch before if ``overlap`` has 4, then let the next one start if it has 1.

    In this order, so that programs of at most two launches are there at once. Nothing that an earlier launch writes may
    be read before this call.
    """
    if not INTERPRETED:
        if overlap & 4 != 0:
            gdc_wait()
    start_next(overlap)


@triton.jit
def start_next(overlap):
    """Let the next launch start, if ``overlap`` has 1."""
    if not INTERPRETED:
        if overlap & 1 != 0:
            gdc_launch_dependents()


@triton.jit
def wait_for_previous(overlap):
    """Wait until the launch before has ended, if ``overlap`` has 2."""
    if not INTERPRETED:
        if overlap & 2 != 0:
            gdc_wait()
