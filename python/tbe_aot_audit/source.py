"""Where a build lies: a wheel, an installed package, a folder of artifacts, or a manifest alone."""

from __future__ import annotations

import importlib.util
import sys
import zipfile
import zlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Literal

from .errors import AuditError
from .library import Library, read_library
from .manifest import Manifest, parse_manifest
from .pack import Pack, parse_pack

Kind = Literal["wheel", "package", "artifacts", "manifest"]
PACKAGE = "tbe_aot"
MANIFEST = "manifest.json"
LIBRARY = "libtbe_aot.so"
DISTRIBUTION = "tbe_aot-*.dist-info"


class Files:
    """Named files: those of a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def names(self) -> list[str]:
        """All of them, sorted, relative to the root."""
        return sorted(
            path.relative_to(self.root).as_posix()
            for path in self.root.rglob("*")
            if path.is_file()
        )

    def has(self, name: str) -> bool:
        """Whether there is one of that name."""
        return (self.root / name).is_file()

    def read(self, name: str) -> bytes:
        """The bytes of one.

        Raises:
            AuditError: it is missing or cannot be read.
        """
        try:
            return (self.root / name).read_bytes()
        except OSError as error:
            raise AuditError(f"{self.root / name} cannot be read: {error.strerror}") from None


class WheelFiles(Files):
    """The files of a wheel, read without unpacking it.

    Raises:
        AuditError: the file is no zip archive.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._read: dict[str, bytes] = {}
        try:
            self.archive = zipfile.ZipFile(root)
        except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError) as error:
            raise AuditError(f"{root} is no wheel: {error}") from None

    def names(self) -> list[str]:
        """All members but folders."""
        return sorted(name for name in self.archive.namelist() if not name.endswith("/"))

    def has(self, name: str) -> bool:
        """Whether there is one of that name."""
        return name in self.archive.NameToInfo

    def read(self, name: str) -> bytes:
        """The bytes of one."""
        if not self.has(name):
            raise AuditError(f"{self.root} holds no {name}")
        # Several checks look at the large ones.
        if name not in self._read:
            self._read[name] = self._inflate(name)
        return self._read[name]

    def _inflate(self, name: str) -> bytes:
        try:
            return self.archive.read(name)
        except (
            zipfile.BadZipFile,
            zlib.error,
            EOFError,
            OSError,
            RuntimeError,
            NotImplementedError,
        ) as error:
            raise AuditError(f"{name} in {self.root} is damaged: {error}") from None


@dataclass(frozen=True)
class Source:
    """A build and its files.

    ``library_folder`` is where manifest, packs and library lie, relative to the files' root and with a slash at its end, or empty.
    """

    path: Path
    kind: Kind
    files: Files
    library_folder: str

    def __str__(self) -> str:
        return str(self.path)

    def name_of(self, name: str) -> str:
        """The path of a file that lies beside the library."""
        return f"{self.library_folder}{name}"

    def where(self, name: str) -> str:
        """A file's name for people."""
        return name if self.kind == "wheel" else str(self.files.root / name)

    @cached_property
    def manifest_bytes(self) -> bytes:
        """The bytes of the manifest."""
        name = self.path.name if self.kind == "manifest" else self.name_of(MANIFEST)
        return self.files.read(name)

    @cached_property
    def manifest(self) -> Manifest:
        """The manifest.

        Raises:
            AuditError: it is missing, of another version or damaged.
        """
        name = self.path.name if self.kind == "manifest" else self.name_of(MANIFEST)
        return parse_manifest(self.manifest_bytes, self.where(name))

    @cached_property
    def library(self) -> Library:
        """The dispatch tables of the library.

        Raises:
            AuditError: it is missing or damaged.
        """
        name = self.name_of(LIBRARY)
        return read_library(self.files.read(name), self.where(name))

    def pack(self, file: str) -> Pack:
        """A pack by its file name.

        Raises:
            AuditError: it is missing or damaged.
        """
        name = self.name_of(file)
        return parse_pack(self.files.read(name), self.where(name))

    @cached_property
    def distribution(self) -> str | None:
        """The name of the ``.dist-info`` folder; None where there is none."""
        if self.kind == "wheel":
            tops = {name.partition("/")[0] for name in self.files.names()}
            return next(
                (top for top in sorted(tops) if PurePosixPath(top).match(DISTRIBUTION)), None
            )
        if self.kind == "package":
            return next((path.name for path in sorted(self.files.root.glob(DISTRIBUTION))), None)
        return None


def _package(folder: Path) -> Source | None:
    """The source of a package folder, ``tbe_aot``."""
    if not (folder / "lib" / MANIFEST).is_file():
        return None
    root = folder.resolve().parent
    return Source(folder, "package", Files(root), f"{folder.resolve().name}/lib/")


def installed() -> Source:
    """The tbe-aot of this Python, found without importing it.

    Raises:
        AuditError: there is none.
    """
    found = importlib.util.find_spec(PACKAGE)
    for place in [] if found is None else found.submodule_search_locations or []:
        source = _package(Path(place))
        if source is not None:
            return source
    raise AuditError(
        f"tbe-aot is not installed for {sys.executable}: name a wheel, an installed package or a folder of artifacts"
    )


def open_source(path: Path | None) -> Source:
    """A build by its path.

    Args:
        path: a wheel, the folder of an installed package or what it lies in, a folder of artifacts, or a manifest; None for what is
            installed for this Python.

    Raises:
        AuditError: nothing of that kind is there.
    """
    if path is None:
        return installed()
    if path.is_file():
        if path.suffix == ".json":
            return Source(path, "manifest", Files(path.parent), "")
        return Source(path, "wheel", WheelFiles(path), f"{PACKAGE}/lib/")
    if not path.exists():
        raise AuditError(f"{path} does not exist")
    for folder in (path, path / PACKAGE):
        source = _package(folder)
        if source is not None:
            return source
    if (path / MANIFEST).is_file():
        if (path / LIBRARY).is_file() and path.resolve().name == "lib":
            return open_source(path.resolve().parent)
        return Source(path, "artifacts", Files(path), "")
    raise AuditError(
        f"{path} holds no build: expected a wheel, an installed {PACKAGE}, or a folder with {MANIFEST}"
    )
