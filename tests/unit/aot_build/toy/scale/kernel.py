"""output = factor * source, or -factor * source."""

import triton
import triton.language as tl
from common.blocks import block_elements


@triton.jit
def scale_kernel(
    output,  # [numel]
    source,  # [numel]
    negate,
    numel,
    factor,
    SIZE: tl.constexpr,
    UNROLL: tl.constexpr,
):
    signed = tl.where(negate, -factor, factor)
    for part in tl.static_range(UNROLL):
        position = block_elements(tl.program_id(0) * UNROLL + part, SIZE)
        value = tl.load(source + position, mask=position < numel)
        tl.store(output + position, (value * signed).to(value.dtype), mask=position < numel)
