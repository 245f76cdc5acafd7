"""The report: one HTML file with everything about a build, which needs no network and no server."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Iterable, Sequence
from importlib.resources import files
from operator import attrgetter
from pathlib import Path
from typing import Any

from .compare import Comparison, compare
from .errors import AuditError
from .listing import find_variant, machine_code, summary_of
from .manifest import Code, Kernel, Variant
from .metrics import METRICS
from .source import Source
from .text import visible_path
from .verify import Verification, verify


def make_report(
    source: Source,
    against: Source | None = None,
    sass: Sequence[str] = (),
    checks: Verification | None = None,
) -> bytes:
    """The report of a build.

    Args:
        source: the build.
        against: an older one to compare with.
        sass: variants whose machine code is part of the report; needs NVIDIA's nvdisasm.
        checks: what ``verify`` found; run here if absent.

    Raises:
        AuditError: a build cannot be read, or there is no such variant.
    """
    page = files(__package__).joinpath("page")
    text = page.joinpath("report.html").read_text("utf-8")
    diff = (
        None
        if against is None
        else compare(against.manifest, source.manifest, (str(against), str(source)))
    )
    # "</script" would end the element that holds the data, and "<!--" with "<script" after it would keep it from ending.
    data = json.dumps(_data(source, diff, sass, checks or verify(source)), separators=(",", ":"))
    parts = {
        "title": html.escape(f"tbe-aot {source.manifest.build_id[:12]}"),
        "style": page.joinpath("report.css").read_text("utf-8"),
        "script": page.joinpath("report.js").read_text("utf-8"),
        "data": data.replace("<", "\\u003c"),
    }
    # In one pass: what is put in may hold braces itself.
    pieces = text.split("{{")
    made = [pieces[0]]
    for piece in pieces[1:]:
        name, _, rest = piece.partition("}}")
        made += [parts[name], rest]
    return "".join(made).encode()


def _data(
    source: Source, diff: Comparison | None, sass: Sequence[str], checks: Verification
) -> dict[str, Any]:
    manifest = source.manifest
    summary = summary_of(source)
    names = list(manifest.kernels)
    archs = {arch.name: number for number, arch in enumerate(summary.archs)}
    variants = [
        _variant(variant, manifest.kernels[kernel], names.index(kernel), archs)
        for arch in archs
        for kernel, variant in manifest.variants
        if variant.arch == arch
    ]
    return {
        "source": visible_path(Path(source.path.name)),
        "build_id": manifest.build_id,
        "profile": manifest.profile,
        "toolchain": manifest.toolchain.model_dump(),
        "archs": [
            {
                **arch.model_dump(),
                "limits": manifest.archs[arch.name].limits.model_dump(),
                "pack": manifest.archs[arch.name].pack,
            }
            for arch in summary.archs
        ],
        "kernels": [_kernel(name, kernel) for name, kernel in manifest.kernels.items()],
        "metrics": [{"name": m.name, "title": m.title, "worse": m.worse} for m in METRICS],
        "variants": _columns(variants),
        "verification": checks.model_dump(),
        "diff": None if diff is None else diff.model_dump(),
        "sass": dict(_listings(source, sass)),
    }


def _listings(source: Source, names: Sequence[str]) -> Iterable[tuple[str, str]]:
    for name in names:
        _, found = find_variant(source.manifest, name)
        on_every_arch = [v for _, v in source.manifest.variants if v.name == found.name and v.built]
        if not on_every_arch:
            raise AuditError(f"{found.name} is left out of this build: it has no code to show")
        for variant in on_every_arch:
            yield f"{variant.arch}/{variant.name}", machine_code(source, variant)


def _kernel(name: str, kernel: Kernel) -> dict[str, Any]:
    return {
        "name": name,
        "summary": kernel.summary,
        "language": kernel.language,
        "source_sha256": kernel.source_sha256,
        "axes": [axis.model_dump() for axis in kernel.axes],
        "params": [param.model_dump() for param in kernel.params],
        "cells": kernel.cells,
        "reasons": {cell.cell: cell.reason for cell in kernel.excluded},
        "variants": len(kernel.variants),
    }


def _columns(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """The same by column: names once instead of once per row."""
    return {name: [row[name] for row in rows] for name in rows[0]} if rows else {"name": []}


def _variant(
    variant: Variant, kernel: Kernel, number: int, archs: dict[str, int]
) -> dict[str, Any]:
    own = kernel.cells[variant.cell] if variant.cell < len(kernel.cells) else -1
    serves = [
        cell for cell, served in enumerate(kernel.cells) if served == own and cell != variant.cell
    ]
    return {
        "name": variant.name,
        "kernel": number,
        "arch": archs[variant.arch],
        "labels": [axis.values.index(variant.axes[axis.name]) for axis in kernel.axes],
        "cell": variant.cell,
        "serves": serves if own >= 0 else [],
        "built": variant.built,
        "blob": variant.blob,
        "constants": variant.constants,
        "num_warps": variant.num_warps,
        "num_stages": variant.num_stages,
        "maxnreg": variant.maxnreg,
        "enable_fp_fusion": variant.enable_fp_fusion,
        "row_loads": [loads.model_dump() for loads in variant.row_loads],
        "budget": variant.budget,
        **_facts(variant.code),
    }


# By the name in the page's data how a fact is read; the page derives nothing.
_SASS = ("instructions", "fp64", "fences", "ordered", "tensor", "calls")
_CODE = (
    "registers",
    "spill_bytes",
    "stack_bytes",
    "barriers",
    "code_bytes",
    "cubin_bytes",
    "entry",
)
_FACTS: dict[str, Callable[[Code], Any]] = {
    **{name: attrgetter(name) for name in _CODE},
    **{name: attrgetter(f"sass.{name}") for name in _SASS},
    "shared_bytes": lambda c: c.shared_bytes + c.static_shared_bytes,
    "dynamic_bytes": attrgetter("shared_bytes"),
    "occupancy": attrgetter("occupancy.percent"),
    "blocks": attrgetter("occupancy.blocks"),
    "warps": attrgetter("occupancy.warps"),
    "limited_by": attrgetter("occupancy.limited_by"),
    "loads": attrgetter("sass.global_load_bytes"),
    "stores": attrgetter("sass.global_store_bytes"),
    "local": lambda c: c.sass.local_loads + c.sass.local_stores,
    "shared_accesses": lambda c: c.sass.shared_loads + c.sass.shared_stores,
    "atomics": lambda c: c.sass.global_atomics + c.sass.shared_atomics,
    "bar": attrgetter("sass.barriers"),
    "sha256": attrgetter("cubin_sha256"),
}


def _facts(code: Code | None) -> dict[str, Any]:
    return {name: None if code is None else read(code) for name, read in _FACTS.items()}
