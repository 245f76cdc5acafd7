"""Making the plan from the specs: which cells have variants, how each is compiled, what a profile selects."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from .abi import expand_type, layout
from .conditions import AxisValue, When, matches
from .errors import BuildError, Problem, SpecError, collecting, format_names, format_value
from .kernel_source import kernel_file, kernel_parameters, language_of, source_sha256
from .operators import OPERATORS_FILE, load_operators
from .plan import (
    NO_VARIANT,
    AxisPlan,
    Build,
    ExcludedCell,
    KernelPlan,
    ParamPlan,
    Plan,
    RowLoadPlan,
    Variant,
    cell_number,
    cell_values,
    check_total_and_disjoint,
)
from .profile import select
from .spec import SPEC_FILE, Limits, Spec, load_specs
from .spec_check import ARCH_AXIS, FULL_PROFILE, LAUNCH_OPTIONS

CI_PROFILE = "ci"


class _KernelPlanner:
    """Plans one kernel, collecting mistakes that only the list of variants shows."""

    def __init__(self, spec: Spec, specs_dir: Path, profile: str) -> None:
        self.spec = spec
        self.specs_dir = specs_dir
        self.folder = specs_dir / spec.kernel.name
        self.file = str(self.folder / SPEC_FILE)
        self.profile = profile
        self.axes = spec.axis_values()
        self.parameters = kernel_parameters(kernel_file(self.folder), spec.kernel.function)
        self.problems: list[Problem] = []
        self.used_conditions: set[str] = set()

    def plan(self) -> KernelPlan:
        spec = self.spec
        cell_count = math.prod(len(values) for values in self.axes.values())
        cells = [cell_values(self.axes, cell) for cell in range(cell_count)]
        owners, excluded = self._resolve(cells)
        own_cells = [cell for cell in range(cell_count) if owners[cell] == cell]
        number_of = {cell: number for number, cell in enumerate(own_cells)}
        selected = self._selected([cells[cell] for cell in own_cells])
        slots, args_size = layout([(param.name, param.type) for param in spec.params])
        docs = {param.name: param.doc for param in spec.params}
        variants = [
            self._variant(cell, cells[cell], is_selected)
            for cell, is_selected in zip(own_cells, selected, strict=True)
        ]
        self._report_unused_conditions()
        if self.problems:
            raise SpecError(self.problems)
        return KernelPlan(
            name=spec.kernel.name,
            function=spec.kernel.function,
            summary=spec.kernel.summary,
            archs=spec.kernel.archs,
            instead_of=spec.kernel.instead_of,
            serves=spec.kernel.serves,
            language=language_of(self.folder),
            source_sha256=source_sha256(self.specs_dir, spec.kernel.name),
            axes=[
                AxisPlan(name=name, values=axis.values, labels=axis.value_labels(), doc=axis.doc)
                for name, axis in spec.axes.items()
            ],
            params=[
                ParamPlan(
                    name=slot.name,
                    type=slot.type,
                    doc=docs.get(slot.name, "appended by Triton, or as Triton does; null"),
                    offset=slot.offset,
                    size=slot.size,
                )
                for slot in slots
            ],
            args_size=args_size,
            launch_constants=spec.tuning.launch_constants(),
            cells=[NO_VARIANT if owner is None else number_of[owner] for owner in owners],
            excluded=excluded,
            variants=variants,
        )

    def _resolve(
        self, cells: list[dict[str, AxisValue]]
    ) -> tuple[list[int | None], list[ExcludedCell]]:
        """For every cell the cell whose variant serves it, and the cells that have none."""
        owners: list[int | None] = []
        excluded = []
        for cell, axes in enumerate(cells):
            owner: int | None = cell
            visited = {cell}
            reason = ""
            while owner is not None:
                rule_number = self._first_exclusion(cells[owner])
                if rule_number is None:
                    break
                rule = self.spec.exclude[rule_number]
                reason = rule.reason
                if not rule.use:
                    owner = None
                    break
                owner = cell_number(self.axes, {**cells[owner], **rule.use})
                if owner in visited:
                    self._problem(
                        f"exclude[{rule_number}].use",
                        rule.use,
                        f"leads cell {format_value(axes)} back to an excluded cell",
                    )
                    owner = None
                else:
                    visited.add(owner)
            owners.append(owner)
            if owner is None:
                excluded.append(ExcludedCell(cell=cell, reason=reason))
        return owners, excluded

    def _first_exclusion(self, axes: Mapping[str, AxisValue]) -> int | None:
        for number, rule in enumerate(self.spec.exclude):
            if self._matches(f"exclude[{number}].when", rule.when, axes):
                return number
        return None

    def _matches(self, key: str, when: When, axes: Mapping[str, AxisValue]) -> bool:
        matched = matches(when, axes)
        if matched:
            self.used_conditions.add(key)
        return matched

    def _problem(self, key: str, value: object, message: str, allowed: str = "") -> None:
        problem = Problem(self.file, key, value, message, allowed)
        if problem not in self.problems:
            self.problems.append(problem)

    def _selected(self, variants: list[dict[str, AxisValue]]) -> list[bool]:
        if self.profile == FULL_PROFILE:
            return [True] * len(variants)
        rules = self.spec.profiles.get(self.profile)
        include = rules.include if rules else []
        for number, when in enumerate(include):
            key = f"profiles.{self.profile}.include[{number}]"
            if not any(matches(when, axes) for axes in variants):
                self._problem(key, _as_written(when), "matches no variant")
        return select(variants, include)

    def _variant(self, cell: int, axes: dict[str, AxisValue], selected: bool) -> Variant:
        spec = self.spec
        labels = [
            axis.value_labels()[axis.values.index(axes[name])] for name, axis in spec.axes.items()
        ]
        name = f"{spec.kernel.name}__{'_'.join(labels)}" if labels else spec.kernel.name
        types = {param.name: expand_type(param.type, axes) for param in spec.params}
        return Variant(
            name=name,
            cell=cell,
            axes=axes,
            selected=selected,
            signature=[
                (parameter.name, types.get(parameter.name, "constexpr"))
                for parameter in self.parameters
            ],
            divisibility=self._divisibility(axes),
            builds={arch: self._build(name, axes, arch) for arch in spec.kernel.archs},
        )

    def _divisibility(self, axes: Mapping[str, AxisValue]) -> dict[str, int]:
        hints = {}
        for index, param in enumerate(self.spec.params):
            for part, hint in enumerate(param.divisible_by):
                if self._matches(f"params[{index}].divisible_by[{part}].when", hint.when, axes):
                    hints[param.name] = hint.value
        return hints

    def _build(self, variant: str, axes: Mapping[str, AxisValue], arch: str) -> Build:
        spec = self.spec
        place = {**axes, ARCH_AXIS: arch}
        settings: dict[str, AxisValue] = {}
        for number, rule in enumerate(spec.tuning.rules):
            if self._matches(f"tuning.rules[{number}].when", rule.when, place):
                settings.update(rule.set)
        tuning = spec.tuning
        wanted = [*tuning.kernel_constants, *tuning.host_constants, *LAUNCH_OPTIONS]
        unset = [name for name in wanted if name not in settings]
        if unset:
            self._problem(
                "tuning.rules",
                None,
                f"no rule sets {format_names(unset)} for {variant} on {arch}",
            )
            settings.update(dict.fromkeys(unset, 0))
        limits: dict[str, int] = {}
        for number, budget in enumerate(spec.budgets):
            if self._matches(f"budgets[{number}].when", budget.when, place):
                limits.update(_set_limits(budget.set))
        row_loads = [
            RowLoadPlan(
                bytes=row_load.bytes,
                min_count=row_load.min_count,
                forbid_narrow=row_load.forbid_narrow,
            )
            for number, row_load in enumerate(spec.row_loads)
            if self._matches(f"row_loads[{number}].when", row_load.when, place)
        ]
        return Build(
            options={
                **{name: int(settings[name]) for name in LAUNCH_OPTIONS},
                "enable_fp_fusion": spec.kernel.enable_fp_fusion,
            },
            kernel_constants={name: settings[name] for name in tuning.kernel_constants},
            launch_constants={name: int(settings[name]) for name in tuning.launch_constants()},
            row_loads=row_loads,
            limits=limits,
        )

    def _report_unused_conditions(self) -> None:
        spec = self.spec
        conditions = {f"exclude[{n}].when": rule.when for n, rule in enumerate(spec.exclude)}
        conditions |= {
            f"tuning.rules[{n}].when": rule.when for n, rule in enumerate(spec.tuning.rules)
        }
        conditions |= {f"row_loads[{n}].when": rule.when for n, rule in enumerate(spec.row_loads)}
        conditions |= {f"budgets[{n}].when": rule.when for n, rule in enumerate(spec.budgets)}
        for index, param in enumerate(spec.params):
            for part, hint in enumerate(param.divisible_by):
                conditions[f"params[{index}].divisible_by[{part}].when"] = hint.when
        for key, when in conditions.items():
            if key not in self.used_conditions:
                what = "matches no cell" if key.startswith("exclude") else "matches no variant"
                self._problem(key, _as_written(when), what)


def _as_written(when: When) -> dict[str, object]:
    return {axis: values[0] if len(values) == 1 else list(values) for axis, values in when.items()}


def _set_limits(limits: Limits) -> dict[str, int]:
    return {name: value for name, value in limits.model_dump().items() if value is not None}


def make_plan(specs_dir: Path, profile: str, archs: list[str]) -> Plan:
    """Plan every kernel of a folder of specs.

    Args:
        specs_dir: the folder of specs.
        profile: ``full`` selects every variant, another name what its rules and the cover of axis values select.
        archs: what this build compiles, a subset of the archs of the specs.

    Raises:
        SpecError: all mistakes in all specs.
        BuildError: no spec knows the profile or the arch.
    """
    specs = load_specs(specs_dir)
    profiles = {
        FULL_PROFILE,
        CI_PROFILE,
        *(name for spec in specs.values() for name in spec.profiles),
    }
    if profile not in profiles:
        raise BuildError(
            f"profile {profile!r} is unknown; allowed: {format_names(sorted(profiles))}"
        )
    known = list(dict.fromkeys(arch for spec in specs.values() for arch in spec.kernel.archs))
    unknown = [arch for arch in archs if arch not in known]
    if unknown or not archs:
        raise BuildError(f"archs {format_names(archs)}: allowed: {format_names(known)}")
    kernels = {}
    problems: list[Problem] = []
    for name, spec in specs.items():
        with collecting(problems):
            kernels[name] = _KernelPlanner(spec, specs_dir, profile).plan()
    if problems:
        raise SpecError(problems)
    problems = [
        Problem(str(specs_dir), f"{name}.instead_of", other, "is no kernel", format_names(kernels))
        for name, kernel in kernels.items()
        for other in kernel.instead_of
        if other not in kernels
    ]
    if problems:
        raise SpecError(problems)
    optimizers = {}
    if (specs_dir / OPERATORS_FILE).exists():
        # All of its mistakes, before anything is compiled.
        optimizers = {o.name: o.kernel_formula for o in load_operators(specs_dir).optimizers}
    plan = Plan(
        profile=profile,
        archs=[arch for arch in known if arch in archs],
        optimizers=optimizers,
        kernels=kernels,
    )
    check_total_and_disjoint(plan)
    return plan
