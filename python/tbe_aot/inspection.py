"""What this build holds, and loading kernels ahead of the first call."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from ._library import FOLDER
from ._operator_rules import AXES, OPTIMIZERS

# As the launcher and the specs name them.
WEIGHT_DTYPES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
# As kernels in CUDA C++ number them.
DTYPE_NUMBERS = {"fp32": 0, "fp16": 1, "bf16": 2}
BOUNDS_KERNELS = ("check_offsets", "repair_offsets", "check_indices")
TRANSPOSING_KERNELS = ("linearise_lookups", "sort_pass", "find_runs")


def launcher() -> ModuleType:
    """The native module ``_launcher``; the operators work without it.

    Raises:
        ImportError: it was not built for this Python.
    """
    try:
        from . import _launcher
    except ImportError as error:
        raise ImportError(
            f"tbe_aot._launcher is not there for this Python ({error}): looking up works without it, but explain and"
            " preload need the wheel that was built for this Python version"
        ) from error
    module: ModuleType = _launcher
    return module


@dataclass(frozen=True)
class ArchInfo:
    """The kernels of one arch: variants built, distinct cubins, bytes of the pack."""

    name: str
    variants: int
    cubins: int
    pack_bytes: int


@dataclass(frozen=True)
class BuildInfo:
    """What is installed: the build's identity, its profile and its archs."""

    build_id: str
    profile: str
    archs: tuple[ArchInfo, ...]
    kernels: tuple[str, ...]


def read_manifest() -> dict[str, Any]:
    """The manifest beside the library, as data.

    Raises:
        RuntimeError: it is missing or damaged.
    """
    path = FOLDER / "manifest.json"
    try:
        manifest: dict[str, Any] = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise RuntimeError(f"{path} cannot be read ({error}); reinstall tbe-aot") from error
    return manifest


def build_info() -> BuildInfo:
    """What this installation holds, from its manifest."""
    manifest = read_manifest()
    variants = [v for kernel in manifest["kernels"].values() for v in kernel["variants"]]
    archs = [
        ArchInfo(
            name=name,
            variants=sum(v["built"] for v in variants if v["arch"] == name),
            cubins=arch["blob_count"],
            pack_bytes=arch["file_size"],
        )
        for name, arch in sorted(manifest["archs"].items())
    ]
    return BuildInfo(
        build_id=manifest["build_id"],
        profile=manifest["profile"],
        archs=tuple(archs),
        kernels=tuple(sorted(manifest["kernels"])),
    )


def _labels(kernel: str, axis: str, values: Sequence[bool | int | str]) -> list[str]:
    """The labels of axis values, as ``_launcher`` names them."""
    labels = next(k.axes[axis] for k in launcher().kernels() if k.name == kernel)
    return [labels[AXES[kernel][axis].index(value)] for value in values]


def _small_table_kernels(
    weights_dtype: torch.dtype,
    layout: list[int],
    formula: str | None,
    gradients: tuple[str, ...],
    checked: tuple[int, ...],
) -> dict[str, dict[str, tuple[int | str, ...]]]:
    """The kernels of a table that small_tables.cpp calls small, if the layout has one.

    ``formula``: also those that update it, from ``gradients`` of these dtypes; ``checked``: those that look up, with (1) and without (0) a check.
    """
    _, features, width, _, _, rows, bucket, *_ = layout
    limits = [limit for limit in AXES["forward_small_table"]["rows"] if rows <= int(limit)]
    known = bucket in AXES["forward_small_table"]["bucket"]
    if weights_dtype == torch.float32 or features != 1 or width < 64 or not known or not limits:
        return {}
    bf16 = int(weights_dtype == torch.bfloat16)
    kernels: dict[str, dict[str, tuple[int | str, ...]]] = {
        "forward_small_table": {
            "bf16": (bf16,),
            "bucket": (bucket,),
            "rows": (limits[0],),
            "checked": checked,
        }
    }
    # The least of the forward's limits is the update's.
    if formula is not None and limits[0] == min(AXES["forward_small_table"]["rows"]):
        dtype = (WEIGHT_DTYPES[weights_dtype],)
        if bucket in AXES["sum_small_table"]["bucket"]:
            numbers = tuple(DTYPE_NUMBERS[gradient] for gradient in gradients)
            kernels["sum_small_table"] = {"gradient_dtype": numbers, "bucket": (bucket,)}
            kernels["update_small_table"] = {
                "weight_dtype": dtype,
                "bucket": (bucket,),
                "optimizer": (formula,),
            }
    return kernels


def kernels_of(
    weights_dtype: torch.dtype,
    layout: list[int],
    *,
    bounds_check: bool,
    fused_checks: str = "auto",
    optimizer: str | None = None,
    output_dtype: torch.dtype = torch.float32,
    work_stealing: str = "never",
) -> dict[str, dict[str, list[str]]]:
    """The kernels that lookups in some tables can launch, each with the labels of the axes that are known beforehand.

    The arguments are those of ``preload``.
    """
    kernels: dict[str, dict[str, tuple[int | str, ...]]] = {}
    weights = (WEIGHT_DTYPES[weights_dtype],)
    # A gradient of a dtype that has no kernel for these weights is cast to float32.
    gradients = tuple({"fp32", WEIGHT_DTYPES[output_dtype]})
    buckets = tuple(sorted(set(layout[6::3])))
    fused = bounds_check and fused_checks != "never"
    checked = (False, True) if fused else (False,)
    kernels["forward"] = {"weight_dtype": weights, "bucket": buckets, "checked": checked}
    formula = None if optimizer is None else OPTIMIZERS[optimizer].kernel_formula
    small_checked = (0, 1) if fused else (0,)
    kernels |= _small_table_kernels(weights_dtype, layout, formula, gradients, small_checked)
    stealing = tuple(b for b in buckets if b in AXES["forward_work_stealing"]["bucket"])
    if work_stealing == "always" and weights_dtype != torch.float32 and stealing:
        bf16 = int(weights_dtype == torch.bfloat16)
        kernels["forward_work_stealing"] = {"bf16": (bf16,), "bucket": stealing}
    if bounds_check:
        kernels |= {kernel: {} for kernel in BOUNDS_KERNELS}
    kernels["per_sample_weights_gradient"] = {
        "weight_dtype": weights,
        "gradient_dtype": gradients,
        "bucket": buckets,
    }
    if optimizer is not None:
        # Keys are global rows; one more stands for pruned lookups.
        keys = (32 if layout[4] + 1 < 2**31 else 64,)
        kernels |= {kernel: {"key_width": keys} for kernel in TRANSPOSING_KERNELS}
        kernels["sum_chunks"] = {"gradient_dtype": gradients, "bucket": buckets}
        kernels["update_long_runs"] = {
            "weight_dtype": weights,
            "bucket": buckets,
            "optimizer": (OPTIMIZERS[optimizer].kernel_formula,),
        }
        kernels["update_short_runs"] = kernels["per_sample_weights_gradient"] | {
            "optimizer": (OPTIMIZERS[optimizer].kernel_formula,)
        }
        one_launch = tuple(b for b in buckets if b in AXES["sum_and_update_long_runs"]["bucket"])
        if formula == "rowwise" and one_launch:
            kernels["sum_and_update_long_runs"] = {
                "weight_dtype": weights,
                "gradient_dtype": gradients,
                "bucket": one_launch,
            }
        kernels["advance_counters"] = {}
    return {
        kernel: {axis: _labels(kernel, axis, values) for axis, values in axes.items()}
        for kernel, axes in kernels.items()
    }


def preload(
    weights: torch.Tensor,
    layout: list[int],
    *,
    bounds_check: bool,
    fused_checks: str = "auto",
    optimizer: str | None = None,
    output_dtype: torch.dtype = torch.float32,
    work_stealing: str = "never",
) -> list[str]:
    """Load every kernel of this build that lookups in these tables can launch, on the weights' device; none on a CPU.

    So are those of the per-sample weights' gradient, which takes no optimizer.

    The first lookup then loads nothing, and it may be captured into a CUDA graph.

    Args:
        weights: the tables.
        layout: as for the operators.
        bounds_check: also those of ``check_bounds`` and ``forward_checked``.
        fused_checks: as in ``forward_checked``.
        optimizer: also those of a backward that trains the tables with it.
        output_dtype: of the lookups that are trained, and so of their gradient.
        work_stealing: the operator's argument.

    Returns:
        The names of the variants, which are loaded now.

    Raises:
        RuntimeError: the device is none that this build has kernels for.
        ImportError: see ``launcher``.
    """
    if not weights.is_cuda:
        return []
    kernels = kernels_of(
        weights.dtype,
        layout,
        bounds_check=bounds_check,
        fused_checks=fused_checks,
        optimizer=optimizer,
        output_dtype=output_dtype,
        work_stealing=work_stealing,
    )
    loaded: list[str] = []
    for kernel, axes in kernels.items():
        # Not every variant has to be in a build: a profile may leave some out.
        loaded += launcher().preload(weights.get_device(), kernel, axes, built_only=True)
    return loaded
