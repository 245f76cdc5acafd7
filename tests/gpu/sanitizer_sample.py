"""A sample of the variants for a memory checker: every value of every axis, every pair of values, small shapes.

    compute-sanitizer --tool memcheck --report-api-errors no --error-exitcode 9 python -m tests.gpu.sanitizer_sample
    compute-sanitizer --tool racecheck --error-exitcode 9 python -m tests.gpu.sanitizer_sample transpose

Arguments: which of forward, bounds, transpose, update and small_tables; all without one. Needs no pytest. Every tensor is an allocation of its
own, with no allocator in between, so that a read or write past the end of one is seen. Prints how many variants ran;
exit status 1 if a number is wrong.
"""

from __future__ import annotations

import itertools
import os
import sys

# Before CUDA starts: one cudaMalloc per tensor.
os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
# Hidden, not absent: whatever is loaded came with the wheel.
sys.modules["triton"] = None  # type: ignore[assignment]  # None hides a module

import torch  # noqa: E402  after the allocator is chosen

from tests.gpu import installed  # noqa: E402  as torch
from tests.gpu.backward_calls import (  # noqa: E402  as torch
    beyond_32_bits,
    make_popular,
    sample_weight_calls,
    transpose_faults,
    update_calls,
)
from tests.gpu.bounds import DAMAGES, WIDTHS, check, make  # noqa: E402  as torch
from tests.gpu.samples import lookup_for  # noqa: E402  as torch
from tests.gpu.support import (  # noqa: E402  as torch
    DTYPES,
    TOLERANCE,
    make_lookup,
    make_tables,
    worst_error,
)
from tests.gpu.training import OPTIMIZERS, make_gradient, make_training  # noqa: E402  as torch


def pairs(axes: dict[str, object]) -> set[tuple[tuple[str, object], ...]]:
    """The pairs of axis values that a variant covers."""
    return set(itertools.combinations(sorted(axes.items()), 2))


def sample() -> list[installed.Variant]:
    """Variants that together show every pair of axis values that the build holds, chosen greedily."""
    entries = installed.built_variants("forward")
    missing = set().union(*(pairs(entry["axes"]) for entry in entries))
    chosen = []
    while missing:
        best = max(entries, key=lambda entry: len(missing & pairs(entry["axes"])))
        missing -= pairs(best["axes"])
        chosen.append(installed.Variant.of(best))
    return chosen


def forward(device: torch.device) -> list[str]:
    """Run the sample of the forward; what is wrong."""
    wrong = []
    for number, variant in enumerate(sample()):
        odd = not variant.aligned or number % 2 == 1
        lookup = lookup_for(variant, number, device, odd=odd)
        output_dtype = list(DTYPES.values())[number % 3]
        for pooling in ("sum", "mean"):
            output = (
                lookup.run_checked(pooling, output_dtype)[0]
                if variant.checked
                else lookup.run(pooling, output_dtype)
            )
            if not worst_error(output, lookup, pooling) <= TOLERANCE[output_dtype]:
                wrong.append(variant.name)
        if installed.explain_forward(lookup, checked=variant.checked)[-1:] != [variant.name]:
            wrong.append(f"{variant.name} was not chosen")
    return wrong


def bounds(device: torch.device) -> list[str]:
    """Run the bounds check on good and on bad lookups; what is wrong."""
    wrong = []
    for index_dtype, damage, vbe in itertools.product(WIDTHS, DAMAGES, (False, True)):
        lookup = make(device, index_dtype, vbe=vbe)
        damage(lookup.indices, lookup.offsets)
        checked = check(lookup, "warning")
        if checked[1][-1].item() != lookup.indices.numel():
            wrong.append(f"check_bounds {index_dtype} {damage.__name__}")
        # In the lookup, and behind a launch.
        fused, separate = (lookup.run_checked(fused_checks=way)[0] for way in ("always", "never"))
        if not torch.allclose(fused, separate, rtol=1e-5, atol=1e-3):
            wrong.append(f"forward_checked {index_dtype} {damage.__name__}")
    return wrong


def update(device: torch.device) -> list[str]:
    """Run updates and gradients of weights that show every optimizer, pair of dtypes, alignment and kind; what is wrong.

    Each has features of every bucket, short and long runs, and bags that are not a multiple of anything.
    """
    wrong = []
    # The optimizer changes fastest: with 7 every optimizer comes with every kind of call in turn.
    for what, training in update_calls(device, batch=23, longest=14, every=7):
        wrong += [f"{what}: {fault}" for fault in training.check()]
    for what, training in sample_weight_calls(device, batch=9, every=3):
        wrong += [f"{what}: {fault}" for fault in training.sample_weights_faults()]
    return wrong


def small_tables(device: torch.device) -> list[str]:
    """Look up in small tables and update them, with every optimizer; what is wrong."""
    wrong = []
    kinds = itertools.product((torch.float16, torch.bfloat16), (64, 100, 128), WIDTHS, OPTIMIZERS)
    lengths = torch.randint(0, 40, (150,), generator=torch.Generator().manual_seed(5))
    for number, (dtype, dim, index_dtype, optimizer) in enumerate(kinds):
        tables = make_tables((64,), (dim,), dtype, device)
        lookup = make_lookup(
            tables, (0,), installed.buckets(), lengths, index_dtype=index_dtype, pruned=0.05
        )
        what = f"{dtype} {dim} {index_dtype} {optimizer}"
        if not worst_error(lookup.run(), lookup, "sum") <= TOLERANCE[torch.float32]:
            wrong.append(f"lookup in a small table, {what}")
        gradient = make_gradient(lookup, torch.float32) / 64
        # Rounded by chance an error is twice as large, which the tolerance of SGD does not allow for.
        by_chance = optimizer != "sgd" and number % 3 == 0
        seed = torch.tensor([number], device=device) if by_chance else None
        training = make_training(lookup, optimizer, grad_output=gradient, rounding_seed=seed)
        wrong += [f"small table, {what}: {fault}" for fault in training.check()]
    return wrong


def transpose(device: torch.device) -> list[str]:
    """Transpose lookups with keys and indices of both widths, plain and factored; what is wrong."""
    wrong = []
    for wide, index_dtype, longest in itertools.product((False, True), WIDTHS, (2, 30, 90)):
        tables = make_tables((5000, 300, 11), (16, 24, 5), torch.float16, device)
        lengths = torch.randint(
            0, longest + 1, (4 * 61,), generator=torch.Generator().manual_seed(1)
        )
        lookup = make_lookup(
            tables,
            (0, 1, 0, 2),
            installed.buckets(),
            lengths,
            index_dtype=index_dtype,
            weighted=longest == 30,
            pruned=0.05,
        )
        make_popular(lookup)
        training = make_training(beyond_32_bits(lookup) if wide else lookup, "sgd")
        wrong += [f"{wide} {index_dtype}: {fault}" for fault in transpose_faults(training)]
    return wrong


PARTS = {
    "forward": forward,
    "bounds": bounds,
    "transpose": transpose,
    "update": update,
    "small_tables": small_tables,
}


def main() -> int:
    """Run the sample."""
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    wrong = [fault for name in sys.argv[1:] or PARTS for fault in PARTS[name](device)]
    if device.type == "cuda":
        torch.cuda.synchronize()
    print(f"{len(installed.loaded(device))} variants ran")
    for name in wrong:
        print("wrong:", name)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
