"""The backward benchmark: training steps beside the peer's, and what they are made of (kernels, sort, memory, host)."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from torch.profiler import ProfilerActivity, profile

from benchmarks import peer as fbgemm
from benchmarks.cases import (
    Case,
    Inputs,
    Volume,
    backward_bytes,
    make_inputs,
    mean_volume,
    run_length_shares,
    volume,
)
from benchmarks.environment import Options, describe_environment
from benchmarks.ours import Training, build_info, make_weights
from benchmarks.results import (
    BackwardRow,
    HostRow,
    KernelRow,
    MemoryRow,
    OptionRow,
    Results,
    RunLengthRow,
    SortRow,
)
from benchmarks.timing import (
    Step,
    copy_bandwidth,
    host_microseconds,
    interleaved,
    interleaved_steps,
    wall_milliseconds,
)

UNWEIGHTED, WEIGHTED, WITH_GRADIENT = "unweighted", "weighted", "weighted, with gradient"
LOOKUPS = (UNWEIGHTED, WEIGHTED, WITH_GRADIENT)
# Long enough a step that fp16 weights move.
LEARNING_RATES = {"rowwise_adagrad": 0.05, "sgd": 1.0}
# The optimizer that everything but the steps themselves is measured with.
MAIN = "rowwise_adagrad"
GRADIENT_SCALE = 1e-3
# (relative, absolute): fp16 weights that were rounded once, fp32 gradients of weights; of sums in another order.
AGREEMENT = {torch.float16: (5e-3, 5e-4), torch.float32: (1e-3, 1e-6)}
PROFILED_STEPS = 5


@dataclass(frozen=True)
class Drawn:
    """A case's inputs: sets of lookups, and the gradient of each one's result, [B, sum of dims] fp32."""

    sets: list[Inputs]
    gradients: list[torch.Tensor]

    def sample_weights(self, lookup: str) -> list[torch.Tensor] | None:
        """Per-sample weights of a kind of lookup, which require a gradient if the kind says so."""
        if lookup == UNWEIGHTED:
            return None
        leaves = [inputs.per_sample_weights.detach() for inputs in self.sets]
        return [leaf.requires_grad_(lookup == WITH_GRADIENT) for leaf in leaves]


def run(options: Options, path: Path) -> Results:
    """Measure everything and write the results to ``path``, after every case, so that an interrupted run leaves what it has."""
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
        total = len(LOOKUPS) * len(LEARNING_RATES) * len(options.cases)
        task = progress.add_task("backward", total=total)
        for case in options.cases:
            for _ in _case(options, case, results):
                progress.update(task, advance=1, description=f"case {case.name}")
            results.write(path)
            if options.device.type == "cuda":
                torch.cuda.empty_cache()
        progress.update(task, description="host")
        results.host = _host_rows(options)
        results.sizes = dict(build_info().sizes)
        if options.wheel is not None:
            results.sizes[options.wheel.name] = options.wheel.stat().st_size
        results.write(path)
        progress.update(task, description="done")
    return results


def _case(options: Options, case: Case, results: Results) -> Iterator[None]:
    """Measure a case; yields after each configuration. Errors go to ``results``, and the others are measured all the same."""
    device = options.device
    sets = [make_inputs(case, 1000 + 17 * s, device) for s in range(case.input_sets())]
    generator = torch.Generator(device=device).manual_seed(7)
    shape = (case.batch, sum(case.feature_dims()))
    drawn = Drawn(
        sets,
        [torch.randn(shape, generator=generator, device=device) * GRADIENT_SCALE for _ in sets],
    )
    weights = make_weights(case, device)
    touched = mean_volume(case, sets)
    counted = volume(case, sets[0])
    results.run_lengths.append(
        RunLengthRow(
            case.name,
            int(counted.lookups),
            int(counted.unique_rows),
            run_length_shares(case, sets[0]),
        )
    )
    for optimizer, rate in LEARNING_RATES.items():
        ours = Training(case, weights, optimizer, rate)
        peer = None
        if options.peer_version is not None:
            peer = fbgemm.Peer(case, weights, torch.int64, optimizer=optimizer, learning_rate=rate)
        for lookup in LOOKUPS:
            label = f"{case.name} {lookup} {optimizer}"
            try:
                row = _backward_row(options, case, drawn, touched, ours, peer, lookup, optimizer)
                results.backward.append(row)
                if optimizer == MAIN:
                    _add_details(options, case, drawn, ours, peer, lookup, results)
            except (AssertionError, RuntimeError) as error:
                results.errors[label] = str(error)
            yield


def _steps(
    drawn: Drawn,
    ours: Training,
    peer: fbgemm.Peer | None,
    sample_weights: list[torch.Tensor] | None,
) -> dict[str, Step]:
    """The training steps of both implementations; a gradient of per-sample weights replaces the one before."""
    made = {"ours": ours.step(drawn.sets, drawn.gradients, sample_weights)}
    if peer is not None:
        made["peer"] = peer.step(drawn.sets, drawn.gradients, sample_weights)
    if sample_weights is None or not sample_weights[0].requires_grad:
        return made
    return {name: _forgetting(step, sample_weights) for name, step in made.items()}


def _forgetting(step: Step, leaves: list[torch.Tensor]) -> Step:
    """The step without what autograd would add to: gradients of earlier steps."""

    def forward(s: int) -> torch.Tensor:
        leaves[s].grad = None
        return step.forward(s)

    return Step(forward, step.backward)


def _backward_row(
    options: Options,
    case: Case,
    drawn: Drawn,
    touched: Volume,
    ours: Training,
    peer: fbgemm.Peer | None,
    lookup: str,
    optimizer: str,
) -> BackwardRow:
    """Times of a configuration, once both implementations agree.

    Raises:
        AssertionError: they do not; nothing is timed that does not compute the same.
    """
    if peer is not None:
        _expect_agreement(case, drawn, ours, peer, lookup)
    steps = _steps(drawn, ours, peer, drawn.sample_weights(lookup))
    count = len(drawn.sets)
    times = interleaved_steps(steps, count, options.device, iterations=options.iterations)
    for name, wall in wall_milliseconds(steps, count, options.device).items():
        times[name]["wall"] = wall
    least = backward_bytes(
        case,
        touched,
        weighted=lookup != UNWEIGHTED,
        sample_weights_gradient=lookup == WITH_GRADIENT,
        row_state=optimizer == "rowwise_adagrad",
        weight_bytes=2,
        gradient_bytes=4,
        index_bytes=8,
    )
    return BackwardRow(case.name, lookup, optimizer, least, times)


def _expect_agreement(
    case: Case, drawn: Drawn, ours: Training, peer: fbgemm.Peer, lookup: str
) -> None:
    """Compare a step of each on input set 0, from equal tables and states of 0; the tables are as before afterwards."""
    inputs = drawn.sets[0]
    ends = inputs.offsets[:: case.batch].tolist()
    rows = [torch.unique(inputs.indices[a:b]) for a, b in itertools.pairwise(ends)]
    tables = list(ours.module.table_views().values())
    before = [table[mine].clone() for table, mine in zip(tables, rows, strict=True)]
    sample_weights = drawn.sample_weights(lookup)
    after: dict[str, list[torch.Tensor]] = {}
    for name, step in _steps(drawn, ours, peer, sample_weights).items():
        ours.reset_state()
        peer.reset_state()
        step.backward(step.forward(0), 0)
        after[name] = [table[mine] for table, mine in zip(tables, rows, strict=True)]
        if sample_weights is not None and sample_weights[0].grad is not None:
            after[name].append(sample_weights[0].grad)
        for table, mine, saved in zip(tables, rows, before, strict=True):
            table[mine] = saved
    for mine, theirs in zip(after["ours"], after["peer"], strict=True):
        relative, absolute = AGREEMENT[mine.dtype]
        torch.testing.assert_close(mine, theirs, rtol=relative, atol=absolute)
    if all(torch.equal(mine, start) for mine, start in zip(after["ours"], before, strict=False)):
        message = "a step of both changed nothing"
        raise AssertionError(message)


def _add_details(
    options: Options,
    case: Case,
    drawn: Drawn,
    ours: Training,
    peer: fbgemm.Peer | None,
    lookup: str,
    results: Results,
) -> None:
    """What a step is made of, what it takes, and what its options change."""
    device, count = options.device, len(drawn.sets)
    steps = _steps(drawn, ours, peer, drawn.sample_weights(lookup))
    if device.type == "cuda":
        taken = {name: _backward_bytes(step, device) for name, step in steps.items()}
        results.memory.append(MemoryRow(case.name, lookup, taken))
        results.kernels += _kernel_rows(case, lookup, steps["ours"], count)
    if lookup == WITH_GRADIENT:
        return
    weighted = lookup == WEIGHTED
    ways = ours.operator_steps(drawn.sets, drawn.gradients, weighted=weighted)
    times = interleaved_steps(ways, count, device, iterations=options.iterations)
    results.options.append(OptionRow(case.name, lookup, times))
    if weighted:
        return
    keys = [ours.global_rows(case, inputs) for inputs in drawn.sets]
    sorts: dict[str, Callable[[int], object]] = {
        "transpose_indices": ours.transpose(drawn.sets, weighted=False),
        "torch.sort": lambda s: torch.sort(keys[s], stable=True),
    }
    results.sorts.append(
        SortRow(
            case.name,
            keys[0].numel(),
            8 * keys[0].itemsize,
            interleaved(sorts, count, device, iterations=options.iterations),
        )
    )


def _backward_bytes(step: Step, device: torch.device) -> int:
    """The most that is allocated during a backward, over what is before it."""
    output = step.forward(0)
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    step.backward(output, 0)
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def _kernel_rows(case: Case, lookup: str, step: Step, sets: int) -> list[KernelRow]:
    """What runs on the device during a step, longest first."""
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        for turn in range(PROFILED_STEPS):
            step.backward(step.forward(turn % sets), turn % sets)
        torch.cuda.synchronize()
    rows = [
        KernelRow(
            case.name,
            lookup,
            kernel_name(event.key),
            event.self_device_time_total / PROFILED_STEPS,
            event.count / PROFILED_STEPS,
        )
        for event in recorded.key_averages()
        if event.self_device_time_total > 0
    ]
    return sorted(rows, key=lambda row: -row.microseconds)


def kernel_name(key: str) -> str:
    """A kernel's name as the specs have it; of torch's templates, the function's name alone."""
    bare = re.sub(r"\(anonymous namespace\)::|^void ", "", key)
    found = re.match(r"[\w:]+(?: \(\w+\))?", bare)
    return (found[0] if found else bare).removesuffix("_kernel")


def _host_rows(options: Options) -> list[HostRow]:
    """Host time of steps so small that the device keeps up; few at a time, as each has about ten launches."""
    device = options.device
    one = Case("host", 4, 16, 2, (64,), 1000, "uniform")
    four = Case("host", 4, 16, 2, (16, 32, 64, 128), 1000, "uniform")
    rows = []
    for title, case in (("one bucket", one), ("four buckets", four)):
        inputs = make_inputs(case, 1, device)
        shape = (case.batch, sum(case.feature_dims()))
        drawn = Drawn([inputs], [torch.ones(shape, device=device)])
        weights = make_weights(case, device)
        ours = Training(case, weights, MAIN, LEARNING_RATES[MAIN])
        peer = None
        if options.peer_version is not None:
            peer = fbgemm.Peer(case, weights, torch.int64, optimizer=MAIN)
        calls: dict[str, Callable[[], object]] = {}
        for lookup in (UNWEIGHTED, WITH_GRADIENT):
            for name, step in _steps(drawn, ours, peer, drawn.sample_weights(lookup)).items():
                label = f"forward + backward, {lookup}, {title}"
                calls[label if name == "ours" else f"FBGEMM: {label}"] = _call(step)
        plain = ours.operator_steps([inputs], drawn.gradients, weighted=False)["plain"]
        calls[f"torch.ops.tbe_aot.forward + backward_update, {title}"] = _call(plain)
        rows += [
            HostRow(name, host_microseconds(call, device, batches=11, calls=40))
            for name, call in calls.items()
        ]
    return rows


def _call(step: Step) -> Callable[[], object]:
    return lambda: step.backward(step.forward(0), 0)
