"""Text that comes out of a build: anybody may have written it, so nothing of it reaches a terminal or a parser as it is."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from .errors import AuditError

# Where a number may be that no field has room for; hashes have many digits too, but not behind these.
_LONG_NUMBER = re.compile(rb"[\s:,\[-]\d{19}")
_MOST = 1 << 63


def visible(text: str) -> str:
    """Text in one line that shows what is in it: control characters, changes of direction and halves of characters as escapes."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def visible_path(path: Path) -> str:
    """A path as text; bytes that are no UTF-8 are replaced."""
    return visible(os.fsencode(path).decode("utf-8", "replace"))


def ascii_json(text: str) -> str:
    """A JSON document in ASCII, which every terminal and every pipe takes."""
    if text.isascii():
        return text
    return "".join(char if char.isascii() else json.dumps(char)[1:-1] for char in text)


def read_json(data: bytes, where: str) -> Any:
    """A JSON document.

    Args:
        data: the file's bytes.
        where: what to call it in errors.

    Raises:
        AuditError: it is none, or holds what neither files nor other readers take: half a character (a lone surrogate), numbers that are
            none, whole numbers of more than 64 bits.
    """
    try:
        found = json.loads(data, parse_constant=_no_number)
        if _LONG_NUMBER.search(data):
            json.loads(data, parse_int=_short_number)
        if rb"\ud" in data or rb"\uD" in data:
            json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise AuditError(f"{where} is no JSON ({error})") from None
    return found


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no number")


def _short_number(text: str) -> int:
    number = int(text)
    if abs(number) >= _MOST:
        raise ValueError(f"{text[:19]}... has more than 64 bits")
    return number
