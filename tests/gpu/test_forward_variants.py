"""Every forward variant of the build, launched through torch.ops at a shape that selects it, against float64."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict

import pytest
import torch

from tbe_aot.inspection import WEIGHT_DTYPES
from tests.gpu import installed
from tests.gpu.samples import lookup_for
from tests.gpu.support import DTYPES, TOLERANCE, worst_error

OUTPUT_DTYPES = tuple(DTYPES.values())
# What comes before a variant that checks its indices, by their width.
CHECKS = {
    width: [f"{kernel}__i{width}" for kernel in ("check_offsets", "repair_offsets")]
    for width in (32, 64)
}


def poison(shape: torch.Size, dtype: torch.dtype, device: torch.device) -> None:
    """Leave NaN in the memory that the allocator will most likely hand out next for this shape."""
    torch.full(shape, torch.nan, dtype=dtype, device=device)


@pytest.fixture(scope="module")
def worst(report_folder):
    """Worst error / scale by (weight dtype, output dtype), written as JSON at the end."""
    errors: dict[tuple[str, str], float] = defaultdict(float)
    counted: dict[tuple[str, str], int] = defaultdict(int)
    yield errors, counted
    rows = [
        {
            "weight_dtype": weight,
            "output_dtype": output,
            "worst_error": errors[weight, output],
            "tolerance": TOLERANCE[DTYPES[output]],
            "launches": counted[weight, output],
        }
        for weight, output in sorted(errors)
    ]
    if report_folder is not None:
        report = {
            "what": "worst |actual - float64| / max(1, sum |w * row|) over all forward variants, SUM and MEAN",
            "torch": torch.__version__,
            "device": torch.cuda.get_device_name(),
            "profile": installed.manifest()["profile"],
            "build_id": installed.manifest()["build_id"],
            "variants": len(installed.built_variants("forward")),
            "rows": rows,
        }
        path = report_folder / "forward_errors.json"
        path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


@pytest.mark.parametrize("weight_dtype", DTYPES)
@pytest.mark.parametrize("aligned", [True, False], ids=["aligned", "generic"])
def test_every_variant_against_float64(weight_dtype, aligned, cuda, worst):
    errors, counted = worst
    variants = [
        installed.Variant.of(entry)
        for entry in installed.built_variants("forward")
        if entry["axes"]["weight_dtype"] == weight_dtype and entry["axes"]["aligned"] == aligned
    ]
    assert variants
    wrong = []
    for number, variant in enumerate(variants):
        # Aligned variants store vectors where the output allows it; rows that are not padded are odd by nature.
        odds = [False, True] if variant.aligned else [True]
        for odd in odds:
            lookup = lookup_for(variant, number, cuda, odd=odd)
            before = installed.loaded(cuda)
            for pooling, output_dtype in itertools.product(("sum", "mean"), OUTPUT_DTYPES):
                result, _ = lookup.expected(pooling)
                poison(result.shape, output_dtype, cuda)
                output = (
                    lookup.run_checked(pooling, output_dtype)[0]
                    if variant.checked
                    else lookup.run(pooling, output_dtype)
                )
                assert output.dtype == output_dtype
                error = worst_error(output, lookup, pooling)
                key = (weight_dtype, WEIGHT_DTYPES[output_dtype])
                errors[key] = max(errors[key], error)
                counted[key] += 1
                if not error <= TOLERANCE[output_dtype]:
                    wrong.append((variant.name, pooling, output_dtype, odd, error))
            # The planner says that this variant ran, and it is the only one that had to be loaded for it.
            checks = CHECKS[variant.index_width] if variant.checked else []
            planned = installed.explain_forward(lookup, checked=variant.checked)
            assert planned == [*checks, variant.name]
            assert installed.loaded(cuda) - before <= {variant.name, *checks}
            assert variant.name in installed.loaded(cuda)
    assert not wrong, f"{len(wrong)} wrong, the first: {wrong[:5]}"


def test_no_variant_is_left_out():
    """The test above runs all that the build holds for this device: dtype and alignment partition them."""
    seen = {
        (entry["axes"]["weight_dtype"], entry["axes"]["aligned"])
        for entry in installed.built_variants("forward")
    }
    assert seen == {(dtype, aligned) for dtype in DTYPES for aligned in (True, False)}
