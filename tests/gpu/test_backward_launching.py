"""The backward on streams, in threads and in CUDA graphs, and what the host may not do meanwhile."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from tests.gpu import installed
from tests.gpu.backward_calls import make_popular
from tests.gpu.support import make_lookup, make_tables
from tests.gpu.training import OPTIMIZERS, Training, make_training

DIMS = (16, 33, 64, 128, 128, 300)
# Kernels of a backward by the functions that they are compiled from.
FUNCTIONS = (
    "linearise_lookups",
    "sort_pass",
    "find_runs",
    "sum_chunks",
    "update_short_runs",
    "update_long_runs",
)


def mixed_training(
    device: torch.device,
    optimizer: str = "rowwise_adagrad",
    *,
    batch: int = 256,
    longest: int = 20,
    seed: int = 0,
    pooling: str = "sum",
    weighted: bool = True,
    **options: Any,
) -> Training:
    """Six features of several buckets, with short and long runs."""
    tables = make_tables([400] * len(DIMS), DIMS, torch.float16, device, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, longest + 1, (len(DIMS) * batch,), generator=generator)
    lookup = make_lookup(
        tables,
        range(len(DIMS)),
        installed.buckets(),
        lengths,
        weighted=weighted,
        seed=seed,
        **options,
    )
    make_popular(lookup)
    return make_training(lookup, optimizer, grad_dtype=torch.float16, pooling=pooling)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_replay_with_other_indices_of_the_same_shape(optimizer, cuda):
    """pytorch 82886, FBGEMM 3989: other indices, weights, gradients and learning rate; Adam's step counts on."""
    training = mixed_training(cuda, optimizer)
    before = training.snapshot()
    training.run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        training.run()
        gradient = training.sample_weights_gradient()
    training.restore(before)
    generator = torch.Generator(device=cuda).manual_seed(1)
    for replay in range(3):
        lookup = training.lookup
        order = torch.randperm(lookup.indices.numel(), device=cuda, generator=generator)
        lookup.indices.copy_(lookup.indices[order])
        assert lookup.per_sample_weights is not None
        lookup.per_sample_weights.mul_(-0.5)
        training.grad_output.mul_(0.5)
        training.learning_rate.fill_(0.1 + replay)
        optimizer_now = replace(training.optimizer, learning_rate=0.1 + replay)
        training = replace(training, optimizer=optimizer_now)
        expected = training.expected()
        snapshot = training.snapshot()
        graph.replay()
        faults = training.faults(expected, snapshot)
        assert not faults, (replay, faults)
        # The capture asks for it after the update.
        assert torch.equal(gradient, training.sample_weights_gradient())


def test_replays_give_equal_bits(cuda):
    training = mixed_training(cuda, "adam")
    before = training.snapshot()
    training.verify()
    first = training.snapshot()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        training.run()
    for _ in range(5):
        training.restore(before)
        graph.replay()
        assert training.equals(first)


def test_empty_batch_in_a_capture(cuda):
    tables = make_tables((5,), (16,), torch.float16, cuda)
    none = torch.zeros(0, dtype=torch.int64)
    training = make_training(make_lookup(tables, (0,), installed.buckets(), none), "sgd")
    marker = torch.zeros(1, device=cuda)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        training.run()
        marker.add_(1)
    graph.replay()
    assert marker.item() == 1


def test_current_stream_is_used(cuda):
    """The update waits for work on the stream that is current, and other streams do not wait for it."""
    training, other = mixed_training(cuda), mixed_training(cuda, seed=1)
    before = training.snapshot()
    training.verify()
    right = training.snapshot()
    training.restore(before)
    expected, snapshot = other.expected(), other.snapshot()
    gradient = training.grad_output.clone()
    training.grad_output.zero_()
    torch.cuda.synchronize()
    slow, quick = torch.cuda.Stream(), torch.cuda.Stream()
    done = torch.cuda.Event()
    with torch.cuda.stream(slow):
        torch.cuda._sleep(400_000_000)
        training.grad_output.copy_(gradient)
        training.run()
        done.record()
    with torch.cuda.stream(quick):
        other.run()
        assert not other.faults(expected, snapshot)
    assert not done.query()
    slow.synchronize()
    assert training.equals(right)


def test_two_streams_at_once(cuda):
    trainings = [mixed_training(cuda, batch=2048, seed=seed) for seed in (1, 2)]
    before = [training.snapshot() for training in trainings]
    right = []
    for training in trainings:
        training.verify()
        right.append(training.snapshot())
    streams = [torch.cuda.Stream() for _ in trainings]
    for _ in range(10):
        for training, snapshot in zip(trainings, before, strict=True):
            training.restore(snapshot)
        torch.cuda.synchronize()
        for training, stream in zip(trainings, streams, strict=True):
            with torch.cuda.stream(stream):
                training.run()
        torch.cuda.synchronize()
        for training, snapshot in zip(trainings, right, strict=True):
            assert training.equals(snapshot)


def test_sixteen_threads(cuda):
    """Each thread on a stream of its own, all starting at once."""
    trainings = [mixed_training(cuda, seed=seed) for seed in range(16)]
    before = [training.snapshot() for training in trainings]
    right = []
    for training in trainings:
        training.run()
        right.append(training.snapshot())
    start = threading.Barrier(len(trainings))
    equal = [0] * len(trainings)
    errors: list[BaseException] = []
    torch.cuda.synchronize()

    def work(number: int) -> None:
        try:
            stream = torch.cuda.Stream()
            start.wait()
            with torch.cuda.stream(stream):
                for _ in range(10):
                    trainings[number].restore(before[number])
                    trainings[number].run()
                    equal[number] += trainings[number].equals(right[number])
        except BaseException as error:  # noqa: BLE001  reported by the test below
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(len(trainings))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert equal == [10] * len(trainings)


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("optimizer", ["rowwise_adagrad", "adam"])
def test_work_before_and_after_waits_for_every_launch(optimizer, captured, cuda):
    """The launches of an update overlap each other, but not what is around the call; memory is used again at once."""
    training = mixed_training(cuda, optimizer, batch=1024)
    before = training.snapshot()
    training.verify()
    right = training.snapshot()
    copies = [[torch.empty_like(tensor) for tensor in right] for _ in range(8)]
    differing = torch.zeros(1, dtype=torch.int64, device=cuda)

    def restore_run_and_copy() -> None:
        for copy in copies:
            training.restore(before)
            training.run()
            for kept, tensor in zip(copy, training.mutated(), strict=True):
                kept.copy_(tensor)

    graph = torch.cuda.CUDAGraph()
    if captured:
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            restore_run_and_copy()
    for _ in range(10):
        if captured:
            graph.replay()
        else:
            restore_run_and_copy()
        for copy in copies:
            for kept, tensor in zip(copy, right, strict=True):
                same = kept.view(torch.int16) == tensor.view(torch.int16)
                differing += (~same).sum()
    assert differing.item() == 0


@pytest.mark.parametrize("hoisted", [False, True])
def test_nothing_synchronises_and_nothing_is_copied_to_the_host(hoisted, cuda):
    """FBGEMM 3401: kernels, and one memset of what the sort counts in."""
    training = mixed_training(cuda)
    training.run(transposed=training.transpose())
    training.run()
    training.sample_weights_gradient()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as recorded:
            for _ in range(3):
                training.run(transposed=training.transpose() if hoisted else None)
                training.sample_weights_gradient()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    names = [event.name for event in recorded.events()]
    # cudaDeviceSynchronize is the profiler's own, at its end.
    waiting = ("DtoH", "HtoD", "StreamSynchronize", "EventSynchronize", "CtxSynchronize")
    assert not [name for name in names if any(word in name for word in waiting)]
    assert not [name for name in names if "elementwise" in name]
    seen = {f: sum(name.startswith(f) for name in names) for f in FUNCTIONS}
    assert all(count >= 3 for count in seen.values()), seen
    assert sum(name.startswith("Memset") for name in names) == 3, sorted(set(names))


def test_the_current_device_stays(cuda):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices")
    training = mixed_training(torch.device("cuda", 1))
    with torch.cuda.device(0):
        training.run()
        assert torch.cuda.current_device() == 0


def test_without_a_current_context(cuda):
    """A thread that has done nothing with CUDA yet has no current context; the call brings its own."""
    training = mixed_training(cuda)
    expected, snapshot = training.expected(), training.snapshot()
    thread = threading.Thread(target=training.run)
    thread.start()
    thread.join()
    assert not training.faults(expected, snapshot)
