"""The optimizers that the backward can apply: their numbers, and the state they keep.

The formulas are in docs/operators.md, what an optimizer keeps in kernel_specs/operators.toml. Every one takes one step per row that a batch looked up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ._operator_rules import OPTIMIZERS

WEIGHT_DECAY_MODES = ("none", "l2", "decoupled")


@dataclass(frozen=True)
class Optimizer:
    """What all optimizers have.

    Attributes:
        lr: the learning rate at the start.
        weight_decay: factor of the weight decay of rows that are looked up.
        weight_decay_mode: "none"; "l2": weight_decay * w is added to the gradient; "decoupled": w is multiplied by
            1 - lr * weight_decay.
        name: the operator's name of it.

    Raises:
        ValueError: a number is out of range.
    """

    lr: float = 0.01
    weight_decay: float = 0.0
    weight_decay_mode: str = "none"

    name: ClassVar[str]

    def __post_init__(self) -> None:
        if self.weight_decay_mode not in WEIGHT_DECAY_MODES:
            allowed = ", ".join(map(repr, WEIGHT_DECAY_MODES))
            raise ValueError(
                f"weight_decay_mode is {self.weight_decay_mode!r}, expected one of {allowed}"
            )
        if self.weight_decay != 0 and self.weight_decay_mode == "none":
            raise ValueError(
                f"weight_decay is {self.weight_decay}, expected a weight_decay_mode, 'l2' or 'decoupled'"
            )
        for name, (low, below) in self._ranges().items():
            value = getattr(self, name)
            if not low <= value < below:
                expected = f"at least {low}" + ("" if below == float("inf") else f", below {below}")
                raise ValueError(f"{name} is {value}, expected {expected}")

    def _ranges(self) -> dict[str, tuple[float, float]]:
        return {"lr": (0, float("inf")), "weight_decay": (0, float("inf"))}

    @property
    def row_state(self) -> tuple[str, ...]:
        """Names of states with one float32 per row."""
        names: tuple[str, ...] = OPTIMIZERS[self.name].row_state
        return names

    @property
    def weight_state(self) -> tuple[str, ...]:
        """Names of states with one float32 per weight."""
        names: tuple[str, ...] = OPTIMIZERS[self.name].weight_state
        return names

    @property
    def counts_updates(self) -> bool:
        """Whether the number of updates so far is a state too."""
        counts: bool = OPTIMIZERS[self.name].counts_updates
        return counts

    @property
    def numbers(self) -> tuple[float, float, float, float, str]:
        """The operator's arguments eps, beta1, beta2, weight_decay and weight_decay_mode."""
        return (
            getattr(self, "eps", 0.0),
            *getattr(self, "betas", (0.0, 0.0)),
            self.weight_decay,
            self.weight_decay_mode,
        )


@dataclass(frozen=True)
class SGD(Optimizer):
    """Stochastic gradient descent, without state."""

    name: ClassVar[str] = "sgd"


@dataclass(frozen=True)
class _WithEps(Optimizer):
    eps: float = 1e-8

    def _ranges(self) -> dict[str, tuple[float, float]]:
        return super()._ranges() | {"eps": (0, float("inf"))}


@dataclass(frozen=True)
class RowwiseAdagrad(_WithEps):
    """Adagrad with one statistic per row, the mean of the squared gradient over its columns (exact: after summing).

    Attributes:
        eps: added to the root of the statistic.
    """

    name: ClassVar[str] = "rowwise_adagrad"


@dataclass(frozen=True)
class Adagrad(_WithEps):
    """Adagrad with one statistic per weight.

    Attributes:
        eps: added to the root of the statistic.
    """

    name: ClassVar[str] = "adagrad"


@dataclass(frozen=True)
class Adam(_WithEps):
    """Adam whose moments move only in rows that are looked up; its bias correction counts every update.

    Attributes:
        eps: added to the root of the corrected second moment.
        betas: what remains of the two moments.
    """

    betas: tuple[float, float] = (0.9, 0.999)

    name: ClassVar[str] = "adam"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas is {self.betas}, expected two numbers of at least 0, below 1")
