"""What the operators accept: reads operators.toml and renders its checks for C++ and for Python.

The file is one description of arguments, relations between sizes and dispatch; its head explains the keys. From it
come ``operator_rules.h`` (schemas and checks of the CUDA and CPU implementations), ``_operator_rules.py`` (checks of
the fakes), ``optimizer_table.h`` and ``optimizer_formulas.h`` (the optimizers for planner and CPU) and
``dispatch_cells`` (what the plan has to serve).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jinja2
from pydantic import Field

from .conditions import AxisValue, Value, When, is_one_of, matches
from .emit import enumerator
from .errors import Problem, SpecError, format_names, format_values
from .expressions import Expression, ExpressionError, Scope, translate, translate_message
from .files import write_if_changed
from .optimizers import Optimizer, check_optimizers, string_sets
from .spec import IDENTIFIER, Spec, Table, load_specs, read_document

OPERATORS_FILE = "operators.toml"
HEADER_FILE = "operator_rules.h"
PYTHON_FILE = "_operator_rules.py"
OPTIMIZER_FILE = "optimizer_table.h"
FORMULA_FILE = "optimizer_formulas.h"
NAMESPACE = "tbe_aot"
# The dtypes that C++ knows by number and name (csrc_launcher/ops/tensor_info.h).
DTYPES = ("float32", "float16", "bfloat16", "float64", "int32", "int64")
TENSOR_TYPE = r"Tensor(\([a-z]!\))?\??"
CPP_KINDS = {
    "int[]": "kIntegerList",
    "str": "kString",
    "SymInt": "kInteger",
    "float": "kFloat",
}
# The scope of expressions that arguments of a type belong to.
SCOPES = {"int[]": "lists", "SymInt": "integers", "float": "floats", "str": "strings"}


class Argument(Table):
    """``[[operators.arguments]]``: one positional argument and what it may be."""

    name: str = Field(pattern=IDENTIFIER)
    type: str = Field(pattern=rf"^({TENSOR_TYPE}|int\[\]|str|SymInt|float)$")
    doc: str
    default: str = ""
    dtypes: list[str] = Field(default=[])
    rank: int = 1
    contiguous: bool = False
    device_of: str = ""
    gradient: bool = True
    values: list[str] = Field(default=[])
    values_of: Literal["", "optimizers"] = ""

    @property
    def is_tensor(self) -> bool:
        """Whether a tensor, perhaps an optional or a mutated one."""
        return self.type.startswith("Tensor")

    @property
    def optional(self) -> bool:
        """Whether None is accepted."""
        return self.type.endswith("?")

    @property
    def camel(self) -> str:
        """The name as C++ constants spell it."""
        return camel(self.name)

    @property
    def cpp_kind(self) -> str:
        """The enumerator of ``ArgumentKind`` (csrc_launcher/ops/tensor_info.h)."""
        if self.is_tensor:
            return "kOptionalTensor" if self.optional else "kTensor"
        return CPP_KINDS[self.type]


class Check(Table):
    """``[[operators.checks]]``: a let, a requirement, or a set of checks by name."""

    include: str = ""
    let: str = Field(default="", pattern=f"^$|{IDENTIFIER}")
    value: str = ""
    when: str = ""
    require: str = ""
    message: str = ""
    guard: bool = True


class DispatchAxis(Table):
    """How an axis is chosen: by an argument's dtype, or by the launcher among all values of the spec."""

    dtype_of: str = ""
    values: dict[str, Value] = Field(default={})
    chosen_by: str = ""


class Dispatch(Table):
    """``[[operators.dispatch]]``: a kernel that the operator launches."""

    kernel: str
    axes: dict[str, DispatchAxis]
    never: list[When] = Field(default=[])


class Operator(Table):
    """``[[operators]]``: one operator."""

    name: str = Field(pattern=IDENTIFIER)
    summary: str
    returns: str
    arguments: list[Argument] = Field(min_length=1)
    checks: list[Check] = Field(default=[])
    dispatch: list[Dispatch] = Field(default=[])

    def table(self) -> str:
        """The arguments as a table for docs/operators.md."""
        lines = ["| argument | type | accepted | default | what |", "|---|---|---|---|---|"]
        for a in self.arguments:
            accepted = ", ".join(a.dtypes or a.values)
            accepted += "; contiguous" if a.contiguous else ""
            default = f"`{a.default}`" if a.default else ""
            lines.append(f"| `{a.name}` | `{a.type}` | {accepted} | {default} | {a.doc} |")
        return "\n".join(lines)

    @property
    def camel(self) -> str:
        """The name as C++ types spell it."""
        return camel(self.name)

    @property
    def torch_schema(self) -> str:
        """The schema as torch's dispatcher reads it, every argument positional."""
        arguments = ", ".join(
            f"{a.type} {a.name}" + (f"={a.default}" if a.default else "") for a in self.arguments
        )
        return f"{self.name}({arguments}) -> {self.returns}"


class OperatorsFile(Table):
    """A whole operators.toml."""

    schema_version: Literal[1]
    optimizers: list[Optimizer] = Field(default=[])
    check_sets: dict[str, list[Check]] = Field(default={})
    operators: list[Operator] = Field(min_length=1)

    def with_values(self) -> OperatorsFile:
        """The file with ``values_of`` replaced by the values."""
        names = [optimizer.name for optimizer in self.optimizers]
        operators = [
            operator.model_copy(
                update={
                    "arguments": [
                        argument.model_copy(update={"values": names})
                        if argument.values_of
                        else argument
                        for argument in operator.arguments
                    ]
                }
            )
            for operator in self.operators
        ]
        return self.model_copy(update={"operators": operators})


@dataclass(frozen=True)
class RenderedCheck:
    """A check with its expressions in both languages."""

    let: str
    cpp: str
    python: str
    when_cpp: str
    when_python: str
    message_cpp: str
    message_python: str
    guard: bool


@dataclass(frozen=True)
class CheckedOperator:
    """An operator whose expressions are known to be right."""

    operator: Operator
    checks: tuple[RenderedCheck, ...]
    lets: Mapping[str, str]  # name -> "int" or "bool"


def camel(name: str) -> str:
    """per_sample_weights as PerSampleWeights."""
    return "".join(part.capitalize() for part in name.split("_"))


class _Checker:
    """Collects the mistakes of one file."""

    def __init__(self, path: Path, content: OperatorsFile, specs: Mapping[str, Spec]) -> None:
        self.path = path
        self.content = content
        self.specs = specs
        self.problems: list[Problem] = []

    def report(self, key: str, value: Any, message: str, allowed: str = "") -> None:
        self.problems.append(Problem(str(self.path), key, value, message, allowed))

    def arguments(self, operator: Operator, key: str) -> None:
        seen: dict[str, Argument] = {}
        for argument in operator.arguments:
            place = f"{key}.{argument.name}"
            if argument.name in seen:
                self.report(place, argument.name, "this argument is listed twice")
            if not argument.default and any(a.default for a in seen.values()):
                self.report(place, argument.name, "no default after an argument that has one")
            seen[argument.name] = argument
            allowed: tuple[str, ...] = ()
            if argument.is_tensor:
                unknown = [dtype for dtype in argument.dtypes if dtype not in DTYPES]
                if unknown or not argument.dtypes:
                    self.report(f"{place}.dtypes", argument.dtypes, "wrong", format_names(DTYPES))
                others = [
                    a.name
                    for a in operator.arguments
                    if a.is_tensor and not a.optional and a is not argument
                ]
                if argument.device_of and argument.device_of not in others:
                    self.report(
                        f"{place}.device_of",
                        argument.device_of,
                        "no other required tensor",
                        format_names(others),
                    )
                allowed = ("dtypes", "rank", "contiguous", "device_of", "gradient")
            elif argument.type == "str":
                allowed = ("values", "values_of")
                if not argument.values:
                    self.report(
                        place, argument.name, "neither `values` nor a `values_of` that has some"
                    )
            extra = argument.model_fields_set - {"name", "type", "doc", "default", *allowed}
            for name in sorted(extra):
                self.report(
                    f"{place}.{name}",
                    None,
                    f"says nothing about {argument.type}",
                    format_names(allowed),
                )

    def checks(self, operator: Operator, key: str) -> CheckedOperator:
        names = {
            scope: frozenset(a.name for a in operator.arguments if a.type == kind)
            for kind, scope in SCOPES.items()
        }
        scope = Scope(
            frozenset(a.name for a in operator.arguments if a.is_tensor),
            string_sets=string_sets(self.content.optimizers),
            **names,
        )
        rendered: list[RenderedCheck] = []
        lets: dict[str, str] = {}
        for i, check in enumerate(self._expanded(operator, key)):
            place = f"{key}.checks[{i}]"
            try:
                result, kind = self._render(check, scope)
            except ExpressionError as error:
                self.report(place, check.let or check.require, str(error))
                continue
            rendered.append(result)
            if check.let:
                lets[check.let] = kind
                scope = scope.with_let(check.let, kind)
        return CheckedOperator(operator, tuple(rendered), lets)

    def _expanded(self, operator: Operator, key: str) -> Iterator[Check]:
        for i, check in enumerate(operator.checks):
            if not check.include:
                yield check
                continue
            if check.include not in self.content.check_sets:
                self.report(
                    f"{key}.checks[{i}].include",
                    check.include,
                    "no such set of checks",
                    format_names(self.content.check_sets),
                )
            yield from self.content.check_sets.get(check.include, [])

    @staticmethod
    def _render(check: Check, scope: Scope) -> tuple[RenderedCheck, str]:
        if bool(check.let) == bool(check.require):
            raise ExpressionError("neither or both of `let` and `require`")
        if check.let:
            if check.when or not check.value:
                raise ExpressionError("a `let` has a `value` and no `when`")
            value = translate(check.value, scope)
            if value.kind not in {"int", "bool"}:
                raise ExpressionError(f"a `let` is an integer or a bool, not `{check.value}`")
            return RenderedCheck(
                check.let, value.cpp, value.python, "", "", "", "", check.guard
            ), value.kind
        if not check.message:
            raise ExpressionError("a `require` has a `message`")
        condition = translate(check.require, scope)
        when = translate(check.when, scope) if check.when else Expression("", "", "bool")
        for expression, text in ((condition, check.require), (when, check.when)):
            if expression.kind != "bool":
                raise ExpressionError(f"`{text}` is no condition")
        message = translate_message(check.message, scope)
        return RenderedCheck(
            "",
            condition.cpp,
            condition.python,
            when.cpp,
            when.python,
            message.cpp,
            message.python,
            check.guard,
        ), "bool"

    def dispatch(self, operator: Operator, key: str) -> None:
        dtypes = {a.name: a.dtypes for a in operator.arguments if a.is_tensor}
        for dispatch in operator.dispatch:
            place = f"{key}.dispatch.{dispatch.kernel}"
            if dispatch.kernel not in self.specs:
                self.report(place, dispatch.kernel, "no such kernel", format_names(self.specs))
                continue
            axis_values = self.specs[dispatch.kernel].axis_values()
            if set(dispatch.axes) != set(axis_values):
                self.report(
                    f"{place}.axes",
                    list(dispatch.axes),
                    "not the axes of the kernel",
                    format_names(axis_values),
                )
                continue
            for i, when in enumerate(dispatch.never):
                for name, wanted in when.items():
                    if not all(is_one_of(value, axis_values.get(name, [])) for value in wanted):
                        self.report(
                            f"{place}.never[{i}].{name}",
                            list(wanted),
                            "not values of an axis",
                            format_values(axis_values.get(name, axis_values)),
                        )
            for name, axis in dispatch.axes.items():
                where = f"{place}.axes.{name}"
                if bool(axis.dtype_of) == bool(axis.chosen_by):
                    self.report(where, None, "neither or both of dtype_of and chosen_by")
                elif axis.dtype_of and set(axis.values) != set(dtypes.get(axis.dtype_of, ())):
                    self.report(
                        f"{where}.values",
                        list(axis.values),
                        f"not the dtypes of {axis.dtype_of}",
                        format_names(dtypes.get(axis.dtype_of, ())),
                    )
                for value in axis.values.values():
                    if not is_one_of(value, axis_values[name]):
                        self.report(
                            f"{where}.values",
                            value,
                            "not a value of the axis",
                            format_values(axis_values[name]),
                        )


@dataclass(frozen=True)
class Operators:
    """The operators of a folder of specs, checked against its kernels."""

    operators: tuple[CheckedOperator, ...]
    optimizers: tuple[Optimizer, ...]
    specs: Mapping[str, Spec]

    def dispatch_cells(self) -> Iterator[tuple[str, str, dict[str, AxisValue]]]:
        """(operator, kernel, axes) of every cell that an accepted call can ask for."""
        for checked in self.operators:
            for dispatch in checked.operator.dispatch:
                accepted = {
                    name: list(dispatch.axes[name].values.values()) or values
                    for name, values in self.specs[dispatch.kernel].axis_values().items()
                }
                for values in itertools.product(*accepted.values()):
                    cell = dict(zip(accepted, values, strict=True))
                    if not any(matches(when, cell) for when in dispatch.never):
                        yield checked.operator.name, dispatch.kernel, cell

    def header(self) -> str:
        """operator_rules.h."""
        return self._render("operator_rules.h.j2")

    def python(self) -> str:
        """_operator_rules.py."""
        return self._render("operator_rules.py.j2")

    def optimizer_table(self) -> str:
        """optimizer_table.h."""
        return self._render("optimizer_table.h.j2")

    def optimizer_formulas(self) -> str:
        """optimizer_formulas.h."""
        return self._render("optimizer_formulas.h.j2")

    def _render(self, template: str) -> str:
        environment = jinja2.Environment(
            loader=jinja2.PackageLoader(__package__),
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
            autoescape=False,  # noqa: S701 - the output is C++ and Python, not HTML
        )
        environment.filters |= {"python": repr, "camel": camel}
        environment.globals["enumerator"] = enumerator
        return environment.get_template(template).render(
            operators=self.operators,
            optimizers=self.optimizers,
            namespace=NAMESPACE,
            source=OPERATORS_FILE,
            axes={
                dispatch.kernel: self.specs[dispatch.kernel].axis_values()
                for checked in self.operators
                for dispatch in checked.operator.dispatch
            },
        )


def load_operators(specs_dir: Path) -> Operators:
    """Read and check operators.toml and the specs of the kernels that it names.

    Raises:
        SpecError: every mistake found, with file, key, value and what is allowed.
    """
    path = specs_dir / OPERATORS_FILE
    content = read_document(path, OperatorsFile).with_values()
    specs = load_specs(specs_dir)
    checker = _Checker(path, content, specs)
    checker.problems += check_optimizers(path, content.optimizers, specs)
    checked = []
    for operator in content.operators:
        key = f"operators.{operator.name}"
        checker.arguments(operator, key)
        checked.append(checker.checks(operator, key))
        checker.dispatch(operator, key)
    if checker.problems:
        raise SpecError(checker.problems)
    return Operators(tuple(checked), tuple(content.optimizers), specs)


def emit(specs_dir: Path, folder: Path) -> None:
    """Render the checks of ``specs_dir/operators.toml`` into ``folder`` (``generated/`` of the artifacts)."""
    operators = load_operators(specs_dir)
    for name, text in (
        (HEADER_FILE, operators.header()),
        (PYTHON_FILE, operators.python()),
        (OPTIMIZER_FILE, operators.optimizer_table()),
        (FORMULA_FILE, operators.optimizer_formulas()),
    ):
        write_if_changed(folder / name, text.encode())
