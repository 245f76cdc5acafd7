"""Which variant a call takes and why, from the manifest alone: the offline half of ``tbe_aot.explain``.

What is known of a call decides axes by their names: the dtype of the weights decides ``weight_dtype``, the dim ``bucket``, and so on. An axis
that nothing decides stays open, and every variant that is then possible is shown with what would lead to it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from .document import Document, Part
from .errors import AuditError
from .manifest import Axis, AxisValue, Kernel, Manifest, Variant

# As PyTorch and as the kernels name them.
DTYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
WIDTHS = {"int32": 32, "int64": 64}
WARP = 32
MOST_ALTERNATIVES = 6
MOST_ROWS_OF_32_BITS = 2**31


@dataclass(frozen=True)
class Call:
    """What is known of a call; None is unknown.

    ``lookups`` and ``mean_length`` are of the whole call, ``rows`` of all tables together, ``axes`` are values of axes by name that override
    the rest. ``formulas`` is the manifest's: the value of the axis ``optimizer`` for each optimizer.
    """

    weights: str | None = None
    gradient: str | None = None
    indices: str | None = None
    dim: int | None = None
    weighted: bool = False
    mean: bool = False
    aligned: bool = True
    mean_length: float | None = None
    lookups: int | None = None
    rows: int | None = None
    optimizer: str | None = None
    batch: int | None = None
    features: int = 1
    axes: dict[str, str] = field(default_factory=dict)
    formulas: dict[str, str] = field(default_factory=dict)


class Decision(Part):
    """The value of one axis, and why it is that."""

    axis: str
    value: bool | int | str
    label: str
    because: str


class Candidate(Part):
    """A variant that the call takes, with the values of open axes that lead to it; ``grid`` is None where it depends on more than is known."""

    variant: str
    arch: str
    built: bool
    when: str
    served_by_another_cell: bool
    block: int
    grid: tuple[int, int, int] | None
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


class Explained(Document):
    """The result of ``explain``.

    ``problem`` says why the call has no variant, if it has none; ``notes`` which other kernels may run instead.
    """

    document: Literal["explain"] = "explain"
    build_id: str
    profile: str
    arch: str
    kernel: str
    decisions: list[Decision]
    open_axes: list[str]
    candidates: list[Candidate]
    alternatives: list[Alternative]
    notes: list[str]
    problem: str | None


def _dtype(name: str, what: str) -> str:
    found = DTYPES.get(name, name)
    if found not in DTYPES.values():
        raise AuditError(f"{what} {name!r}: allowed are {', '.join([*DTYPES, *DTYPES.values()])}")
    return found


def _weight_dtype(call: Call, _: Axis) -> tuple[AxisValue, str] | None:
    if call.weights is None:
        return None
    return _dtype(call.weights, "dtype of the weights"), "the dtype of the weights"


def _gradient_dtype(call: Call, _: Axis) -> tuple[AxisValue, str] | None:
    gradient = _dtype(call.gradient or "fp32", "dtype of the gradient")
    weights = _dtype(call.weights, "dtype of the weights") if call.weights else gradient
    if gradient not in {"fp32", weights}:
        return "fp32", f"a gradient of {gradient} is widened to fp32 beside weights of {weights}"
    return gradient, "the dtype of the output's gradient"


def _index_width(call: Call, _: Axis) -> tuple[AxisValue, str] | None:
    if call.indices is None:
        return None
    if call.indices not in WIDTHS:
        raise AuditError(f"dtype of the indices {call.indices!r}: allowed are {', '.join(WIDTHS)}")
    return WIDTHS[call.indices], "the dtype of the indices"


def _bucket(call: Call, axis: Axis) -> tuple[AxisValue, str] | None:
    if call.dim is None:
        return None
    sizes = sorted(value for value in axis.values if isinstance(value, int))
    for size in sizes:
        if size >= call.dim:
            return size, f"the smallest bucket that holds dim {call.dim}"
    # No value: the caller says what there is.
    return call.dim, f"dim {call.dim}"


def _weighted(call: Call, _: Axis) -> tuple[AxisValue, str] | None:
    return (
        call.weighted,
        "per-sample weights are given" if call.weighted else "no per-sample weights",
    )


def _factored(call: Call, _: Axis) -> tuple[AxisValue, str] | None:
    factored = call.weighted or call.mean
    why = (
        "per-sample weights or MEAN give each lookup a factor"
        if factored
        else "SUM without per-sample weights: no factors"
    )
    return factored, why


def _aligned(call: Call, _: Axis) -> tuple[AxisValue, str] | None:
    if call.aligned:
        return (
            True,
            "rows start at multiples of 16 bytes, as the module and padded tables have them",
        )
    return False, "rows do not start at multiples of 16 bytes"


def _checked(_: Call, axis: Axis) -> tuple[AxisValue, str] | None:
    return axis.values[0], "indices are trusted, or checked before; ask for others by the axis"


def _key_width(call: Call, _: Axis) -> tuple[AxisValue, str] | None:
    if call.rows is None:
        return None
    # One more row stands for pruned lookups.
    width = 32 if call.rows + 1 < MOST_ROWS_OF_32_BITS else 64
    return width, f"{call.rows} rows in all tables together"


def _optimizer(call: Call, _: Axis) -> tuple[AxisValue, str] | None:
    if call.optimizer is None:
        return None
    # Some share a formula: SGD and row-wise Adagrad are one kernel, without branches.
    formula = call.formulas.get(call.optimizer, call.optimizer)
    return formula, f"the optimizer {call.optimizer}"


RULES: dict[str, Callable[[Call, Axis], tuple[AxisValue, str] | None]] = {
    "weight_dtype": _weight_dtype,
    "gradient_dtype": _gradient_dtype,
    "index_width": _index_width,
    "bucket": _bucket,
    "weighted": _weighted,
    "factored": _factored,
    "aligned": _aligned,
    "checked": _checked,
    "key_width": _key_width,
    "optimizer": _optimizer,
}
# A constant that ends an axis value's range, the quantity that it is compared with, and the words for it.
THRESHOLDS: dict[str, tuple[Callable[[Call], float | None], str]] = {
    "MEAN_LENGTH_BELOW": (lambda call: call.mean_length, "mean bag length"),
    "LOOKUPS_BELOW": (lambda call: call.lookups, "number of lookups"),
}


def explain(
    manifest: Manifest, call: Call, *, kernel: str = "forward", arch: str = ""
) -> Explained:
    """Which variants a call takes on an arch, and why.

    Args:
        manifest: of the build.
        call: what is known of the call.
        kernel: the kernel that is asked about.
        arch: the arch; the first of the build if empty.

    Raises:
        AuditError: the build has no such kernel or arch, or a value means nothing.
    """
    if kernel not in manifest.kernels:
        raise AuditError(f"kernel {kernel!r}: this build has {', '.join(sorted(manifest.kernels))}")
    arch = arch or min(manifest.archs, key=lambda name: manifest.archs[name].compute_capability)
    if arch not in manifest.archs:
        raise AuditError(f"arch {arch!r}: this build has {', '.join(sorted(manifest.archs))}")
    found = manifest.kernels[kernel]
    unknown = [name for name in call.axes if name not in {axis.name for axis in found.axes}]
    if unknown:
        names = ", ".join(axis.name for axis in found.axes) or "none"
        raise AuditError(f"axis {unknown[0]!r}: the axes of {kernel} are {names}")
    call = replace(call, formulas=manifest.optimizers)
    return _Explainer(manifest, found, kernel, arch, call).run()


class _Explainer:
    def __init__(
        self, manifest: Manifest, kernel: Kernel, name: str, arch: str, call: Call
    ) -> None:
        self.manifest = manifest
        self.kernel = kernel
        self.name = name
        self.arch = arch
        self.call = call
        self.variants = kernel.on(arch)
        self.decisions: list[Decision] = []

    def run(self) -> Explained:
        decided: dict[str, AxisValue] = {}
        open_axes = []
        for axis in self.kernel.axes:
            choice = self._decide(axis)
            if choice is None:
                open_axes.append(axis)
                continue
            value, because = choice
            if value not in axis.values or type(value) is not type(
                axis.values[axis.values.index(value)]
            ):
                problem = f"axis {axis.name} has no value for {because}: it has {', '.join(map(str, axis.values))}"
                return self._result([], open_axes, [], problem)
            decided[axis.name] = value
            self._record(axis, value, because)
        if not self.variants:
            return self._result([], open_axes, [], f"{self.name} is not compiled for {self.arch}")
        decided, open_axes = self._by_threshold(decided, open_axes)
        candidates: list[Candidate] = []
        problems: list[str] = []
        for values in itertools.product(*(axis.values for axis in open_axes)):
            when = dict(zip((axis.name for axis in open_axes), values, strict=True))
            axes = {**decided, **when}
            cell = self.kernel.cell_of({axis.name: axes[axis.name] for axis in self.kernel.axes})
            number = self.kernel.cells[cell]
            if not 0 <= number < len(self.variants):
                reason = next(
                    (e.reason for e in self.kernel.excluded if e.cell == cell), "no reason"
                )
                problems.append(f"no operator asks for this combination: {reason}")
                continue
            variant = self.variants[number]
            candidates.append(self._candidate(variant, when, served=variant.cell != cell))
            if not variant.built:
                problems.append(self._left_out(variant))
        # With axes open, one candidate that is built answers the question.
        found = any(candidate.built for candidate in candidates)
        alternatives = [] if open_axes else list(self._alternatives(decided))
        reasons = None if found else "; ".join(dict.fromkeys(problems))
        return self._result(candidates, open_axes, alternatives, reasons)

    def _decide(self, axis: Axis) -> tuple[AxisValue, str] | None:
        if axis.name in self.call.axes:
            text = self.call.axes[axis.name]
            names = {str(value).lower(): value for value in axis.values}
            names |= dict(zip(axis.labels, axis.values, strict=True))
            if text not in names:
                raise AuditError(
                    f"axis {axis.name} has no value {text!r}: {', '.join(axis.labels)}"
                )
            return names[text], "as asked"
        rule = RULES.get(axis.name)
        return None if rule is None else rule(self.call, axis)

    def _record(self, axis: Axis, value: AxisValue, because: str) -> None:
        label = axis.labels[axis.values.index(value)]
        self.decisions.append(Decision(axis=axis.name, value=value, label=label, because=because))

    def _by_threshold(
        self, decided: dict[str, AxisValue], open_axes: list[Axis]
    ) -> tuple[dict[str, AxisValue], list[Axis]]:
        """Decide the axis whose values end at a constant, as the planner does: from the last value to the first, which serves the rest."""
        names = [name for name in THRESHOLDS if name in self.kernel.constants]
        if len(open_axes) != 1 or not names:
            return decided, open_axes
        (axis,) = open_axes
        quantity, words = THRESHOLDS[names[0]]
        value = quantity(self.call)
        if value is None:
            return decided, open_axes
        ends = []
        for choice in [*reversed(axis.values[1:]), axis.values[0]]:
            cell = self.kernel.cell_of({**decided, axis.name: choice})
            number = self.kernel.cells[cell]
            end = (
                self.variants[number].constants[names[0]] if 0 <= number < len(self.variants) else 0
            )
            if isinstance(end, int) and value < end:
                because = f"the {words}, {value:g}, is below {end}"
                break
            if isinstance(end, int) and end:
                ends.append(end)
        else:
            choice = axis.values[0]
            because = (
                f"the {words}, {value:g}, is {max(ends)} or more"
                if ends
                else "one serves all of this bucket"
            )
        self._record(axis, choice, because)
        return {**decided, axis.name: choice}, []

    def _candidate(
        self, variant: Variant, when: dict[str, AxisValue], *, served: bool
    ) -> Candidate:
        bags = variant.constants.get("BAGS")
        grid = None
        if self.name == "forward" and self.call.batch is not None and isinstance(bags, int):
            grid = (-(-self.call.batch // bags), self.call.features, 1)
        code = variant.code
        return Candidate(
            variant=variant.name,
            arch=variant.arch,
            built=variant.built,
            when=", ".join(f"{name} {self._label(name, value)}" for name, value in when.items()),
            served_by_another_cell=served,
            block=WARP * variant.num_warps,
            grid=grid,
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
            decisions=self.decisions,
            open_axes=[axis.name for axis in open_axes],
            candidates=candidates,
            alternatives=alternatives,
            notes=[
                f"{name} may run instead, for {kernel.serves}"
                for name, kernel in self.manifest.kernels.items()
                if self.name in kernel.instead_of and kernel.on(self.arch)
            ],
            problem=problem,
        )
