"""What the tbe_aot under test holds, and what its launcher says about itself."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from tbe_aot import _launcher, inspection

if TYPE_CHECKING:
    from tests.gpu.support import Lookup


@cache
def manifest() -> dict[str, Any]:
    """The manifest beside the library that is loaded."""
    return inspection.read_manifest()


@cache
def arch() -> str:
    """The arch of the current device, as the manifest names it; without a device the first of the build."""
    if not torch.cuda.is_available():
        return str(min(manifest()["archs"], key=lambda name: int(name[2:])))
    major, minor = torch.cuda.get_device_capability()
    return f"sm{major}{minor}"


def built_variants(kernel: str) -> list[dict[str, Any]]:
    """The manifest's entries of one kernel's variants that this build holds for the device."""
    entries = manifest()["kernels"][kernel]["variants"]
    return [entry for entry in entries if entry["built"] and entry["arch"] == arch()]


@cache
def buckets() -> list[int]:
    """The forward's buckets, ascending."""
    return list(_launcher.buckets())


def loaded(device: torch.device) -> set[str]:
    """Names of the variants that the launcher has loaded on a device; none on a CPU."""
    if device.type != "cuda":
        return set()
    return {entry.variant.name for entry in _launcher.loaded() if entry.device == device.index}


def explain_forward(lookup: Lookup, *, checked: bool = False) -> list[str]:
    """Names of the variants that the planner chooses for a lookup, one per launch; ``checked``: of forward_checked."""

    def address(tensor: torch.Tensor | None) -> int:
        return 0 if tensor is None else tensor.data_ptr()

    vbe = lookup.vbe
    request = _launcher.ForwardRequest(
        arch=arch(),
        weight_dtype=inspection.WEIGHT_DTYPES[lookup.tables.weights.dtype],
        index_width=8 * lookup.indices.element_size(),
        weights=address(lookup.tables.weights),
        features=address(lookup.features),
        indices=address(lookup.indices),
        offsets=address(lookup.offsets),
        per_sample_weights=address(lookup.per_sample_weights),
        vbe_bag_offsets=address(vbe.bag_offsets if vbe else None),
        vbe_output_offsets=address(vbe.output_offsets if vbe else None),
        lookups=lookup.indices.numel(),
        batch_size=vbe.max_batch if vbe else lookup.bag_counts[0],
        total_bags=sum(lookup.bag_counts),
    )
    check = None
    if checked:
        check = _launcher.CheckBoundsRequest(
            arch=arch(),
            index_width=request.index_width,
            feature_count=lookup.layout[1],
            lookups=request.lookups,
            offsets_numel=request.total_bags + 1,
            batch_size=request.batch_size,
        )
    plan = _launcher.plan_forward(request, lookup.layout, check)
    return [launch.variant.name for launch in plan.launches]


@dataclass(frozen=True)
class Variant:
    """One forward variant by its axes."""

    name: str
    weight_dtype: str
    bucket: int
    index_width: int
    weighted: bool
    aligned: bool
    shape: str
    checked: bool

    @staticmethod
    def of(entry: dict[str, Any]) -> Variant:
        """From a manifest entry."""
        return Variant(entry["name"], **entry["axes"])


@cache
def _lengths_end() -> dict[tuple[object, ...], dict[str, int]]:
    """MEAN_LENGTH_BELOW by shape of every variant, built or not, by its other axes."""
    ends: dict[tuple[object, ...], dict[str, int]] = {}
    for entry in manifest()["kernels"]["forward"]["variants"]:
        if entry["arch"] == arch():
            variant = Variant.of(entry)
            below = entry["constants"]["MEAN_LENGTH_BELOW"]
            ends.setdefault(_but_shape(variant), {})[variant.shape] = below
    return ends


def _but_shape(variant: Variant) -> tuple[object, ...]:
    return (
        variant.weight_dtype,
        variant.bucket,
        variant.index_width,
        variant.weighted,
        variant.aligned,
    )


def mean_lengths(variant: Variant) -> tuple[int, int | None]:
    """The mean bag lengths that a variant serves: from the first number on, below the second (None: all above)."""
    ends = _lengths_end()[_but_shape(variant)]
    shorter = {"short": (), "medium": ("short",), "long": ("short", "medium")}[variant.shape]
    least = max((ends.get(shape, 0) for shape in shorter), default=0)
    return least, None if variant.shape == "long" else ends[variant.shape]
