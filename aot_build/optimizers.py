"""The optimizers of operators.toml: what each keeps, and which formula of the kernels serves it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import Field

from .errors import Problem, format_names, format_values
from .spec import IDENTIFIER, Spec, Table

# The kernels' axis that chooses a formula.
AXIS = "optimizer"
STATES = ("momentum1", "momentum2")


class Optimizer(Table):
    """``[[optimizers]]``: one optimizer; the head of operators.toml says what the keys mean."""

    name: str = Field(pattern=IDENTIFIER)
    kernel_formula: str
    row_state: list[str] = Field(default=[])
    weight_state: list[str] = Field(default=[])
    counts_updates: bool = False

    def place_of(self, state: str) -> str:
        """Where a state is: "row", "weight" or "none"."""
        if state in self.row_state:
            return "row"
        return "weight" if state in self.weight_state else "none"


def string_sets(optimizers: Sequence[Optimizer]) -> dict[str, list[str]]:
    """The sets of names that expressions know: of the optimizers that have something in common."""
    sets = {
        f"{state}_per_{place}": [o.name for o in optimizers if o.place_of(state) == place]
        for state in STATES
        for place in ("row", "weight")
    }
    return sets | {"counts_updates": [o.name for o in optimizers if o.counts_updates]}


def check_optimizers(
    path: Path, optimizers: Sequence[Optimizer], specs: Mapping[str, Spec]
) -> list[Problem]:
    """Every mistake: names, states, and formulas that a kernel lacks or that no optimizer asks for."""
    problems = []

    def report(key: str, value: object, message: str, allowed: str = "") -> None:
        problems.append(Problem(str(path), f"optimizers.{key}", value, message, allowed))

    names = [optimizer.name for optimizer in optimizers]
    axes = {
        kernel: values[AXIS]
        for kernel, values in ((name, spec.axis_values()) for name, spec in specs.items())
        if AXIS in values
    }
    for optimizer in optimizers:
        key = optimizer.name
        if names.count(key) > 1:
            report(key, key, "this optimizer is listed twice")
        states = optimizer.row_state + optimizer.weight_state
        if len(set(states)) != len(states):
            report(key, states, "a state is listed twice")
        if not set(states) <= set(STATES):
            report(key, states, "an unknown state", format_names(STATES))
        for kernel, values in axes.items():
            if optimizer.kernel_formula not in values:
                report(
                    f"{key}.kernel_formula",
                    optimizer.kernel_formula,
                    f"not a value of the axis {AXIS} of {kernel}",
                    format_values(values),
                )
    used = [optimizer.kernel_formula for optimizer in optimizers]
    for kernel, values in axes.items():
        for value in values:
            if value not in used:
                report(
                    "kernel_formula",
                    value,
                    f"a value of the axis {AXIS} of {kernel} that no optimizer asks for",
                    format_values(used),
                )
    return problems
