"""Checks between the parts of a spec, and between the spec and kernel.py.

What needs the list of variants (a rule that matches none, a constant that no rule sets) is checked by the plan.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from .abi import SCALARS, axes_in_type, expand_type, is_type
from .conditions import AxisValue, is_one_of
from .errors import Problem, SpecError, format_names, format_values
from .kernel_source import kernel_file, kernel_parameters, language_of, source_closure

if TYPE_CHECKING:
    from .spec import Spec

ARCH_AXIS = "arch"
FULL_PROFILE = "full"
LAUNCH_OPTIONS = ("num_warps", "num_stages", "maxnreg")


def check_spec(spec: Spec, folder: Path) -> None:
    """Check one spec against itself and against the kernel beside it.

    Raises:
        SpecError: every mistake found.
    """
    file = str(folder / "spec.toml")
    problems = [
        *_check_names(spec, file, folder),
        *_check_conditions(spec, file),
        *_check_types(spec, file),
        *_check_tuning(spec, file),
    ]
    try:
        parameters = kernel_parameters(kernel_file(folder), spec.kernel.function)
        source_closure(folder.parent, folder.name)
    except SpecError as error:
        raise SpecError([*problems, *error.problems]) from None
    runtime = [parameter.name for parameter in parameters if not parameter.constexpr]
    constexprs = [parameter.name for parameter in parameters if parameter.constexpr]
    if language_of(folder) == "cuda":
        problems += _check_language(spec, file, constexprs)
    problems += _check_runtime_parameters(spec, file, runtime)
    problems += _check_constexprs(spec, file, constexprs)
    if problems:
        raise SpecError(problems)


def _check_language(spec: Spec, file: str, constants: list[str]) -> Iterator[Problem]:
    """What a kernel in CUDA C++ cannot have: hints are Triton's, and its constants are numbers."""
    for index, param in enumerate(spec.params):
        if param.divisible_by:
            yield Problem(file, f"params[{index}].divisible_by", None, "read by Triton only")
    for name, axis in spec.axes.items():
        if name.upper() in constants and isinstance(axis.values[0], str):
            yield Problem(file, f"axes.{name}", axis.values, "a constant of kernel.cu", "numbers")
    for index, rule in enumerate(spec.tuning.rules):
        for name, value in rule.set.items():
            if isinstance(value, str):
                key = f"tuning.rules[{index}].set.{name}"
                yield Problem(file, key, value, "a constant of kernel.cu", "a number")


def _check_names(spec: Spec, file: str, folder: Path) -> Iterator[Problem]:
    if spec.kernel.name != folder.name:
        yield Problem(
            file, "kernel.name", spec.kernel.name, "differs from the folder's name", folder.name
        )
    for axis in spec.axes:
        if axis == ARCH_AXIS or not axis.isidentifier() or axis != axis.lower():
            yield Problem(
                file, f"axes.{axis}", None, "not a name for an axis", "lower_case, not arch"
            )
    names = [param.name for param in spec.params]
    for index, name in enumerate(names):
        if name in names[:index]:
            yield Problem(file, f"params[{index}].name", name, "a parameter is listed twice")


def _conditions(spec: Spec) -> Iterator[tuple[str, Mapping[str, tuple[AxisValue, ...]], bool]]:
    """Every condition: its key, itself, and whether it may test the arch."""
    for index, exclude in enumerate(spec.exclude):
        yield f"exclude[{index}].when", exclude.when, False
    for index, param in enumerate(spec.params):
        for part, divisibility in enumerate(param.divisible_by):
            yield f"params[{index}].divisible_by[{part}].when", divisibility.when, False
    for index, rule in enumerate(spec.tuning.rules):
        yield f"tuning.rules[{index}].when", rule.when, True
    for index, row_load in enumerate(spec.row_loads):
        yield f"row_loads[{index}].when", row_load.when, True
    for index, budget in enumerate(spec.budgets):
        yield f"budgets[{index}].when", budget.when, True
    for name, profile in spec.profiles.items():
        for index, when in enumerate(profile.include):
            yield f"profiles.{name}.include[{index}]", when, False


def _check_conditions(spec: Spec, file: str) -> Iterator[Problem]:
    axes = spec.axis_values()
    with_arch: dict[str, list[AxisValue]] = {**axes, ARCH_AXIS: list(spec.kernel.archs)}
    for key, when, may_test_arch in _conditions(spec):
        known = with_arch if may_test_arch else axes
        for axis, wanted in when.items():
            yield from _check_axis_values(file, f"{key}.{axis}", axis, wanted, known)
    for index, exclude in enumerate(spec.exclude):
        for axis, value in exclude.use.items():
            yield from _check_axis_values(
                file, f"exclude[{index}].use.{axis}", axis, (value,), axes
            )
    if FULL_PROFILE in spec.profiles:
        yield Problem(
            file, f"profiles.{FULL_PROFILE}", None, "full is every variant and needs no rules"
        )


def _check_axis_values(
    file: str,
    key: str,
    axis: str,
    wanted: tuple[AxisValue, ...],
    known: Mapping[str, list[AxisValue]],
) -> Iterator[Problem]:
    if axis not in known:
        yield Problem(file, key, None, "unknown axis", format_names(known))
        return
    for value in wanted:
        if not is_one_of(value, known[axis]):
            yield Problem(file, key, value, "not a value of this axis", format_values(known[axis]))


def _check_types(spec: Spec, file: str) -> Iterator[Problem]:
    types = f"{format_names(SCALARS)}, each also as a pointer (*), {{axis}} in a pointer's type"
    for index, param in enumerate(spec.params):
        key = f"params[{index}].type"
        axes = axes_in_type(param.type)
        unknown = [axis for axis in axes if axis not in spec.axes]
        if unknown:
            yield Problem(
                file, key, param.type, f"unknown axis {unknown[0]}", format_names(spec.axes)
            )
        elif axes and not param.type.startswith("*"):
            yield Problem(file, key, param.type, "a scalar's type may not depend on an axis", types)
        else:
            for expanded in _expansions(param.type, axes, spec):
                if not is_type(expanded):
                    yield Problem(file, key, param.type, f"{expanded} is no type", types)
                    break


def _expansions(template: str, axes: list[str], spec: Spec) -> list[str]:
    """What the template becomes over the values of its axes."""
    combinations = itertools.product(*(spec.axes[axis].values for axis in axes))
    return [expand_type(template, dict(zip(axes, values, strict=True))) for values in combinations]


def _check_tuning(spec: Spec, file: str) -> Iterator[Problem]:
    tuning = spec.tuning
    for index, name in enumerate(tuning.exported_constants):
        if name not in tuning.kernel_constants:
            key = f"tuning.exported_constants[{index}]"
            allowed = format_names(tuning.kernel_constants)
            yield Problem(file, key, name, "not a kernel constant", allowed)
    for index, name in enumerate(tuning.host_constants):
        if name in tuning.kernel_constants:
            key = f"tuning.host_constants[{index}]"
            yield Problem(file, key, name, "also a kernel constant: export it instead")
    allowed_keys = [*tuning.kernel_constants, *tuning.host_constants, *LAUNCH_OPTIONS]
    integers = {*tuning.exported_constants, *tuning.host_constants, *LAUNCH_OPTIONS}
    for index, rule in enumerate(tuning.rules):
        for name, value in rule.set.items():
            key = f"tuning.rules[{index}].set.{name}"
            if name not in allowed_keys:
                yield Problem(
                    file, key, value, "neither a constant nor an option", format_names(allowed_keys)
                )
            elif name in integers and type(value) is not int:
                yield Problem(file, key, value, "read by the host", "an integer")
            elif name == "num_warps" and value not in {1, 2, 4, 8, 16, 32}:
                yield Problem(file, key, value, "not a number of warps", "1, 2, 4, 8, 16, 32")
            elif name == "num_stages" and not 1 <= int(value) <= 16:
                yield Problem(file, key, value, "not a number of stages", "1 to 16")
            elif name == "maxnreg" and not 0 <= int(value) <= 255:
                yield Problem(file, key, value, "not a register limit", "0 (none) to 255")


def _check_runtime_parameters(spec: Spec, file: str, runtime: list[str]) -> Iterator[Problem]:
    names = [param.name for param in spec.params]
    for index, name in enumerate(names):
        if name not in runtime:
            yield Problem(
                file,
                f"params[{index}].name",
                name,
                f"{spec.kernel.function} has no such run-time parameter",
                format_names(runtime),
            )
    for name in runtime:
        if name not in names:
            yield Problem(
                file,
                "params",
                None,
                f"parameter {name} of {spec.kernel.function} is not listed",
                format_names(runtime),
            )
    if sorted(names) == sorted(runtime) and names != runtime:
        yield Problem(
            file, "params", names, "not in the order of the kernel function", format_names(runtime)
        )


def _check_constexprs(spec: Spec, file: str, constexprs: list[str]) -> Iterator[Problem]:
    axis_constants = {axis.upper(): axis for axis in spec.axes}
    constants = spec.tuning.kernel_constants
    for name in constexprs:
        if name not in axis_constants and name not in constants:
            yield Problem(
                file,
                "tuning.kernel_constants",
                constants,
                f"constexpr {name} of {spec.kernel.function} is neither an axis nor listed here",
                format_names(other for other in constexprs if other not in axis_constants),
            )
    for index, name in enumerate(constants):
        if name not in constexprs or name in axis_constants:
            yield Problem(
                file,
                f"tuning.kernel_constants[{index}]",
                name,
                f"not a constexpr of {spec.kernel.function}, or an axis",
                format_names(other for other in constexprs if other not in axis_constants),
            )
    in_types = {axis for param in spec.params for axis in axes_in_type(param.type)}
    in_rules = {axis for rule in spec.tuning.rules for axis in rule.when}
    in_hints = {axis for param in spec.params for hint in param.divisible_by for axis in hint.when}
    for axis in spec.axes:
        if axis.upper() not in constexprs and axis not in in_types | in_rules | in_hints:
            yield Problem(
                file,
                f"axes.{axis}",
                None,
                "changes nothing: no constexpr of that name, no type and no rule reads it",
            )
