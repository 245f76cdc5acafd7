"""Which variant a call takes and why, from the manifest alone: the offline half of ``tbe_aot.explain``.

What is known of a call (``call.py``) decides axes by their names (``rules.py``) and which kernels run at all (``paths.py``). An axis that nothing
decides stays open, and every variant that is then possible is shown with what would lead to it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from .call import Call, Facts, facts_of
from .document import Document, Part
from .errors import AuditError
from .grids import GRIDS, launches_of
from .manifest import Axis, AxisValue, Kernel, Manifest, Variant
from .paths import LOOKUP, VERDICTS, Verdict
from .rules import RULES, Ruling

__all__ = ["Call", "Explained", "explain"]
WARP = 32
MOST_ALTERNATIVES = 6


class Decision(Part):
    """The value of one axis, and why it is that."""

    axis: str
    value: bool | int | str
    label: str
    because: str


class Candidate(Part):
    """A variant that the call takes, with the values of open axes that lead to it.

    ``grid`` and ``launches``, how often it is launched, are None where they depend on more than is known.
    """

    variant: str
    arch: str
    built: bool
    when: str
    served_by_another_cell: bool
    block: int
    grid: tuple[int, int, int] | None
    launches: int | None
    constants: dict[str, bool | int | str]
    registers: int | None
    occupancy: float | None


class Alternative(Part):
    """A variant one axis away."""

    axis: str
    label: str
    variant: str
    built: bool
    registers: int | None
    occupancy: float | None


class Path(Part):
    """A kernel that runs in the call, or instead of one that does; ``taken`` is None where that is open."""

    kernel: str
    taken: bool | None
    because: str


class Explained(Document):
    """The result of ``explain``.

    ``candidates`` are what the call launches of the kernel: none where it does not run, and ``problem`` says why. ``paths`` are the kernel and
    those that run instead of it or that it runs instead of; ``notes`` are other kernels of which the manifest says so.
    """

    document: Literal["explain"] = "explain"
    build_id: str
    profile: str
    arch: str
    kernel: str
    paths: list[Path]
    decisions: list[Decision]
    open_axes: list[str]
    candidates: list[Candidate]
    alternatives: list[Alternative]
    notes: list[str]
    problem: str | None


def explain(manifest: Manifest, call: Call, *, kernel: str = "", arch: str = "") -> Explained:
    """Which variants a call takes on an arch, and why.

    Args:
        manifest: of the build.
        call: what is known of the call.
        kernel: the kernel that is asked about; the one that looks up if empty.
        arch: the arch; the oldest of the build if empty.

    Raises:
        AuditError: the build has no such kernel or arch, or a value means nothing.
    """
    name = kernel or LOOKUP
    if name not in manifest.kernels:
        raise AuditError(f"kernel {name!r}: this build has {', '.join(sorted(manifest.kernels))}")
    arch = arch or min(manifest.archs, key=lambda name: manifest.archs[name].compute_capability)
    if arch not in manifest.archs:
        raise AuditError(f"arch {arch!r}: this build has {', '.join(sorted(manifest.archs))}")
    facts = facts_of(manifest, arch, name, call)
    # Axes are those of one kernel.
    if not kernel and not call.axes:
        taken = [path.kernel for path in _paths(facts, name) if path.taken]
        name = taken[0] if taken else name
        facts = replace(facts, kernel=name)
    found = manifest.kernels[name]
    unknown = [axis for axis in call.axes if axis not in {own.name for own in found.axes}]
    if unknown:
        names = ", ".join(axis.name for axis in found.axes) or "none"
        raise AuditError(f"axis {unknown[0]!r}: the axes of {name} are {names}")
    return _Explainer(facts, found).run()


def _verdict(facts: Facts, kernel: str) -> Verdict | None:
    """None for a kernel that this tool does not know."""
    return VERDICTS[kernel](facts) if kernel in VERDICTS else None


def _family(manifest: Manifest, name: str) -> list[str]:
    """The kernel, what it runs instead of, and all that run instead of those."""
    general = set(manifest.kernels[name].instead_of) or {name}
    return [
        other
        for other, kernel in manifest.kernels.items()
        if other in general or general & set(kernel.instead_of)
    ]


def _paths(facts: Facts, name: str) -> list[Path]:
    verdicts = {other: _verdict(facts, other) for other in _family(facts.manifest, name)}
    return [
        Path(kernel=other, taken=verdict.taken, because=verdict.because)
        for other, verdict in verdicts.items()
        if verdict is not None
    ]


def _asked_value(axis: Axis, text: str) -> AxisValue:
    names = {str(value).lower(): value for value in axis.values}
    names |= dict(zip(axis.labels, axis.values, strict=True))
    if text not in names:
        raise AuditError(f"axis {axis.name} has no value {text!r}: {', '.join(axis.labels)}")
    return names[text]


def _value_of(axis: Axis, found: AxisValue) -> AxisValue | None:
    """The axis' value for a value or a label; None if it has none."""
    for value, label in zip(axis.values, axis.labels, strict=True):
        if found == label or (found == value and type(found) is type(value)):
            return value
    return None


class _Explainer:
    def __init__(self, facts: Facts, kernel: Kernel) -> None:
        self.call = facts.call
        self.manifest = facts.manifest
        self.kernel = kernel
        self.name = facts.kernel
        self.arch = facts.arch
        self.asked = {
            axis.name: _asked_value(axis, self.call.axes[axis.name])
            for axis in kernel.axes
            if axis.name in self.call.axes
        }
        self.facts = facts.assign(kernel, self.asked)
        self.variants = kernel.on(self.arch)
        self.decisions: list[Decision] = []

    def run(self) -> Explained:
        rulings = {axis.name: self._rule(axis, self.facts) for axis in self.kernel.axes}
        domains = []
        for axis in self.kernel.axes:
            ruling = rulings[axis.name]
            value = None if ruling is None else _value_of(axis, ruling[0])
            if ruling is not None and value is None:
                problem = f"axis {axis.name} has no value for {ruling[1]}: it has {', '.join(map(str, axis.values))}"
                return self._result([], [], [], problem)
            domains.append(list(axis.values) if value is None else [value])
        if not self.variants:
            return self._result([], [], [], f"{self.name} is not compiled for {self.arch}")
        verdict = _verdict(self.facts, self.name)
        if verdict is not None and verdict.taken is False:
            problem = f"this call does not launch {self.name}: {verdict.because}"
            return self._result([], [], [], problem)
        names = [axis.name for axis in self.kernel.axes]
        fitting = [
            chosen
            for values in itertools.product(*domains)
            if self._fits(chosen := dict(zip(names, values, strict=True)))
        ]
        if not fitting:
            return self._result([], [], [], "no combination of axes fits what was said")
        open_axes = []
        for axis in self.kernel.axes:
            if len({chosen[axis.name] for chosen in fitting}) > 1:
                open_axes.append(axis)
                continue
            ruling = rulings[axis.name] or self._rule(
                axis, self.facts.assign(self.kernel, fitting[0])
            )
            because = "nothing else fits" if ruling is None else ruling[1]
            self._record(axis, fitting[0][axis.name], because)
        return self._answer(fitting, open_axes)

    def _rule(self, axis: Axis, facts: Facts) -> Ruling:
        if axis.name in self.asked:
            return self.asked[axis.name], "as asked"
        rule = RULES.get(axis.name)
        return None if rule is None else rule(facts, axis)

    def _fits(self, chosen: dict[str, AxisValue]) -> bool:
        """Whether the rules say the same of a call with these values, and whether it launches the kernel."""
        facts = self.facts.assign(self.kernel, chosen)
        for axis in self.kernel.axes:
            ruling = self._rule(axis, facts)
            if ruling is not None and _value_of(axis, ruling[0]) != chosen[axis.name]:
                return False
        verdict = _verdict(facts, self.name)
        return verdict is None or verdict.taken is not False

    def _record(self, axis: Axis, value: AxisValue, because: str) -> None:
        label = axis.labels[axis.values.index(value)]
        self.decisions.append(Decision(axis=axis.name, value=value, label=label, because=because))

    def _answer(self, fitting: list[dict[str, AxisValue]], open_axes: list[Axis]) -> Explained:
        candidates: list[Candidate] = []
        problems: list[str] = []
        for chosen in fitting:
            cell = self.kernel.cell_of(chosen)
            number = self.kernel.cells[cell]
            if not 0 <= number < len(self.variants):
                reason = next(
                    (e.reason for e in self.kernel.excluded if e.cell == cell), "no reason"
                )
                problems.append(f"no operator asks for this combination: {reason}")
                continue
            variant = self.variants[number]
            when = {axis.name: chosen[axis.name] for axis in open_axes}
            candidates.append(self._candidate(variant, when, served=variant.cell != cell))
            if not variant.built:
                problems.append(self._left_out(variant))
        # With axes open, one candidate that is built answers the question.
        found = any(candidate.built for candidate in candidates)
        alternatives = [] if open_axes else list(self._alternatives(fitting[0]))
        reasons = None if found else "; ".join(dict.fromkeys(problems))
        return self._result(candidates, open_axes, alternatives, reasons)

    def _candidate(
        self, variant: Variant, when: dict[str, AxisValue], *, served: bool
    ) -> Candidate:
        grid = GRIDS[self.name](self.facts, variant) if self.name in GRIDS else None
        code = variant.code
        return Candidate(
            variant=variant.name,
            arch=variant.arch,
            built=variant.built,
            when=", ".join(f"{name} {self._label(name, value)}" for name, value in when.items()),
            served_by_another_cell=served,
            block=WARP * variant.num_warps,
            grid=grid,
            launches=launches_of(self.facts, variant),
            constants=variant.constants,
            registers=None if code is None else code.registers,
            occupancy=None if code is None else code.occupancy.percent,
        )

    def _label(self, name: str, value: AxisValue) -> str:
        axis = next(axis for axis in self.kernel.axes if axis.name == name)
        return axis.labels[axis.values.index(value)]

    def _left_out(self, variant: Variant) -> str:
        """Why a variant is not there, and which value would have to be another one."""
        built = [other for other in self.variants if other.built]
        profile = self.manifest.profile
        missing = [
            f"{axis.name} {self._label(axis.name, variant.axes[axis.name])}"
            for axis in self.kernel.axes
            if not any(other.axes[axis.name] == variant.axes[axis.name] for other in built)
        ]
        if missing:
            return f"the profile {profile} builds no variant with {' or '.join(missing)}"
        near: dict[str, list[str]] = {}
        for other in built:
            names = [name for name, value in variant.axes.items() if other.axes[name] != value]
            if len(names) == 1:
                near.setdefault(names[0], []).append(self._label(names[0], other.axes[names[0]]))
        if near:
            shown = "; ".join(f"{name} {' or '.join(labels)}" for name, labels in near.items())
            return (
                f"the profile {profile} leaves out {variant.name}; it builds the same with {shown}"
            )
        return f"the profile {profile} leaves out {variant.name}, and builds none that differs in one axis alone"

    def _alternatives(self, decided: dict[str, AxisValue]) -> Iterator[Alternative]:
        own = self.kernel.cells[self.kernel.cell_of(decided)]
        for axis in self.kernel.axes:
            position = axis.values.index(decided[axis.name])
            others = sorted(
                (n for n in range(len(axis.values)) if n != position),
                key=lambda n: abs(n - position),
            )
            for n in others[:MOST_ALTERNATIVES]:
                number = self.kernel.cells[
                    self.kernel.cell_of({**decided, axis.name: axis.values[n]})
                ]
                if not 0 <= number < len(self.variants) or number == own:
                    continue
                variant = self.variants[number]
                yield Alternative(
                    axis=axis.name,
                    label=axis.labels[n],
                    variant=variant.name,
                    built=variant.built,
                    registers=None if variant.code is None else variant.code.registers,
                    occupancy=None if variant.code is None else variant.code.occupancy.percent,
                )

    def _result(
        self,
        candidates: list[Candidate],
        open_axes: list[Axis],
        alternatives: list[Alternative],
        problem: str | None,
    ) -> Explained:
        return Explained(
            build_id=self.manifest.build_id,
            profile=self.manifest.profile,
            arch=self.arch,
            kernel=self.name,
            paths=_paths(self.facts, self.name),
            decisions=self.decisions,
            open_axes=[axis.name for axis in open_axes],
            candidates=candidates,
            alternatives=alternatives,
            notes=[
                f"{name} may run instead, for {kernel.serves}"
                for name, kernel in self.manifest.kernels.items()
                if self.name in kernel.instead_of and kernel.on(self.arch) and name not in VERDICTS
            ],
            problem=problem,
        )
