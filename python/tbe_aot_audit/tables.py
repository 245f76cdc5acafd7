"""The documents as tables for people.

Every function here is given a document that ``printable`` made: what a build says in it has no markup and no control characters any more.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pydantic import BaseModel
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from .document import Document
from .listing import Entry, Listing, Shown
from .manifest import Variant
from .metrics import METRICS, Change
from .text import visible
from .verify import MOST_LISTED, Verification

# What makes a command slow to start is imported by those that use it.
if TYPE_CHECKING:
    from .baseline import BaselineResult
    from .compare import ChangedVariant, Comparison
    from .differences import CellChange, Difference
    from .explain import Explained

MIB = 2**20
KIB = 2**10
_TITLES = {metric.name: metric.title for metric in METRICS}
_MARKS = {
    "passed": "[green]passed[/]",
    "failed": "[bold red]FAILED[/]",
    "not applicable": "[dim]n/a[/]",
}
_TAKEN = {
    True: "[green]runs[/]",
    False: "[dim]does not run[/]",
    None: "[yellow]may run[/]",
}
MOST_CHANGED = 40
_Document = TypeVar("_Document", bound=Document)


def printable(document: _Document, *, markup: bool = True) -> _Document:
    """A document whose text can be printed: control characters as escapes, and nothing in it is markup, unless it is not read as such."""
    clean: _Document = _printable(document, _without_markup if markup else visible)
    return clean


def _without_markup(text: str) -> str:
    """As rich's ``escape``, which misses what becomes a tag together with the text beside it."""
    text = re.sub(r"(\\*)\[(?=[a-z#/@]|\Z)", r"\1\1\\[", visible(text))
    return re.sub(r"(\\+)\Z", r"\1\1", text)


def _printable(value: Any, clean: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, BaseModel):
        fields = {name: _printable(getattr(value, name), clean) for name in type(value).model_fields}  # fmt: skip
        return value.model_copy(update=fields)
    if isinstance(value, dict):
        return {_printable(name, clean): _printable(item, clean) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_printable(item, clean) for item in value)
    return value


def console() -> Console:
    """A console that is wide enough for variants' names where the output is no terminal."""
    shown = Console(highlight=False, emoji=False)
    return shown if shown.is_terminal else Console(width=180, highlight=False, emoji=False)


def table(*columns: str, title: str | None = None, left: int = 1) -> Table:
    """A table whose first columns are text and the others numbers."""
    made = Table(title=title, title_justify="left", header_style="bold")
    for position, column in enumerate(columns):
        justify: Literal["left", "right"] = "left" if position < left else "right"
        made.add_column(column, justify=justify, overflow="fold")
    return made


def widths(counts: dict[str, int]) -> str:
    """Loads or stores by width, the widest first: 16:4 4:19."""
    return " ".join(f"{width}:{counts[width]}" for width in sorted(counts, key=int, reverse=True))


def number(value: float) -> str:
    """Whole numbers without a fraction."""
    return f"{value:g}" if abs(value) < 1e6 else f"{value:.0f}"


def summary(listing: Listing) -> RenderableType:
    """A build in a few lines, and a row per arch."""
    tools = listing.toolchain
    ptxas = ", ".join(sorted(set(tools.ptxas.values())))
    lines = [
        f"[bold]{listing.source}[/] ({listing.kind})",
        f"build {listing.build_id[:16]}, profile {listing.profile}",
        f"made by Triton {tools.triton}, ptxas {ptxas}"
        + (f", NVRTC {tools.nvrtc}" if tools.nvrtc else ""),
        f"kernels: {', '.join(listing.kernels)}",
    ]
    archs = table("arch", "variants", "left out", "cubins", "pack MiB", "driver from", "ELF ABI")
    for arch in listing.archs:
        archs.add_row(
            arch.name,
            str(arch.variants),
            str(arch.left_out),
            str(arch.cubins),
            f"{arch.pack_bytes / MIB:.2f}",
            arch.least_driver,
            " ".join(arch.elf_abi),
        )
    return Group(*lines, archs)


def variants(listing: Listing, most: int | None = None) -> Text:
    """A line per variant, for the first ``most`` of them; print it with ``soft_wrap``.

    Aligned text rather than a table of rich, which takes a second for a thousand rows, and lines are what other programs read.
    """
    head = ("variant", "arch", "regs", "spill", "smem", "warps", "occ. %", "limited by", "loads", "stores", "KiB")  # fmt: skip
    rows = [head, *map(_row, listing.variants[:most])]
    widest = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = [
        "  ".join(
            cell.rjust(width) if column in _NUMBERS else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widest, strict=True))
        ).rstrip()
        for row in rows
    ]
    text = Text("\n".join(lines))
    text.stylize("bold", 0, len(lines[0]))
    return text


# The columns of `variants` that are aligned to the right.
_NUMBERS = {2, 3, 4, 5, 6, 10}


def _row(entry: Entry) -> tuple[str, ...]:
    variant, code = entry.variant, entry.variant.code
    if code is None:
        return (variant.name, variant.arch, "", "", "", str(variant.num_warps), "", "left out", "", "", "")  # fmt: skip
    return (
        variant.name,
        variant.arch,
        str(code.registers),
        str(code.spill_bytes),
        str(code.shared_bytes + code.static_shared_bytes),
        str(variant.num_warps),
        number(code.occupancy.percent),
        code.occupancy.limited_by,
        widths(code.sass.global_load_bytes),
        widths(code.sass.global_store_bytes),
        f"{code.cubin_bytes / KIB:.1f}",
    )


def shown(document: Shown) -> RenderableType:
    """Everything about one variant."""
    variant = document.variant
    parts: list[RenderableType] = [
        f"[bold]{variant.name}[/] on {variant.arch}, build {document.build_id[:16]}",
        f"{document.kernel}: {document.summary}",
        _facts(document, variant),
    ]
    params = table("parameter", "type", "offset", "bytes", "meaning", left=2)
    params.columns[-1].justify = "left"
    for param in document.params:
        params.add_row(param.name, param.type, str(param.offset), str(param.size), param.doc)
    parts.append(params)
    return Group(*parts)


def machine_code(listing: str) -> RenderableType:
    """A disassembler's listing."""
    lines = "\n".join(map(visible, listing.expandtabs().splitlines()))
    return Panel(Syntax(lines, "asm", word_wrap=False), title="machine code")


def _facts(document: Shown, variant: Variant) -> Table:
    made = Table(show_header=False, box=None, pad_edge=False)
    made.add_column(style="cyan", no_wrap=True)
    made.add_column(overflow="fold")

    def row(name: str, value: str) -> None:
        made.add_row(name, value)

    row("axes", _pairs(variant.axes))
    row("constants", _pairs(variant.constants))
    row(
        "options",
        f"num_warps={variant.num_warps} num_stages={variant.num_stages} maxnreg={variant.maxnreg or 'none'}"
        f" enable_fp_fusion={variant.enable_fp_fusion}",
    )
    for cell in document.served_cells:
        row("also serves", _pairs(cell))
    row("budget", _pairs(variant.budget) or "none")
    for loads in variant.row_loads:
        narrow = ", none of 1 or 2 bytes" if loads.forbid_narrow else ""
        row("row loads", f"at least {loads.min_count} of {loads.bytes} bytes{narrow}")
    code = variant.code
    if code is None:
        row("code", "left out by this build's profile")
        return made
    limits, occupancy, sass = document.limits, code.occupancy, code.sass
    row(
        "registers",
        f"{code.registers} a thread, {code.spill_bytes} bytes spilled, {code.stack_bytes} bytes of stack",
    )
    row(
        "shared memory",
        f"{code.static_shared_bytes} bytes static, {code.shared_bytes} dynamic; {code.barriers} named barriers",
    )
    row(
        "occupancy",
        f"{number(occupancy.percent)} %: {occupancy.blocks} blocks, {occupancy.warps} of {limits.warps} warps; limited by"
        f" {occupancy.limited_by}",
    )
    row("global loads", _accesses(sass.global_load_bytes))
    row("global stores", _accesses(sass.global_store_bytes))
    row(
        "instructions",
        f"{sass.instructions}: {sass.fp64} on 64-bit floats, {sass.tensor} on tensor cores, {sass.calls} calls",
    )
    row("local memory", f"{sass.local_loads} loads, {sass.local_stores} stores")
    row(
        "shared accesses",
        f"{sass.shared_loads} loads, {sass.shared_stores} stores, {sass.barriers} barriers",
    )
    row(
        "atomics",
        f"{sass.global_atomics} global, {sass.shared_atomics} shared; {sass.fences} fences, {sass.ordered} ordered accesses",
    )
    row(
        "cubin",
        f"{code.cubin_bytes} bytes, of which {code.code_bytes} are code; number {variant.blob} of its pack, ELF ABI {code.elf_abi}",
    )
    row("sha256", code.cubin_sha256)
    row("entry", code.entry)
    tools = document.toolchain
    compiler = f"Triton {tools.triton}" if document.language == "triton" else f"NVRTC {tools.nvrtc}"
    row("made by", f"{compiler}, ptxas {tools.ptxas.get(variant.arch, 'unknown')}")
    row("source", f"{document.source_sha256} (kernel and all that it imports)")
    return made


def _pairs(values: dict[str, bool | int | str] | dict[str, int]) -> str:
    return " ".join(f"{name}={value}" for name, value in values.items())


def _accesses(counts: dict[str, int]) -> str:
    ordered = sorted(counts, key=int, reverse=True)
    return ", ".join(f"{counts[width]} of {width} bytes" for width in ordered) or "none"


def verification(document: Verification) -> RenderableType:
    """A row per check, then the findings."""
    made = table("check", "", "looked at", "what it says", left=2)
    made.columns[-1].justify = "left"
    for check in document.checks:
        note = f" [dim]{check.note}[/]" if check.note else ""
        looked = str(check.checked) if check.status != "not applicable" else ""
        made.add_row(check.name, _MARKS[check.status], looked, f"{check.title}{note}")
    findings = [
        f"[red]{check.name}[/]: [bold]{finding.subject}[/]: {finding.message}"
        for check in document.checks
        for finding in check.findings[:MOST_LISTED]
    ]
    hidden = sum(max(0, len(check.findings) - MOST_LISTED) for check in document.checks)
    if hidden:
        findings.append(f"... and {hidden} more: --json has all of them")
    style = "red" if not document.ok else "yellow" if document.unchecked else "green"
    verdict = f"[bold {style}]{document.verdict}[/]"
    head = [f"{document.source} ({document.kind})"]
    if document.sha256:
        head.append(f"SHA-256 {document.sha256}")
    return Group(*head, made, *findings, verdict)


def _metric_changes(changes: list[Change]) -> Iterable[str]:
    for change in changes:
        style = "red" if change.intolerable else "yellow" if change.worse else "green"
        if not change.worse and _direction(change.metric) is None:
            style = "dim"
        yield (
            f"[{style}]{_TITLES[change.metric]} {number(change.before)} -> {number(change.after)}[/]"
        )


def _values(variant: ChangedVariant) -> Iterable[str]:
    yield from _metric_changes(variant.changes)
    for name, (before, after) in variant.settings.items():
        yield f"{name} {before} -> {after}"


def _direction(name: str) -> str | None:
    return next(metric.worse for metric in METRICS if metric.name == name)


def changed(changes: list[ChangedVariant], title: str) -> Table:
    """A row per changed variant, what got worst first."""
    made = table("variant", "arch", "before -> after", title=title, left=3)
    for variant in changes[:MOST_CHANGED]:
        text = ", ".join(_values(variant)) or "other bytes, the same numbers"
        made.add_row(variant.name, variant.arch, text)
    return made


def _differences(found: list[Difference]) -> Table:
    made = table("of", "what", "before", "after", title="what decides what a call runs", left=4)
    for difference in found:
        values = (difference.before or "none", difference.after or "none")
        row = (difference.subject, difference.what, *values)
        made.add_row(*row, style="red" if difference.worse else None)
    return made


def _cells(found: list[CellChange]) -> Table:
    hidden = len(found) - MOST_CHANGED
    title = "cells that lead elsewhere" + (f" ({hidden} more in --json)" if hidden > 0 else "")
    made = table("kernel", "arch", "before", "after", "cells", title=title, left=4)
    for change in found[:MOST_CHANGED]:
        numbers = ", ".join(_metric_changes(change.changes))
        after = change.after + (f": {numbers}" if numbers else "")
        names = (change.kernel, change.arch, change.before)
        style = "red" if change.lost else None
        made.add_row(*names, after, str(len(change.cells)), style=style)
    return made


def comparison(document: Comparison) -> RenderableType:
    """What differs between two builds."""
    worse = sum(variant.intolerable for variant in document.changed)
    lost = sum(len(change.cells) for change in document.cells if change.lost)
    counts = (
        f"{len(document.added)} added, {len(document.removed)} removed, {len(document.changed)} changed ({worse} worse beyond"
        f" the tolerance), {document.unchanged} unchanged; {sum(len(change.cells) for change in document.cells)} cells lead"
        f" elsewhere ({lost} to no kernel), {len(document.differences)} other differences"
    )
    parts: list[RenderableType] = [
        f"before: {document.before}, build {document.before_build_id[:16]}",
        f"after:  {document.after}, build {document.after_build_id[:16]}",
        counts,
    ]
    parts += [f"{name}: {old} -> {new}" for name, (old, new) in document.toolchain.items()]
    parts += [
        f"pack of {arch}: {old / MIB:.2f} -> {new / MIB:.2f} MiB"
        for arch, (old, new) in document.pack_bytes.items()
        if old != new
    ]
    if document.differences:
        parts.append(_differences(document.differences))
    if document.cells:
        parts.append(_cells(document.cells))
    for title, names in (("added", document.added), ("removed", document.removed)):
        if names:
            shown_names = ", ".join(f"{name.name} ({name.arch})" for name in names[:MOST_CHANGED])
            more = f" and {len(names) - MOST_CHANGED} more" if len(names) > MOST_CHANGED else ""
            parts.append(f"[bold]{title}[/]: {shown_names}{more}")
    if document.changed:
        hidden = len(document.changed) - MOST_CHANGED
        title = "changed, what got worst first" + (
            f" ({hidden} more in --json)" if hidden > 0 else ""
        )
        parts.append(changed(document.changed, title))
    return Group(*parts)


def explained(document: Explained) -> RenderableType:
    """Which variants a call takes, and why."""
    parts: list[RenderableType] = [
        f"[bold]{document.kernel}[/] on {document.arch}, build {document.build_id[:16]}, profile {document.profile}"
    ]
    why = Table(show_header=False, box=None, pad_edge=False)
    for style in ("cyan", "bold", "dim"):
        why.add_column(style=style)
    for decision in document.decisions:
        why.add_row(decision.axis, decision.label, decision.because)
    for axis in document.open_axes:
        why.add_row(axis, "open", "nothing that was said decides it")
    parts.append(why)
    paths = Table(show_header=False, box=None, pad_edge=False)
    for path in document.paths:
        because = f"[dim]{path.because}[/]"
        paths.add_row(_TAKEN[path.taken], path.kernel, because)
    parts.append(paths)
    if document.candidates:
        columns = ("block", "grid", "regs", "occ. %")
        made = table("variant", "when", "constants", *columns, left=3)
        for found in document.candidates:
            grid = " x ".join(map(str, found.grid)) if found.grid else ""
            if found.launches is not None and found.launches > 1:
                grid = f"{found.launches} times {grid}"
            costs = (
                (str(found.registers), number(found.occupancy or 0)) if found.built else ("", "")
            )
            notes = [
                found.when,
                "serves this combination too" if found.served_by_another_cell else "",
            ]
            notes += [] if found.built else ["[red]left out[/]"]
            shown_when = "; ".join(filter(None, notes))
            made.add_row(
                found.variant, shown_when, _pairs(found.constants), str(found.block), grid, *costs
            )
        parts.append(made)
    if document.alternatives:
        near = table("one axis away", "", "variant", "regs", "occ. %", left=3)
        for other in document.alternatives:
            costs = (
                (str(other.registers), number(other.occupancy or 0))
                if other.built
                else ("left out", "")
            )
            near.add_row(other.axis, other.label, other.variant, *costs)
        parts.append(near)
    parts += [f"[dim]{note}[/]" for note in document.notes]
    if document.problem:
        parts.append(f"[bold red]no variant:[/] {document.problem}")
    return Group(*parts)


def baseline(document: BaselineResult) -> RenderableType:
    """What became worse than the baseline."""
    parts: list[RenderableType] = []
    if document.worse:
        parts.append(changed(document.worse, "worse than the baseline, beyond the tolerance"))
    if document.unrecorded:
        names = ", ".join(
            f"{name.name} ({name.arch})" for name in document.unrecorded[:MOST_CHANGED]
        )
        parts.append(f"not in the baseline: {names}")
    if document.gone:
        parts.append(f"only in the baseline: {', '.join(document.gone[:MOST_CHANGED])}")
    parts.append(
        f"{len(document.worse)} worse, {document.better} changed within the tolerance or better, {document.unchanged} unchanged,"
        f" {len(document.unrecorded)} not in the baseline, {len(document.gone)} only there; {document.baseline}"
    )
    if document.other_archs:
        parts.append(f"not compared, this build has none of it: {', '.join(document.other_archs)}")
    parts += [f"[bold red]{advice}[/]" for advice in document.advice]
    return Group(*parts)
