"""Which variants a build holds, and everything about one of them."""

from __future__ import annotations

import difflib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from .document import Document, Part
from .errors import AuditError
from .manifest import Code, Kernel, Limits, Manifest, Param, Toolchain, Variant
from .source import Source

# What `list` can sort by: the order, and whether the largest comes first.
SORTS: dict[str, Callable[[Code], float]] = {
    "registers": lambda code: -code.registers,
    "occupancy": lambda code: code.occupancy.percent,
    "size": lambda code: -code.cubin_bytes,
    "shared": lambda code: -(code.shared_bytes + code.static_shared_bytes),
    "instructions": lambda code: -code.sass.instructions,
}


class Entry(Part):
    """A variant with its kernel's name."""

    kernel: str
    variant: Variant


class ArchSummary(Part):
    """One arch of a build; ``variants`` of them are built, ``left_out`` are not."""

    name: str
    variants: int
    left_out: int
    cubins: int
    pack_bytes: int
    least_driver: str
    elf_abi: list[str]


class Listing(Document):
    """The result of ``list`` and of ``info``, which leaves ``variants`` empty."""

    document: Literal["list"] = "list"
    source: str
    kind: str
    build_id: str
    profile: str
    toolchain: Toolchain
    archs: list[ArchSummary]
    kernels: dict[str, str]
    variants: list[Entry]


class Shown(Document):
    """The result of ``show``: a variant, where its code lies, and what its kernel is."""

    document: Literal["show"] = "show"
    source: str
    build_id: str
    kernel: str
    summary: str
    language: str
    source_sha256: str
    params: list[Param]
    args_size: int
    served_cells: list[dict[str, bool | int | str]]
    limits: Limits
    toolchain: Toolchain
    variant: Variant
    sass: str | None


def summary_of(source: Source) -> Listing:
    """What a build is, without its variants."""
    manifest = source.manifest
    return Listing(
        source=str(source),
        kind=source.kind,
        build_id=manifest.build_id,
        profile=manifest.profile,
        toolchain=manifest.toolchain,
        archs=[
            ArchSummary(
                name=name,
                variants=sum(1 for _ in manifest.built(name)),
                left_out=sum(v.arch == name and not v.built for _, v in manifest.variants),
                cubins=arch.blob_count,
                pack_bytes=arch.file_size,
                least_driver=arch.least_driver,
                elf_abi=arch.elf_abi,
            )
            for name, arch in sorted(manifest.archs.items())
        ],
        kernels={name: kernel.summary for name, kernel in sorted(manifest.kernels.items())},
        variants=[],
    )


def list_variants(
    source: Source,
    *,
    kernel: str = "",
    arch: str = "",
    axes: Mapping[str, str] | None = None,
    sort: str = "",
    left_out: bool = False,
) -> Listing:
    """The variants of a build.

    Args:
        source: the build.
        kernel: only this kernel's.
        arch: only this arch's.
        axes: only those with these labels or values, by axis.
        sort: one of ``SORTS``; empty for the order of names.
        left_out: those that the build leaves out as well.

    Raises:
        AuditError: the build has no such kernel, arch, axis or value.
    """
    manifest = source.manifest
    _known("kernel", kernel, manifest.kernels)
    _known("arch", arch, manifest.archs)
    wanted = dict(axes or {})
    for axis, value in wanted.items():
        _known_axis(manifest, kernel, axis, value)
    entries = [
        Entry(kernel=name, variant=variant)
        for name, variant in manifest.variants
        if kernel in {"", name}
        and arch in {"", variant.arch}
        and (variant.built or left_out)
        and _has_axes(manifest.kernels[name], variant, wanted)
    ]
    entries.sort(key=lambda entry: (entry.variant.name, entry.variant.arch))
    if sort:
        _known("sort", sort, SORTS)
        order = SORTS[sort]
        entries.sort(key=lambda e: order(e.variant.code) if e.variant.code else float("inf"))
    return summary_of(source).model_copy(update={"variants": entries})


def _known(what: str, name: str, names: Mapping[str, object]) -> None:
    if name and name not in names:
        raise AuditError(f"{what} {name!r}: this build has {', '.join(sorted(names))}")


def _labels(kernel: Kernel) -> dict[str, dict[str, bool | int | str]]:
    """By axis its values by what a user may call them: label or value."""
    found = {}
    for axis in kernel.axes:
        names = {str(value).lower(): value for value in axis.values}
        found[axis.name] = names | dict(zip(axis.labels, axis.values, strict=True))
    return found


def _known_axis(manifest: Manifest, kernel: str, axis: str, value: str) -> None:
    kernels = [manifest.kernels[kernel]] if kernel else list(manifest.kernels.values())
    having = [_labels(k)[axis] for k in kernels if axis in _labels(k)]
    if not having:
        names = sorted({axis.name for k in kernels for axis in k.axes})
        raise AuditError(f"axis {axis!r}: {kernel or 'this build'} has {', '.join(names)}")
    if not any(value in labels for labels in having):
        names = sorted({label for labels in having for label in labels})
        raise AuditError(f"axis {axis} has no value {value!r}: {', '.join(names)}")


def _has_axes(kernel: Kernel, variant: Variant, wanted: Mapping[str, str]) -> bool:
    labels = _labels(kernel)
    return all(
        axis in labels and value in labels[axis] and variant.axes[axis] == labels[axis][value]
        for axis, value in wanted.items()
    )


def find_variant(manifest: Manifest, name: str, arch: str = "") -> tuple[str, Variant]:
    """The kernel and the variant of a name, or of a part of it that only one variant has.

    Args:
        manifest: of the build.
        name: the variant.
        arch: its arch; the first that has it if empty.

    Raises:
        AuditError: there is none or more than one; the message names the nearest.
    """
    _known("arch", arch, manifest.archs)
    names = sorted({variant.name for _, variant in manifest.variants})
    if name not in names:
        parts = [candidate for candidate in names if name in candidate]
        if len(parts) != 1:
            near = parts or difflib.get_close_matches(name, names, n=5, cutoff=0.4)
            shown = ", ".join(near[:5]) + (" ..." if len(near) > 5 else "")
            count = f"{len(parts)} variants match" if parts else "no variant is called"
            raise AuditError(f"{count} {name!r}" + (f"; the nearest: {shown}" if near else ""))
        (name,) = parts
    for kernel, variant in manifest.variants:
        if variant.name == name and arch in {"", variant.arch}:
            return kernel, variant
    raise AuditError(f"{name} is not built for {arch}")


def show(source: Source, name: str, *, arch: str = "", sass: bool = False) -> Shown:
    """Everything about a variant.

    Args:
        source: the build.
        name: the variant, or a part of its name that no other has.
        arch: which arch's; the first that has it if empty.
        sass: its machine code as well, which takes NVIDIA's nvdisasm.

    Raises:
        AuditError: there is no such variant, or its machine code cannot be shown.
    """
    manifest = source.manifest
    kernel_name, variant = find_variant(manifest, name, arch)
    kernel = manifest.kernels[kernel_name]
    number = next(n for n, v in enumerate(kernel.on(variant.arch)) if v.name == variant.name)
    return Shown(
        source=str(source),
        build_id=manifest.build_id,
        kernel=kernel_name,
        summary=kernel.summary,
        language=kernel.language,
        source_sha256=kernel.source_sha256,
        params=kernel.params,
        args_size=kernel.args_size,
        served_cells=[
            kernel.axes_of(cell)
            for cell, served_by in enumerate(kernel.cells)
            if served_by == number and cell != variant.cell
        ],
        limits=manifest.archs[variant.arch].limits,
        toolchain=manifest.toolchain,
        variant=variant,
        sass=machine_code(source, variant) if sass else None,
    )


def disassembler() -> Path:
    """NVIDIA's nvdisasm: ``TBE_AOT_NVDISASM``, on PATH, or in an installed Triton, which is not imported.

    Raises:
        AuditError: there is none.
    """
    named = os.environ.get("TBE_AOT_NVDISASM") or shutil.which("nvdisasm")
    if named:
        return Path(named)
    triton = find_spec("triton")
    if triton is not None and triton.origin is not None:
        tool = Path(triton.origin).parent / "backends" / "nvidia" / "bin" / "nvdisasm"
        if tool.is_file():
            return tool
    raise AuditError(
        "machine code needs NVIDIA's nvdisasm: it comes with the CUDA toolkit and with Triton's wheel; put it on PATH or name it in"
        " TBE_AOT_NVDISASM"
    )


def machine_code(source: Source, variant: Variant) -> str:
    """The annotated machine code of a variant.

    Raises:
        AuditError: it is not built, its pack cannot be read, or nvdisasm is missing or fails.
    """
    if variant.code is None:
        raise AuditError(
            f"{variant.name} on {variant.arch} is left out of this build: it has no code"
        )
    if source.kind == "manifest":
        raise AuditError(
            "a manifest alone holds no code: name a wheel, a package or a folder of artifacts"
        )
    tool = disassembler()
    cubin = source.pack(source.manifest.archs[variant.arch].pack).cubin(variant.blob)
    with tempfile.TemporaryDirectory(prefix="tbe-aot-audit-") as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        command = [str(tool), "--print-code", str(path)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            raise AuditError(f"{tool} does not run: {error}") from None
    if done.returncode:
        raise AuditError(f"{tool} failed: {done.stderr.strip()}")
    return done.stdout
