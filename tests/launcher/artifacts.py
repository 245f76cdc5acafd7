"""Artifacts for the launcher's tests: the real plan of the real kernels, with cubins that only the stand-in driver loads.

Nothing is compiled for a GPU, so every variant of the full plan can be there. A fake cubin is text that says what a
driver would read in a real one: the entry point and the size of each parameter.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from aot_build import operators
from aot_build.cubin import CubinParam, CubinRecord
from aot_build.emit import emit
from aot_build.files import write_if_changed
from aot_build.pack import PackReport, encode_pack
from aot_build.plan import KernelPlan, Plan, Variant
from aot_build.planner import make_plan

SPECS = Path(__file__).resolve().parents[2] / "kernel_specs"
ARCHS = ["sm90", "sm100"]
PROFILE = "partial"
# Left out, as a profile would.
MISSING = "forward__bf16_d2048_i32_weighted_generic_long_trusting"
# More than a kernel gets without asking for it.
LARGE_SHARED = {"repair_offsets__i32": 100_000, "repair_offsets__i64": 100_000}
SMALL_SHARED = 64


def fake_cubin(kernel: KernelPlan, variant: Variant, arch: str) -> bytes:
    sizes = " ".join(str(param.size) for param in kernel.params)
    text = f"fake cubin\n{kernel.function}\n{sizes}\n{variant.name} {arch}\n"
    # Many lengths, so that every way of padding for the hash occurs.
    return text.encode() + b"\0" * (1 + variant.cell % 64)


def _record(kernel: KernelPlan, variant: Variant, arch: str, cubin: bytes) -> CubinRecord:
    return CubinRecord(
        cubin_sha256=hashlib.sha256(cubin).hexdigest(),
        cubin_bytes=len(cubin),
        entry=kernel.function,
        registers=32,
        spill_bytes=0,
        stack_bytes=0,
        shared_bytes=LARGE_SHARED.get(variant.name, SMALL_SHARED),
        static_shared_bytes=0,
        num_warps=int(variant.builds[arch].options["num_warps"]),
        elf_abi="none",
        params=[
            CubinParam(ordinal=i, offset=param.offset, size=param.size)
            for i, param in enumerate(kernel.params)
        ],
    )


def _write_pack(plan: Plan, arch: str, folder: Path) -> PackReport:
    records, cubins = {}, {}
    for kernel in plan.kernels.values():
        if arch not in kernel.archs:
            continue
        for variant in kernel.variants:
            if variant.name == MISSING:
                continue
            cubin = fake_cubin(kernel, variant, arch)
            records[variant.name] = _record(kernel, variant, arch, cubin)
            cubins[records[variant.name].cubin_sha256] = cubin
    index, data = encode_pack(arch, cubins)
    write_if_changed(folder / f"{arch}.pack", data)
    return PackReport(
        arch=arch,
        file=f"{arch}.pack",
        sha256=hashlib.sha256(data).hexdigest(),
        index_sha256=hashlib.sha256(index).hexdigest(),
        size=len(data),
        blobs=sorted(cubins),
        records=records,
        machine_code={},
    )


def write_artifacts(folder: Path) -> None:
    """Packs, manifest and generated code, as the native build wants them."""
    plan = make_plan(SPECS, "full", ARCHS).model_copy(update={"profile": PROFILE})
    packs = {arch: _write_pack(plan, arch, folder) for arch in ARCHS}
    write_if_changed(folder / "manifest.json", b"{}\n")
    emit(plan, packs, "the launcher's tests", folder / "generated")
    operators.emit(SPECS, folder / "generated")
