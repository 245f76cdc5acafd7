"""output = value."""

import triton
import triton.language as tl


@triton.jit
def fill_kernel(output, numel, value, BLOCK: tl.constexpr):
    position = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(output + position, value, mask=position < numel)
