"""The benchmark harness on the CPU: its inputs, its counting of bytes, its files and tables. Times mean nothing here."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from benchmarks import report
from benchmarks.cases import CASES, Case, Inputs, Volume, forward_bytes, make_inputs, volume
from benchmarks.results import Environment, FirstCall, ForwardRow, HostRow, Results
from benchmarks.timing import Timing, host_microseconds, interleaved

CPU = torch.device("cpu")
SMALL = Case("small", 3, 40, 5, (4, 8), 50, "zipf", goal=False)


def timing(median: float) -> Timing:
    return Timing(median, median, median, 30, 0)


def make_results() -> Results:
    environment = Environment(
        "c0ffee", "0.1", "full", "b" * 64, "2.11", "3.12", "GPU", "580", "1.6"
    )
    rows = [
        ForwardRow(
            case,
            weighted,
            "fp32",
            "int64",
            1e9,
            {"ours": timing(1.0), "v1": timing(3.0), "v2": timing(ratio)},
        )
        for case, weighted, ratio in (("a", False, 1.0), ("a", True, 4.0), ("large128", False, 9.0))
    ]
    return Results(
        "run",
        environment,
        {"iterations": 30},
        4000.0,
        forward=rows,
        host=[HostRow("torch.ops.tbe_aot.forward", timing(9.5))],
        first_call=FirstCall(3, 10.0, 1.0, 0.1),
        sizes={"sm90.pack": 2_000_000},
        peer_errors={"a weighted v2": "refused\nbecause"},
    )


@pytest.mark.parametrize("name", CASES)
def test_cases_rotate_over_more_than_the_cache(name):
    case = CASES[name]
    sets = case.input_sets()
    assert all(math.gcd(sets, implementations) == 1 for implementations in (1, 2, 3))
    if case.goal:
        lookups = case.features * case.batch * case.mean_length
        output = case.batch * sum(case.feature_dims())
        assert sets * (8 * lookups + 4 * output) > 2 * 60e6


@pytest.mark.parametrize("distribution", ["uniform", "zipf"])
def test_inputs_are_seeded_and_within_bounds(distribution):
    case = Case("x", 3, 40, 5, (4, 8), 50, distribution)
    inputs, again, other = (make_inputs(case, seed, CPU) for seed in (7, 7, 8))
    assert torch.equal(inputs.indices, again.indices)
    assert torch.equal(inputs.per_sample_weights, again.per_sample_weights)
    assert not torch.equal(inputs.offsets, other.offsets)
    assert inputs.offsets.shape == (3 * 40 + 1,)
    assert inputs.offsets[-1] == inputs.indices.numel() == inputs.per_sample_weights.numel()
    lengths = torch.diff(inputs.offsets)
    assert lengths.min() >= 0
    assert lengths.max() <= 10
    assert inputs.indices.min() >= 0
    assert inputs.indices.max() < 50
    narrow = inputs.with_width(torch.int32)
    assert narrow.indices.dtype == narrow.offsets.dtype == torch.int32


def test_volume_counts_a_row_once_per_table():
    case = Case("x", 2, 2, 1, (4, 8), 10, "uniform")
    offsets = torch.tensor([0, 2, 3, 4, 6])
    inputs = Inputs(torch.tensor([1, 1, 2, 1, 1, 3]), offsets, torch.ones(6))
    assert volume(case, inputs) == Volume(6, 4, 2 * 4 + 2 * 8)


def test_least_bytes_of_a_forward():
    case = Case("x", 2, 2, 1, (4, 8), 10, "uniform")
    sizes = {"weight_bytes": 2, "output_bytes": 4, "index_bytes": 8}
    unweighted = forward_bytes(case, Volume(6, 4, 24), weighted=False, **sizes)
    assert unweighted == 24 * 2 + 6 * 8 + 5 * 8 + 2 * 12 * 4
    assert forward_bytes(case, Volume(6, 4, 24), weighted=True, **sizes) == unweighted + 6 * 4


def test_implementations_take_turns_over_all_sets():
    seen: dict[str, list[int]] = {"x": [], "y": [], "z": []}
    calls = {name: seen[name].append for name in seen}
    times = interleaved(calls, 5, CPU, iterations=10, warmup=0)
    assert [seen[name][0] for name in seen] == [0, 1, 2]
    for name, sets in seen.items():
        assert set(sets) == set(range(5))
        assert times[name].samples == 10


def test_host_time_is_per_call():
    count = 0

    def call() -> None:
        nonlocal count
        count += 1

    measured = host_microseconds(call, CPU, batches=3, calls=10)
    assert count == 50
    assert measured.samples == 3
    assert 0 < measured.median < 1000


def test_results_survive_the_file(tmp_path):
    results = make_results()
    path = tmp_path / "deeper" / "run.json"
    results.write(path)
    assert Results.read(path) == results
    assert list(path.parent.iterdir()) == [path]
    path.write_text('{"schema_version": 0}', encoding="utf-8")
    with pytest.raises(ValueError, match="schema_version is 0"):
        Results.read(path)


def test_ratio_is_against_the_better_of_the_peers_forwards():
    rows = make_results().forward
    assert [row.ratio for row in rows] == [1.0, 3.0, 3.0]
    assert rows[0].copy_share(4000.0) == pytest.approx(0.25)
    alone = ForwardRow(
        "a",
        weighted=False,
        output_dtype="fp32",
        index_dtype="int64",
        min_bytes=1.0,
        times={"ours": timing(1.0)},
    )
    assert alone.ratio is None


def test_goals_count_the_goal_cases_only():
    text = report.markdown(make_results(), "images/chart.svg")
    assert "2 configurations" in text
    assert f"geometric mean **{math.sqrt(3.0):.2f}**" in text
    assert "50% at or above 1.05" in text
    assert "large128" in text
    assert "`a weighted v2`: refused" in text
    assert "because" not in text
    assert "images/chart.svg" in text


def test_only_the_marked_section_is_rewritten(tmp_path):
    document = tmp_path / "document.md"
    document.write_text(
        "before\n<!-- results:x -->\nold\n<!-- results:end -->\nafter\n", encoding="utf-8"
    )
    for _ in range(2):
        report.rewrite_section(document, "x", r"new \1")
    assert document.read_text(encoding="utf-8") == (
        "before\n<!-- results:x -->\n\nnew \\1\n\n<!-- results:end -->\nafter\n"
    )
    with pytest.raises(ValueError, match="results:y"):
        report.rewrite_section(document, "y", "")


def test_accuracy_table():
    row = {"weight_dtype": "fp16", "output_dtype": "fp32", "worst_error": 3.1e-7}
    text = report.accuracy_markdown(
        {
            "what": "worst error",
            "variants": 312,
            "profile": "full",
            "build_id": "b" * 64,
            "device": "GPU",
            "torch": "2.11",
            "rows": [{**row, "tolerance": 1e-5, "launches": 1234}],
        }
    )
    assert "312 variants" in text
    assert "| fp16 | fp32 | 3.1e-07 | 1e-05 | 1,234 |" in text


def test_documents_sections_can_be_rewritten(tmp_path):
    """The markers in docs/performance.md are those that the commands look for."""
    document = tmp_path / "performance.md"
    source = Path(__file__).resolve().parents[2] / "docs" / "performance.md"
    document.write_text(source.read_text(encoding="utf-8"), encoding="utf-8")
    for section in ("forward", "accuracy"):
        report.rewrite_section(document, section, f"{section} is new")
    text = document.read_text(encoding="utf-8")
    assert "forward is new" in text
    assert "accuracy is new" in text


def test_chart_is_the_same_for_the_same_results(tmp_path):
    pytest.importorskip("matplotlib")
    for name in ("one.svg", "two.svg"):
        assert report.draw_chart(make_results(), tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_forward_benchmark_on_the_cpu(tmp_path):
    """The whole way: command line, operators, first call in a process of its own, file, report."""
    from benchmarks.__main__ import app

    arguments = ["forward", "--device", "cpu", "--cases", "smoke", "--iterations", "4"]
    arguments += ["--out", str(tmp_path), "--name", "smoke", "--commit", "abc"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    results = Results.read(tmp_path / "smoke.json")
    assert results.environment.commit == "abc"
    assert len(results.forward) == 8
    assert len(results.host) == 6
    assert results.first_call is not None
    assert results.first_call.first_call_ms > 0
    assert any(name.endswith(".pack") for name in results.sizes)
    assert not results.errors
    document = tmp_path / "performance.md"
    document.write_text("<!-- results:forward -->\n<!-- results:end -->\n", encoding="utf-8")
    done = CliRunner().invoke(
        app, ["report", str(tmp_path / "smoke.json"), "--document", str(document)]
    )
    assert done.exit_code == 0, done.output
    assert "smoke" in document.read_text(encoding="utf-8")


def test_unknown_case_is_named():
    from benchmarks.__main__ import app

    done = CliRunner().invoke(app, ["forward", "--device", "cpu", "--cases", "a,nonsense"])
    assert done.exit_code == 2
    assert "nonsense" in done.output
