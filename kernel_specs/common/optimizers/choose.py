"""The one place that knows which optimizers there are."""

import triton
import triton.language as tl

from common.optimizers.adagrad import adagrad as adagrad_formula
from common.optimizers.adam import adam as adam_formula
from common.optimizers.rowwise import load_rowwise_state
from common.optimizers.rowwise import rowwise as rowwise_formula


@triton.jit
def load_step(step, OPTIMIZER: tl.constexpr):
    """The number of this update, from 1 on, for an optimizer that counts; others have no counter to read."""
    if OPTIMIZER == "adam":
        return tl.load(step)
    return tl.full([], 0, tl.int64)


@triton.jit
def load_state(momentum1, row, live, adagrad, OPTIMIZER: tl.constexpr):
    """[rows] fp32: state of a number per row, loaded before the gradients are summed.

    State per weight is loaded after that: it would take the sum's registers.
    """
    if OPTIMIZER == "rowwise":
        return load_rowwise_state(momentum1, row, live, adagrad)
    return tl.zeros(live.shape, tl.float32)


@triton.jit
def updated_rows(
    weights,
    gradient,
    state,
    momentum1,
    momentum2,
    row,
    position,
    live,
    mask,
    dim,
    step,
    learning_rate,
    eps,
    beta1,
    beta2,
    l2_decay,
    decoupled_decay,
    adagrad,
    OPTIMIZER: tl.constexpr,
    ONE_ROW: tl.constexpr = False,
):
    """One step of the optimizer: ``weights`` [rows, columns] fp32 after it. Its state changes in place.

    ``gradient`` [rows, columns] is the sum over each row's lookups, 0 outside ``mask``; ``state`` [rows] comes from
    `load_state`; ``row`` [rows] is the global row, where a number per row has its place; ``position`` [rows, columns]
    the element, where a number per weight has it. ``adagrad``: row-wise Adagrad rather than SGD, for OPTIMIZER "rowwise".

    ONE_ROW: the blocks are one row. Then a program may have more threads than the row has columns, and several warps hold
    the same ones: all must have loaded what one of them is about to overwrite, which takes a barrier. A warp that comes
    late would else go on from the state after the step, and where the row changes its layout through shared memory, its
    numbers may be the ones that are stored.
    """
    if OPTIMIZER == "rowwise":
        return rowwise_formula(
            weights,
            gradient,
            state,
            momentum1,
            row,
            live,
            dim,
            learning_rate,
            eps,
            l2_decay,
            decoupled_decay,
            adagrad,
            ONE_ROW,
        )
    elif OPTIMIZER == "adagrad":
        return adagrad_formula(
            weights,
            gradient,
            momentum1,
            position,
            mask,
            learning_rate,
            eps,
            l2_decay,
            decoupled_decay,
            ONE_ROW,
        )
    else:
        tl.static_assert(OPTIMIZER == "adam", "an optimizer without a formula")
        return adam_formula(
            weights,
            gradient,
            momentum1,
            momentum2,
            position,
            mask,
            step,
            learning_rate,
            eps,
            beta1,
            beta2,
            l2_decay,
            decoupled_decay,
            ONE_ROW,
        )
