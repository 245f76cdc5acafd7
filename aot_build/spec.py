"""The schema of spec.toml and its reader.

A spec is data: axes whose cross product are the cells, exclusions, run-time parameters, tuning, and claims about
the compiled code (row loads, budgets). What a key means stands in docs/specs.md.
"""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import PydanticCustomError

from .archs import ARCHS
from .conditions import AxisValue, Value, When
from .errors import Problem, SpecError, collecting, format_names, format_value
from .kernel_source import KERNEL_FILES
from .spec_check import check_spec

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Document = TypeVar("Document", bound=BaseModel)

SPEC_FILE = "spec.toml"
# Far beyond what can be compiled: more is a mistake, and planning would run out of memory.
MOST_CELLS = 100_000
IDENTIFIER = r"^[a-z][a-z0-9_]*$"
CONSTANT = r"^[A-Z][A-Z0-9_]*$"


class Table(BaseModel):
    """A table of the file: immutable, and closed against keys that nobody reads."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_keys(cls, data: Any) -> Any:
        if isinstance(data, dict):
            for key in sorted(set(data) - set(cls.model_fields)):
                raise PydanticCustomError(
                    "unknown_key",
                    "unknown key",
                    {"key": key, "allowed": format_names(cls.model_fields)},
                )
        return data


class KernelTable(Table):
    """``[kernel]``: what is compiled and for which archs.

    A kernel of a narrow path says which general kernels it runs ``instead_of``, and which calls it ``serves``.
    """

    name: str = Field(pattern=IDENTIFIER)
    function: str
    summary: str
    archs: list[str] = Field(min_length=1)
    enable_fp_fusion: bool = True
    instead_of: list[str] = Field(default=[])
    serves: str = ""

    @field_validator("archs")
    @classmethod
    def _known_archs(cls, archs: list[str]) -> list[str]:
        for arch in archs:
            if arch not in ARCHS:
                raise PydanticCustomError(
                    "arch", f"{format_value(arch)} is no arch", {"allowed": format_names(ARCHS)}
                )
        if len(set(archs)) != len(archs):
            raise PydanticCustomError("arch", "an arch is listed twice")
        return archs

    @model_validator(mode="after")
    def _says_both(self) -> KernelTable:
        if bool(self.instead_of) != bool(self.serves):
            raise PydanticCustomError(
                "serves", "instead_of and serves belong together: which kernels, for which calls"
            )
        return self


class Axis(Table):
    """One compile-time choice; ``labels`` are what names and C++ enumerators say."""

    values: list[Value] = Field(min_length=1)
    labels: list[str] = []
    doc: str

    @model_validator(mode="after")
    def _labels_fit(self) -> Axis:
        if len({type(value) for value in self.values}) != 1:
            raise PydanticCustomError("axis", "values of different types", {"key": "values"})
        if len(set(self.values)) != len(self.values):
            raise PydanticCustomError("axis", "a value is listed twice", {"key": "values"})
        if self.labels and len(self.labels) != len(self.values):
            raise PydanticCustomError(
                "axis",
                f"{len(self.labels)} labels for {len(self.values)} values",
                {"key": "labels", "allowed": "one label per value"},
            )
        labels = self.value_labels()
        for label in labels:
            if not re.fullmatch(r"[A-Za-z0-9]+(_[A-Za-z0-9]+)*", label):
                raise PydanticCustomError(
                    "axis",
                    f"{format_value(label)} cannot be part of a name",
                    {"key": "labels", "allowed": "letters and digits, joined by single _"},
                )
        if len(set(labels)) != len(labels):
            raise PydanticCustomError("axis", "a label is used twice", {"key": "labels"})
        return self

    def value_labels(self) -> list[str]:
        """A label per value; without ``labels`` the value as TOML writes it."""
        return self.labels or [format_value(value).strip('"') for value in self.values]


class Exclude(Table):
    """Cells without a variant of their own; with ``use`` another cell serves them."""

    when: When
    use: dict[str, Value] = {}
    reason: str = Field(min_length=1)


class Divisibility(Table):
    """A promise about a parameter's value, which the compiler may use."""

    value: int = Field(gt=1)
    when: When = {}


class Param(Table):
    """A run-time parameter of the kernel."""

    name: str = Field(pattern=IDENTIFIER)
    type: str
    doc: str
    divisible_by: list[Divisibility] = []


class TuningRule(Table):
    """Constants and launch options of the variants that ``when`` matches."""

    when: When = {}
    set: dict[str, Value] = Field(min_length=1)


class Tuning(Table):
    """``[tuning]``: which constants there are, and the rules that set them; later rules override earlier ones."""

    kernel_constants: list[str] = []
    host_constants: list[str] = []
    exported_constants: list[str] = []
    rules: list[TuningRule] = Field(min_length=1)

    @field_validator("kernel_constants", "host_constants", "exported_constants")
    @classmethod
    def _constant_names(cls, names: list[str]) -> list[str]:
        for name in names:
            if not re.fullmatch(CONSTANT, name):
                raise PydanticCustomError(
                    "constant", f"{format_value(name)} is no constant", {"allowed": "UPPER_CASE"}
                )
        if len(set(names)) != len(names):
            raise PydanticCustomError("constant", "a constant is listed twice")
        return names

    def launch_constants(self) -> list[str]:
        """What the launcher reads per variant, in the order of the generated struct."""
        return [*self.exported_constants, *self.host_constants]


class RowLoad(Table):
    """What the machine code of matching variants must show: the width in bytes of its widest global load."""

    when: When = {}
    bytes: Literal[1, 2, 4, 8, 16, 32]
    min_count: int = Field(default=1, ge=1)
    forbid_narrow: bool = False


class Limits(Table):
    """Upper bounds, and a lower one of the theoretical occupancy; an absent one does not bind."""

    registers: int | None = Field(default=None, ge=1)
    spill_bytes: int | None = Field(default=None, ge=0)
    stack_bytes: int | None = Field(default=None, ge=0)
    shared_bytes: int | None = Field(default=None, ge=0)
    cubin_bytes: int | None = Field(default=None, ge=1)
    occupancy_percent: int | None = Field(default=None, ge=1, le=100)


class Budget(Table):
    """Limits of matching variants; later budgets override earlier ones, limit by limit."""

    when: When = {}
    set: Limits


class Profile(Table):
    """Variants that a profile builds besides the cover of all axis values and pairs."""

    include: list[When] = []


class Spec(Table):
    """A whole spec.toml."""

    schema_version: Literal[1]
    kernel: KernelTable
    axes: dict[str, Axis]
    exclude: list[Exclude] = []
    params: list[Param] = Field(min_length=1)
    tuning: Tuning
    row_loads: list[RowLoad] = []
    budgets: list[Budget] = []
    profiles: dict[str, Profile] = {}

    def axis_values(self) -> dict[str, list[AxisValue]]:
        """The values of every axis, in order."""
        return {name: axis.values for name, axis in self.axes.items()}


def _dotted(location: tuple[int | str, ...]) -> str:
    """("axes", "bucket", "values", 0) as axes.bucket.values[0]."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix(".")


def _value_at(document: Any, location: tuple[int | str, ...]) -> Any:
    try:
        for part in location:
            document = document[part]
    except (KeyError, IndexError, TypeError):
        return None
    return document


def _problems_of(file: str, document: Any, error: ValidationError) -> list[Problem]:
    """Pydantic's findings in the file's own terms."""
    problems = []
    for finding in error.errors():
        context = finding.get("ctx", {})
        location = finding["loc"] + ((context["key"],) if "key" in context else ())
        allowed = str(context.get("allowed") or context.get("expected") or "")
        message = finding["msg"]
        if finding["type"] == "missing":
            message = "missing"
        problems.append(
            Problem(file, _dotted(location), _value_at(document, location), message, allowed)
        )
    return problems


def read_document(path: Path, model: type[Document]) -> Document:
    """Read a TOML file as a model.

    Raises:
        SpecError: every mistake that the model sees, with file, key, value and what is allowed.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SpecError([Problem(str(path), "file", None, "does not exist")]) from None
    except UnicodeDecodeError as error:
        raise SpecError([Problem(str(path), "UTF-8", None, str(error))]) from None
    except tomllib.TOMLDecodeError as error:
        raise SpecError([Problem(str(path), "TOML", None, str(error))]) from None
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise SpecError(_problems_of(str(path), document, error)) from None


def load_spec(folder: Path) -> Spec:
    """Read and check one kernel's spec.

    Raises:
        SpecError: every mistake found, with file, key, value and what is allowed.
    """
    path = folder / SPEC_FILE
    spec = read_document(path, Spec)
    cells = math.prod(len(axis.values) for axis in spec.axes.values())
    if cells > MOST_CELLS:
        allowed = f"at most {MOST_CELLS}"
        raise SpecError([Problem(str(path), "axes", None, f"{cells} cells", allowed)])
    check_spec(spec, folder)
    return spec


def load_specs(specs_dir: Path) -> dict[str, Spec]:
    """All specs of a folder by kernel name, sorted; the mistakes of all files are reported together."""
    folders = sorted(path.parent for path in specs_dir.glob(f"*/{SPEC_FILE}"))
    if not folders:
        raise SpecError(
            [Problem(str(specs_dir), f"*/{SPEC_FILE}", None, "no kernel spec in this folder")]
        )
    specs = {}
    problems = [
        Problem(str(path.parent / SPEC_FILE), "file", None, "does not exist")
        for name in KERNEL_FILES
        for path in sorted(specs_dir.glob(f"*/{name}"))
        if path.parent not in folders
    ]
    for folder in folders:
        with collecting(problems):
            specs[folder.name] = load_spec(folder)
    if problems:
        raise SpecError(problems)
    return specs
