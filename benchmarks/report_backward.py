"""The tables of training steps, from a results file."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.cases import CASES, RUN_LENGTHS
from benchmarks.results import BackwardRow, Results
from benchmarks.tables import geometric_mean, table
from benchmarks.timing import Timing


@dataclass(frozen=True)
class Goal:
    """What a ratio of the peer's time over ours shall be: in each configuration, and in the geometric mean."""

    what: str
    title: str
    least: float | None
    mean: float | None


GOALS = (
    Goal("backward", "Backward with its update, GPU time", 1.2, 1.8),
    Goal("both", "Forward and backward, GPU time", None, None),
    Goal("wall", "Eager step, wall time with the host", 2.0, None),
)
OPTIMIZERS = {"rowwise_adagrad": "row-wise Adagrad", "sgd": "SGD"}


def series(row: BackwardRow) -> str:
    """A configuration less its case."""
    return f"{row.lookup}, {OPTIMIZERS[row.optimizer]}"


def goal_rows(results: Results) -> list[BackwardRow]:
    """The rows that belong to the goals and have a peer."""
    return [row for row in results.backward if CASES[row.case].goal and "peer" in row.times]


def summary_lines(results: Results) -> list[str]:
    """The ratios in short, and which configurations miss a goal."""
    rows = goal_rows(results)
    if not rows:
        return []
    body, missed = [], []
    for goal in GOALS:
        ratios = {f"{row.case} {series(row)}": row.ratio(goal.what) for row in rows}
        known = sorted(ratio for ratio in ratios.values() if ratio is not None)
        wanted = [f"none below {goal.least}"] if goal.least is not None else []
        wanted += [f"geometric mean {goal.mean}"] if goal.mean is not None else []
        body.append(
            [
                goal.title,
                ", ".join(wanted) or "none",
                f"**{geometric_mean(known):.2f}**",
                f"{known[len(known) // 2]:.2f}",
                f"{known[0]:.2f}",
                f"{sum(ratio >= 1 for ratio in known) / len(known):.0%}",
            ]
        )
        below = {
            name: ratio
            for name, ratio in ratios.items()
            if goal.least is not None and ratio is not None and ratio < goal.least
        }
        listed = ", ".join(f"{name} ({ratio:.2f})" for name, ratio in below.items())
        if below:
            missed.append(f"- {goal.title}, below {goal.least}: {listed}.")
    header = ["FBGEMM's time over ours", "goal", "geom. mean", "median", "least", "at or above 1"]
    count = f"Training steps, cases a-f, {len(rows)} configurations:"
    misses = ["", "Goals that are missed:", "", *missed] if missed else []
    return [count, "", *table(header, body), *misses]


def case_lines(results: Results) -> list[str]:
    """Per case: its ratios over all configurations."""
    body = []
    for name in dict.fromkeys(row.case for row in results.backward):
        mine = [row for row in results.backward if row.case == name]
        cells = []
        for goal in GOALS:
            ratios = [ratio for row in mine if (ratio := row.ratio(goal.what)) is not None]
            mean = f"{geometric_mean(ratios):.2f}" if ratios else "-"
            cells.append(f"{mean} ({min(ratios):.2f})" if ratios else mean)
        share = max(row.copy_share(results.copy_gbs) for row in mine)
        body.append([name, CASES[name].describe(), *cells, f"{share:.0%}"])
    header = ["case", "what", "backward", "forward + backward", "wall", "best share of copy"]
    return [
        "Geometric mean of the ratios, and the least in brackets.",
        "",
        *table(header, body),
    ]


def _pair(row: BackwardRow, what: str) -> list[str]:
    ratio = row.ratio(what)
    ours = row.times["ours"][what].median
    if ratio is None:
        return [f"{ours:.4f}"]
    return [f"{ours:.4f}", f"{row.times['peer'][what].median:.4f}", f"{ratio:.2f}"]


def step_lines(results: Results) -> list[str]:
    """Every configuration."""
    with_peer = any("peer" in row.times for row in results.backward)
    header = ["case", "lookup"]
    for title in ("backward", "forward + backward", "wall"):
        header.append(f"{title}: ours, ms")
        header += ["FBGEMM, ms", "ratio"] if with_peer else []
    body = [
        [row.case, series(row), *(cell for goal in GOALS for cell in _pair(row, goal.what))]
        for row in results.backward
    ]
    return table(header, body)


def run_length_lines(results: Results) -> list[str]:
    """How often rows are looked up, and how the cases that have many of a kind do."""
    marks = [f"below {RUN_LENGTHS[0]}"]
    marks += [f"{a} to {b - 1}" for a, b in itertools.pairwise(RUN_LENGTHS)]
    marks.append(f"from {RUN_LENGTHS[-1]} on")
    means = _ratios_by_case(results.backward)
    body = [
        [
            row.case,
            f"{row.lookups:,}",
            f"{row.unique_rows:,}",
            *(f"{share:.0%}" for share in row.shares),
            means.get(row.case, "-"),
        ]
        for row in results.run_lengths
    ]
    header = ["case", "lookups", "unique rows", *marks, "backward, ratio (geom. mean)"]
    return ["Share of the lookups by how often their row is looked up:", "", *table(header, body)]


def _ratios_by_case(rows: Iterable[BackwardRow]) -> dict[str, str]:
    ratios: dict[str, list[float]] = {}
    for row in rows:
        ratio = row.ratio("backward")
        if ratio is not None:
            ratios.setdefault(row.case, []).append(ratio)
    return {case: f"{geometric_mean(found):.2f}" for case, found in ratios.items()}


def _medians(times: dict[str, Timing], names: Sequence[str]) -> list[str]:
    return [f"{times[name].median:.4f}" for name in names]


def option_lines(results: Results) -> list[str]:
    """What options of a step change; the ratio is that of the sums."""
    parts = ("forward", "backward", "both")
    body = []
    for row in results.options:
        plain = row.times["plain"]["both"].median
        body += [
            [
                row.case,
                row.lookup,
                option,
                *_medians(times, parts),
                f"{times['both'].median / plain:.3f}",
            ]
            for option, times in row.times.items()
        ]
    header = ["case", "lookup", "option", "forward, ms", "backward, ms", "sum, ms", "of plain"]
    return table(header, body)


def kernel_lines(results: Results) -> list[str]:
    """What a step launches."""
    body = [
        [row.case, row.lookup, f"`{row.kernel}`", f"{row.launches:g}", f"{row.microseconds:.1f}"]
        for row in results.kernels
    ]
    return [
        "By torch's profiler, which makes launches a little slower. Launches overlap: one that waits for the one before counts its waiting.",
        "",
        *table(["case", "lookup", "kernel", "launches", "us per step"], body),
    ]


def sort_lines(results: Results) -> list[str]:
    """Ordering the lookups beside torch's sort."""
    passes = {
        row.case: row.microseconds
        for row in results.kernels
        if row.kernel == "sort_pass" and row.lookup == "unweighted"
    }
    body = [
        [
            row.case,
            f"{row.lookups:,}",
            str(row.key_bits),
            f"{passes[row.case] / 1e3:.4f}" if row.case in passes else "-",
            *_medians(row.times, ("transpose_indices", "torch.sort")),
        ]
        for row in results.sorts
    ]
    header = ["case", "lookups", "bits of a key", "sort_pass, ms", "transpose_indices, ms"]
    return table([*header, "torch.sort(stable=True), ms"], body)


def memory_lines(results: Results) -> list[str]:
    """What a backward allocates."""
    names = list(dict.fromkeys(name for row in results.memory for name in row.bytes))
    body = []
    for row in results.memory:
        cells = [f"{row.bytes[name] / 1e6:.1f}" if name in row.bytes else "-" for name in names]
        both = "ours" in row.bytes and row.bytes.get("peer", 0) > 0
        ratio = f"{row.bytes['ours'] / row.bytes['peer']:.0%}" if both else "-"
        body.append([row.case, row.lookup, *cells, ratio])
    titles = {"ours": "ours, MB", "peer": "FBGEMM, MB"}
    return table(["case", "lookup", *(titles[name] for name in names), "ours of FBGEMM's"], body)


def sections(results: Results) -> list[list[str]]:
    """All tables that the results have something for, with their headings."""
    made = [summary_lines(results)] if goal_rows(results) else []
    made += [["### Training steps by case"], case_lines(results)]
    made += [["### Every training step"], step_lines(results)]
    tables = (
        ("Run lengths", results.run_lengths, run_length_lines),
        ("Options of a step", results.options, option_lines),
        ("Kernels of a step with row-wise Adagrad", results.kernels, kernel_lines),
        ("The sort", results.sorts, sort_lines),
        ("Memory of a backward over its inputs", results.memory, memory_lines),
    )
    for title, rows, lines in tables:
        if rows:
            made += [[f"### {title}"], lines(results)]
    return made
