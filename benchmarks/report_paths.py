"""From the results of the narrow paths to the tables of docs/paths.md."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from benchmarks.results import PathRow, Results
from benchmarks.tables import table

FIELDS = {"mean_length": "L", "batch": "B", "rows": "rows"}
# A path whose time is within this of the other's is not said to be slower: what two runs differ by.
NOISE = 1.03


def pays(rows: Iterable[PathRow]) -> str:
    """The sizes at which the narrow path is never slower than the general one: "from" one on, "to" one, or "never"."""
    by_size = sorted(rows, key=lambda row: row.size)
    largest_first = _while_faster(reversed(by_size))
    if largest_first:
        return f"from {FIELDS[largest_first[-1].field]} {largest_first[-1].size}"
    smallest_first = _while_faster(by_size)
    if smallest_first:
        return f"to {FIELDS[smallest_first[-1].field]} {smallest_first[-1].size}"
    return "never"


def _while_faster(rows: Iterable[PathRow]) -> list[PathRow]:
    return list(
        itertools.takewhile(
            lambda row: row.times["narrow"].median <= NOISE * row.times["general"].median, rows
        )
    )


def path_lines(results: Results, path: str) -> list[str]:
    """A table per field that was varied: general / narrow us at every size, and at which of them the narrow one pays."""
    lines: list[str] = []
    mine = [row for row in results.paths if row.path == path]
    for field in dict.fromkeys(row.field for row in mine):
        of_field = [row for row in mine if row.field == field]
        sizes = sorted({row.size for row in of_field})
        shown = []
        for series in dict.fromkeys(row.series for row in of_field):
            by_size = {row.size: row for row in of_field if row.series == series}
            cells = [_cell(by_size[size]) if size in by_size else "-" for size in sizes]
            shown.append([series, pays(by_size.values()), *cells])
        header = ["table", "pays", *(f"{FIELDS[field]} {size}" for size in sizes)]
        lines += [*table(header, shown), ""]
    return lines[:-1]


def _cell(row: PathRow) -> str:
    """General and narrow, us; bold is what "auto" takes."""
    shown = []
    for name in ("general", "narrow"):
        time = f"{1e3 * row.times[name].median:.1f}"
        shown.append(f"**{time}**" if name == row.taken else time)
    return " / ".join(shown)


def markdown(results: Results, path: str) -> str:
    """The section of one path."""
    env = results.environment
    said = (
        f"General / narrow, us; **bold** is what `auto` takes. Commit `{env.commit}`, torch {env.torch}, {env.device}, "
        f"driver {env.driver}; copy bandwidth in the same run {results.copy_gbs:,.0f} GB/s."
    )
    lines = [
        said,
        "",
        *path_lines(results, path),
    ]
    return "\n".join(lines)
