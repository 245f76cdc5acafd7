"""The one place that knows which optimizers there are."""

from typing import NamedTuple

import triton
import triton.language as tl

from common.optimizers.adagrad import adagrad as adagrad_formula
from common.optimizers.adam import adam as adam_formula
from common.optimizers.rowwise import load_rowwise_state
from common.optimizers.rowwise import rowwise as rowwise_formula


class Step(NamedTuple):
    """What a step of the optimizer is, the same for every row of a launch."""

    momentum1: tl.tensor  # fp32, a number per row or per weight, as the optimizer needs
    momentum2: tl.tensor  # fp32, a number per weight
    count: tl.tensor  # int64, the number of this update, from 1 on, for an optimizer that counts
    learning_rate: tl.tensor
    eps: tl.tensor
    beta1: tl.tensor  # fp64
    beta2: tl.tensor  # fp64
    l2_decay: tl.tensor
    decoupled_decay: tl.tensor
    adagrad: tl.tensor  # row-wise Adagrad rather than SGD, for OPTIMIZER "rowwise"


@triton.jit
def load_step(
    momentum1,
    momentum2,
    count,
    learning_rate,
    eps,
    beta1,
    beta2,
    l2_decay,
    decoupled_decay,
    adagrad,
    OPTIMIZER: tl.constexpr,
):
    """The step of this launch; others than Adam have no counter to read."""
    number = tl.load(count) if OPTIMIZER == "adam" else tl.full([], 0, tl.int64)
    return Step(
        momentum1,
        momentum2,
        number,
        tl.load(learning_rate),
        eps,
        beta1,
        beta2,
        l2_decay,
        decoupled_decay,
        adagrad,
    )


@triton.jit
def load_state(step, row, live, OPTIMIZER: tl.constexpr):
    """[rows] fp32: state of a number per row, loaded before the gradients are summed.

    State per weight is loaded after that: it would take the sum's registers.
    """
    if OPTIMIZER == "rowwise":
        return load_rowwise_state(step.momentum1, row, live, step.adagrad)
    return tl.zeros(live.shape, tl.float32)


@triton.jit
def updated_rows(
    weights,
    gradient,
    state,
    step,
    row,
    position,
    live,
    mask,
    dim,
    OPTIMIZER: tl.constexpr,
    ONE_ROW: tl.constexpr = False,
):
    """One step of the optimizer: ``weights`` [rows, columns] fp32 after it. Its state changes in place.

    ``gradient`` [rows, columns] is the sum over each row's lookups, 0 outside ``mask``; ``state`` [rows] comes from
    `load_state`, ``step`` from `load_step`; ``row`` [rows] is the global row, where a number per row has its place;
    ``position`` [rows, columns] the element, where a number per weight has it.

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
            step.momentum1,
            row,
            live,
            dim,
            step.learning_rate,
            step.eps,
            step.l2_decay,
            step.decoupled_decay,
            step.adagrad,
            ONE_ROW,
        )
    elif OPTIMIZER == "adagrad":
        return adagrad_formula(weights, gradient, step, position, mask, ONE_ROW)
    else:
        tl.static_assert(OPTIMIZER == "adam", "an optimizer without a formula")
        return adam_formula(weights, gradient, step, position, mask, ONE_ROW)
