"""Loads libtbe_aot.so into torch, once, and says in plain words why it cannot be loaded."""

from __future__ import annotations

from pathlib import Path

import torch

LEAST_TORCH = (2, 10)
LIBRARY = "libtbe_aot.so"
FOLDER = Path(__file__).resolve().parent / "lib"


def torch_version(text: str) -> tuple[int, int]:
    """(major, minor) of a version such as "2.13.0a0+git1234"."""
    major, minor = text.split(".")[:2]
    return int(major), int(minor)


def other_copy(library: Path) -> str | None:
    """Where a libtbe_aot.so that is not ``library`` is loaded from in this process, if one is."""
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "another folder"
    paths = {line.split(maxsplit=5)[-1] for line in maps.splitlines() if line.endswith(LIBRARY)}
    others = [path for path in sorted(paths) if Path(path).resolve() != library]
    return others[0] if others else None


def load() -> Path:
    """Load the library; its operators are then in ``torch.ops.tbe_aot``.

    Raises:
        ImportError: torch is too old, the library is missing, does not fit this torch, or another copy is loaded.
    """
    library = FOLDER / LIBRARY
    least = ".".join(map(str, LEAST_TORCH))
    if torch_version(torch.__version__) < LEAST_TORCH:
        raise ImportError(
            f"tbe_aot needs torch >= {least}, the first with the stable ABI it is built for; torch "
            f"{torch.__version__} is installed. Install a newer torch, no other tbe_aot is needed."
        )
    if not library.exists():
        raise ImportError(
            f"{library} is missing: install the wheel, or build the tree in place with `make develop`"
        )
    # A second registration of the same operators ends the process, so it must not be tried.
    if hasattr(torch.ops.tbe_aot, "forward"):
        other = other_copy(library)
        if other is not None:
            raise ImportError(
                f"another copy of {LIBRARY} is loaded from {other}; a process can hold one, and {library} would be"
                " the second. Load one of them only."
            )
    try:
        torch.ops.load_library(str(library))
    except (OSError, RuntimeError) as error:
        # torch names the library only; what the loader missed in it is the cause.
        reason = error.__cause__ or error
        raise ImportError(
            f"{library} does not load into torch {torch.__version__} ({reason}). It is built for torch >= {least}"
            " on Linux x86_64; reinstall torch and tbe_aot, or report this message."
        ) from error
    return library
