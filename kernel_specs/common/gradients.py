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
def load_gradients(gradient, position, live, in_row, column, UNIT: tl.constexpr):
    """[lookups, columns]: the gradient of each lookup's bag, as it is stored.

    ``position`` [lookups] is the bag's first element in ``gradient``, uint32 in an int32; UNIT elements divide it.
    ``in_row`` [lookups or 1, columns] has the columns of the dim. What is not live or not in a row is 0.
    """
    start = tl.multiple_of(position.to(tl.uint32).to(tl.int64), UNIT)
    mask = live[:, None] & in_row
    return tl.load(gradient + start[:, None] + column[None, :], mask=mask, other=0.0)


@triton.jit
def load_factors(factors, lookup, live, FACTORED: tl.constexpr):
    """[lookups] fp32: what each lookup's gradient is multiplied by, 0 where not ``live``; 1 unless FACTORED."""
    if FACTORED:
        return tl.load(factors + lookup, mask=live, other=0.0)
    return tl.full(live.shape, 1.0, tl.float32)


@triton.jit
def clamp_gradients(gradients, limit):
    """[lookups, columns] fp32: loaded gradients, clamped to ``limit``. NaN stays NaN."""
    return tl.clamp(gradients.to(tl.float32), -limit, limit, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def unscaled_factors(factor, unscale, FACTORED: tl.constexpr):
    """What clamped gradients are multiplied by: ``unscale``, and ``factor`` [lookups] if FACTORED.

    Each is unscaled before it is added: the sum of what is still scaled may be too large for fp32. That costs nothing,
    product and sum are one instruction.
    """
    if FACTORED:
        return (factor * unscale)[:, None]
    else:
        return unscale


@triton.jit
def share_of_lookups(gradients, factor, limit, unscale, FACTORED: tl.constexpr):
    """[lookups, columns] fp32: loaded gradients, clamped to ``limit``, times ``unscale`` and ``factor`` [lookups]."""
    return clamp_gradients(gradients, limit) * unscaled_factors(factor, unscale, FACTORED)
