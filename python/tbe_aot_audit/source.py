"""Where a build lies: a wheel, an installed package, a folder of artifacts, or a manifest alone."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import os
import stat
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
from .names import is_plain
from .pack import Pack, parse_pack
from .text import visible, visible_path

Kind = Literal["wheel", "package", "artifacts", "manifest"]
PACKAGE = "tbe_aot"
MANIFEST = "manifest.json"
LIBRARY = "libtbe_aot.so"
DISTRIBUTION = "tbe_aot-*.dist-info"


# What a build never reaches: who claims more wants a reader's memory. By the end of a name, the first that fits.
_MIB = 1 << 20
_LARGEST = ((".pack", 256 * _MIB), (".so", 128 * _MIB), ("", 16 * _MIB))
_LARGEST_WHEEL = 512 * _MIB


def largest(name: str) -> int:
    """The most bytes that a file of this name may have."""
    return next(size for end, size in _LARGEST if name.endswith(end))


def is_file(path: Path) -> bool:
    """Whether there is a regular file or a link to one; not of a name that the system refuses, such as one that is too long.

    Raises:
        AuditError: its folder cannot be read.
    """
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except PermissionError as error:
        raise AuditError(f"{visible_path(path)} cannot be read: {_reason(error)}") from None
    except (OSError, ValueError):
        return False


def read_file(path: Path, most: int) -> bytes:
    """The bytes of a regular file.

    Raises:
        AuditError: it is missing, cannot be read, is a device or the like, or has more than ``most`` bytes.
    """
    try:
        status = path.stat()
        # A pipe would be waited for, and a device has no end.
        if not stat.S_ISREG(status.st_mode):
            raise AuditError(f"{visible_path(path)} is no regular file")
        if status.st_size > most:
            raise AuditError(
                f"{visible_path(path)} has {status.st_size} bytes, a build writes at most {most}"
            )
        with path.open("rb") as file:
            data = file.read(status.st_size + 1)
    except (OSError, ValueError) as error:
        raise AuditError(f"{visible_path(path)} cannot be read: {_reason(error)}") from None
    if len(data) != status.st_size:
        raise AuditError(f"{visible_path(path)} has not the {status.st_size} bytes that it says")
    return data


def _reason(error: OSError | ValueError) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error)


class Files:
    """Named files: those of a folder. What is read is kept: several checks look at the large ones."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.contents: dict[str, bytes] = {}
        self._hashes: dict[str, str] = {}

    def names(self, *folders: str) -> list[str]:
        """What lies in some folders, or anywhere if none is named: sorted, relative to the root, without folders.

        Raises:
            AuditError: a folder cannot be read.
        """
        found: list[str] = []
        for folder in folders or ("",):
            for place, below, files in os.walk(self.root / folder, onerror=self._unreadable):
                # A link to a folder is not followed, but it is there.
                links = [name for name in below if (Path(place) / name).is_symlink()]
                found += [(Path(place) / name).relative_to(self.root).as_posix() for name in (*files, *links)]  # fmt: skip
        return sorted(found)

    def _unreadable(self, error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise AuditError(f"{error.filename} cannot be read: {error.strerror}") from None

    def has(self, name: str) -> bool:
        """Whether there is one of that name."""
        return is_file(self.root / name)

    def read(self, name: str) -> bytes:
        """The bytes of one.

        Raises:
            AuditError: it is missing or cannot be read.
        """
        if name not in self.contents:
            self.contents[name] = self._load(name)
        return self.contents[name]

    def sha256(self, name: str) -> str:
        """The hash of one, in hexadecimal.

        Raises:
            AuditError: it is missing or cannot be read.
        """
        if name not in self._hashes:
            self._hashes[name] = hashlib.sha256(self.read(name)).hexdigest()
        return self._hashes[name]

    def _load(self, name: str) -> bytes:
        return read_file(self.root / name, largest(name))


class WheelFiles(Files):
    """The files of a wheel, read without unpacking it.

    Raises:
        AuditError: the file is no zip archive, or its members together are larger than any wheel of this project.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.data = read_file(root, _LARGEST_WHEEL)
        try:
            self.archive = zipfile.ZipFile(io.BytesIO(self.data))
        except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError) as error:
            raise AuditError(f"{visible_path(root)} is no wheel: {error}") from None
        size = sum(info.file_size for info in self.archive.infolist())
        if size > _LARGEST_WHEEL:
            raise AuditError(
                f"{visible_path(root)} holds {size} bytes unpacked, no wheel of this project more than {_LARGEST_WHEEL}"
            )

    def names(self, *folders: str) -> list[str]:
        """All members but folders, or those in some folders."""
        return sorted(
            name
            for name in self.archive.namelist()
            if not name.endswith("/")
            and (not folders or name.startswith(tuple(f"{folder}/" for folder in folders)))
        )

    def has(self, name: str) -> bool:
        """Whether there is one of that name."""
        return name in self.archive.NameToInfo

    def _load(self, name: str) -> bytes:
        if not self.has(name):
            raise AuditError(f"{visible_path(self.root)} holds no {visible(name)}")
        info = self.archive.getinfo(name)
        if info.file_size > largest(name):
            raise AuditError(
                f"{visible(name)} has {info.file_size} bytes, a build writes at most {largest(name)}"
            )
        try:
            # As many bytes as it says: `ZipFile.read` takes as many as there are.
            with self.archive.open(info) as member:
                return member.read(info.file_size)
        except (
            zipfile.BadZipFile,
            zlib.error,
            EOFError,
            OSError,
            ValueError,
            RuntimeError,
            NotImplementedError,
        ) as error:
            raise AuditError(
                f"{visible(name)} in {visible_path(self.root)} is damaged: {visible(str(error))}"
            ) from None


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
        return visible_path(self.path)

    def name_of(self, name: str) -> str:
        """The path of a file that lies beside the library."""
        return f"{self.library_folder}{name}"

    def where(self, name: str) -> str:
        """A file's name for people."""
        return visible(name) if self.kind == "wheel" else visible_path(self.files.root / name)

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
            AuditError: it is missing or damaged, or the name is not one of a file beside the library.
        """
        if not is_plain(file) or "/" in file:
            raise AuditError(f"{self}: {visible(file)!r} is no name of a pack")
        name = self.name_of(file)
        return parse_pack(self.files.read(name), self.where(name))

    @cached_property
    def distribution(self) -> str | None:
        """The name of the ``.dist-info`` folder; None where there is none.

        Raises:
            AuditError: there are several, so that nobody knows which one an installer takes.
        """
        if self.kind == "wheel":
            tops = {name.partition("/")[0] for name in self.files.names()}
        elif self.kind == "package":
            tops = {path.name for path in self.files.root.glob(DISTRIBUTION)}
        else:
            return None
        found = sorted(top for top in tops if PurePosixPath(top).match(DISTRIBUTION))
        if len(found) > 1:
            raise AuditError(
                f"{self} has {len(found)} .dist-info folders: {visible(', '.join(found))}"
            )
        return found[0] if found else None


def _package(folder: Path) -> Source | None:
    """The source of a package folder, ``tbe_aot``."""
    if not is_file(folder / "lib" / MANIFEST):
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
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            next(path.iterdir(), None)
    except (FileNotFoundError, NotADirectoryError):
        raise AuditError(f"{visible_path(path)} does not exist") from None
    except (OSError, ValueError) as error:
        raise AuditError(f"{visible_path(path)} cannot be read: {_reason(error)}") from None
    if stat.S_ISREG(mode):
        if path.suffix == ".json":
            return Source(path, "manifest", Files(path.parent), "")
        return Source(path, "wheel", WheelFiles(path), f"{PACKAGE}/lib/")
    for folder in (path, path / PACKAGE):
        source = _package(folder)
        if source is not None:
            return source
    if is_file(path / MANIFEST):
        if is_file(path / LIBRARY) and path.resolve().name == "lib":
            return open_source(path.resolve().parent)
        return Source(path, "artifacts", Files(path), "")
    raise AuditError(
        f"{visible_path(path)} holds no build: expected a wheel, an installed {PACKAGE}, or a folder with {MANIFEST}"
    )
