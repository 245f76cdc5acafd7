"""Calls of the backward's operators that together reach every variant, each compared with float64.

    python -m tests.gpu.backward_calls [cpu]

A process of its own, because a variant that was loaded before would say nothing of the call that follows. Prints a line
of JSON per call: what it was, what is wrong with its numbers, and the variants that had to be loaded for it. Every call
has short and long runs of every bucket at once.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

if __name__ == "__main__":
    # Hidden, not absent: whatever is loaded came with the wheel.
    sys.modules["triton"] = None  # type: ignore[assignment]  # None hides a module

import torch

from tests.gpu import installed
from tests.gpu.support import (
    DTYPES,
    Lookup,
    Tables,
    make_lookup,
    make_tables,
    unit,
)
from tests.gpu.training import (
    DECAYS,
    OPTIMIZERS,
    Training,
    make_gradient,
    make_optimizer,
    make_training,
)
from tests.gpu.transposed import reference, take_apart

KERNELS = (
    "linearise_lookups",
    "sort_pass",
    "find_runs",
    "advance_counters",
    "update_short_runs",
    "sum_chunks",
    "update_long_runs",
    "sum_and_update_long_runs",
    "per_sample_weights_gradient",
)
PAIRS = (("fp32", "fp32"), ("fp16", "fp32"), ("fp16", "fp16"), ("bf16", "fp32"), ("bf16", "bf16"))
"""(weights, gradient); any other gradient becomes fp32 first."""
ROWS = (211, 97)
# Of the two tables of a bucket; a row of a shared table is hit by several features.
BUCKET_FEATURES = (0, 1, 0)
BEYOND_32_BITS = 2**31 + 11


def bucket_tables(
    dtype: torch.dtype, device: torch.device, *, aligned: bool, padded: bool = True
) -> tuple[Tables, list[int]]:
    """(two tables per bucket, about the widest and the narrowest, and the tables of the features)."""
    step = unit(dtype)
    dims: list[int] = []
    narrowest = 1
    for bucket in installed.buckets():
        dims += [bucket, -(-narrowest // step) * step] if aligned else [bucket - 1, narrowest]
        narrowest = bucket + 1
    rows = ROWS * len(installed.buckets())
    tables = make_tables(rows, dims, dtype, device, padding=None if padded else 0)
    used = [2 * b + t for b in range(len(installed.buckets())) for t in BUCKET_FEATURES]
    return tables, used


def make_popular(lookup: Lookup) -> None:
    """Rows 3 and 7 of every table get runs of several chunks and of one; what is pruned stays so."""
    draw = torch.rand(lookup.indices.shape, generator=torch.Generator().manual_seed(5))
    draw = draw.to(lookup.indices.device)
    kept = lookup.indices >= 0
    lookup.indices[kept & (draw < 0.4)] = 3
    lookup.indices[kept & (draw > 0.8)] = 7


def spread_vbe(features: int) -> list[list[int]]:
    """Bags per feature and rank, some none at all."""
    return [[100 + 7 * (f % 5), 60 - 10 * (f % 7)] for f in range(features)]


def update_calls(
    device: torch.device, *, batch: int = 150, longest: int = 10, every: int = 1
) -> Iterator[tuple[str, Training]]:
    """Every pair of dtypes, optimizer, alignment, with and without factors; the rest varies along the way.

    ``every`` leaves out all but each such call.
    """
    kinds = itertools.product(PAIRS, (True, False), (False, True), OPTIMIZERS)
    for number, ((weights, gradient), aligned, factored, optimizer) in enumerate(kinds):
        if number % every:
            continue
        # Goes round with both the optimizers, which are four, and what is around them.
        turn = number + number // len(OPTIMIZERS)
        dtype = DTYPES[weights]
        padded = aligned or turn % 3 != 1
        tables, used = bucket_tables(dtype, device, aligned=aligned, padded=padded)
        # VBE rows of the gradient start anywhere, so it is no call for the aligned kernels.
        sizes = spread_vbe(len(used)) if not aligned and turn % 5 == 3 else None
        bags = sum(map(sum, sizes)) if sizes else batch * len(used)
        generator = torch.Generator().manual_seed(number)
        lookup = make_lookup(
            tables,
            used,
            installed.buckets(),
            torch.randint(0, longest + 1, (bags,), generator=generator),
            index_dtype=(torch.int64, torch.int32)[turn % 2],
            weighted=factored and turn % 4 != 0,
            batch_sizes=sizes,
            pruned=0.05,
            seed=number,
        )
        make_popular(lookup)
        options: dict[str, Any] = {}
        # Small enough that sums over long runs stay about 1, where the tolerances are the same for all.
        grad = make_gradient(lookup, DTYPES[gradient], seed=number) / 8
        if turn % 3 == 1:
            options["gradient_scale"] = torch.tensor([8.0], device=device)
            grad *= 8
        if turn % 7 in (2, 3):
            options["gradient_clip"] = 0.1
        if turn % 4 == 2:
            options["found_inf"] = torch.zeros(1, device=device)
        training = make_training(
            lookup,
            make_optimizer(optimizer, DECAYS[turn % 3]),
            grad_output=grad,
            pooling="mean" if factored and turn % 4 in (0, 1) else "sum",
            **options,
        )
        kind = "aligned" if aligned else "generic"
        what = "factored" if factored else "plain"
        yield f"update {weights} {gradient} {kind} {what} {optimizer} #{number}", training


def sample_weight_calls(
    device: torch.device, *, batch: int = 40, every: int = 1
) -> Iterator[tuple[str, Training]]:
    """Every pair of dtypes, alignment and width of the indices; ``every`` as above."""
    kinds = itertools.product(PAIRS, (True, False), (torch.int32, torch.int64))
    for number, ((weights, gradient), aligned, index_dtype) in enumerate(kinds):
        if number % every:
            continue
        tables, used = bucket_tables(DTYPES[weights], device, aligned=aligned)
        sizes = spread_vbe(len(used)) if not aligned and number % 4 == 2 else None
        bags = sum(map(sum, sizes)) if sizes else batch * len(used)
        generator = torch.Generator().manual_seed(number)
        lookup = make_lookup(
            tables,
            used,
            installed.buckets(),
            torch.randint(0, 13, (bags,), generator=generator),
            index_dtype=index_dtype,
            batch_sizes=sizes,
            pruned=0.05,
            seed=number,
        )
        training = make_training(
            lookup,
            "sgd",
            grad_output=make_gradient(lookup, DTYPES[gradient], seed=number),
            pooling=("sum", "mean")[number % 2],
        )
        kind = "aligned" if aligned else "generic"
        yield f"weights' gradient {weights} {gradient} {kind} {index_dtype} #{number}", training


def beyond_32_bits(lookup: Lookup) -> Lookup:
    """The same lookups with global rows that start behind 2^31: keys need 64 bits, the tables stay as small."""
    features, layout = lookup.features.clone(), list(lookup.layout)
    features[:, 7] += BEYOND_32_BITS
    layout[4] += BEYOND_32_BITS
    return replace(lookup, features=features, layout=layout, _expected={})


def transpose_calls(device: torch.device) -> Iterator[tuple[str, Training]]:
    """Every width of key and index, every shape of bags, small and large sorts; SUM and MEAN, weighted, VBE, pruned."""
    tables = make_tables((5000, 300, 11), (16, 24, 5), torch.float16, device)
    kinds = itertools.product(
        (False, True),
        (torch.int32, torch.int64),
        # (bags per feature, longest bag): short, medium and long bags; few lookups and many.
        ((50, 1), (40_000, 2), (4000, 30), (60, 30), (40, 300), (1500, 250)),
    )
    for number, (wide, index_dtype, (batch, longest)) in enumerate(kinds):
        sizes = None
        if number % 3 == 2:
            sizes = [[batch, 0, 3], [0, 0, batch], [batch // 2, 1, batch // 3], [5, batch, 0]]
        bags = sum(map(sum, sizes)) if sizes else 4 * batch
        generator = torch.Generator().manual_seed(number)
        lookup = make_lookup(
            tables,
            (0, 1, 0, 2),
            installed.buckets(),
            torch.randint(0, longest + 1, (bags,), generator=generator),
            index_dtype=index_dtype,
            weighted=number % 4 >= 2,
            batch_sizes=sizes,
            pruned=0.0 if number % 5 == 4 else 0.03,
            seed=number,
        )
        if number % 2:
            make_popular(lookup)
        if wide:
            lookup = beyond_32_bits(lookup)
        training = make_training(lookup, "sgd", pooling=("sum", "mean")[number % 2])
        keys = 64 if wide else 32
        what = f"transpose {keys} {index_dtype} {batch} x {longest} #{number}"
        yield what, training


def update_faults(training: Training) -> list[str]:
    """Compare an update with float64; where one launch may serve long runs, also with two launches, to the bit."""
    before = training.snapshot()
    found = training.check()
    if training.optimizer.name in ("sgd", "rowwise_adagrad"):
        updated = training.snapshot()
        training.restore(before)
        training.run(fused_long_runs="never")
        if not training.equals(updated):
            found.append("other bits with two launches for long runs")
    return found


def transpose_faults(training: Training) -> list[str]:
    """Compare ``transpose_indices`` with torch's sort, and an update that is given it with one that is not."""
    transposed = training.transpose()
    differing = take_apart(transposed, training).differences(reference(training))
    found = [f"{name} differs from a stable sort's" for name in differing]
    if not found:
        found += training.check(transposed=transposed)
    return found


def run_calls(device: torch.device) -> Iterator[dict[str, Any]]:
    """Make every call."""
    steps = (
        (update_calls(device), update_faults),
        (sample_weight_calls(device), Training.sample_weights_faults),
        (transpose_calls(device), transpose_faults),
    )
    for calls, faults in steps:
        for what, training in calls:
            before = installed.loaded(device)
            wrong = faults(training)
            yield {
                "call": what,
                "wrong": wrong,
                "loaded": sorted(installed.loaded(device) - before),
            }


def main() -> None:
    """Exit status 0 if every call was made, right or wrong."""
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda:0")
    for outcome in run_calls(device):
        print(json.dumps(outcome), flush=True)


if __name__ == "__main__":
    main()
