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
    """The arch of the current device, as the manifest names it."""
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
    """Names of the variants that the launcher has loaded on a device."""
    return {entry.variant.name for entry in _launcher.loaded() if entry.device == device.index}


def explain_forward(lookup: Lookup) -> list[str]:
    """Names of the variants that the planner chooses for a lookup, one per launch."""

    def address(tensor: torch.Tensor | None) -> int:
        return 0 if tensor is None else tensor.data_ptr()

    vbe = lookup.vbe
    plan = _launcher.plan_forward(
        arch=arch(),
        layout=lookup.layout,
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

    @staticmethod
    def of(entry: dict[str, Any]) -> Variant:
        """From a manifest entry."""
        return Variant(entry["name"], **entry["axes"])


@cache
def _short_thresholds() -> dict[tuple[object, ...], int]:
    """MEAN_LENGTH_BELOW of every short variant by its other axes, built or not."""
    entries = manifest()["kernels"]["forward"]["variants"]
    return {
        _but_shape(Variant.of(entry)): entry["constants"]["MEAN_LENGTH_BELOW"]
        for entry in entries
        if entry["arch"] == arch() and entry["axes"]["shape"] == "short"
    }


def _but_shape(variant: Variant) -> tuple[object, ...]:
    return (
        variant.weight_dtype,
        variant.bucket,
        variant.index_width,
        variant.weighted,
        variant.aligned,
    )


def has_short(variant: Variant) -> bool:
    """Whether another variant serves short bags with otherwise equal axes."""
    return _but_shape(variant) in _short_thresholds()


def mean_length_below(variant: Variant) -> int:
    """The mean bag length below which the short variant is chosen; a small one where there is no such variant."""
    return _short_thresholds().get(_but_shape(variant), 4)
