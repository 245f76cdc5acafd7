"""How compile processes tell the build about their progress: lines appended to a file."""

from __future__ import annotations

import os
from pathlib import Path


class ProgressLog:
    """Where a compile process reports; without a path nobody listens."""

    def __init__(self, path: Path | None) -> None:
        self.path = path

    def done(self, variant: str, *, cached: bool) -> None:
        """One more variant is in the cache."""
        self._append("cached" if cached else "compiled", variant)

    def failed(self, variant: str) -> None:
        """One more variant failed."""
        self._append("failed", variant)

    def _append(self, event: str, variant: str) -> None:
        if self.path is None:
            return
        # One small write to a file opened for appending: lines of several processes do not mix.
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, f"{event} {variant}\n".encode())
        finally:
            os.close(descriptor)
