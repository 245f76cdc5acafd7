"""Writing files so that nobody ever sees half of one, and only when their content changes."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any


def sha256_hex(data: bytes) -> str:
    """The sha256 of bytes, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def canonical_json(value: Any) -> bytes:
    """Compact JSON with sorted keys: the form that is hashed."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def readable_json(value: Any) -> bytes:
    """Indented JSON with sorted keys: the form that is stored."""
    return (json.dumps(value, sort_keys=True, indent=1) + "\n").encode()


def write_atomically(path: Path, data: bytes) -> None:
    """Write beside the target, then rename: readers see the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            # mkstemp's 0600 would travel into wheels.
            os.fchmod(file.fileno(), 0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_if_changed(path: Path, data: bytes) -> bool:
    """Write unless the file holds these bytes already; its time then says when its content changed."""
    try:
        if path.read_bytes() == data:
            return False
    except FileNotFoundError:
        pass
    write_atomically(path, data)
    return True
