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


def readable_json(value: Any, levels: int = 4) -> bytes:
    """JSON with sorted keys: the form that is stored.

    The outer ``levels`` are indented, what lies deeper stands on one line, so that a variant is a line of a manifest.
    """
    return (_render(value, levels, "\n") + "\n").encode()


def _render(value: Any, levels: int, line_break: str) -> str:
    parts = value.values() if isinstance(value, dict) else value
    nested = isinstance(value, (dict, list)) and any(isinstance(p, (dict, list)) for p in parts)
    if levels == 0 or not nested:
        return json.dumps(value, sort_keys=True)
    inner = line_break + " "
    if isinstance(value, dict):
        items = [
            f"{json.dumps(key)}: {_render(value[key], levels - 1, inner)}" for key in sorted(value)
        ]
        return f"{{{inner}{f',{inner}'.join(items)}{line_break}}}"
    items = [_render(item, levels - 1, inner) for item in value]
    return f"[{inner}{f',{inner}'.join(items)}{line_break}]"


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
