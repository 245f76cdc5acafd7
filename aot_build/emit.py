"""The emit stage: C++ dispatch tables and one typed argument struct per kernel.

Generated code describes the plan and the packs; the types that it fills are handwritten in the launcher's
``kernel_table.h``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jinja2

from .abi import c_type_of
from .archs import ARCHS
from .errors import BuildError
from .files import write_if_changed
from .pack import PackReport
from .plan import AxisPlan, KernelPlan, Plan, Variant

HEADER_FILE = "tbe_aot_generated.h"
SOURCE_FILE = "tbe_aot_generated.cpp"
CPP_KEYWORDS = frozenset(
    [
        "alignas",
        "alignof",
        "and",
        "asm",
        "auto",
        "bool",
        "break",
        "case",
        "catch",
        "char",
        "class",
        "concept",
        "const",
        "constexpr",
        "continue",
        "default",
        "delete",
        "do",
        "double",
        "else",
        "enum",
        "explicit",
        "export",
        "extern",
        "false",
        "float",
        "for",
        "friend",
        "goto",
        "if",
        "inline",
        "int",
        "long",
        "mutable",
        "namespace",
        "new",
        "not",
        "nullptr",
        "operator",
        "or",
        "private",
        "protected",
        "public",
        "register",
        "requires",
        "return",
        "short",
        "signed",
        "sizeof",
        "static",
        "struct",
        "switch",
        "template",
        "this",
        "throw",
        "true",
        "try",
        "typedef",
        "typename",
        "union",
        "unsigned",
        "using",
        "virtual",
        "void",
        "volatile",
        "while",
        "xor",
    ]
)


def camel_case(name: str) -> str:
    """weight_dtype as WeightDtype."""
    return "".join(part.capitalize() for part in name.split("_"))


def enumerator(axis: str, label: str) -> str:
    """A label as a C++ name: 32 of index_width as i32, short as short_."""
    name = re.sub(r"\W", "_", label)
    if name[0].isdigit():
        name = axis[0] + name
    return f"{name}_" if name in CPP_KEYWORDS else name


def integer_values(axis: AxisPlan) -> list[int]:
    """The values of an integer axis, nothing for other axes."""
    return [value for value in axis.values if type(value) is int]


def _lines(items: Iterable[Any], width: int = 92) -> list[str]:
    """Comma-separated items in lines of limited width."""
    lines = [""]
    for item in items:
        text = f"{item}, "
        if lines[-1] and len(lines[-1]) + len(text) > width:
            lines.append("")
        lines[-1] += text
    return [line.rstrip() for line in lines if line]


def _quote(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _variant_fields(
    kernel: KernelPlan, variant: Variant, arch: str, pack: PackReport
) -> dict[str, Any]:
    """A variant as its line of the table says it."""
    build = variant.builds[arch]
    record = pack.records.get(variant.name)
    return {
        "name": variant.name,
        "entry": kernel.function if record is None else record.entry,
        "blob": pack.blob_of(variant.name),
        "num_warps": build.options["num_warps"] if record is None else record.num_warps,
        "shared_bytes": 0 if record is None else record.shared_bytes,
        "constants": tuple(build.launch_constants[name] for name in kernel.launch_constants),
    }


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # noqa: S701 - C++, not HTML
    )
    environment.filters |= {
        "camel": camel_case,
        "lines": _lines,
        "quote": _quote,
        "c_type": c_type_of,
        "hex_bytes": lambda text: [f"0x{byte:02x}" for byte in bytes.fromhex(text)],
    }
    environment.globals |= {"enumerator": enumerator, "integer_values": integer_values}
    return environment


def render(plan: Plan, packs: Mapping[str, PackReport], build_id: str) -> dict[str, str]:
    """The generated files by name."""
    for kernel in plan.kernels.values():
        _check_enumerators(kernel)
    environment = _environment()
    values = {
        "plan": plan,
        "kernels": list(plan.kernels.values()),
        "archs": [ARCHS[arch] for arch in plan.archs],
        "packs": packs,
        "build_id": build_id,
        "variant_fields": _variant_fields,
    }
    return {
        HEADER_FILE: environment.get_template("generated.h.j2").render(values),
        SOURCE_FILE: environment.get_template("generated.cpp.j2").render(values),
    }


def _check_enumerators(kernel: KernelPlan) -> None:
    for axis in kernel.axes:
        names = [enumerator(axis.name, label) for label in axis.labels]
        if len(set(names)) != len(names):
            raise BuildError(f"{kernel.name}: labels of axis {axis.name} collide in C++: {names}")


def emit(plan: Plan, packs: Mapping[str, PackReport], build_id: str, out_dir: Path) -> None:
    """Write the generated files into a folder."""
    for name, text in render(plan, packs, build_id).items():
        write_if_changed(out_dir / name, text.encode())
