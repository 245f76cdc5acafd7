"""What files of a build may be called: a rule that says what may be there, so that nobody has to think of everything that may not."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

PACKAGES = ("tbe_aot", "tbe_aot_audit")
LONGEST = 255
_PART = r"[A-Za-z0-9_][A-Za-z0-9_.+-]*"
_PLAIN = re.compile(rf"{_PART}(/{_PART})*", re.ASCII)
_COMPILED = re.compile(r"(.*/)?__pycache__/([^/.]+)\.[^/]*pyc")


def is_plain(name: str) -> bool:
    """Whether a name is relative, normalised, and of letters, digits and ``_.+-``: no ``..``, no backslash, nothing that cannot be seen."""
    return len(name) <= LONGEST and _PLAIN.fullmatch(name) is not None


def module_of(name: str) -> str | None:
    """The source file of a compiled module that Python keeps in ``__pycache__``; None for other files."""
    found = _COMPILED.fullmatch(name)
    return None if found is None else f"{found[1] or ''}{found[2]}.py"


def name_problems(names: Iterable[str], distribution: str | None) -> Iterator[tuple[str, str]]:
    """Members of a wheel that should not be called what they are called: the name and a sentence.

    Args:
        names: all of them, folders with a slash at the end.
        distribution: the wheel's ``.dist-info`` folder.
    """
    tops = {*PACKAGES, distribution}
    seen: set[str] = set()
    for name in names:
        file = name.removesuffix("/")
        if file.casefold() in seen:
            yield name, "two members have this name, and readers differ in which one they take"
        seen.add(file.casefold())
        if not is_plain(file):
            yield (
                name,
                "a name that no build gives: relative, without '..', of letters, digits and '_.+-'",
            )
        elif file.partition("/")[0] not in tops or (file == name and "/" not in name):
            yield (
                name,
                f"a wheel of this project has files in {', '.join(PACKAGES)} and its .dist-info alone",
            )
