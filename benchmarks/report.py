"""From a results file to the tables and the chart of docs/performance.md."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import report_backward, report_paths
from benchmarks.cases import CASES
from benchmarks.results import ForwardRow, Results
from benchmarks.tables import geometric_mean, table

GOAL_LEAST = 1.05
GOAL_MEAN = 1.25


def goal_ratios(rows: Iterable[ForwardRow]) -> list[float]:
    """Ratios of the rows that belong to the goals."""
    ratios = (row.ratio for row in rows if CASES[row.case].goal)
    return [ratio for ratio in ratios if ratio is not None]


def summary_lines(results: Results) -> list[str]:
    """Where, of what, and the ratios in short."""
    env = results.environment
    lines = [
        f"Commit `{env.commit}`, tbe-aot {env.tbe_aot} (profile {env.profile}, build `{env.build_id[:12]}`), "
        f"torch {env.torch}, Python {env.python}, {env.device}, driver {env.driver}"
        + (f", FBGEMM {env.peer}" if env.peer else "")
        + f". Copy bandwidth in the same run: {results.copy_gbs:,.0f} GB/s."
    ]
    ratios = goal_ratios(results.forward)
    if ratios:
        above_one = sum(ratio >= 1 for ratio in ratios) / len(ratios)
        above_goal = sum(ratio >= GOAL_LEAST for ratio in ratios) / len(ratios)
        lines.append("")
        lines.append(
            f"Forward, cases a-f, {len(ratios)} configurations, FBGEMM's better forward over ours: geometric mean "
            f"**{geometric_mean(ratios):.2f}**, median {sorted(ratios)[len(ratios) // 2]:.2f}, least {min(ratios):.2f}; "
            f"{above_one:.0%} at or above 1, {above_goal:.0%} at or above {GOAL_LEAST} "
            f"(goal: geometric mean {GOAL_MEAN}, none below {GOAL_LEAST})."
        )
    return lines


def case_lines(results: Results) -> list[str]:
    """Per case: what it is, and its ratios over all configurations."""
    rows = []
    for name in dict.fromkeys(row.case for row in results.forward):
        mine = [row for row in results.forward if row.case == name]
        ratios = [row.ratio for row in mine if row.ratio is not None]
        share = max(row.copy_share(results.copy_gbs) for row in mine)
        rows.append(
            [
                name,
                CASES[name].describe(),
                f"{geometric_mean(ratios):.2f}" if ratios else "-",
                f"{min(ratios):.2f}" if ratios else "-",
                f"{share:.0%}",
            ]
        )
    header = ["case", "what", "ratio (geom. mean)", "least", "best share of copy"]
    return table(header, rows)


def forward_lines(results: Results) -> list[str]:
    """Every forward configuration."""
    peers = [n for n in ("v1", "v2") if any(n in row.times for row in results.forward)]
    rows = []
    for row in results.forward:
        peer_times = [
            f"{row.times[name].median:.4f}" if name in row.times else "-" for name in peers
        ]
        rows.append(
            [
                row.case,
                "weighted" if row.weighted else "unweighted",
                row.output_dtype,
                row.index_dtype,
                f"{row.times['ours'].median:.4f}",
                *peer_times,
                "-" if row.ratio is None else f"{row.ratio:.2f}",
                f"{row.copy_share(results.copy_gbs):.0%}",
            ]
        )
    header = ["case", "lookup", "output", "indices", "ours, ms"]
    header += [f"FBGEMM {name}, ms" for name in peers] + ["ratio", "share of copy"]
    return table(header, rows)


def bounds_lines(results: Results) -> list[str]:
    """What checking bounds costs."""
    columns = {
        "ours: forward": "forward",
        "ours: check_bounds": "check",
        "ours: check_bounds + forward": "check and forward",
        "ours: forward_checked, never": "never",
        "ours: always": "always",
        "ours: auto": "auto",
        "peer: forward": "peer forward",
        "peer: forward with check": "peer check and forward",
    }
    shown = {title: key for title, key in columns.items() if key in results.bounds[0].times}
    rows = [
        [row.case, row.index_dtype, *(f"{row.times[key].median:.4f}" for key in shown.values())]
        for row in results.bounds
    ]
    lines = table(["case", "indices", *(f"{title}, ms" for title in shown)], rows)
    timed = {title: key for title, key in shown.items() if key in results.bounds[0].host}
    if timed:
        host = [
            [row.case, row.index_dtype, *(f"{row.host[key].median:.1f}" for key in timed.values())]
            for row in results.bounds
        ]
        titles = [f"{title}, us of host time" for title in timed]
        lines += ["", *table(["case", "indices", *titles], host)]
    return lines


def other_lines(results: Results) -> list[str]:
    """Host time, first call, sizes."""
    rows = [
        ["host time of one call", row.call, f"{row.microseconds.median:.1f} us"]
        for row in results.host
    ]
    if results.first_call is not None:
        first = results.first_call
        rows += [
            ["fresh process", "import tbe_aot, torch imported before", f"{first.import_ms:.0f} ms"],
            ["fresh process", "first forward, result waited for", f"{first.first_call_ms:.1f} ms"],
            ["fresh process", "a later one", f"{first.later_call_ms:.2f} ms"],
        ]
    rows += [["size", name, f"{size / 1e6:.2f} MB"] for name, size in results.sizes.items()]
    return table(["", "of", "value"], rows)


def markdown(results: Results, chart: str | None) -> str:
    """The generated section of the document."""
    parts = [summary_lines(results)]
    if chart is not None:
        title = "Backward: FBGEMM's time" if results.backward else "Forward: FBGEMM's better time"
        parts.append([f"![{title} over ours, per configuration]({chart})"])
    if results.forward:
        parts += [["### By case"], case_lines(results)]
        parts += [["### Every configuration"], forward_lines(results)]
    if results.bounds:
        parts += [["### Bounds checking (`warning`)"], bounds_lines(results)]
    if results.backward:
        parts += report_backward.sections(results)
    if results.paths:
        for path in dict.fromkeys(row.path for row in results.paths):
            parts += [[f"### {path}"], report_paths.path_lines(results, path)]
    others = "Host, first call, sizes" if results.first_call is not None else "Host, sizes"
    if results.host:
        parts += [[f"### {others}"], other_lines(results)]
    missing = results.errors | results.peer_errors
    if missing:
        failed = [f"- `{name}`: {text.splitlines()[0]}" for name, text in missing.items()]
        parts += [["### What could not be measured"], failed]
    return "\n\n".join("\n".join(part) for part in parts)


def accuracy_markdown(errors: dict[str, Any]) -> str:
    """What the GPU tests wrote as ``forward_errors.json``: the worst error per pair of dtypes."""
    rows = [
        [
            row["weight_dtype"],
            row["output_dtype"],
            f"{row['worst_error']:.1e}",
            f"{row['tolerance']:.0e}",
            f"{row['launches']:,}",
        ]
        for row in errors["rows"]
    ]
    build = f"profile {errors['profile']}, build `{errors['build_id'][:12]}`"
    where = f"{errors['device']}, torch {errors['torch']}"
    summary = f"{errors['variants']} variants ({build}) on {where}: {errors['what']}."
    header = ["tables", "output", "worst error", "allowed", "lookups"]
    return "\n".join([summary, "", *table(header, rows)])


def rewrite_section(document: Path, name: str, body: str) -> None:
    """Replace what stands between the markers ``<!-- results:NAME -->`` and ``<!-- results:end -->``.

    Raises:
        ValueError: the document has no such pair of markers.
    """
    text = document.read_text(encoding="utf-8")
    pattern = re.compile(
        rf"(<!-- results:{re.escape(name)} -->\n).*?(<!-- results:end -->)", re.DOTALL
    )
    if not pattern.search(text):
        message = (
            f"{document} has no section between <!-- results:{name} --> and <!-- results:end -->"
        )
        raise ValueError(message)
    text = pattern.sub(lambda match: f"{match[1]}\n{body}\n\n{match[2]}", text, count=1)
    document.write_text(text, encoding="utf-8")


@dataclass(frozen=True)
class Bar:
    """One ratio of the chart."""

    case: str
    series: str
    ratio: float


def chart_bars(results: Results) -> list[Bar]:
    """The ratios of a run: of its backwards if it has any, else of its forwards."""
    found = [
        (row.case, report_backward.series(row), row.ratio("backward")) for row in results.backward
    ] or [(row.case, _series(row), row.ratio) for row in results.forward]
    return [Bar(case, series, ratio) for case, series, ratio in found if ratio is not None]


def draw_chart(results: Results, path: Path) -> bool:
    """Bars of the ratio per case and configuration, as SVG or PNG by suffix; False if nothing has a ratio."""
    bars = chart_bars(results)
    if not bars:
        return False
    # By name: drawing is the only thing here that needs matplotlib, and type checking shall not.
    mpl: Any = importlib.import_module("matplotlib")
    mpl.use("Agg")
    # Equal results give an equal file.
    mpl.rcParams["svg.hashsalt"] = "tbe-aot"
    plt: Any = importlib.import_module("matplotlib.pyplot")

    cases = list(dict.fromkeys(bar.case for bar in bars))
    series = list(dict.fromkeys(bar.series for bar in bars))
    figure, axes = plt.subplots(figsize=(11, 4), layout="constrained")
    width = 0.8 / len(series)
    colours = plt.get_cmap("tab20")
    for i, label in enumerate(series):
        heights = {bar.case: bar.ratio for bar in bars if bar.series == label}
        positions = [
            x + (i - (len(series) - 1) / 2) * width for x, c in enumerate(cases) if c in heights
        ]
        axes.bar(
            positions,
            [heights[c] for c in cases if c in heights],
            width,
            label=label,
            color=colours(i),
        )
    what, least = "Forward", GOAL_LEAST
    if results.backward:
        what, least = "Backward", report_backward.GOALS[0].least or 1.0
    axes.axhline(1.0, color="black", linewidth=1)
    axes.axhline(least, color="black", linewidth=0.8, linestyle=":")
    axes.set_xticks(range(len(cases)), [f"case {c}" if len(c) == 1 else c for c in cases])
    axes.set_ylabel("FBGEMM's time / ours" if results.backward else "FBGEMM's better time / ours")
    env = results.environment
    axes.set_title(
        f"{what} on {env.device}, torch {env.torch}, FBGEMM {env.peer}, fp16 tables", fontsize=10
    )
    figure.legend(loc="outside lower center", fontsize=8, ncols=4)
    path.parent.mkdir(parents=True, exist_ok=True)
    metadata = {"Date": None} if path.suffix == ".svg" else None
    figure.savefig(path, metadata=metadata, dpi=150)
    plt.close(figure)
    return True


def _series(row: ForwardRow) -> str:
    return f"{'weighted' if row.weighted else 'unweighted'}, {row.output_dtype}, {row.index_dtype}"
