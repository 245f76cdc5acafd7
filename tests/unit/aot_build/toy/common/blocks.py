"""Which elements make a block."""

import triton
import triton.language as tl


@triton.jit
def block_elements(block, SIZE: tl.constexpr):
    """The SIZE elements of a block."""
    return block.to(tl.int64) * SIZE + tl.arange(0, SIZE)
