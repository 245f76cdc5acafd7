"""The seal of an artifact folder: a list of its files with their hashes, and the checks that it allows."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from .errors import BuildError
from .files import readable_json, sha256_hex, write_if_changed
from .pack import decode_index

CHECKSUMS_FILE = "checksums.json"
# What the build needs between its stages is no artifact.
WORK_FOLDER = ".work"


@dataclass(frozen=True)
class CheckedArtifacts:
    """What ``check_artifacts`` verified."""

    build_id: str
    profile: str
    archs: list[str]
    files: int
    cubins: int
    variants: int


def artifact_hashes(folder: Path) -> dict[str, str]:
    """The sha256 of every artifact by its path in the folder."""
    paths = sorted(
        path.relative_to(folder)
        for path in folder.rglob("*")
        if path.is_file() and path.name != CHECKSUMS_FILE
    )
    return {
        path.as_posix(): sha256_hex((folder / path).read_bytes())
        for path in paths
        if path.parts[0] != WORK_FOLDER
    }


def seal(folder: Path) -> None:
    """Write the checksums of a finished build."""
    write_if_changed(folder / CHECKSUMS_FILE, readable_json({"sha256": artifact_hashes(folder)}))


def read_checksums(folder: Path) -> dict[str, str]:
    """The hashes that a folder was sealed with.

    Raises:
        BuildError: the folder holds no finished build.
    """
    try:
        sealed = json.loads((folder / CHECKSUMS_FILE).read_bytes())["sha256"]
    except (FileNotFoundError, ValueError, KeyError):
        raise BuildError(f"{folder} holds no finished build: {CHECKSUMS_FILE} is missing") from None
    return {str(name): str(sha256) for name, sha256 in sealed.items()}


def changed_files(folder: Path, sealed: dict[str, str]) -> list[str]:
    """Sealed files that are missing or have other bytes."""
    found = artifact_hashes(folder)
    return [name for name, sha256 in sealed.items() if found.get(name) != sha256]


def check_artifacts(folder: Path) -> CheckedArtifacts:
    """Verify a finished build: its files, its packs, every cubin, and that manifest and packs agree.

    Raises:
        BuildError: names what is missing or differs.
    """
    sealed = read_checksums(folder)
    changed = changed_files(folder, sealed)
    if changed:
        raise BuildError(f"{folder}: missing or changed since the build: {', '.join(changed)}")
    manifest = json.loads((folder / "manifest.json").read_bytes())
    cubins = 0
    hashes: dict[str, list[str]] = {}
    for arch, entry in manifest["archs"].items():
        data = (folder / entry["pack"]).read_bytes()
        index = decode_index(data)
        if index.arch != arch or index.sha256 != entry["index_sha256"]:
            raise BuildError(f"{folder / entry['pack']}: not the pack of {arch} in the manifest")
        for sha256, offset, size in index.entries:
            if sha256_hex(data[offset : offset + size]) != sha256:
                raise BuildError(f"{folder / entry['pack']}: cubin {sha256} is damaged")
        hashes[arch] = [sha256 for sha256, _, _ in index.entries]
        cubins += len(index.entries)
    variants = 0
    for kernel in manifest["kernels"].values():
        for variant in kernel["variants"]:
            if not variant["built"]:
                continue
            variants += 1
            if hashes[variant["arch"]][variant["blob"]] != variant["cubin_sha256"]:
                raise BuildError(f"{folder}: {variant['name']} is not where the manifest says")
    return CheckedArtifacts(
        build_id=manifest["build_id"],
        profile=manifest["profile"],
        archs=list(manifest["archs"]),
        files=len(sealed),
        cubins=cubins,
        variants=variants,
    )


def compare(left: Path, right: Path) -> list[str]:
    """Files that two artifact folders do not have in common, byte by byte."""
    first, second = artifact_hashes(left), artifact_hashes(right)
    return sorted(name for name in {*first, *second} if first.get(name) != second.get(name))
