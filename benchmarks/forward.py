"""The forward benchmark: ours beside the peer's forwards, and what surrounds a lookup (bounds, host, first call, sizes)."""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import tbe_aot
from benchmarks import peer as fbgemm
from benchmarks.cases import Case, Inputs, forward_bytes, make_inputs, mean_volume
from benchmarks.environment import Options, describe_environment
from benchmarks.ours import Lookup, build_info, make_weights
from benchmarks.results import (
    BoundsRow,
    FirstCall,
    ForwardRow,
    HostRow,
    Results,
)
from benchmarks.timing import copy_bandwidth, host_microseconds, interleaved

INDEX_DTYPES = (torch.int64, torch.int32)
OUTPUT_DTYPES = (torch.float32, torch.float16)
# Two implementations add the same fp16 rows in fp32, in another order, then round once.
_AGREEMENT = {torch.float32: (1e-4, 1e-4), torch.float16: (2e-3, 4e-3)}


# Processes that make a first call.
FIRST_CALL_PROCESSES = 3


def run(options: Options, path: Path) -> Results:
    """Measure everything and write the results to ``path``, after every case, so that an interrupted run leaves what it has."""
    environment = describe_environment(options.commit, options.device, options.peer_version)
    method: dict[str, int | str] = {
        "iterations": options.iterations,
        "statistic": "median",
        "clock": "CUDA events" if options.device.type == "cuda" else "host",
    }
    results = Results(options.name, environment, method, copy_bandwidth(options.device))
    combinations = len(INDEX_DTYPES) * len(OUTPUT_DTYPES) * 2
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns) as progress:
        task = progress.add_task("forward", total=combinations * len(options.cases))
        for case in options.cases:
            for row in _forward_rows(options, case, results):
                progress.update(task, advance=1, description=f"case {case.name}")
                if row is not None:
                    results.forward.append(row)
            results.write(path)
        progress.update(task, description="host")
        results.host = _host_rows(options.device)
        results.write(path)
        progress.update(task, description="first call")
        results.first_call = _first_call(options.device, FIRST_CALL_PROCESSES)
        results.sizes = dict(build_info().sizes)
        if options.wheel is not None:
            results.sizes[options.wheel.name] = options.wheel.stat().st_size
        results.write(path)
        progress.update(task, description="done")
    return results


def _forward_rows(options: Options, case: Case, results: Results) -> Iterator[ForwardRow | None]:
    """One row per (index dtype, weighted, output dtype), None where it failed.

    Errors and the bounds rows of the case go to ``results``.
    """
    sets = [make_inputs(case, 1000 + 17 * s, options.device) for s in range(case.input_sets())]
    touched = mean_volume(case, sets)
    weights = make_weights(case, options.device)
    lookup = Lookup(case, weights)
    for index_dtype in INDEX_DTYPES:
        drawn = [inputs.with_width(index_dtype) for inputs in sets]
        peer = fbgemm.Peer(case, weights, index_dtype) if options.peer_version else None
        for weighted, output_dtype in itertools.product((False, True), OUTPUT_DTYPES):
            label = _label(case, index_dtype, weighted, output_dtype)
            calls = {"ours": lookup.forward(drawn, weighted=weighted, output_dtype=output_dtype)}
            try:
                if peer is not None:
                    calls |= _usable_peers(peer, calls["ours"](0), drawn, weighted, label, results)
                times = interleaved(
                    calls, len(drawn), options.device, iterations=options.iterations
                )
            except (AssertionError, RuntimeError) as error:
                results.errors[label] = str(error)
                yield None
                continue
            least = forward_bytes(
                case,
                touched,
                weighted=weighted,
                weight_bytes=weights.element_size(),
                output_bytes=output_dtype.itemsize,
                index_bytes=index_dtype.itemsize,
            )
            yield ForwardRow(
                case.name, weighted, _short(output_dtype), _short(index_dtype), least, times
            )
        results.bounds.append(_bounds_row(options, case, weights, lookup, drawn))


def _usable_peers(
    peer: fbgemm.Peer,
    ours: torch.Tensor,
    drawn: list[Inputs],
    weighted: bool,
    label: str,
    results: Results,
) -> dict[str, Callable[[int], torch.Tensor]]:
    """The peer's forwards that take this configuration, once they agree with ours on input set 0.

    Raises:
        AssertionError: they do not; nothing is timed that does not compute the same.
    """
    usable = {}
    for name in fbgemm.IMPLEMENTATIONS:
        call = peer.forward(name, drawn, weighted=weighted, output_dtype=ours.dtype)
        try:
            theirs = call(0)
        except (RuntimeError, TypeError, ValueError) as error:
            results.peer_errors[f"{label} {name}"] = str(error).splitlines()[0]
            continue
        relative, absolute = _AGREEMENT[ours.dtype]
        torch.testing.assert_close(ours, theirs.detach(), rtol=relative, atol=absolute)
        usable[name] = call
    return usable


def _bounds_row(
    options: Options, case: Case, weights: torch.Tensor, lookup: Lookup, drawn: list[Inputs]
) -> BoundsRow:
    """Unweighted, fp32 output, nothing out of bounds."""
    calls: dict[str, Callable[[int], object]] = {
        "forward": lookup.forward(drawn, weighted=False, output_dtype=torch.float32),
        "check": lookup.check_bounds(drawn),
        "check and forward": lookup.checked_forward(drawn),
        **{mode: lookup.forward_checked(drawn, mode) for mode in ("never", "always", "auto")},
    }
    with torch.no_grad():
        host = {
            name: host_microseconds(partial(call, 0), options.device, batches=11, calls=100)
            for name, call in calls.items()
        }
    if options.peer_version is not None:
        for name, check in (("peer forward", False), ("peer check and forward", True)):
            module = fbgemm.Peer(case, weights, drawn[0].indices.dtype, check_bounds=check)
            calls[name] = module.forward("v2", drawn, weighted=False, output_dtype=torch.float32)
    times = interleaved(calls, len(drawn), options.device, iterations=options.iterations)
    return BoundsRow(case.name, _short(drawn[0].indices.dtype), times, host)


def _host_rows(device: torch.device) -> list[HostRow]:
    """Host time of calls so small that the device keeps up."""
    case = Case("host", 4, 16, 2, (64,), 1000, "uniform")
    mixed = Case("host", 4, 16, 2, (16, 32, 64, 128), 1000, "uniform")
    rows = []
    for title, measured in (("one bucket", case), ("four buckets", mixed)):
        inputs = [make_inputs(measured, 1, device)]
        lookup = Lookup(measured, make_weights(measured, device))
        calls = {
            "torch.ops.tbe_aot.forward": lookup.forward(
                inputs, weighted=False, output_dtype=torch.float32
            ),
            "torch.ops.tbe_aot.forward, weighted": lookup.forward(
                inputs, weighted=True, output_dtype=torch.float32
            ),
            "torch.ops.tbe_aot.check_bounds": lookup.check_bounds(inputs),
            "module without a check": lookup.module(inputs, bounds_check="none"),
            "module with a check": lookup.module(inputs, bounds_check="warning"),
        }
        with torch.no_grad():
            for name, call in calls.items():
                timing = host_microseconds(lambda call=call: call(0), device)  # type: ignore[misc]
                rows.append(HostRow(f"{name}, {title}", timing))
    return rows


def _first_call(device: torch.device, processes: int) -> FirstCall:
    """Fresh processes, each timing its own first forward."""
    root = Path(__file__).resolve().parents[1]
    command = [sys.executable, "-m", "benchmarks.first_call", str(device)]
    packages = Path(tbe_aot.__file__).resolve().parents[1]
    path = os.pathsep.join(filter(None, [str(packages), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "CUDA_DISABLE_PTX_JIT": "1"}
    measured = []
    for _ in range(processes):
        output = subprocess.run(
            command, cwd=root, env=environment, check=True, stdout=subprocess.PIPE, text=True
        ).stdout
        measured.append(json.loads(output.splitlines()[-1]))

    def median(key: str) -> float:
        return float(statistics.median(entry[key] for entry in measured))

    return FirstCall(
        processes, median("import_ms"), median("first_call_ms"), median("later_call_ms")
    )


def _label(case: Case, index_dtype: torch.dtype, weighted: bool, output_dtype: torch.dtype) -> str:
    kind = "weighted" if weighted else "unweighted"
    return f"{case.name} {kind} {_short(output_dtype)} {_short(index_dtype)}"


def _short(dtype: torch.dtype) -> str:
    names = {
        torch.float32: "fp32",
        torch.float16: "fp16",
        torch.int32: "int32",
        torch.int64: "int64",
    }
    return names[dtype]
