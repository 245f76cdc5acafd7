"""The benchmark harness on the CPU: its inputs, its counting of bytes, its files and tables. Times mean nothing here."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from benchmarks import backward as backward_benchmark
from benchmarks import paths, report, report_paths
from benchmarks.backward import kernel_name
from benchmarks.cases import (
    CASES,
    Case,
    Inputs,
    Volume,
    backward_bytes,
    forward_bytes,
    make_inputs,
    run_length_shares,
    volume,
)
from benchmarks.environment import Options
from benchmarks.ours import Training, make_weights
from benchmarks.results import (
    BackwardRow,
    Environment,
    FirstCall,
    ForwardRow,
    HostRow,
    KernelRow,
    MemoryRow,
    OptionRow,
    PathRow,
    Results,
    RunLengthRow,
    SortRow,
)
from benchmarks.timing import (
    Step,
    Timing,
    host_microseconds,
    interleaved,
    interleaved_steps,
    wall_milliseconds,
)

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


def step_times(backward: float) -> dict[str, Timing]:
    return {
        "forward": timing(1.0),
        "backward": timing(backward),
        "both": timing(1.0 + backward),
        "wall": timing(2.0 + backward),
    }


def make_backward_results() -> Results:
    """Backward ratios of 4, 1 and 9, the last of which is no goal's."""
    rows = [
        BackwardRow(
            case,
            lookup,
            optimizer,
            1e9,
            {"ours": step_times(1.0), "peer": step_times(peer)},
        )
        for case, lookup, optimizer, peer in (
            ("a", "unweighted", "rowwise_adagrad", 4.0),
            ("a", "weighted, with gradient", "sgd", 1.0),
            ("large128", "unweighted", "sgd", 9.0),
        )
    ]
    hoists = {"plain": step_times(3.0), "hoisted": step_times(2.0)}
    sorts = {"transpose_indices": timing(0.05), "torch.sort": timing(0.125)}
    return Results(
        "run",
        make_results().environment,
        {"iterations": 30},
        4000.0,
        backward=rows,
        options=[OptionRow("a", "unweighted", hoists)],
        kernels=[KernelRow("a", "unweighted", "sort_pass", 44.0, 3.0)],
        sorts=[SortRow("a", 820_000, 32, sorts)],
        memory=[MemoryRow("a", "unweighted", {"ours": 10_000_000, "peer": 40_000_000})],
        run_lengths=[RunLengthRow("a", 820_000, 790_000, [0.75, 0.25, 0.0, 0.0])],
        host=[HostRow("forward + backward, one bucket", timing(75.5))],
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


def test_least_bytes_of_a_backward():
    case = Case("x", 2, 2, 1, (4, 8), 10, "uniform")
    touched = Volume(6, 4, 24)
    sizes = {"weight_bytes": 2, "gradient_bytes": 4, "index_bytes": 8}
    plain = backward_bytes(
        case, touched, weighted=False, sample_weights_gradient=False, row_state=False, **sizes
    )
    assert plain == 2 * 12 * 4 + 6 * 8 + 5 * 8 + 2 * 24 * 2
    most = backward_bytes(
        case, touched, weighted=True, sample_weights_gradient=True, row_state=True, **sizes
    )
    assert most == plain + 2 * 6 * 4 + 8 * 4


def test_run_lengths_are_grouped_per_table():
    case = Case("x", 2, 2, 1, (4, 8), 10, "uniform")
    # Feature 0: row 1 three times; feature 1: row 1 four times, row 2 40 times, row 3 300 times.
    indices = torch.tensor([1, 1, 1] + [1] * 4 + [2] * 40 + [3] * 300)
    offsets = torch.tensor([0, 2, 3, 40, 347])
    inputs = Inputs(indices, offsets, torch.ones(347))
    assert run_length_shares(case, inputs) == [3 / 347, 4 / 347, 40 / 347, 300 / 347]


def test_keys_are_the_global_rows():
    weights = make_weights(SMALL, CPU)
    inputs = make_inputs(SMALL, 3, CPU)
    training = Training(SMALL, weights, "sgd", 0.5)
    keys = training.global_rows(SMALL, inputs)
    assert keys.dtype == torch.int32
    rows = [
        (int(row), int(row) - first)
        for first in (0, 50, 100)
        for row in keys
        if first <= row < first + 50
    ]
    assert sorted(index for _, index in rows) == sorted(inputs.indices.tolist())


def test_steps_take_turns_over_all_sets():
    seen: dict[str, list[tuple[str, int]]] = {"x": [], "y": []}

    def step(name: str) -> Step:
        def forward(s: int) -> torch.Tensor:
            seen[name].append(("forward", s))
            return torch.tensor(s)

        def backward(output: torch.Tensor, s: int) -> None:
            seen[name].append(("backward", s))
            assert output == s

        return Step(forward, backward)

    steps = {name: step(name) for name in seen}
    times = interleaved_steps(steps, 5, CPU, iterations=10, warmup=0)
    for name, calls in seen.items():
        assert [what for what, _ in calls] == ["forward", "backward"] * 10
        assert {s for _, s in calls} == set(range(5))
        assert times[name].keys() == {"forward", "backward", "both"}
        assert times[name]["both"].samples == 10
        assert times[name]["both"].median > 0
        calls.clear()
    walls = wall_milliseconds(steps, 5, CPU, rounds=3, length=4)
    assert [walls[name].samples for name in steps] == [3, 3]
    assert all(len(calls) == 2 * 4 * 4 for calls in seen.values())


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("update_short_runs_kernel", "update_short_runs"),
        ("sort_pass", "sort_pass"),
        ("Memset (Device)", "Memset (Device)"),
        ("void at::native::(anonymous namespace)::thing<float, 4>(int)", "at::native::thing"),
    ],
)
def test_kernels_have_short_names(key, name):
    assert kernel_name(key) == name


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
    backward = make_backward_results()
    backward.write(path)
    assert Results.read(path) == backward
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


def test_results_of_the_forward_that_were_written_before_there_was_a_backward_can_be_read(tmp_path):
    root = Path(__file__).resolve().parents[2]
    results = Results.read(root / "benchmarks" / "results" / "forward.json")
    assert results.forward
    assert results.backward == []
    assert "### Host, first call, sizes" in report.markdown(results, None)


def test_report_of_a_backward():
    text = report.markdown(make_backward_results(), "images/chart.svg")
    lines = text.splitlines()
    assert "Training steps, cases a-f, 2 configurations:" in lines
    goal = next(line for line in lines if line.startswith("| Backward with its update"))
    assert "| none below 1.2, geometric mean 1.8 | **2.00** | 4.00 | 1.00 | 100% |" in goal
    assert (
        "- Backward with its update, GPU time, below 1.2: a weighted, with gradient, SGD (1.00)."
        in lines
    )
    assert (
        "- Eager step, wall time with the host, below 2.0: a unweighted, row-wise Adagrad (2.00)"
        not in text
    )
    assert (
        "| a | unweighted, row-wise Adagrad | 1.0000 | 4.0000 | 4.00 | 2.0000 | 5.0000 | 2.50 |"
        in text
    )
    assert "| a | 820,000 | 790,000 | 75% | 25% | 0% | 0% | 2.00 |" in lines
    assert "| a | unweighted | plain | 1.0000 | 3.0000 | 4.0000 | 1.000 |" in lines
    assert "| a | unweighted | hoisted | 1.0000 | 2.0000 | 3.0000 | 0.750 |" in lines
    assert "| a | unweighted | `sort_pass` | 3 | 44.0 |" in lines
    assert "| a | 820,000 | 32 | 0.0440 | 0.0500 | 0.1250 |" in lines
    assert "| a | unweighted | 10.0 | 40.0 | 25% |" in lines
    assert "### Host, sizes" in lines
    assert "images/chart.svg" in text


def test_report_of_a_backward_without_a_peer():
    results = make_backward_results()
    for row in results.backward:
        del row.times["peer"]
    text = report.markdown(results, None)
    assert "Training steps, cases" not in text
    assert "| a | unweighted, row-wise Adagrad | 1.0000 | 2.0000 | 3.0000 |" in text
    assert not report.chart_bars(results)


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
    for section in ("forward", "backward", "accuracy"):
        report.rewrite_section(document, section, f"{section} is new")
    text = document.read_text(encoding="utf-8")
    assert "forward is new" in text
    assert "accuracy is new" in text


def test_chart_is_the_same_for_the_same_results(tmp_path):
    pytest.importorskip("matplotlib")
    for results in (make_results(), make_backward_results()):
        for name in ("one.svg", "two.svg"):
            assert report.draw_chart(results, tmp_path / name)
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
    assert len(results.host) == 10
    assert [row.index_dtype for row in results.bounds] == ["int64", "int32"]
    ways = {"forward", "check", "check and forward", "never", "always", "auto"}
    assert all(row.times.keys() == row.host.keys() == ways for row in results.bounds)
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
    written = document.read_text(encoding="utf-8")
    assert "| smoke | int32 |" in written
    assert "ours: auto, us of host time" in written


def test_backward_benchmark_on_the_cpu(tmp_path):
    from benchmarks.__main__ import app

    arguments = ["backward", "--device", "cpu", "--cases", "smoke", "--iterations", "4"]
    arguments += ["--out", str(tmp_path), "--name", "smoke", "--commit", "abc"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    results = Results.read(tmp_path / "smoke.json")
    assert not results.errors
    assert len(results.backward) == 6
    assert {row.lookup for row in results.options} == {"unweighted", "weighted"}
    assert len(results.sorts) == len(results.run_lengths) == 1
    assert sum(results.run_lengths[0].shares) == pytest.approx(1)
    assert len(results.host) == 6
    document = tmp_path / "performance.md"
    document.write_text("<!-- results:backward -->\n<!-- results:end -->\n", encoding="utf-8")
    done = CliRunner().invoke(
        app, ["report", str(tmp_path / "smoke.json"), "--document", str(document)]
    )
    assert done.exit_code == 0, done.output
    assert "### Training steps by case" in document.read_text(encoding="utf-8")


class OtherModule:
    """In place of FBGEMM, which has no step on a CPU: tbe-aot's own module on the same memory; ``slip`` is added to a row."""

    slip = 0.0

    def __init__(
        self,
        case: Case,
        weights: torch.Tensor,
        index_dtype: torch.dtype,
        *,
        optimizer: str,
        learning_rate: float = 0.0,
    ) -> None:
        assert index_dtype == torch.int64
        self._training = Training(case, weights, optimizer, learning_rate)
        self.reset_state = self._training.reset_state

    def step(
        self,
        sets: list[Inputs],
        gradients: list[torch.Tensor],
        sample_weights: list[torch.Tensor] | None,
    ) -> Step:
        step = self._training.step(sets, gradients, sample_weights)

        def backward(output: torch.Tensor, s: int) -> None:
            step.backward(output, s)
            row = int(sets[s].indices[0])
            self._training.module.table("table0")[row] += self.slip

        return Step(step.forward, backward)


@pytest.fixture
def beside_another(monkeypatch):
    """Options of a benchmark beside ``OtherModule``."""
    monkeypatch.setattr("benchmarks.peer.Peer", OtherModule)
    return Options("run", CPU, [CASES["smoke"]], 4, "abc", "1.0")


def test_backward_benchmark_beside_another_implementation(beside_another, tmp_path):
    results = backward_benchmark.run(beside_another, tmp_path / "run.json")
    assert not results.errors
    assert len(results.backward) == 6
    assert all(row.ratio("wall") for row in results.backward)
    assert sum(row.call.startswith("FBGEMM: ") for row in results.host) == 4
    assert Results.read(tmp_path / "run.json") == results


def test_nothing_is_timed_that_does_not_compute_the_same(beside_another, tmp_path, monkeypatch):
    monkeypatch.setattr(OtherModule, "slip", 0.01)
    results = backward_benchmark.run(beside_another, tmp_path / "run.json")
    assert results.backward == []
    assert len(results.errors) == 6
    assert "not close" in results.errors["smoke unweighted sgd"]
    assert "### What could not be measured" in report.markdown(results, None)


@pytest.mark.parametrize("command", ["forward", "backward"])
def test_unknown_case_is_named(command):
    from benchmarks.__main__ import app

    done = CliRunner().invoke(app, [command, "--device", "cpu", "--cases", "a,nonsense"])
    assert done.exit_code == 2
    assert "nonsense" in done.output


def path_row(size: int, general: float, narrow: float, taken: str = "general") -> PathRow:
    times = {"general": timing(general), "narrow": timing(narrow), "auto": timing(general)}
    return PathRow("small table, forward", "float16, D 64", "mean_length", size, taken, times)


def test_a_path_pays_where_it_is_not_slower() -> None:
    rows = [
        path_row(4, 1.0, 0.5),
        path_row(8, 1.0, 1.1),
        path_row(16, 1.0, 1.02),
        path_row(32, 2, 1),
    ]
    assert report_paths.pays(rows) == "from L 16"
    slow = path_row(64, 1.0, 1.2)
    assert report_paths.pays([*rows, slow]) == "to L 4"
    assert report_paths.pays([slow]) == "never"


def test_paths_say_what_auto_takes(tmp_path: Path) -> None:
    results = make_results()
    results.paths = [path_row(8, 0.02, 0.03), path_row(16, 0.04, 0.01, "narrow")]
    results.write(tmp_path / "paths.json")
    text = report_paths.markdown(Results.read(tmp_path / "paths.json"), "small table, forward")
    assert "| float16, D 64 | from L 16 | **20.0** / 30.0 | 40.0 / **10.0** |" in text


def test_every_sweep_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = tuple(replace(s, base=replace(s.base, batch=8), sizes=(2, 70)) for s in paths.SWEEPS)
    monkeypatch.setattr(paths, "SWEEPS", small)
    results = paths.run(Options("paths", CPU, [], 1, "c0ffee", None), tmp_path / "paths.json")
    assert results.errors == {}
    taken = {(row.path, row.taken) for row in results.paths}
    assert taken >= {("small table, forward", "general"), ("small table, forward", "narrow")}
    assert taken >= {("small table, backward", "narrow"), ("fused long runs", "general")}
    assert taken >= {("checks in the lookup", "general"), ("checks in the lookup", "narrow")}
