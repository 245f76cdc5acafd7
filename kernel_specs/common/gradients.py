"""Reading gradients of the output, as the backward's kernels do: by lookup, clamped, in fp32."""

import triton
import triton.language as tl


@triton.jit
def load_scale(gradient_scale, scaled):
    """What the gradient was multiplied by: 1 unless ``scaled``."""
    return tl.load(gradient_scale, mask=scaled != 0, other=1.0)


@triton.jit
def clip_limit(clip, scale):
    """The bound of a gradient's elements that are still multiplied by ``scale``; infinite for an infinite ``clip``."""
    return clip * tl.abs(scale)


@triton.jit
def load_gradients(
    gradient,
    position,
    factors,
    lookup,
    live,
    in_row,
    column,
    limit,
    FACTORED: tl.constexpr,
    UNIT: tl.constexpr,
):
    """[lookups, columns] fp32: the gradient of each lookup's bag, clamped to ``limit``, times the lookup's factor.

    ``position`` [lookups] is the bag's first element in ``gradient``, uint32 in an int32; UNIT elements divide it.
    ``in_row`` [lookups or 1, columns] has the columns of the dim. What is not live or not in a row is 0; NaN stays NaN.
    """
    start = tl.multiple_of(position.to(tl.uint32).to(tl.int64), UNIT)
    mask = live[:, None] & in_row
    value = tl.load(gradient + start[:, None] + column[None, :], mask=mask, other=0.0)
    value = tl.clamp(value.to(tl.float32), -limit, limit, propagate_nan=tl.PropagateNan.ALL)
    if FACTORED:
        value *= tl.load(factors + lookup, mask=live, other=0.0)[:, None]
    return value
