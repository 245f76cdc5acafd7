"""The manifest stage: what the packs hold and how it was made, as JSON without times and paths."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .archs import ARCHS, Arch
from .conditions import AxisValue
from .files import canonical_json, readable_json, sha256_hex, write_if_changed
from .pack import PackReport
from .plan import KernelPlan, Plan, Variant
from .toolchain import (
    NVRTC_FLAGS,
    TRITON_FLAGS,
    nvrtc_version,
    ptxas_version,
    tool_version,
    triton_version,
)

SCHEMA_VERSION = 2


def make_manifest(plan: Plan, packs: Mapping[str, PackReport]) -> dict[str, Any]:
    """The manifest of a build; ``build_id`` is a hash over all of the rest."""
    manifest: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "profile": plan.profile,
        "toolchain": _toolchain(plan),
        "archs": {arch: _arch_entry(ARCHS[arch], packs[arch]) for arch in plan.archs},
        "optimizers": plan.optimizers,
        "kernels": {
            name: _kernel_entry(kernel, plan, packs) for name, kernel in plan.kernels.items()
        },
    }
    return {**manifest, "build_id": sha256_hex(canonical_json(manifest))}


def _toolchain(plan: Plan) -> dict[str, Any]:
    tools: dict[str, Any] = {
        "triton": triton_version(),
        "ptxas": {arch: ptxas_version(ARCHS[arch]) for arch in plan.archs},
        "nvdisasm": tool_version("nvdisasm"),
        "flags": list(TRITON_FLAGS),
    }
    if any(kernel.language == "cuda" for kernel in plan.kernels.values()):
        tools |= {"nvrtc": nvrtc_version(), "nvrtc_flags": list(NVRTC_FLAGS)}
    return tools


def _arch_entry(arch: Arch, pack: PackReport) -> dict[str, Any]:
    return {
        "compute_capability": [arch.major, arch.minor],
        "least_driver": arch.least_driver,
        "limits": asdict(arch.limits),
        "pack": pack.file,
        "pack_sha256": pack.sha256,
        "index_sha256": pack.index_sha256,
        "blob_count": len(pack.blobs),
        "file_size": pack.size,
        "elf_abi": sorted({record.elf_abi for record in pack.records.values()}),
    }


def _kernel_entry(
    kernel: KernelPlan, plan: Plan, packs: Mapping[str, PackReport]
) -> dict[str, Any]:
    archs = [arch for arch in plan.archs if arch in kernel.archs]
    return {
        "summary": kernel.summary,
        "archs": kernel.archs,
        "instead_of": kernel.instead_of,
        "serves": kernel.serves,
        "function": kernel.function,
        "language": kernel.language,
        "source_sha256": kernel.source_sha256,
        "axes": [axis.model_dump() for axis in kernel.axes],
        "params": [param.model_dump() for param in kernel.params],
        "args_size": kernel.args_size,
        "constants": kernel.launch_constants,
        "cells": kernel.cells,
        "excluded": [cell.model_dump() for cell in kernel.excluded],
        "variants": [
            _variant_entry(variant, arch, packs[arch])
            for variant in kernel.variants
            for arch in archs
        ],
    }


def _variant_entry(variant: Variant, arch: str, pack: PackReport) -> dict[str, Any]:
    build = variant.builds[arch]
    constants: dict[str, AxisValue] = {**build.kernel_constants, **build.launch_constants}
    entry: dict[str, Any] = {
        "name": variant.name,
        "arch": arch,
        "axes": variant.axes,
        "cell": variant.cell,
        "built": variant.name in pack.records,
        "blob": pack.blob_of(variant.name),
        "constants": constants,
        "num_stages": build.options["num_stages"],
        "maxnreg": build.options["maxnreg"],
        "enable_fp_fusion": build.options["enable_fp_fusion"],
        "row_loads": [wanted.model_dump() for wanted in build.row_loads],
        "budget": build.limits,
    }
    record = pack.records.get(variant.name)
    if record is None:
        return {**entry, "num_warps": build.options["num_warps"]}
    # The parameters in the cubin are those of the kernel: the pack stage compared them.
    measured = record.model_dump(exclude={"params", "static_shared_bytes"})
    return {**entry, **measured, **pack.machine_code[variant.name].model_dump()}


def write_manifest(plan: Plan, packs: Mapping[str, PackReport], out: Path) -> None:
    """Write manifest.json."""
    write_if_changed(out, readable_json(make_manifest(plan, packs)))
