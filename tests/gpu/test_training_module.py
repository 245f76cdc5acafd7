"""Training through the module on a CUDA device: beside the CPU, in graphs, with a gradient scaler."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import tbe_aot
from tbe_aot import SGD, Adagrad, Adam, RowwiseAdagrad
from tests.gpu import installed
from tests.gpu.training import same_bits, worst_error

TABLES = [
    tbe_aot.TableSpec("user", 1000, 64),
    tbe_aot.TableSpec("item", 500, 33),
    tbe_aot.TableSpec("shop", 7, 128),
]
FEATURES = ["item", "user", "item", "shop"]
WIDTH = 33 + 64 + 33 + 128
BATCH = 200
SIZES = [[150, 50], [200, 0], [1, 199], [100, 100]]
OPTIMIZERS = [
    SGD(lr=0.1),
    SGD(lr=0.1, weight_decay=0.1, weight_decay_mode="l2"),
    RowwiseAdagrad(lr=0.1, eps=1e-3),
    RowwiseAdagrad(lr=0.1, weight_decay=0.1, weight_decay_mode="decoupled"),
    Adagrad(lr=0.1, eps=1e-3),
    Adam(lr=0.1, betas=(0.8, 0.99)),
]
Modules = tuple[tbe_aot.TableBatchedEmbeddingBags, tbe_aot.TableBatchedEmbeddingBags]


def bags(device: torch.device, **options: Any) -> tbe_aot.TableBatchedEmbeddingBags:
    return tbe_aot.TableBatchedEmbeddingBags(
        TABLES, feature_tables=FEATURES, device=device, **options
    )


def twins(device: torch.device, **options: Any) -> Modules:
    """Two modules with equal tables and states: on the device and on the CPU."""
    first, second = bags(device, **options), bags(torch.device("cpu"), **options)
    second.load_state_dict(first.state_dict())
    return first, second


def batch(device: torch.device, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(indices, offsets), with long runs in the table of 7 rows; equal on every device, every batch of equal shape."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.arange(len(FEATURES) * BATCH) % 9
    lengths = lengths[torch.randperm(lengths.numel(), generator=generator)]
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    indices = torch.randint(0, 500, (int(offsets[-1]),), generator=generator)
    indices[int(offsets[3 * BATCH]) :] %= 7
    return indices.to(device), offsets.to(device)


def factors(device: torch.device, seed: int, count: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + 99)
    return torch.rand(count, generator=generator).to(device).requires_grad_()


def loss_of(pooled: torch.Tensor) -> torch.Tensor:
    """A loss whose gradient differs from element to element."""
    weights = torch.linspace(-1, 1, pooled.numel(), device=pooled.device).view(pooled.shape)
    return (pooled.float() * weights + pooled.float() ** 2).mean()


def expect_close(
    module: tbe_aot.TableBatchedEmbeddingBags,
    other: tbe_aot.TableBatchedEmbeddingBags,
    tolerance: float = 1e-4,
) -> None:
    state, expected = module.state_dict(), other.state_dict()
    assert state.keys() == expected.keys()
    for name, value in expected.items():
        error = worst_error(state[name].double().cpu(), value.double().cpu())
        assert error <= (tolerance if name.endswith(".weight") else 1e-4), (name, error)


@pytest.mark.parametrize("kind", ["plain", "weighted", "mean", "vbe"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
def test_five_steps_train_as_on_the_cpu(optimizer, kind, device):
    pooling = "mean" if kind == "mean" else "sum"
    module, on_cpu = twins(device, optimizer=optimizer, pooling=pooling)
    for seed in range(5):
        gradients: list[torch.Tensor] = []
        for one in (module, on_cpu):
            where = one.weights.device
            indices, offsets = batch(where, seed)
            weights = factors(where, seed, indices.numel()) if kind == "weighted" else None
            pooled = one(indices, offsets, weights, SIZES if kind == "vbe" else None)
            loss_of(pooled).backward()
            if weights is not None:
                assert weights.grad is not None
                gradients.append(weights.grad)
        if gradients:
            torch.testing.assert_close(gradients[0].cpu(), gradients[1], rtol=1e-4, atol=1e-6)
    expect_close(module, on_cpu)
    assert module.weights.grad is None


@pytest.mark.parametrize("output_dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("weights_dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_every_dtype_trains(weights_dtype, output_dtype, device):
    """torchrec 3856, 3187."""
    module, on_cpu = twins(
        device,
        optimizer=RowwiseAdagrad(lr=0.1),
        weights_dtype=weights_dtype,
        output_dtype=output_dtype,
    )
    before = module.weights.detach().clone()
    grad = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(1)).to(output_dtype)
    for one in (module, on_cpu):
        where = one.weights.device
        pooled = one(*batch(where, 0))
        assert pooled.dtype == output_dtype
        pooled.backward(grad.to(where))
    expect_close(module, on_cpu, 1e-4 if weights_dtype == torch.float32 else 1e-2)
    assert not same_bits(module.weights.detach(), before)


@pytest.mark.parametrize("as_tensor", [False, True])
def test_the_learning_rate_changes_between_forward_and_backward(as_tensor, device):
    """FBGEMM 3989."""
    module = bags(device, optimizer=SGD(lr=100.0))
    expected = bags(device, optimizer=SGD(lr=0.25))
    expected.load_state_dict({**module.state_dict(), "learning_rate": expected.learning_rate})
    rate = torch.tensor(0.25, device=device) if as_tensor else 0.25
    for one in (module, expected):
        pooled = one(*batch(device, 0))
        one.set_learning_rate(rate)
        loss_of(pooled).backward()
    assert same_bits(module.weights.detach(), expected.weights.detach())


def test_gradient_of_sample_weights_is_of_the_row_before_the_update(device):
    """torchrec 4602: B = 1, D = 4, index 2, weight .5."""
    table = tbe_aot.TableSpec("t", 5, 4)
    module = tbe_aot.TableBatchedEmbeddingBags([table], optimizer=SGD(lr=1.0), device=device)
    row = module.table("t")[2].clone()
    weights = torch.tensor([0.5], device=device, requires_grad=True)
    grad = torch.tensor([[1.0, -2, 3, 0.5]], device=device)
    indices = torch.tensor([2], device=device)
    module(indices, torch.tensor([0, 1], device=device), weights).backward(grad)
    torch.testing.assert_close(weights.grad, (row @ grad[0]).view(1))
    torch.testing.assert_close(module.table("t")[2], row - 0.5 * grad[0])


def test_only_the_work_that_somebody_needs(device, monkeypatch):
    """torchrec 4703: with per-sample weights that need no gradient, no gradient kernel runs."""
    calls: list[str] = []
    for name in ("backward_update", "per_sample_weights_gradient"):
        operator = getattr(torch.ops.tbe_aot, name)

        def record(*args: Any, name: str = name, operator: Any = operator) -> Any:
            calls.append(name)
            return operator(*args)

        monkeypatch.setattr(torch.ops.tbe_aot, name, record)
    module = bags(device, optimizer=SGD())
    indices, offsets = batch(device, 0)
    weights = torch.rand(indices.numel(), device=device)
    module(indices, offsets, weights).sum().backward()
    assert calls == ["backward_update"]
    calls.clear()
    module(indices, offsets, weights.clone().requires_grad_()).sum().backward()
    assert calls == ["per_sample_weights_gradient", "backward_update"]
    calls.clear()
    with torch.no_grad():
        assert not module(indices, offsets, weights).requires_grad
    module.requires_grad_(False)
    module(indices, offsets, weights.clone().requires_grad_()).sum().backward()
    assert calls == ["per_sample_weights_gradient"]


def test_a_gradient_that_is_expanded(device):
    """FBGEMM 1212: sum().backward()."""
    module, on_cpu = twins(device, optimizer=SGD(lr=0.01))
    for one in (module, on_cpu):
        one(*batch(one.weights.device, 0)).sum().backward()
    expect_close(module, on_cpu)


@pytest.mark.parametrize("bounds_check", ["none", "ignore", "warning", "fatal"])
def test_no_bags(bounds_check, device):
    """torchrec 2773, FBGEMM 3750: the last batch of an epoch is empty."""
    module = bags(device, optimizer=Adam(), bounds_check=bounds_check)
    before = module.weights.detach().clone()
    nothing = torch.zeros(0, dtype=torch.int64, device=device)
    output = module(nothing, torch.zeros(1, dtype=torch.int64, device=device))
    assert output.shape == (0, WIDTH)
    output.sum().backward()
    assert same_bits(module.weights.detach(), before)


def test_an_index_out_of_bounds_trains_row_0(device):
    """torchrec 575: as the lookup reads row 0 instead, the backward trains it."""
    module, other = bags(device, optimizer=SGD(lr=0.5)), bags(device, optimizer=SGD(lr=0.5))
    other.load_state_dict(module.state_dict())
    indices, offsets = batch(device, 0)
    wrong, right = indices.clone(), indices.clone()
    wrong[::10], right[::10] = 5000, 0
    loss_of(module(wrong, offsets)).backward()
    loss_of(other(right, offsets)).backward()
    assert same_bits(module.weights.detach(), other.weights.detach())
    assert module.invalid_index_count() == wrong[::10].numel()


def test_frozen_tables_keep_their_bits(device):
    module, on_cpu = twins(device, optimizer=Adagrad(lr=0.1), frozen=["user"])
    before = module.table("user").clone()
    for sizes in (None, SIZES):
        for one in (module, on_cpu):
            loss_of(one(*batch(one.weights.device, 0), None, sizes)).backward()
    assert same_bits(module.table("user"), before)
    expect_close(module, on_cpu)


def test_whole_steps_do_not_synchronise(cuda):
    """FBGEMM 3401: bounds check, lookup, both gradients and update; also after another learning rate."""
    module = bags(cuda, optimizer=RowwiseAdagrad(lr=0.1), weights_dtype=torch.float16)
    batches = [batch(cuda, seed) for seed in range(3)]
    inputs = [(*one, factors(cuda, seed, one[0].numel())) for seed, one in enumerate(batches)]
    rate = torch.tensor([0.05], device=cuda)

    def steps() -> None:
        for indices, offsets, weights in inputs:
            module.set_learning_rate(rate)
            loss_of(module(indices, offsets, weights)).backward()

    steps()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as recorded:
            steps()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    names = [event.name for event in recorded.events()]
    waiting = ("DtoH", "HtoD", "StreamSynchronize", "EventSynchronize", "CtxSynchronize")
    assert not [name for name in names if any(word in name for word in waiting)]
    assert sum("update_short_runs_kernel" in name for name in names) >= len(inputs)


@pytest.mark.parametrize("optimizer", [SGD(), Adam()], ids=repr)
def test_explain_backward_names_what_a_step_launches(optimizer, cuda):
    module = bags(cuda, optimizer=optimizer)
    inputs = batch(cuda, 0)
    pooled = module(*inputs)
    grad = torch.randn_like(pooled)
    explanation = module.explain_backward(*inputs, grad_output=grad)
    assert explanation.arch == installed.arch()
    module.preload()
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        pooled.backward(grad)
        torch.cuda.synchronize()
    assert {launch.variant for launch in explanation.launches} <= installed.loaded(cuda)
    planned = Counter(launch.variant.partition("__")[0] for launch in explanation.launches)
    names = [event.name for event in recorded.events()]
    assert planned == {kernel: sum(kernel in name for name in names) for kernel in planned}


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
def test_a_captured_step_is_replayed(optimizer, cuda):
    """pytorch 82886, FBGEMM 3989: forward and backward in a graph; then other indices and another learning rate."""
    module, on_cpu = twins(cuda, optimizer=optimizer)
    start = {name: value.clone() for name, value in module.state_dict().items()}
    indices, offsets = batch(cuda, 0)
    grad = torch.randn(BATCH, WIDTH, device=cuda)
    module.preload()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        module(indices, offsets).backward(grad)
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        pooled = module(indices, offsets)
        pooled.backward(grad)
    module.load_state_dict(start)
    for seed in range(3):
        other, other_offsets = batch(cuda, seed + 1)
        assert other.shape == indices.shape
        indices.copy_(other)
        offsets.copy_(other_offsets)
        for one in (module, on_cpu):
            one.set_learning_rate(0.1 / (seed + 1))
        graph.replay()
        expected = on_cpu(other.cpu(), other_offsets.cpu())
        torch.testing.assert_close(pooled.detach().cpu(), expected.detach(), rtol=1e-4, atol=1e-4)
        expected.backward(grad.cpu())
    expect_close(module, on_cpu)


@pytest.mark.parametrize("unscaled_first", [False, True])
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
def test_a_grad_scaler_through_an_inf_step(optimizer, unscaled_first, device):
    scaled, plain = (
        bags(device, optimizer=optimizer, deferred=deferred) for deferred in (True, False)
    )
    plain.load_state_dict(scaled.state_dict())
    scaler = torch.amp.GradScaler(device.type, init_scale=2.0**10, growth_interval=2)
    tables: Any = scaled.deferred_step()
    for step in range(4):
        inputs = batch(device, step)
        loss = loss_of(scaled(*inputs)) * (torch.inf if step == 1 else 1)
        scaler.scale(loss).backward()
        before = scaled.weights.detach().clone()
        scale = scaler.get_scale()
        if unscaled_first:
            scaler.unscale_(tables)
        scaler.step(tables)
        scaler.update()
        assert not scaled.pending_updates
        if step == 1:
            assert scaler.get_scale() == scale / 2
            assert same_bits(scaled.weights.detach(), before)
            continue
        loss_of(plain(*inputs)).backward()
    expect_close(scaled, plain)
    if optimizer.counts_updates:
        assert scaled.update_count.tolist() == [3]


def test_a_deferred_step_is_the_backwards_update(device):
    module = bags(device, optimizer=Adam(), deferred=True)
    other = bags(device, optimizer=Adam())
    other.load_state_dict(module.state_dict())
    indices, offsets = batch(device, 0)
    for one in (module, other):
        loss_of(one(indices, offsets)).backward()
    # What the caller does to its tensors meanwhile is of no importance.
    indices.zero_()
    module.step()
    assert same_bits(module.weights.detach(), other.weights.detach())


@pytest.mark.parametrize("kind", ["plain", "weighted", "mean", "vbe"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
def test_hoisting_the_transpose_changes_no_bit(optimizer, kind, device):
    pooling = "mean" if kind == "mean" else "sum"
    modules = [
        bags(device, optimizer=optimizer, pooling=pooling, hoist_transpose=hoisted)
        for hoisted in (False, True)
    ]
    modules[1].load_state_dict(modules[0].state_dict())
    for seed in range(3):
        indices, offsets = batch(device, seed)
        weights = torch.rand(indices.numel(), device=device) if kind == "weighted" else None
        for module in modules:
            sizes = SIZES if kind == "vbe" else None
            loss_of(module(indices, offsets, weights, sizes)).backward()
    state, hoisted_state = (module.state_dict() for module in modules)
    assert all(same_bits(value, hoisted_state[name]) for name, value in state.items())


def test_a_state_moves_between_devices(device):
    """Trained on the CPU, then on the device, then on the CPU again."""
    cpu = torch.device("cpu")
    moving, staying = bags(cpu, optimizer=Adam(lr=0.1)), bags(cpu, optimizer=Adam(lr=0.1))
    staying.load_state_dict(moving.state_dict())
    for seed, where in enumerate((cpu, device, cpu)):
        moving.to(where)
        loss_of(moving(*batch(where, seed))).backward()
        loss_of(staying(*batch(cpu, seed))).backward()
    expect_close(moving, staying)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_steps_train_as_eager_ones(backend, cuda):
    if backend == "inductor" and sys.modules.get("triton", True) is None:
        pytest.skip(
            "Inductor needs triton, which this run hides; tests/operators/test_training_compile.py compiles on a CPU"
        )
    module = bags(cuda, optimizer=RowwiseAdagrad(lr=0.1))
    other = bags(cuda, optimizer=RowwiseAdagrad(lr=0.1))
    other.load_state_dict(module.state_dict())
    compiled = torch.compile(module, backend=backend)
    for seed in range(3):
        loss_of(compiled(*batch(cuda, seed))).backward()
        loss_of(other(*batch(cuda, seed))).backward()
    expect_close(module, other)
