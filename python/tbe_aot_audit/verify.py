"""Whether a build is what was built: every check looks at bytes, and a finding names what it found wrong.

What the chain is: RECORD and the bill of materials have the hash of every file of a distribution; the library has the hash of each pack's
index and the id of the build, which is a hash over the manifest; a pack's index has the hash of every cubin; a cubin says what it is itself.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from .archive import archive_problems
from .cubin import Cubin, read_cubin
from .document import Document, Part
from .errors import AuditError
from .facts import fact_problems
from .library import Library, LibraryKernel
from .manifest import Arch, Kernel, Manifest, Variant, computed_build_id
from .names import is_plain
from .pack import Pack
from .provenance import metadata_problems, provenance_problems, read_build_record, shipped
from .record import record_problems, unknown_modules
from .source import LIBRARY, MANIFEST, Source, WheelFiles
from .text import read_json, visible

Status = Literal["passed", "failed", "not applicable"]
FULL_PROFILE = "full"
# Of equal findings, such as one per variant of a wrong table, so many are listed.
MOST_LISTED = 20
# What the build needs between its stages is no artifact.
_WORK_FOLDER = ".work/"

# The least driver for cubins of a major version of CUDA's tools, and for an arch: NVIDIA's CUDA release notes and compatibility guide.
_DRIVER_OF_TOOLKIT = {12: (525, 60, 13), 13: (580, 65, 6)}
_DRIVER_OF_CAPABILITY = {90: (525, 60, 13), 100: (570, 26), 103: (575, 51, 3), 120: (570, 26)}


class Finding(Part):
    """One thing that is wrong: the check that found it, the file, cubin or variant that it is about, and a sentence."""

    check: str
    subject: str
    message: str


class Check(Part):
    """One check: what it looked at and how it ended; ``note`` says why it does not apply, or what it learned."""

    name: str
    title: str
    status: Status
    checked: int
    note: str
    findings: list[Finding]


class Verification(Document):
    """The result of ``verify``."""

    document: Literal["verify"] = "verify"
    source: str
    kind: str
    sha256: str | None
    build_id: str | None
    ok: bool
    # Checks that had nothing to compare with where there should be something: what they would find is not ruled out.
    unchecked: list[str]
    verdict: str
    checks: list[Check]


class _NotApplicableError(Exception):
    """The check has nothing to look at; the message says why. ``lacking``: a whole build would have it."""

    def __init__(self, reason: str, *, lacking: bool = False) -> None:
        super().__init__(reason)
        self.lacking = lacking


@dataclass
class _Progress:
    """What a check counts and notes while it runs."""

    checked: int = 0
    note: str = ""
    lacking: bool = False


@dataclass
class _Context:
    """A source and what is read from it; what cannot be read is the finding of one check, and others do not apply then."""

    source: Source
    sha256: str | None
    progress: _Progress = field(default_factory=_Progress)
    _cubins: dict[tuple[str, int], Cubin | AuditError] = field(default_factory=dict)

    def _or_not(self, read: Callable[[], object], what: str) -> None:
        try:
            read()
        except AuditError:
            raise _NotApplicableError(f"{what} cannot be read") from None

    @property
    def manifest(self) -> Manifest:
        self._or_not(lambda: self.source.manifest, "the manifest")
        return self.source.manifest

    @property
    def library(self) -> Library:
        _need_library(self.source)
        self._or_not(lambda: self.source.library, "the library")
        return self.source.library

    @property
    def distribution(self) -> str:
        """The ``.dist-info`` folder."""
        source = self.source
        if source.kind == "artifacts":
            raise _NotApplicableError("no distribution yet")
        if source.distribution is not None:
            return source.distribution
        if source.kind == "wheel":
            raise AuditError("it has no .dist-info folder, so nothing says what its files must be")
        raise _NotApplicableError("no .dist-info here: a part of a distribution, or a source tree", lacking=True)  # fmt: skip

    @cached_property
    def readable_packs(self) -> dict[str, Pack]:
        """The packs of the manifest by arch, without those that cannot be read."""
        found = {arch: self._pack(entry.pack) for arch, entry in self.manifest.archs.items()}
        return {arch: pack for arch, pack in found.items() if pack is not None}

    def _pack(self, file: str) -> Pack | None:
        try:
            return self.source.pack(file)
        except AuditError:
            return None

    @property
    def packs(self) -> dict[str, Pack]:
        if self.source.kind == "manifest":
            raise _NotApplicableError("a manifest alone: no packs here", lacking=True)
        if not self.readable_packs:
            raise _NotApplicableError("no pack can be read")
        return self.readable_packs

    def cubin(self, arch: str, blob: int) -> Cubin | AuditError:
        """What a cubin says about itself, or why it cannot be read; each is read once."""
        key = (arch, blob)
        if key not in self._cubins:
            pack = self.packs[arch]
            try:
                data = pack.cubin(blob)
                self._cubins[key] = read_cubin(data, f"cubin {blob} of {pack.where}")
            except AuditError as error:
                self._cubins[key] = error
        return self._cubins[key]

    def built(self) -> Iterator[tuple[Kernel, Variant, Cubin]]:
        """Every built variant whose cubin can be read, with its kernel; each is counted."""
        packs = self.packs
        for name, variant, _ in self.manifest.built():
            if variant.arch not in packs:
                continue
            found = self.cubin(variant.arch, variant.blob)
            if isinstance(found, Cubin):
                self.progress.checked += 1
                yield self.manifest.kernels[name], variant, found


_Problems = Iterator[tuple[str, str]]


def _named(variant: Variant) -> str:
    return f"{variant.name} on {variant.arch}"


def _need_library(source: Source) -> None:
    if source.kind == "artifacts":
        raise _NotApplicableError("no library here: it is compiled later")
    if source.kind == "manifest":
        raise _NotApplicableError("a manifest alone: no library here", lacking=True)


def _wheel(source: Source) -> WheelFiles:
    if not isinstance(source.files, WheelFiles):
        raise _NotApplicableError("for wheels only")
    return source.files


def _hash(context: _Context) -> _Problems:
    """The wheel's own hash, as an index or a release page has it."""
    wheel = _wheel(context.source)
    if context.sha256 is None:
        raise _NotApplicableError("no hash was named: --sha256")
    context.progress.checked = 1
    found, named = hashlib.sha256(wheel.data).hexdigest(), context.sha256.lower()
    if found != named:
        yield context.source.path.name, f"its SHA-256 is {found}, not {named}"


def _archive(context: _Context) -> _Problems:
    """The archive: every byte belongs to a member, what is said twice agrees, and names are unique and stay in the wheel's folders."""
    wheel = _wheel(context.source)
    context.progress.checked = len(wheel.data)
    for member, problem in archive_problems(
        wheel.data, context.source.distribution, wheel.contents
    ):
        yield member or context.source.path.name, problem


def _record(context: _Context) -> _Problems:
    """Every file of the distribution has the hash that RECORD lists, and no other file is there."""
    source, distribution = context.source, context.distribution
    record = source.files.read(f"{distribution}/RECORD")
    context.progress.checked = sum(1 for _ in record.splitlines())
    yield from record_problems(source, distribution)


def _bytecode(context: _Context) -> _Problems:
    """Compiled modules in __pycache__, which Python runs instead of a module's source, have the hash that RECORD lists."""
    if context.source.kind != "package":
        raise _NotApplicableError("for installed packages only")
    unknown = unknown_modules(context.source, context.distribution)
    if unknown:
        raise _NotApplicableError(
            f"RECORD has no hash of {len(unknown)}, which the installer or Python made: delete __pycache__, and Python makes them anew",
            lacking=True,
        )
    yield from ()


def _metadata(context: _Context) -> _Problems:
    """METADATA, WHEEL, the licences that METADATA names, build record and bill of materials are there."""
    context.progress.checked = 1
    yield from metadata_problems(context.source, context.distribution)


def _artifacts(context: _Context) -> _Problems:
    """Every file of a folder of artifacts has the hash that checksums.json lists, and no other file is there."""
    source = context.source
    if source.kind != "artifacts":
        raise _NotApplicableError("for folders of artifacts only")
    name = "checksums.json"
    sealed = checksums(source.files.read(name), source.where(name))
    context.progress.checked = len(sealed)
    for file, sha256 in sealed.items():
        if not is_plain(file):
            yield file, f"{name} names it, but no build gives a file this name"
        elif not source.files.has(file):
            yield file, f"{name} names it, but it is missing"
        elif source.files.sha256(file) != sha256:
            yield file, f"changed: its bytes are not those of {name}"
    for file in source.files.names():
        if file not in {*sealed, name} and not file.startswith(_WORK_FOLDER):
            yield file, f"{name} does not name it"


def _manifest(context: _Context) -> _Problems:
    """The manifest can be read, and its build id is the hash of the rest of it."""
    source = context.source
    try:
        manifest = source.manifest
    except AuditError as error:
        yield MANIFEST, str(error)
        return
    context.progress.checked = len(manifest.variants)
    computed = computed_build_id(source.manifest_bytes)
    if computed != manifest.build_id:
        yield (
            MANIFEST,
            f"changed: it says build {manifest.build_id}, but its content is that of {computed}",
        )


def _library(context: _Context) -> _Problems:
    """The dispatch tables in the library are those of the manifest: packs, kernels, cells, variants."""
    _need_library(context.source)
    try:
        library = context.source.library
    except AuditError as error:
        yield LIBRARY, str(error)
        return
    manifest = context.manifest
    context.progress.checked = sum(
        len(variants) for kernel in library.kernels for variants in kernel.variants.values()
    )
    context.progress.note = f"build {library.build_id[:16]}"
    if (library.build_id, library.profile) != (manifest.build_id, manifest.profile):
        yield (
            LIBRARY,
            (
                f"it was built for build {library.build_id} ({library.profile}), the manifest is of build"
                f" {manifest.build_id} ({manifest.profile})"
            ),
        )
    listed = {arch.name: arch for arch in library.archs}
    for name in sorted({*listed, *manifest.archs}):
        if name not in listed or name not in manifest.archs:
            yield LIBRARY, f"arch {name} is in {'it' if name in listed else 'the manifest'} alone"
            continue
        entry, arch = listed[name], manifest.archs[name]
        if (entry.pack, entry.index_sha256) != (arch.pack, arch.index_sha256):
            yield (
                LIBRARY,
                f"it accepts another {arch.pack}: index {entry.index_sha256}, the manifest says {arch.index_sha256}",
            )
        if entry.compute_capability != arch.compute_capability:
            yield (
                LIBRARY,
                f"{name} is for compute capability {entry.compute_capability}, the manifest says {arch.compute_capability}",
            )
    kernels = {kernel.name: kernel for kernel in library.kernels}
    for name in sorted({*kernels, *manifest.kernels}):
        if name not in kernels or name not in manifest.kernels:
            yield (
                LIBRARY,
                f"kernel {name} is in {'it' if name in kernels else 'the manifest'} alone",
            )
        else:
            yield from _library_kernel(kernels[name], manifest.kernels[name], manifest)


def _library_kernel(found: LibraryKernel, kernel: Kernel, manifest: Manifest) -> _Problems:
    axes = tuple((axis.name, tuple(axis.labels)) for axis in kernel.axes)
    params = tuple((param.name, param.type, param.offset, param.size) for param in kernel.params)
    pairs: tuple[tuple[str, object, object], ...] = (
        ("axes", found.axes, axes),
        ("parameters", found.params, params),
        ("size of the argument struct", found.args_size, kernel.args_size),
        ("constants", found.constants, tuple(kernel.constants)),
        ("cells", found.cells, tuple(kernel.cells)),
    )
    for what, in_library, in_manifest in pairs:
        if in_library != in_manifest:
            yield found.name, f"its {what} in the library are not those of the manifest"
    for arch in manifest.archs:
        ours = found.variants.get(arch, ())
        theirs = kernel.on(arch)
        if len(ours) != len(theirs):
            yield (
                found.name,
                f"the library has {len(ours)} variants on {arch}, the manifest {len(theirs)}",
            )
            continue
        for entry, variant in zip(ours, theirs, strict=True):
            code = variant.code
            expected = (
                variant.name,
                kernel.function if code is None else code.entry,
                variant.blob,
                variant.num_warps,
                0 if code is None else code.shared_bytes,
                tuple(variant.constants[name] for name in kernel.constants),
            )
            given = (
                entry.name,
                entry.entry,
                entry.blob,
                entry.num_warps,
                entry.shared_bytes,
                entry.constants,
            )
            if given != expected:
                yield _named(variant), f"the library has {given}, the manifest {expected}"


def _packs(context: _Context) -> _Problems:
    """Every pack is whole and the one that manifest and library name; nothing lies between its cubins."""
    source = context.source
    if source.kind == "manifest":
        raise _NotApplicableError("a manifest alone: no packs here", lacking=True)
    for name, entry in context.manifest.archs.items():
        context.progress.checked += 1
        try:
            pack = source.pack(entry.pack)
        except AuditError as error:
            yield entry.pack, str(error)
            continue
        yield from _pack_problems(name, entry, pack, source)
    known = {entry.pack for entry in context.manifest.archs.values()}
    folder = source.library_folder
    for file in source.files.names(*filter(None, [folder.rstrip("/")])):
        beside = file.startswith(folder) and "/" not in file.removeprefix(folder)
        if beside and file.endswith(".pack") and file.removeprefix(folder) not in known:
            yield file, "no arch of the manifest has this pack"


def _pack_problems(name: str, entry: Arch, pack: Pack, source: Source) -> _Problems:
    file = entry.pack
    if pack.arch != name:
        yield file, f"it holds cubins for {pack.arch}, not for {name}"
    if pack.index_sha256 != entry.index_sha256:
        yield (
            file,
            f"its index was changed or is another build's: SHA-256 {pack.index_sha256}, the manifest says {entry.index_sha256}",
        )
    if len(pack.blobs) != entry.blob_count or len(pack.data) != entry.file_size:
        yield (
            file,
            f"it has {len(pack.blobs)} cubins in {len(pack.data)} bytes, the manifest says {entry.blob_count} in {entry.file_size}",
        )
    for begin, end in pack.stray_bytes():
        yield file, f"bytes {begin} to {end} are padding between cubins and were changed"
    if source.files.sha256(source.name_of(file)) != entry.pack_sha256:
        yield file, "changed: its SHA-256 is not the manifest's"
    hashes = [blob.sha256 for blob in pack.blobs]
    if hashes != sorted(set(hashes)):
        yield file, "its cubins are not in the order of their hashes, each once"
    if source.kind not in {"artifacts", "manifest"}:
        try:
            accepted = {arch.name: arch.index_sha256 for arch in source.library.archs}
        except AuditError:
            return
        if accepted.get(name) != pack.index_sha256:
            yield file, f"the library would refuse it: it accepts index {accepted.get(name)}"


def _cubins(context: _Context) -> _Problems:
    """Every cubin has the hash of its pack's index, and that of each variant that uses it."""
    users: dict[tuple[str, int], list[str]] = {}
    for _, variant, _ in context.manifest.built():
        users.setdefault((variant.arch, variant.blob), []).append(variant.name)
    for arch, pack in context.packs.items():
        context.progress.checked += len(pack.blobs)
        for number in pack.changed():
            names = ", ".join(users.get((arch, number), ["no variant"]))
            yield (
                f"{names} on {arch}",
                f"its cubin, number {number} of {pack.where}, was changed: its SHA-256 is not {pack.blobs[number].sha256}",
            )
    for _, variant, code in context.manifest.built():
        if variant.arch not in context.packs:
            continue
        blobs = context.packs[variant.arch].blobs
        if not 0 <= variant.blob < len(blobs):
            yield _named(variant), f"its cubin is number {variant.blob} of {len(blobs)}"
        elif blobs[variant.blob].sha256 != code.cubin_sha256:
            yield (
                _named(variant),
                f"cubin {variant.blob} is {blobs[variant.blob].sha256}, the manifest says {code.cubin_sha256}",
            )


def _target(context: _Context) -> _Problems:
    """Every cubin is for its pack's compute capability, with the ELF ABI of the manifest."""
    for arch, pack in context.packs.items():
        entry = context.manifest.archs[arch]
        major, minor = entry.compute_capability
        for number in range(len(pack.blobs)):
            found = context.cubin(arch, number)
            context.progress.checked += 1
            if isinstance(found, AuditError):
                yield pack.where, str(found)
            elif (found.capability, found.specific) != (10 * major + minor, True):
                kind = "a" if found.specific else ""
                yield (
                    pack.where,
                    f"cubin {number} is for sm_{found.capability}{kind}, the pack for sm_{10 * major + minor}a",
                )
            elif found.elf_abi not in entry.elf_abi:
                yield (
                    pack.where,
                    f"cubin {number} has ELF ABI {found.elf_abi}, the manifest says {', '.join(entry.elf_abi)}",
                )


def _parameters(context: _Context) -> _Problems:
    """The parameters in every cubin lie where the argument struct has them."""
    for kernel, variant, cubin in context.built():
        expected = tuple((param.offset, param.size) for param in kernel.params)
        if cubin.params != expected:
            yield (
                _named(variant),
                f"parameters (offset, size) are {list(cubin.params)} in the cubin, {list(expected)} in the struct",
            )


def _resources(context: _Context) -> _Problems:
    """Entry, registers, stack, shared memory, barriers, size and block of every cubin are those of the manifest."""
    for _, variant, cubin in context.built():
        code = variant.code
        if code is None:  # `built` has none of these
            continue
        # ptxas counts what the system reserves with a kernel's own shared memory.
        reserved = context.manifest.archs[variant.arch].limits.reserved_shared_bytes
        own = replace(cubin, static_shared_bytes=max(0, cubin.static_shared_bytes - reserved))
        for name in (
            "entry",
            "registers",
            "stack_bytes",
            "static_shared_bytes",
            "barriers",
            "code_bytes",
            "elf_abi",
        ):
            found, recorded = getattr(own, name), getattr(code, name)
            if found != recorded:
                yield _named(variant), f"{name} is {found} in the cubin, {recorded} in the manifest"
        threads = 32 * variant.num_warps
        if cubin.block and (threads > cubin.block or (cubin.exact and threads != cubin.block)):
            yield (
                _named(variant),
                f"it is launched with {threads} threads a block, the cubin was compiled for {cubin.block}",
            )
        size = context.packs[variant.arch].blobs[variant.blob].size
        if size != code.cubin_bytes:
            yield (
                _named(variant),
                f"its cubin has {size} bytes, the manifest says {code.cubin_bytes}",
            )


def _facts(context: _Context) -> _Problems:
    """Occupancy follows from the other facts and the arch's limits, and every variant keeps its budget and its row loads."""
    manifest = context.manifest
    for _, variant, code in manifest.built():
        context.progress.checked += 1
        for problem in fact_problems(variant, code, manifest.archs[variant.arch].limits):
            yield _named(variant), problem


def _cells(context: _Context) -> _Problems:
    """Every cell has exactly one variant or a reason why it has none, and every variant has a cubin: nothing falls through."""
    manifest = context.manifest
    left_out = served = refused = elsewhere = 0
    for name, kernel in manifest.kernels.items():
        context.progress.checked += len(kernel.cells)
        reasons = {cell.cell: cell.reason for cell in kernel.excluded}
        archs = [arch for arch in manifest.archs if kernel.is_made_for(arch)]
        elsewhere += not archs
        for arch in manifest.archs:
            if bool(kernel.on(arch)) != (arch in archs):
                yield (
                    name,
                    f"it has {len(kernel.on(arch))} variants on {arch} and is made for {', '.join(kernel.archs)}",
                )
        for arch in archs:
            variants = kernel.on(arch)
            for cell, number in enumerate(kernel.cells):
                if number == -1 and reasons.get(cell):
                    refused += arch == archs[0]
                elif not 0 <= number < len(variants):
                    yield (
                        name,
                        f"cell {cell} ({kernel.axes_of(cell)}) on {arch} has neither a variant nor a reason",
                    )
                elif not variants[number].built:
                    left_out += 1
                    if manifest.profile == FULL_PROFILE:
                        yield (
                            _named(variants[number]),
                            f"cell {cell} leads to it, but the profile {FULL_PROFILE} left it out",
                        )
                else:
                    served += variants[number].cell != cell and arch == archs[0]
    notes = [f"{served} cells are served by another cell's variant"] if served else []
    notes += [f"{refused} are refused, each with a reason"] if refused else []
    notes += [f"{elsewhere} kernels are made for other archs"] if elsewhere else []
    if left_out:
        notes.append(
            f"{left_out} (on all archs) are left out by the profile {manifest.profile}: asking for one is an error"
        )
    context.progress.note = "; ".join(notes)


def _reachable(context: _Context) -> _Problems:
    """Every variant is reached by its own cell, and every cubin by a variant."""
    manifest = context.manifest
    for kernel in manifest.kernels.values():
        for arch in manifest.archs:
            for number, variant in enumerate(kernel.on(arch)):
                context.progress.checked += 1
                cell = variant.cell
                if kernel.cells[cell] != number:
                    yield _named(variant), f"its own cell, {cell}, does not lead to it"
                elif kernel.axes_of(cell) != variant.axes:
                    yield _named(variant), f"its axes are not those of its cell, {cell}"
    if context.source.kind == "manifest":
        return
    used = {(variant.arch, variant.blob) for _, variant, _ in manifest.built()}
    for arch, pack in context.readable_packs.items():
        for number in range(len(pack.blobs)):
            if (arch, number) not in used:
                yield pack.where, f"no variant uses cubin {number}"


def _driver(context: _Context) -> _Problems:
    """The driver that the manifest asks for knows every cubin's arch and tools."""
    notes = []
    for arch, pack in context.packs.items():
        entry = context.manifest.archs[arch]
        floor = driver_version(entry.least_driver)
        notes.append(f"{arch} from driver {entry.least_driver} on")
        for number in range(len(pack.blobs)):
            found = context.cubin(arch, number)
            if isinstance(found, AuditError):
                continue
            context.progress.checked += 1
            needed = max(
                _DRIVER_OF_TOOLKIT.get(found.toolkit // 10, (0,)),
                _DRIVER_OF_CAPABILITY.get(found.capability, (0,)),
            )
            if needed == (0,):
                yield (
                    pack.where,
                    f"cubin {number}: no driver is known for sm_{found.capability} by tools of CUDA {found.toolkit // 10}",
                )
            elif needed > floor:
                version = ".".join(map(str, needed))
                yield (
                    pack.where,
                    f"cubin {number} needs driver {version}, the manifest says {entry.least_driver}",
                )
    context.progress.note = ", ".join(notes)


def _provenance(context: _Context) -> _Problems:
    """The bill of materials has every file with its hash; it, the build record and the manifest agree on build, tools and sources."""
    source = context.source
    _ = context.distribution
    yield from provenance_problems(source, context.manifest)
    record = read_build_record(source)
    context.progress.checked = len(shipped(source))
    context.progress.note = (
        f"commit {record.source.revision or 'unknown'}, {record.native.compiler}"
    )


CHECKS: dict[str, Callable[[_Context], _Problems]] = {
    "hash": _hash,
    "archive": _archive,
    "record": _record,
    "bytecode": _bytecode,
    "metadata": _metadata,
    "artifacts": _artifacts,
    "manifest": _manifest,
    "library": _library,
    "packs": _packs,
    "cubins": _cubins,
    "target": _target,
    "parameters": _parameters,
    "resources": _resources,
    "facts": _facts,
    "cells": _cells,
    "reachable": _reachable,
    "driver": _driver,
    "provenance": _provenance,
}


def driver_version(text: str) -> tuple[int, ...]:
    """A driver's version such as 525.60.13 as numbers; (0,) if it is none."""
    return tuple(map(int, text.split("."))) if re.fullmatch(r"\d+(\.\d+)*", text) else (0,)


def checksums(data: bytes, where: str) -> dict[str, str]:
    """The hashes that a folder of artifacts was sealed with.

    Raises:
        AuditError: they are damaged.
    """
    document = read_json(data, where)
    sealed = document.get("sha256") if isinstance(document, dict) else None
    if not isinstance(sealed, dict) or not all(isinstance(value, str) for value in sealed.values()):
        raise AuditError(f"{where} is damaged: it lists no hashes")
    return sealed


def verify(source: Source, sha256: str | None = None) -> Verification:
    """Run every check on a build.

    Args:
        source: the build.
        sha256: the hash that a wheel must have as a whole, if known.
    """
    context = _Context(source, sha256)
    checks = []
    unchecked = []
    for name, check in CHECKS.items():
        checks.append(_run(name, check, context))
        unchecked += [name] if context.progress.lacking else []
    try:
        build_id = source.manifest.build_id
    except AuditError:
        build_id = None
    count = sum(len(check.findings) for check in checks)
    wheel = source.files.data if isinstance(source.files, WheelFiles) else None
    return Verification(
        source=str(source),
        kind=source.kind,
        sha256=None if wheel is None else hashlib.sha256(wheel).hexdigest(),
        build_id=build_id,
        ok=not count,
        unchecked=unchecked,
        verdict=_verdict(source, count, unchecked, sha256),
        checks=checks,
    )


def _verdict(source: Source, findings: int, unchecked: list[str], sha256: str | None) -> str:
    if findings:
        return f"{findings} finding{'s' if findings > 1 else ''}: do not use it."
    if unchecked:
        return f"Nothing wrong was found, but it was not all looked at: {', '.join(unchecked)} had nothing to compare with."
    if sha256 is not None:
        return "It is what was built, and has the hash that was named."
    named = " --sha256 compares it with its release." if source.kind == "wheel" else ""
    return f"It is what was built, by its own hashes.{named}"


def _run(name: str, check: Callable[[_Context], _Problems], context: _Context) -> Check:
    context.progress = _Progress()
    findings: list[Finding] = []
    status: Status = "passed"
    note = ""
    try:
        for subject, message in check(context):
            findings.append(Finding(check=name, subject=visible(subject), message=visible(message)))
    except _NotApplicableError as reason:
        note = str(reason)
        status = "not applicable"
        context.progress.lacking = reason.lacking
    except AuditError as error:
        findings.append(
            Finding(check=name, subject=str(context.source), message=visible(str(error)))
        )
    if findings:
        status = "failed"
    return Check(
        name=name,
        title=(check.__doc__ or "").strip(),
        status=status,
        checked=context.progress.checked,
        note=note or context.progress.note,
        findings=findings,
    )
