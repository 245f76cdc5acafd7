"""The cubin cache: records by what they were compiled from, cubins by what they contain.

A record is valid only with its cubin, whose hash is checked at every read, so that neither an interrupted write nor
a damaged disk is ever taken for a compiled kernel. Any number of builds may share a cache.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from .cubin import CubinRecord
from .errors import BuildError
from .files import readable_json, sha256_hex, write_atomically


class CubinCache:
    """A folder with records/<key>.json, cubins/<sha256>.cubin and sass/<sha256>.json."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def _path(self, kind: str, name: str, suffix: str) -> Path:
        return self.root / kind / name[:2] / f"{name}{suffix}"

    def cubin_path(self, sha256: str) -> Path:
        """Where a cubin lies, if it is there."""
        return self._path("cubins", sha256, ".cubin")

    def cubin(self, sha256: str) -> bytes:
        """A cubin's bytes.

        Raises:
            BuildError: it is missing or damaged.
        """
        try:
            data = self.cubin_path(sha256).read_bytes()
        except FileNotFoundError:
            data = b""
        if sha256_hex(data) != sha256:
            raise BuildError(f"the cache {self.root} lost cubin {sha256}: run the build again")
        return data

    def get(self, key: str) -> CubinRecord | None:
        """The record of a key, if it and its cubin are intact."""
        try:
            record = CubinRecord.model_validate_json(
                self._path("records", key, ".json").read_bytes()
            )
            self.cubin(record.cubin_sha256)
        except (FileNotFoundError, ValidationError, BuildError):
            return None
        return record

    def put(self, key: str, record: CubinRecord, cubin: bytes) -> None:
        """Store the cubin, then the record that makes it count."""
        write_atomically(self.cubin_path(record.cubin_sha256), cubin)
        write_atomically(self._path("records", key, ".json"), readable_json(record.model_dump()))

    def get_sass(self, sha256: str, reader: str) -> dict[str, Any] | None:
        """What was counted in the machine code of a cubin, if this reader (a version) did it."""
        try:
            stored = json.loads(self._path("sass", sha256, ".json").read_bytes())
        except (FileNotFoundError, ValueError):
            return None
        if not isinstance(stored, dict) or stored.get("reader") != reader:
            return None
        counts = stored.get("counts")
        return counts if isinstance(counts, dict) else None

    def put_sass(self, sha256: str, reader: str, counts: dict[str, Any]) -> None:
        """Store what was counted in the machine code of a cubin."""
        stored = {"reader": reader, "counts": counts}
        write_atomically(self._path("sass", sha256, ".json"), readable_json(stored))
