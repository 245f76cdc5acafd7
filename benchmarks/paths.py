"""The benchmark of the narrow paths: each beside the general one, over the size that decides between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import tbe_aot
from benchmarks.cases import Case, make_inputs
from benchmarks.environment import Options, describe_environment
from benchmarks.results import PathRow, Results
from benchmarks.timing import copy_bandwidth, interleaved

LEARNING_RATE = 1e-3
GRADIENT_SCALE = 1e-3
# What the argument that picks a path is, by the times' names.
CHOICES = {"general": "never", "narrow": "always", "auto": "auto"}


@dataclass(frozen=True)
class Sweep:
    """One path on one kind of table, over sizes.

    Attributes:
        path: which one, as docs/paths.md names it.
        operator: "forward", "forward_checked" or "backward_update" (row-wise Adagrad, fp32 gradient).
        argument: of the operator, that picks the path.
        base: what is looked up; every point changes a field of it.
        field: of ``base``, "mean_length", "batch" or "rows".
        sizes: its values.
        weights_dtype: of the table.
        weighted: with per-sample weights.
    """

    path: str
    operator: str
    argument: str
    base: Case
    field: str
    sizes: tuple[int, ...]
    weights_dtype: torch.dtype = torch.float16
    weighted: bool = False

    def series(self) -> str:
        """What stays the same over the sizes."""
        said = {"rows": f"{self.base.rows} rows", "batch": f"B {self.base.batch}"}
        said["mean_length"] = f"L {self.base.mean_length}"
        kept = [text for name, text in said.items() if name != self.field]
        dtype = str(self.weights_dtype).removeprefix("torch.")
        features = [f"T {self.base.features}"] if self.base.features > 1 else []
        weighted = ["weighted"] if self.weighted else []
        return ", ".join([dtype, f"D {self.base.dims[0]}", *features, *kept, *weighted])

    def cases(self) -> dict[int, Case]:
        """The case of each size."""
        changes: dict[int, dict[str, Any]] = {size: {self.field: size} for size in self.sizes}
        return {size: replace(self.base, **change) for size, change in changes.items()}


def _one_table(rows: int, dim: int) -> Case:
    return Case("path", 1, 8192, 100, (dim,), rows, "uniform", goal=False)


def _large_table(dim: int) -> Case:
    return Case("path", 1, 8192, 20, (dim,), 1_000_000, "zipf", goal=False)


def _tables(features: int, dim: int) -> Case:
    return Case("path", features, 1024, 1, (dim,), 100_000, "uniform", goal=False)


_SHORT_LENGTHS = (1, 2, 4, 8, 16)
_LENGTHS = (1, 4, 8, 16, 32, 64, 100, 256)
_BATCHES = (64, 512, 2048, 8192, 32768, 131072)
_ROWS = (128, 512, 2048, 4096, 8192, 65536)
_LONG_RUNS = ("fused long runs", "backward_update", "fused_long_runs")
_CHECKS = ("checks in the lookup", "forward_checked", "fused_checks")
_SMALL_FORWARD = ("small table, forward", "forward", "small_tables")
_SMALL_UPDATE = ("small table, backward", "backward_update", "small_tables")

SWEEPS = (
    *(
        Sweep(*_SMALL_FORWARD, _one_table(rows, dim), "mean_length", _LENGTHS, dtype)
        for dtype, rows, dim in (
            (torch.float16, 64, 64),
            (torch.float16, 64, 128),
            (torch.float16, 64, 127),
            (torch.float16, 64, 256),
            (torch.float16, 256, 64),
            (torch.float16, 256, 128),
            (torch.bfloat16, 64, 64),
            (torch.bfloat16, 64, 128),
            (torch.bfloat16, 64, 256),
            (torch.float16, 64, 255),
            (torch.bfloat16, 64, 127),
            (torch.bfloat16, 256, 64),
            (torch.bfloat16, 256, 128),
        )
    ),
    Sweep(*_SMALL_FORWARD, _one_table(64, 128), "batch", _BATCHES),
    *(
        Sweep(*_SMALL_UPDATE, _one_table(rows, dim), "mean_length", _LENGTHS, dtype)
        for dtype, rows, dim in (
            (torch.float16, 64, 64),
            (torch.float16, 64, 128),
            (torch.float16, 8, 128),
            (torch.bfloat16, 64, 128),
        )
    ),
    Sweep(*_SMALL_UPDATE, _one_table(64, 128), "batch", _BATCHES),
    # 819,200 lookups of few rows or many: runs of many chunks, of few, of none.
    *(
        Sweep(*_LONG_RUNS, _one_table(8192, dim), "rows", _ROWS, dtype, weighted)
        for dtype, dim, weighted in (
            (torch.float16, 64, False),
            (torch.float16, 128, False),
            (torch.float16, 128, True),
            (torch.float16, 256, False),
            (torch.float32, 128, False),
        )
    ),
    # A few rows of a large table are popular.
    Sweep(*_LONG_RUNS, _large_table(128), "batch", _BATCHES),
    *(
        Sweep(*_CHECKS, _tables(features, dim), "mean_length", _SHORT_LENGTHS, dtype)
        for dtype, features, dim in (
            (torch.float16, 100, 16),
            (torch.float16, 100, 64),
            (torch.float16, 40, 128),
            (torch.float16, 20, 256),
            (torch.float32, 40, 64),
        )
    ),
)


def run(options: Options, path: Path) -> Results:
    """Measure everything and write the results to ``path``, after every sweep, so that an interrupted run leaves what it has."""
    environment = describe_environment(options.commit, options.device, options.peer_version)
    method: dict[str, int | str] = {
        "iterations": options.iterations,
        "statistic": "median",
        "clock": "CUDA events" if options.device.type == "cuda" else "host",
    }
    results = Results(options.name, environment, method, copy_bandwidth(options.device))
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns) as progress:
        task = progress.add_task("paths", total=sum(len(sweep.sizes) for sweep in SWEEPS))
        for sweep in SWEEPS:
            progress.update(task, description=sweep.path)
            for size, case in sweep.cases().items():
                try:
                    results.paths.append(_row(options, sweep, size, case))
                except RuntimeError as error:
                    results.errors[f"{sweep.path}, {sweep.series()}, {size}"] = str(error)
                progress.update(task, advance=1)
            results.write(path)
        progress.update(task, description="done")
    return results


def _row(options: Options, sweep: Sweep, size: int, case: Case) -> PathRow:
    calls, taken = _calls(sweep, case, options.device)
    times = interleaved(calls, case.input_sets(), options.device, iterations=options.iterations)
    return PathRow(sweep.path, sweep.series(), sweep.field, size, taken, times)


def _calls(
    sweep: Sweep, case: Case, device: torch.device
) -> tuple[dict[str, Callable[[int], object]], str]:
    """The operator on input set s by choice, on the same tensors; and the path that "auto" takes."""
    dims = case.feature_dims()
    tables = [tbe_aot.TableSpec(f"table{t}", case.rows, dim) for t, dim in enumerate(dims)]
    metadata = tbe_aot.make_features(tables, weights_dtype=sweep.weights_dtype, device=device)
    generator = torch.Generator(device=device).manual_seed(11)
    weights = torch.empty(metadata.weights_numel, dtype=sweep.weights_dtype, device=device)
    weights.uniform_(-0.1, 0.1, generator=generator)
    sets = [make_inputs(case, 1000 + 17 * s, device) for s in range(case.input_sets())]
    described = (weights, metadata.features, metadata.layout)
    lookups = [(*described, inputs.indices, inputs.offsets) for inputs in sets]
    factors = [inputs.per_sample_weights if sweep.weighted else None for inputs in sets]
    if sweep.operator != "backward_update":
        arguments: list[tuple[Any, ...]] = [
            (*lookup, factor) for lookup, factor in zip(lookups, factors, strict=True)
        ]
        operator = getattr(torch.ops.tbe_aot, sweep.operator)
        options: list[dict[str, Any]] = [{} for _ in sets]
    else:
        shape = (case.batch, sum(dims))
        trained = (
            "rowwise_adagrad",
            torch.full((1,), LEARNING_RATE, device=device),
            torch.zeros(case.features * case.rows, device=device),
        )
        arguments = [
            (torch.randn(shape, generator=generator, device=device) * GRADIENT_SCALE, *rest)
            for rest in ((*lookup, *trained) for lookup in lookups)
        ]
        operator = torch.ops.tbe_aot.backward_update
        options = [{"per_sample_weights": factor} for factor in factors]

    explain: Callable[..., tbe_aot.Explanation] = (
        tbe_aot.explain_backward if sweep.operator == "backward_update" else tbe_aot.explain
    )

    def variants(choice: str) -> list[str]:
        arch = None if device.type == "cuda" else "sm90"
        chosen = {sweep.argument: choice}
        if sweep.operator == "forward_checked":
            chosen["bounds_mode"] = "warning"
        explained = explain(*arguments[0], **options[0], **chosen, arch=arch)
        return [launch.variant for launch in explained.launches]

    def call(choice: str) -> Callable[[int], object]:
        return lambda s: operator(*arguments[s], **options[s], **{sweep.argument: choice})

    general = variants("auto") == variants("never")
    calls = {name: call(choice) for name, choice in CHOICES.items()}
    return calls, "general" if general else "narrow"
