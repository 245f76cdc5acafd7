"""The command line: ``python -m benchmarks --help``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markdown import Markdown

if TYPE_CHECKING:
    from benchmarks.environment import Options
    from benchmarks.results import Results

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
# What is published is written over only by who asks for it.
OUT = ROOT / "build" / "benchmarks"
DOCUMENT = ROOT / "docs" / "performance.md"
PATHS_DOCUMENT = ROOT / "docs" / "paths.md"

app = typer.Typer(
    help="Measure tbe-aot, beside FBGEMM where it is installed.", no_args_is_help=True
)


Out = Annotated[Path, typer.Option(help="Folder that the results are written to.")]
WithPeer = Annotated[
    bool, typer.Option(help="Measure FBGEMM side by side; fbgemm_gpu must be importable.")
]
PeerFolder = Annotated[
    Path | None, typer.Option(help="Folder that holds the package fbgemm_gpu; implies --peer.")
]
CaseNames = Annotated[str, typer.Option("--cases", help="Comma-separated cases.")]
DeviceName = Annotated[
    str,
    typer.Option(
        "--device", help="cuda, cuda:N, or cpu (tries the harness; its times say nothing)."
    ),
]
Iterations = Annotated[int, typer.Option(help="Timed calls of each implementation.")]
Wheel = Annotated[Path | None, typer.Option(help="Wheel whose size is recorded.")]
Commit = Annotated[
    str | None, typer.Option(help="Commit to record where this folder is no checkout.")
]


def _options(
    name: str,
    cases: str,
    device_name: str,
    iterations: int,
    commit: str | None,
    wheel: Path | None,
    peer: bool,
    peer_folder: Path | None,
) -> Options:
    """What both benchmarks are told, checked."""
    import torch

    from benchmarks import peer as fbgemm
    from benchmarks.cases import select_cases
    from benchmarks.environment import Options
    from benchmarks.results import current_commit

    device = torch.device(device_name)
    on_cuda = device.type == "cuda"
    if on_cuda and not torch.cuda.is_available():
        raise typer.BadParameter(
            "there is no CUDA device; --device cpu tries the harness", param_hint="--device"
        )
    wants_peer = peer or peer_folder is not None
    if wants_peer and not on_cuda:
        raise typer.BadParameter("FBGEMM is measured on CUDA devices only", param_hint="--peer")
    try:
        selected = select_cases(cases)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--cases") from None
    peer_version = fbgemm.load(peer_folder) if wants_peer else None
    commit = commit or current_commit()
    return Options(name, device, selected, iterations, commit, peer_version, wheel)


def _show(results: Results, path: Path) -> None:
    """Print the report; exit status 1 if something could not be measured."""
    from benchmarks.report import markdown

    console = Console()
    report_text = markdown(results, chart=None)
    # A log keeps its tables in one piece.
    console.print(Markdown(report_text) if console.is_terminal else report_text, soft_wrap=True)
    console.print(f"written: {path}")
    if results.errors:
        raise typer.Exit(1)


@app.command()
def forward(
    out: Out = OUT,
    name: Annotated[str, typer.Option(help="Name of the run: NAME.json.")] = "forward",
    peer: WithPeer = False,
    peer_folder: PeerFolder = None,
    cases: CaseNames = "a,b,c,d,e,f,large128,large256",
    device: DeviceName = "cuda",
    iterations: Iterations = 35,
    commit: Commit = None,
    wheel: Wheel = None,
) -> None:
    """Time the forward; writes NAME.json."""
    from benchmarks import forward as benchmark

    options = _options(name, cases, device, iterations, commit, wheel, peer, peer_folder)
    path = out / f"{name}.json"
    _show(benchmark.run(options, path), path)


@app.command()
def backward(
    out: Out = OUT,
    name: Annotated[str, typer.Option(help="Name of the run: NAME.json.")] = "backward",
    peer: WithPeer = False,
    peer_folder: PeerFolder = None,
    cases: CaseNames = "a,b,c,d,e,f",
    device: DeviceName = "cuda",
    iterations: Iterations = 31,
    commit: Commit = None,
    wheel: Wheel = None,
) -> None:
    """Time training steps; writes NAME.json."""
    from benchmarks import backward as benchmark

    options = _options(name, cases, device, iterations, commit, wheel, peer, peer_folder)
    path = out / f"{name}.json"
    _show(benchmark.run(options, path), path)


@app.command()
def paths(
    out: Out = OUT,
    name: Annotated[str, typer.Option(help="Name of the run: NAME.json.")] = "paths",
    device: DeviceName = "cuda",
    iterations: Iterations = 25,
    commit: Commit = None,
) -> None:
    """Time the narrow paths beside the general ones; writes NAME.json."""
    from benchmarks import paths as benchmark

    options = _options(
        name, "smoke", device, iterations, commit, None, peer=False, peer_folder=None
    )
    path = out / f"{name}.json"
    _show(benchmark.run(options, path), path)


@app.command()
def plot(
    results: Annotated[Path, typer.Argument(help="A results file.")] = RESULTS / "forward.json",
    out: Annotated[Path, typer.Option(help="Chart to write, .svg or .png.")] = Path("forward.svg"),
) -> None:
    """Draw the chart of ratios."""
    from benchmarks.report import draw_chart
    from benchmarks.results import Results

    if not draw_chart(Results.read(results), out):
        raise typer.BadParameter(
            "the run has no peer: there are no ratios to draw", param_hint="RESULTS"
        )
    typer.echo(f"written: {out}")


@app.command()
def report(
    results: Annotated[Path, typer.Argument(help="A results file.")] = RESULTS / "forward.json",
    document: Annotated[
        Path, typer.Option(help="Document whose marked section is rewritten.")
    ] = DOCUMENT,
    section: Annotated[
        str | None,
        typer.Option(
            help="Name in the section's marker; default: forward or backward, by what was measured."
        ),
    ] = None,
) -> None:
    """Rewrite a results section of docs/performance.md, and its chart, from a results file."""
    from benchmarks import report_paths
    from benchmarks.report import draw_chart, markdown, rewrite_section
    from benchmarks.results import Results

    run = Results.read(results)
    if run.paths:
        for path in dict.fromkeys(row.path for row in run.paths):
            rewrite_section(PATHS_DOCUMENT, path, report_paths.markdown(run, path))
        typer.echo(f"rewritten: {PATHS_DOCUMENT}")
        return
    section = section or ("backward" if run.backward else "forward")
    chart = document.parent / "images" / f"{section}_ratio.svg"
    drawn = draw_chart(run, chart)
    body = markdown(run, chart.relative_to(document.parent).as_posix() if drawn else None)
    rewrite_section(document, section, body)
    typer.echo(f"rewritten: {document}" + (f", {chart}" if drawn else ""))


@app.command()
def accuracy(
    errors: Annotated[
        Path, typer.Argument(help="forward_errors.json, which the GPU tests write.")
    ] = RESULTS / "forward_errors.json",
    document: Annotated[Path, typer.Option(help="Document whose section is rewritten.")] = DOCUMENT,
) -> None:
    """Rewrite the accuracy section of docs/performance.md."""
    import json

    from benchmarks.report import accuracy_markdown, rewrite_section

    body = accuracy_markdown(json.loads(errors.read_text(encoding="utf-8")))
    rewrite_section(document, "accuracy", body)
    typer.echo(f"rewritten: {document}")


if __name__ == "__main__":
    app()
