"""A sample of the variants for a memory checker: every value of every axis, every pair of values, small shapes.

    compute-sanitizer --tool memcheck --report-api-errors no --error-exitcode 9 python -m tests.gpu.sanitizer_sample

Needs no pytest. Every tensor is an allocation of its own, with no allocator in between, so that a read or write past the
end of one is seen. Prints how many variants ran; exit status 1 if a number is wrong.
"""

from __future__ import annotations

import itertools
import os
import sys

# Before CUDA starts: one cudaMalloc per tensor.
os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
sys.modules["triton"] = None  # type: ignore[assignment]

import torch  # noqa: E402  after the allocator is chosen

from tests.gpu import installed  # noqa: E402  as torch
from tests.gpu.bounds import DAMAGES, WIDTHS, check, make  # noqa: E402  as torch
from tests.gpu.samples import lookup_for  # noqa: E402  as torch
from tests.gpu.support import DTYPES, TOLERANCE, worst_error  # noqa: E402  as torch


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


def main() -> int:
    """Run the sample."""
    device = torch.device("cuda", 0)
    wrong = []
    variants = sample()
    for number, variant in enumerate(variants):
        odd = not variant.aligned or number % 2 == 1
        lookup = lookup_for(variant, number, device, odd=odd)
        output_dtype = list(DTYPES.values())[number % 3]
        for pooling in ("sum", "mean"):
            output = lookup.run(pooling, output_dtype)
            if not worst_error(output, lookup, pooling) <= TOLERANCE[output_dtype]:
                wrong.append(variant.name)
        if installed.explain_forward(lookup) != [variant.name]:
            wrong.append(f"{variant.name} was not chosen")
    for index_dtype, damage, vbe in itertools.product(WIDTHS, DAMAGES, (False, True)):
        bounds = make(device, index_dtype, vbe=vbe)
        damage(bounds.indices, bounds.offsets)
        checked = check(bounds, "warning")
        if checked[1][-1].item() != bounds.indices.numel():
            wrong.append(f"check_bounds {index_dtype} {damage.__name__}")
    torch.cuda.synchronize()
    print(f"{len(variants)} forward variants, {len(installed.loaded(device))} variants in all ran")
    for name in wrong:
        print("wrong:", name)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
