"""The numbers that variants are compared by: how each is read, and whether more of it is worse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from .document import Part
from .manifest import Code


@dataclass(frozen=True)
class Metric:
    """One number of a variant.

    ``worse`` says which way is worse, None for numbers that are neither. A worsening counts when it exceeds both tolerances:
    ``absolute`` in the metric's own unit, and ``relative`` to the value before. ``weight`` orders what got worse: the heavier a metric, the
    earlier its variants are shown.
    """

    name: str
    title: str
    read: Callable[[Code], float]
    worse: Literal["more", "less"] | None = None
    absolute: float = 0
    relative: float = 0
    weight: int = 0

    def worsening(self, before: float, after: float) -> float:
        """How much worse a value became, in the metric's unit; 0 or less if it did not."""
        if self.worse is None:
            return 0
        return after - before if self.worse == "more" else before - after

    def intolerable(self, before: float, after: float) -> bool:
        """Whether a value became worse beyond the tolerances."""
        change = self.worsening(before, after)
        return change > self.absolute and change > self.relative * before


class Change(Part):
    """One metric of a variant before and after; ``worse`` if it became worse, ``intolerable`` if beyond the tolerance."""

    metric: str
    before: float
    after: float
    worse: bool
    intolerable: bool


def _widest(widths: dict[str, int]) -> float:
    return max(map(int, widths), default=0)


def _mean_width(widths: dict[str, int]) -> float:
    """In bytes, to a hundredth: falls when many accesses narrow and one stays wide."""
    count = sum(widths.values())
    total = sum(int(width) * number for width, number in widths.items())
    return round(total / count, 2) if count else 0


METRICS = (
    Metric("spill_bytes", "spilled bytes", lambda code: code.spill_bytes, "more", weight=6),
    Metric(
        "local_accesses",
        "local loads and stores",
        lambda code: code.sass.local_loads + code.sass.local_stores,
        "more",
        weight=6,
    ),
    Metric("stack_bytes", "stack bytes", lambda code: code.stack_bytes, "more", weight=5),
    Metric(
        "load_bytes",
        "widest global load",
        lambda code: _widest(code.sass.global_load_bytes),
        "less",
        weight=5,
    ),
    Metric(
        "mean_load_bytes",
        "mean bytes of a global load",
        lambda code: _mean_width(code.sass.global_load_bytes),
        "less",
        relative=0.1,
        weight=5,
    ),
    Metric(
        "store_bytes",
        "widest global store",
        lambda code: _widest(code.sass.global_store_bytes),
        "less",
        weight=4,
    ),
    Metric(
        "mean_store_bytes",
        "mean bytes of a global store",
        lambda code: _mean_width(code.sass.global_store_bytes),
        "less",
        relative=0.1,
        weight=4,
    ),
    Metric("occupancy", "occupancy %", lambda code: code.occupancy.percent, "less", weight=4),
    Metric("fp64", "64-bit floats", lambda code: code.sass.fp64, "more", relative=0.1, weight=3),
    Metric("registers", "registers", lambda code: code.registers, "more", absolute=8, weight=2),
    Metric(
        "shared_bytes",
        "shared bytes",
        lambda code: code.shared_bytes + code.static_shared_bytes,
        "more",
        absolute=1024,
        weight=2,
    ),
    Metric(
        "instructions",
        "instructions",
        lambda code: code.sass.instructions,
        "more",
        absolute=64,
        relative=0.1,
        weight=1,
    ),
    Metric(
        "cubin_bytes",
        "cubin bytes",
        lambda code: code.cubin_bytes,
        "more",
        absolute=2048,
        relative=0.1,
        weight=1,
    ),
    Metric("code_bytes", "bytes of machine code", lambda code: code.code_bytes),
    Metric("loads", "global loads", lambda code: sum(code.sass.global_load_bytes.values())),
    Metric("stores", "global stores", lambda code: sum(code.sass.global_store_bytes.values())),
    Metric(
        "shared_accesses",
        "shared loads and stores",
        lambda code: code.sass.shared_loads + code.sass.shared_stores,
    ),
    Metric("calls", "calls", lambda code: code.sass.calls),
    Metric("barriers", "named barriers", lambda code: code.barriers),
    Metric("syncs", "barrier instructions", lambda code: code.sass.barriers),
    Metric(
        "atomics",
        "atomics",
        lambda code: code.sass.global_atomics + code.sass.shared_atomics,
    ),
    Metric("fences", "fences", lambda code: code.sass.fences),
    Metric("ordered", "ordered accesses", lambda code: code.sass.ordered),
    Metric("tensor", "tensor-core instructions", lambda code: code.sass.tensor),
)


def measure(code: Code) -> dict[str, float]:
    """All metrics of a variant by name; whole numbers where they are whole."""
    return {metric.name: metric.read(code) for metric in METRICS}


def changes_of(before: dict[str, float], after: dict[str, float]) -> list[Change]:
    """The metrics that differ; only those that both have."""
    return [
        Change(
            metric=metric.name,
            before=before[metric.name],
            after=after[metric.name],
            worse=metric.worsening(before[metric.name], after[metric.name]) > 0,
            intolerable=metric.intolerable(before[metric.name], after[metric.name]),
        )
        for metric in METRICS
        if metric.name in before
        and metric.name in after
        and before[metric.name] != after[metric.name]
    ]
