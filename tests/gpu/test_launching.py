"""Streams, threads, CUDA graphs and what the host may not do."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from tests.gpu import installed
from tests.gpu.processes import run_program
from tests.gpu.support import (
    TOLERANCE,
    Lookup,
    assert_right,
    make_lookup,
    make_tables,
    worst_error,
)


def mixed_lookup(
    device: torch.device, *, batch: int = 64, longest: int = 20, seed: int = 0, **options: Any
) -> Lookup:
    """Six features of several buckets, weighted unless ``options`` of make_lookup say otherwise."""
    dims = (16, 33, 64, 128, 128, 300)
    tables = make_tables([400] * len(dims), dims, torch.float16, device, seed=seed)
    lengths = torch.randint(
        0, longest + 1, (len(dims) * batch,), generator=torch.Generator().manual_seed(seed)
    )
    options = {"weighted": True, "seed": seed, **options}
    return make_lookup(tables, range(len(dims)), installed.buckets(), lengths, **options)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"weighted": False, "longest": 2},
        {"index_dtype": torch.int32, "offset_dtype": torch.int64, "weighted": False},
        {"batch_sizes": [[64, 0], [32, 32], [0, 64], [1, 63], [60, 4], [64, 0]]},
    ],
    ids=["weighted", "short", "widths", "vbe"],
)
def test_replay_with_other_indices_of_the_same_shape(options, cuda):
    """pytorch 82886, the forward half."""
    lookup = mixed_lookup(cuda, **options)
    lookup.run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = lookup.run("mean", torch.float16)
    for seed in range(3):
        other = mixed_lookup(cuda, seed=0, **options)
        shuffled = other.indices[torch.randperm(other.indices.numel(), device=cuda)] % 399
        other.indices.copy_(shuffled)
        lookup.indices.copy_(shuffled)
        if lookup.per_sample_weights is not None:
            assert other.per_sample_weights is not None
            other.per_sample_weights.mul_(seed + 0.5)
            lookup.per_sample_weights.copy_(other.per_sample_weights)
        graph.replay()
        torch.cuda.synchronize()
        assert worst_error(output, other, "mean") <= TOLERANCE[torch.float16]


def test_first_call_inside_a_capture_after_preload():
    """vllm 36587; a process of its own, because nothing may be loaded before."""
    run_program("first_call_in_capture", "0")


def test_current_stream_is_used(cuda):
    """The lookup waits for work on the stream that is current, and other streams do not wait for it."""
    lookup, other = mixed_lookup(cuda), mixed_lookup(cuda, seed=1)
    lookup.expected("sum")
    other.expected("sum")
    lookup.run()
    filled = lookup.indices.clone()
    lookup.indices.zero_()
    torch.cuda.synchronize()
    slow, quick = torch.cuda.Stream(), torch.cuda.Stream()
    done = torch.cuda.Event()
    with torch.cuda.stream(slow):
        torch.cuda._sleep(400_000_000)
        lookup.indices.copy_(filled)
        output = lookup.run()
        done.record()
    with torch.cuda.stream(quick):
        assert_right(other)
    assert not done.query()
    slow.synchronize()
    assert worst_error(output, lookup, "sum") <= TOLERANCE[torch.float32]


def test_two_streams_at_once(cuda):
    lookups = [mixed_lookup(cuda, batch=2048, seed=seed) for seed in (1, 2)]
    streams = [torch.cuda.Stream() for _ in lookups]
    torch.cuda.synchronize()
    outputs: list[list[torch.Tensor]] = [[], []]
    for _ in range(20):
        for lookup, stream, kept in zip(lookups, streams, outputs, strict=True):
            with torch.cuda.stream(stream):
                kept.append(lookup.run())
    torch.cuda.synchronize()
    for lookup, kept in zip(lookups, outputs, strict=True):
        for output in kept:
            assert worst_error(output, lookup, "sum") <= TOLERANCE[torch.float32]


def test_sixteen_threads(cuda):
    """Each thread on a stream of its own, all starting at once."""
    lookups = [mixed_lookup(cuda, seed=seed) for seed in range(16)]
    for lookup in lookups:
        lookup.expected("sum")
    torch.cuda.synchronize()
    start = threading.Barrier(len(lookups))
    outputs: list[list[torch.Tensor]] = [[] for _ in lookups]
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            stream = torch.cuda.Stream()
            start.wait()
            with torch.cuda.stream(stream):
                outputs[number] += [lookups[number].run() for _ in range(25)]
        except BaseException as error:  # noqa: BLE001  reported by the test below
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(len(lookups))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    assert not errors
    for lookup, kept in zip(lookups, outputs, strict=True):
        assert len(kept) == 25
        for output in kept:
            assert worst_error(output, lookup, "sum") <= TOLERANCE[torch.float32]


def test_first_calls_from_sixteen_threads():
    """Loading races with loading: a process of its own, because nothing may be loaded before."""
    run_program("first_calls_in_threads", "0")


def test_nothing_synchronises_and_nothing_is_copied_to_the_host(cuda):
    """FBGEMM 3401, the forward half."""
    lookup = mixed_lookup(cuda)
    lookup.run()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as recorded:
            for _ in range(3):
                lookup.run("mean", torch.float16)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    names = [event.name for event in recorded.events()]
    kernels = [name for name in names if "forward_kernel" in name]
    assert len(kernels) == 3 * len(installed.explain_forward(lookup))
    # cudaDeviceSynchronize is the profiler's own, at its end.
    assert not [n for n in names if "DtoH" in n or "HtoD" in n or "StreamSynchronize" in n]
    assert not [n for n in names if "Memset" in n or "elementwise" in n]


def test_the_current_device_stays(cuda):
    """Another current device is left as it is, and the tensors' device is the one used."""
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices")
    other = torch.device("cuda", 1)
    lookup = mixed_lookup(other)
    with torch.cuda.device(0):
        output = lookup.run()
        assert torch.cuda.current_device() == 0
    assert output.device == other
    assert worst_error(output, lookup, "sum") <= TOLERANCE[torch.float32]


def test_without_a_current_context(cuda):
    """A thread that has done nothing with CUDA yet has no current context; the call brings its own."""
    lookup = mixed_lookup(cuda)
    outputs: list[torch.Tensor] = []
    thread = threading.Thread(target=lambda: outputs.append(lookup.run()))
    thread.start()
    thread.join()
    assert worst_error(outputs[0], lookup, "sum") <= TOLERANCE[torch.float32]


def test_empty_batch_in_a_capture(cuda):
    tables = make_tables((5,), (16,), torch.float16, cuda)
    lookup = make_lookup(tables, (0,), installed.buckets(), torch.zeros(0, dtype=torch.int64))
    marker = torch.zeros(1, device=cuda)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = lookup.run()
        marker.add_(1)
    graph.replay()
    assert output.shape == (0, 16)
    assert marker.item() == 1


@pytest.mark.parametrize("captured", [False, True])
def test_work_after_a_call_waits_for_all_of_its_launches(captured, cuda):
    """The launches of a call overlap: the last one, which is tiny here, must not end before the first."""
    dims = (2048, 512, 16)
    tables = make_tables((100, 100, 100), dims, torch.float32, cuda)
    lengths = torch.full((3 * 512,), 60)
    lengths[1024:] = 1
    lookup = make_lookup(tables, range(3), installed.buckets(), lengths)
    right = lookup.run()
    assert worst_error(right, lookup, "sum") <= TOLERANCE[torch.float32]
    outputs = torch.empty(20, *right.shape, device=cuda)

    def call_and_copy() -> None:
        for copy in outputs:
            # The next call's output is this memory: what it did not write yet shows.
            poison = torch.full_like(right, torch.nan)
            del poison
            copy.copy_(lookup.run())

    graph = torch.cuda.CUDAGraph()
    if captured:
        with torch.cuda.graph(graph):
            call_and_copy()
    for _ in range(10):
        outputs.zero_()
        if captured:
            graph.replay()
        else:
            call_and_copy()
        assert (outputs == right).all()
