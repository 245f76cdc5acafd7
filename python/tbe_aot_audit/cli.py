"""The command ``tbe-aot``: what a build holds, and whether it is what was built.

Exit status: 0 if all is well, 1 if a check found something, 2 if a question cannot be answered (a missing file, an unknown name).
"""

from __future__ import annotations

import gc
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, NoReturn, TypeVar

import typer
from rich.console import Console, RenderableType
from rich.markup import escape

from . import tables
from .call import CHOICES
from .document import Document
from .errors import AuditError
from .listing import SORTS, list_variants, show, summary_of
from .provenance import bill_of_materials, build_record
from .source import open_source
from .text import ascii_json, visible, visible_path
from .verify import verify

FOUND = 1
CANNOT = 2

app = typer.Typer(
    no_args_is_help=True,
    help="What a build of tbe-aot holds, and whether it is what was built: of a wheel, an installation or a folder of artifacts.",
    pretty_exceptions_enable=False,
)


def _variant_names(incomplete: str) -> list[str]:
    """For shells: the variants of the installed build."""
    try:
        names = {variant.name for _, variant in open_source(None).manifest.variants}
    except AuditError:
        return []
    return sorted(visible(name) for name in names if name.startswith(incomplete))


Build = Annotated[
    Path | None,
    typer.Argument(
        metavar="[BUILD]",
        help="A wheel, an installed package, a folder of artifacts or a manifest; the installed tbe-aot if absent.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print a JSON document (tbe-aot schema).")]


def _pairs(texts: list[str]) -> dict[str, str]:
    pairs = dict(text.partition("=")[::2] for text in texts)
    for text in texts:
        if "=" not in text:
            raise AuditError(f"--axis {text!r}: expected NAME=VALUE, such as bucket=128")
    return pairs


def _choices(name: str) -> str:
    return f"As the module's {name}: {', '.join(CHOICES[name])}."


_Shown = TypeVar("_Shown", bound=Document)


def _emit(document: _Shown, as_json: bool, render: Callable[[_Shown], RenderableType]) -> None:
    if as_json:
        typer.echo(ascii_json(document.model_dump_json(indent=1)))
    else:
        tables.console().print(render(tables.printable(document)))


def _write(path: Path, data: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    except OSError as error:
        raise AuditError(f"{visible_path(path)} cannot be written: {error.strerror}") from None


def _sha256(text: str | None) -> str | None:
    if text is not None and not re.fullmatch("[0-9a-fA-F]{64}", text):
        raise typer.BadParameter(f"{text!r} is no SHA-256: 64 hexadecimal digits are expected")
    return text


@app.command()
def info(build: Build = None, as_json: Json = False) -> None:
    """Show what a build is: identity, profile, tools, and a row per arch."""
    document = summary_of(open_source(build))
    _emit(document, as_json, tables.summary)


@app.command(name="list")
def list_(
    build: Build = None,
    kernel: Annotated[str, typer.Option(help="Only this kernel.")] = "",
    arch: Annotated[str, typer.Option(help="Only this arch.")] = "",
    axis: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Only this value of an axis; repeatable."),
    ] = None,
    sort: Annotated[str, typer.Option(help=f"Order: {', '.join(SORTS)}; names if absent.")] = "",
    left_out: Annotated[
        bool,
        typer.Option("--left-out", help="Also the variants that the build's profile leaves out."),
    ] = False,
    as_json: Json = False,
) -> None:
    """List the variants of a build and what each costs."""
    axes = _pairs(axis or [])
    document = list_variants(
        open_source(build), kernel=kernel, arch=arch, axes=axes, sort=sort, left_out=left_out
    )
    if as_json:
        typer.echo(ascii_json(document.model_dump_json(indent=1)))
        return
    console = tables.console()
    console.print(tables.variants(tables.printable(document, markup=False)), soft_wrap=True)
    console.print(f"{len(document.variants)} variants")


@app.command(name="show")
def show_(
    variant: Annotated[
        str,
        typer.Argument(
            help="A variant, or a part of its name that no other has.",
            autocompletion=_variant_names,
        ),
    ],
    build: Build = None,
    arch: Annotated[str, typer.Option(help="On this arch; the first that has it if absent.")] = "",
    sass: Annotated[
        bool, typer.Option("--sass", help="Its machine code as well; needs NVIDIA's nvdisasm.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show everything about a variant: facts, parameters, machine code."""
    document = show(open_source(build), variant, arch=arch, sass=sass)
    _emit(document, as_json, tables.shown)
    if document.sass and not as_json:
        tables.console().print(tables.machine_code(document.sass))


@app.command(name="verify")
def verify_(
    build: Build = None,
    sha256: Annotated[
        str | None,
        typer.Option(
            help="The SHA-256 that the wheel must have, from its release.", callback=_sha256
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check a build from the bytes up: hashes, tables, targets, parameters, coverage; status 1 if something is wrong."""
    document = verify(open_source(build), sha256)
    _emit(document, as_json, tables.verification)
    if not document.ok:
        raise typer.Exit(FOUND)


@app.command()
def diff(
    before: Annotated[Path, typer.Argument(help="The older build.")],
    after: Annotated[Path, typer.Argument(help="The newer build.")],
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Status 1 if a variant got worse beyond the tolerance, or something that was served is gone.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Compare two builds: what a call runs, and variants added, removed and changed, sorted by what got worse."""
    from .compare import compare

    old, new = open_source(before), open_source(after)
    document = compare(old.manifest, new.manifest, (str(old), str(new)))
    _emit(document, as_json, tables.comparison)
    if check and not document.ok:
        raise typer.Exit(FOUND)


@app.command()
def baseline(
    build: Annotated[Path, typer.Argument(help="The build to check.")],
    file: Annotated[Path, typer.Argument(help="The baseline.")],
    accept: Annotated[
        bool,
        typer.Option(
            "--accept",
            help="Write the build's numbers into the file instead; archs that the build has not keep theirs.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Check a build against recorded numbers; status 1 if a variant got worse beyond the tolerance, is not recorded or gone."""
    from .baseline import check_baseline, make_baseline, read_baseline

    manifest = open_source(build).manifest
    if accept:
        try:
            kept = read_baseline(file.read_bytes(), str(file))
        except FileNotFoundError:
            kept = None
        except OSError as error:
            raise AuditError(f"{visible_path(file)} cannot be written: {error.strerror}") from None
        _write(file, make_baseline(manifest, kept, str(file)))
        typer.echo(
            f"{visible_path(file)}: recorded {sum(1 for _ in manifest.built())} variants of build {manifest.build_id[:16]}"
        )
        return
    try:
        data = file.read_bytes()
    except OSError as error:
        raise AuditError(
            f"{visible_path(file)} cannot be read ({error.strerror}): record one with --accept"
        ) from None
    document = check_baseline(manifest, data, str(file))
    _emit(document, as_json, tables.baseline)
    if not document.ok:
        raise typer.Exit(FOUND)


@app.command(name="explain")
def explain_(
    build: Build = None,
    kernel: Annotated[
        str, typer.Option(help="The kernel that is asked about; the one that looks up if absent.")
    ] = "",
    arch: Annotated[
        str, typer.Option(help="On this arch; the oldest of the build if absent.")
    ] = "",
    weights: Annotated[
        str | None, typer.Option(help="Dtype of the tables: fp16 or float16, ...")
    ] = None,
    dim: Annotated[int | None, typer.Option(min=1, help="Elements of a row.")] = None,
    indices: Annotated[
        str | None, typer.Option(help="Dtype of the indices: int32 or int64.")
    ] = None,
    weighted: Annotated[bool, typer.Option(help="Per-sample weights are given.")] = False,
    mean: Annotated[
        bool, typer.Option(help="MEAN rather than SUM; matters for the backward.")
    ] = False,
    aligned: Annotated[
        bool | None,
        typer.Option(
            "--aligned/--no-aligned",
            help="Rows of tables and gradient start at multiples of 16 bytes; as the module lays them out if absent.",
            show_default=False,
        ),
    ] = None,
    mean_length: Annotated[
        float | None, typer.Option(min=0, help="Lookups / bags of the call.")
    ] = None,
    lookups: Annotated[int | None, typer.Option(min=0, help="Lookups of the call.")] = None,
    rows: Annotated[int | None, typer.Option(min=1, help="Rows of all tables together.")] = None,
    output: Annotated[str, typer.Option(help="Dtype of the output.")] = "float32",
    gradient: Annotated[
        str | None, typer.Option(help="Dtype of the output's gradient; the output's if absent.")
    ] = None,
    optimizer: Annotated[str | None, typer.Option(help="The optimizer: sgd, adam, ...")] = None,
    stochastic_rounding: Annotated[
        bool, typer.Option(help="Updated rows are rounded stochastically.")
    ] = False,
    batch: Annotated[int | None, typer.Option(min=1, help="Bags of a feature.")] = None,
    features: Annotated[int, typer.Option(min=1, help="Features, all of this dim.")] = 1,
    multiprocessors: Annotated[
        int | None, typer.Option(min=1, help="Of the GPU, for the grids of updates.")
    ] = None,
    bounds_check: Annotated[str, typer.Option(help=_choices("bounds_check"))] = "warning",
    fused_checks: Annotated[str, typer.Option(help=_choices("fused_checks"))] = "auto",
    small_tables: Annotated[str, typer.Option(help=_choices("small_tables"))] = "auto",
    fused_long_runs: Annotated[str, typer.Option(help=_choices("fused_long_runs"))] = "auto",
    work_stealing: Annotated[str, typer.Option(help=_choices("work_stealing"))] = "never",
    axis: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="The value of an axis itself; repeatable."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Say which variant a call of the module takes and why, from the manifest alone; status 1 if there is none."""
    from .explain import Call, explain

    call = Call(
        weights=weights,
        output=output,
        gradient=gradient,
        indices=indices,
        dim=dim,
        weighted=weighted,
        mean=mean,
        aligned=aligned,
        mean_length=mean_length,
        lookups=lookups,
        rows=rows,
        optimizer=optimizer,
        stochastic_rounding=stochastic_rounding,
        batch=batch,
        features=features,
        multiprocessors=multiprocessors,
        bounds_check=bounds_check,
        fused_checks=fused_checks,
        small_tables=small_tables,
        fused_long_runs=fused_long_runs,
        work_stealing=work_stealing,
        axes=_pairs(axis or []),
    )
    document = explain(open_source(build).manifest, call, kernel=kernel, arch=arch)
    _emit(document, as_json, tables.explained)
    if document.problem:
        raise typer.Exit(FOUND)


@app.command()
def report(
    build: Build = None,
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("tbe_aot_report.html"),
    against: Annotated[
        Path | None, typer.Option(help="An older build to compare with.", show_default=False)
    ] = None,
    sass: Annotated[
        list[str] | None,
        typer.Option(help="A variant whose machine code is shown; repeatable; needs nvdisasm."),
    ] = None,
) -> None:
    """Write one HTML file with everything about a build: overview, table, variants, coverage, checks, diff; status 1 as verify."""
    from .report import make_report

    source = open_source(build)
    older = None if against is None else open_source(against)
    checks = verify(source)
    data = make_report(source, older, sass or [], checks)
    _write(out, data)
    typer.echo(f"{visible_path(out)}: {len(data) / tables.MIB:.2f} MiB. {checks.verdict}")
    if not checks.ok:
        raise typer.Exit(FOUND)


@app.command()
def sbom(
    build: Build = None,
    record: Annotated[
        bool, typer.Option("--record", help="Print the build record instead.")
    ] = False,
) -> None:
    """Print a distribution's bill of materials (CycloneDX), or its build record: tools, compiler, sources."""
    source = open_source(build)
    found = build_record(source) if record else bill_of_materials(source)
    typer.echo(json.dumps(found, indent=1, sort_keys=True))


@app.command()
def schema() -> None:
    """Print the JSON schema of every document that --json prints."""
    from .schema import documents_schema

    typer.echo(json.dumps(documents_schema(), indent=1))


def _fail(message: str) -> NoReturn:
    Console(stderr=True, highlight=False).print(
        f"[bold red]error:[/] {escape(visible(message))}", soft_wrap=True
    )
    raise SystemExit(CANNOT)


def main() -> None:
    """Run the command."""
    # It reads thousands of records, prints and ends: looking for cycles among them finds none and takes a tenth of the time.
    gc.disable()
    try:
        try:
            app()
        finally:
            # Here rather than at the interpreter's end, where nobody could say that it failed.
            sys.stdout.flush()
    except AuditError as error:
        _fail(str(error))
    except OSError as error:
        # What is left in the buffer would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _fail(f"the output cannot be written: {error.strerror}")
