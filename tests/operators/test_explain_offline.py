"""What ``tbe-aot explain`` says from the manifest alone is what the planner does: random calls, offline against live."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import tbe_aot
from tbe_aot import Explanation, TableBatchedEmbeddingBags, TableSpec
from tbe_aot.explanations import MULTIPROCESSORS
from tbe_aot_audit.explain import Call, Explained, explain
from tbe_aot_audit.source import open_source

pytest.importorskip("tbe_aot._launcher")
MANIFEST = open_source(Path(tbe_aot.__file__).parent).manifest
CHECKS = ("check_offsets", "repair_offsets", "check_indices")
LOOKUPS = ("forward", "forward_small_table", "forward_work_stealing")
UPDATES = tuple(
    name
    for name in MANIFEST.kernels
    if name not in {*CHECKS, *LOOKUPS, "per_sample_weights_gradient"}
)
OPTIMIZERS = {
    "sgd": tbe_aot.SGD,
    "rowwise_adagrad": tbe_aot.RowwiseAdagrad,
    "adagrad": tbe_aot.Adagrad,
    "adam": tbe_aot.Adam,
}
DTYPES = ("float32", "float16", "bfloat16")
PATHS = ("auto", "auto", "never", "always")
DIMS = (1, 3, 8, 12, 16, 17, 32, 60, 63, 64, 66, 100, 128, 129, 136, 250, 256, 257, 512, 1000, 2048)
ROWS = (1, 10, 64, 65, 100, 256, 257, 1000)
# Around the lengths at which kernels change.
LENGTHS = (0, 1, 2, 3, 5, 6, 8, 11, 12, 15, 20, 26, 28, 40, 48, 128, 400)
# What a caller may leave out.
OPTIONAL = ("weights", "indices", "dim", "rows", "batch", "mean_length", "optimizer")


def random_call(draw: random.Random) -> Call:
    """Everything is said."""
    # One feature, of a dtype that narrow paths serve, is as likely as all else.
    narrow = draw.random() < 0.5
    features = 1 if narrow else draw.choice((1, 1, 2, 3))
    return Call(
        weights=draw.choice(DTYPES[1:] if narrow else DTYPES),
        output=draw.choice(DTYPES),
        indices=draw.choice(("int32", "int64")),
        dim=draw.choice([dim for dim in DIMS if 60 <= dim <= 257] if narrow else DIMS),
        weighted=draw.random() < (0.1 if narrow else 0.3),
        mean=draw.random() < 0.5,
        mean_length=draw.choice(LENGTHS),
        rows=draw.choice(ROWS) * features,
        optimizer=draw.choice(list(OPTIMIZERS)),
        stochastic_rounding=draw.random() < 0.2,
        batch=draw.choice((1, 2, 7, 64, 300)),
        features=features,
        bounds_check=draw.choice(("none", "ignore", "warning", "warning", "fatal")),
        fused_checks=draw.choice(PATHS),
        small_tables=draw.choice(PATHS),
        fused_long_runs=draw.choice(PATHS),
        work_stealing=draw.choice(("never", "always")),
    )


def live(call: Call, arch: str) -> tuple[Explanation, Explanation]:
    """What the planner does, for the lookup and for the update."""
    assert call.rows is not None
    assert call.dim is not None
    assert call.batch is not None
    assert call.optimizer is not None
    rows = call.rows // call.features
    module = TableBatchedEmbeddingBags(
        [TableSpec(f"t{number}", rows, call.dim) for number in range(call.features)],
        weights_dtype=getattr(torch, str(call.weights)),
        output_dtype=getattr(torch, call.output),
        pooling="mean" if call.mean else "sum",
        optimizer=OPTIMIZERS[call.optimizer](lr=0.1),
        stochastic_rounding=call.stochastic_rounding,
        bounds_check=call.bounds_check,
        fused_checks=call.fused_checks,
        small_tables=call.small_tables,
        fused_long_runs=call.fused_long_runs,
        work_stealing=call.work_stealing,
    )
    dtype = getattr(torch, str(call.indices))
    bags = call.batch * call.features
    length = int(call.mean_length or 0)
    indices = torch.zeros(bags * length, dtype=dtype)
    offsets = torch.arange(bags + 1, dtype=dtype) * length
    weights = torch.ones(bags * length) if call.weighted else None
    forward = module.explain(indices, offsets, weights, arch=arch)
    return forward, module.explain_backward(indices, offsets, weights, arch=arch)


def launches(explanation: Explanation) -> Counter[tuple[Any, ...]]:
    return Counter((one.variant, one.grid, one.block[0]) for one in explanation.launches)


def kernel_of(launch: tuple[Any, ...]) -> str:
    return str(launch[0]).partition("__")[0]


def is_open(found: Explained) -> bool:
    return any(path.kernel == found.kernel and path.taken is None for path in found.paths)


def check_all(
    call: Call, arch: str, kernels: Sequence[str], expected: Counter[tuple[Any, ...]]
) -> set[str]:
    """Each of the kernels is launched as offline says; the names of those that are."""
    launched = set()
    for kernel in kernels:
        mine = Counter({launch: n for launch, n in expected.items() if kernel_of(launch) == kernel})
        found = explain(MANIFEST, call, kernel=kernel, arch=arch)
        said = Counter({(c.variant, c.grid, c.block): c.launches for c in found.candidates})
        if is_open(found):
            # Whether an optimizer counts its updates is not in the manifest.
            assert kernel == "advance_counters"
            assert not mine or mine == said
        elif kernel == "sum_small_table":
            # Nor is the number of its chunks.
            assert [(v, b) for v, _, b in said] == [(v, b) for v, _, b in mine], (call, found)
        else:
            assert said == mine, (call, arch, found.problem, found.paths)
        if mine:
            launched.add(kernel)
    return launched


@pytest.mark.parametrize("arch", sorted(MANIFEST.archs))
@pytest.mark.parametrize("seed", range(4))
def test_every_launch_of_a_call(seed: int, arch: str):
    draw = random.Random(seed)
    launched: Counter[str] = Counter()
    for _ in range(60):
        call = replace(random_call(draw), multiprocessors=MULTIPROCESSORS[arch])
        forward, update = live(call, arch)
        # The operator that checks before a lookup is another one.
        kernels = LOOKUPS if call.bounds_check == "fatal" else (*CHECKS, *LOOKUPS)
        launched.update(check_all(call, arch, kernels, launches(forward)))
        launched.update(check_all(call, arch, UPDATES, launches(update)))
        # Unasked, it names the kernel that looks up.
        assert explain(MANIFEST, call, arch=arch).kernel == kernel_of(
            (forward.launches[-1].variant,)
        )
    # Calls that take each path are among them.
    made = {name for name, kernel in MANIFEST.kernels.items() if kernel.on(arch)}
    assert launched.keys() == made - {"per_sample_weights_gradient"}


@pytest.mark.parametrize("arch", sorted(MANIFEST.archs))
def test_what_is_not_said_excludes_nothing_that_runs(arch: str):
    draw = random.Random(5)
    for _ in range(60):
        call = random_call(draw)
        if call.weighted:
            # Weights that are said to be there are those of some lookup.
            call = replace(call, mean_length=call.mean_length or 1)
        unsaid = draw.sample(OPTIONAL, draw.randint(1, 4))
        known: Call = replace(call, **dict.fromkeys(unsaid))  # type: ignore[arg-type]  # fields by name
        forward, update = live(call, arch)
        for launch in {*launches(forward), *launches(update)}:
            found = explain(MANIFEST, known, kernel=kernel_of(launch), arch=arch)
            same = [c for c in found.candidates if c.variant == launch[0]]
            assert same, (known, launch, found.problem)
            assert all(c.grid in {None, launch[1]} for c in same), (known, launch)


def test_the_default_call_is_checked_in_the_lookup():
    call = Call(weights="float16", dim=100, indices="int64", mean_length=3, batch=1000)
    (found,) = explain(MANIFEST, call, arch="sm90").candidates
    assert found.variant == "forward__fp16_d128_i64_unweighted_aligned_short_checked"
