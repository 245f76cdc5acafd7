"""Adam: two numbers of state per weight."""

import triton
import triton.language as tl

from common.optimizers.rowwise import with_l2_decay


@triton.jit
def _bias_correction(beta, step):
    """1 - beta^step, in fp64 until it is rounded: for a beta near 1 little is left."""
    return (1.0 - tl.exp(step.to(tl.float64) * tl.log(beta))).to(tl.float32)


@triton.jit
def adam(weights, gradient, step, position, mask, ONE_ROW: tl.constexpr = False):
    """Updated rows [rows, columns] fp32; both momenta change in place, at the ``position`` of each weight.

    h = g + l2 * w;  m1 = beta1 * m1 + (1 - beta1) * h;  m2 = beta2 * m2 + (1 - beta2) * h^2
    w = (1 - lr * decoupled) * w - lr * (m1 / (1 - beta1^t)) / (sqrt(m2 / (1 - beta2^t)) + eps)

    t is the step's count. The betas are fp64: 1 - beta2 has few digits.
    """
    # The interpreter has Python's numbers here.
    beta1 = tl.full([], step.beta1, tl.float64)
    beta2 = tl.full([], step.beta2, tl.float64)
    h = with_l2_decay(gradient, weights, step.l2_decay)
    first = tl.load(step.momentum1 + position, mask=mask, other=0.0)
    second = tl.load(step.momentum2 + position, mask=mask, other=0.0)
    first = beta1.to(tl.float32) * first + (1.0 - beta1).to(tl.float32) * h
    second = beta2.to(tl.float32) * second + (1.0 - beta2).to(tl.float32) * (h * h)
    if ONE_ROW:  # See `updated_rows`.
        tl.debug_barrier()
    tl.store(step.momentum1 + position, first, mask=mask)
    tl.store(step.momentum2 + position, second, mask=mask)
    mean = first / _bias_correction(beta1, step.count)
    deviation = tl.sqrt_rn(second / _bias_correction(beta2, step.count))
    kept = 1.0 - step.learning_rate * step.decoupled_decay
    return kept * weights - step.learning_rate * mean / (deviation + step.eps)
