"""Timing device work and host work, on CUDA by events and on the CPU (for trying the harness) by the clock."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch

# About 1.5 ms: longer than any host needs to enqueue one call, so that the device never waits for the host while it is timed.
_HEAD_START_CYCLES = 3_000_000
# About 3 ms, likewise for a forward and a backward through autograd.
_STEP_HEAD_START_CYCLES = 6_000_000

# What is timed, and what one sample of it is.
Subject = TypeVar("Subject")
Sample = TypeVar("Sample")


@dataclass(frozen=True)
class Timing:
    """The time of one call: the median, the spread, and how many samples they rest on.

    Device times are in ms, host times in us; who holds a timing says which. ``discarded`` counts samples that were thrown away because the host had not enqueued the call before the device
    came to it.
    """

    median: float
    p10: float
    p90: float
    samples: int
    discarded: int

    @staticmethod
    def of(samples: list[float], discarded: int = 0) -> Timing:
        """Summarise samples."""
        ordered = sorted(samples)
        return Timing(
            statistics.median(ordered),
            ordered[len(ordered) // 10],
            ordered[len(ordered) * 9 // 10],
            len(ordered),
            discarded,
        )


@dataclass(frozen=True)
class Step:
    """One training step of an implementation: ``backward`` is given what ``forward`` returned for the same input set."""

    forward: Callable[[int], torch.Tensor]
    backward: Callable[[torch.Tensor, int], object]


def interleaved(
    calls: Mapping[str, Callable[[int], object]],
    sets: int,
    device: torch.device,
    *,
    iterations: int,
    warmup: int = 10,
) -> dict[str, Timing]:
    """Time several implementations in turns, each call on the next input set.

    ``calls[name](s)`` runs an implementation on input set ``s``. The set advances with every call, whoever makes it,
    so that a set is reused only after all others were: with sets that exceed the L2 nobody finds its inputs, or those
    of the implementation before it, in the cache.
    """
    kept, discarded = _in_turns(
        calls,
        sets,
        device,
        time_one=_time_on_gpu if device.type == "cuda" else _time_on_cpu,
        run_one=lambda call, s: call(s),
        iterations=iterations,
        warmup=warmup,
    )
    return {name: Timing.of(kept[name], discarded[name]) for name in calls}


def _in_turns(
    timed: Mapping[str, Subject],
    sets: int,
    device: torch.device,
    *,
    time_one: Callable[[Subject, int], Sample | None],
    run_one: Callable[[Subject, int], object],
    iterations: int,
    warmup: int,
) -> tuple[dict[str, list[Sample]], dict[str, int]]:
    """Samples of each implementation, which take turns over the input sets, and how many of each were discarded.

    Raises:
        RuntimeError: more than half of the samples of one were.
    """
    turn = 0
    for _ in range(warmup):
        for subject in timed.values():
            run_one(subject, turn % sets)
            turn += 1
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    kept: dict[str, list[Sample]] = {name: [] for name in timed}
    for _ in range(iterations):
        for name, subject in timed.items():
            sample = time_one(subject, turn % sets)
            turn += 1
            if sample is not None:
                kept[name].append(sample)
    discarded = {name: iterations - len(samples) for name, samples in kept.items()}
    for name, count in discarded.items():
        if 2 * count > iterations:
            message = f"{name}: the host fell behind the device {count} times of {iterations}"
            raise RuntimeError(message)
    return kept, discarded


def _time_on_gpu(call: Callable[[int], object], inputs: int) -> float | None:
    """Milliseconds between events around one call, or None if the device may have waited for the host."""
    before, start, end = (torch.cuda.Event(enable_timing=True) for _ in range(3))
    enqueue_start = time.perf_counter()
    before.record()
    torch.cuda._sleep(_HEAD_START_CYCLES)  # noqa: SLF001  torch offers no public spin kernel
    start.record()
    result = call(inputs)
    end.record()
    enqueue_ms = (time.perf_counter() - enqueue_start) * 1e3
    end.synchronize()
    del result
    if enqueue_ms >= before.elapsed_time(start):
        return None
    return float(start.elapsed_time(end))


def _time_on_cpu(call: Callable[[int], object], inputs: int) -> float | None:
    start = time.perf_counter()
    call(inputs)
    return (time.perf_counter() - start) * 1e3


def interleaved_steps(
    steps: Mapping[str, Step],
    sets: int,
    device: torch.device,
    *,
    iterations: int,
    warmup: int = 6,
) -> dict[str, dict[str, Timing]]:
    """Time training steps in turns, as ``interleaved`` does calls: "forward", "backward" and "both" per implementation, ms."""
    kept, discarded = _in_turns(
        steps,
        sets,
        device,
        time_one=_time_step_on_gpu if device.type == "cuda" else _time_step_on_cpu,
        run_one=lambda step, s: step.backward(step.forward(s), s),
        iterations=iterations,
        warmup=warmup,
    )
    return {
        name: {
            "forward": Timing.of([forward for forward, _ in samples], discarded[name]),
            "backward": Timing.of([backward for _, backward in samples], discarded[name]),
            "both": Timing.of([sum(pair) for pair in samples], discarded[name]),
        }
        for name, samples in kept.items()
    }


def _time_step_on_gpu(step: Step, inputs: int) -> tuple[float, float] | None:
    """(forward, backward) in ms, or None if the device may have waited for the host."""
    before, start, middle, end = (torch.cuda.Event(enable_timing=True) for _ in range(4))
    enqueue_start = time.perf_counter()
    before.record()
    torch.cuda._sleep(_STEP_HEAD_START_CYCLES)  # noqa: SLF001  torch offers no public spin kernel
    start.record()
    output = step.forward(inputs)
    middle.record()
    step.backward(output, inputs)
    end.record()
    enqueue_ms = (time.perf_counter() - enqueue_start) * 1e3
    end.synchronize()
    if enqueue_ms >= before.elapsed_time(start):
        return None
    return float(start.elapsed_time(middle)), float(middle.elapsed_time(end))


def _time_step_on_cpu(step: Step, inputs: int) -> tuple[float, float] | None:
    start = time.perf_counter()
    output = step.forward(inputs)
    middle = time.perf_counter()
    step.backward(output, inputs)
    return (middle - start) * 1e3, (time.perf_counter() - middle) * 1e3


def wall_milliseconds(
    steps: Mapping[str, Step], sets: int, device: torch.device, *, rounds: int = 7, length: int = 10
) -> dict[str, Timing]:
    """Wall time of one step in a plain loop of ``length`` steps, host included, ms; rounds of the implementations alternate."""
    samples: dict[str, list[float]] = {name: [] for name in steps}
    turn = 0
    for number in range(rounds + 1):
        for name, step in steps.items():
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            start = time.perf_counter()
            for _ in range(length):
                step.backward(step.forward(turn % sets), turn % sets)
                turn += 1
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            if number > 0:
                samples[name].append((time.perf_counter() - start) * 1e3 / length)
    return {name: Timing.of(kept) for name, kept in samples.items()}


def host_microseconds(
    call: Callable[[], object], device: torch.device, *, batches: int = 21, calls: int = 200
) -> Timing:
    """Host time of one call in a tight loop without synchronisation, in us.

    A batch is short enough that the launch queue does not fill up, which would make the host wait for the device.
    """
    samples = []
    for batch in range(batches + 2):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        start = time.perf_counter()
        for _ in range(calls):
            call()
        elapsed = time.perf_counter() - start
        if batch >= 2:
            samples.append(elapsed * 1e6 / calls)
    return Timing.of(samples)


def copy_bandwidth(device: torch.device) -> float:
    """GB/s of a large copy inside the device's memory, bytes read plus bytes written."""
    size = (4 << 30) if device.type == "cuda" else (16 << 20)
    source = torch.empty(size, dtype=torch.uint8, device=device).random_(0, 255)
    target = torch.empty_like(source)
    timing = interleaved(
        {"copy": lambda _: target.copy_(source)}, 1, device, iterations=15, warmup=3
    )["copy"]
    return 2 * size / timing.median / 1e6
