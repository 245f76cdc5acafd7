"""Showing the progress of a build, from what compile processes append to their log."""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

SECONDS_BETWEEN_LINES = 10.0


class ProgressView:
    """Counts and time left: a bar on a terminal, a line now and then elsewhere."""

    def __init__(self, log: Path, total: int, console: Console) -> None:
        self.log = log
        self.log.unlink(missing_ok=True)
        self.total = total
        self.console = console
        self.counts = {"cached": 0, "compiled": 0, "failed": 0}
        self._offset = 0
        self._started = self._last_line = time.monotonic()
        self._shown = 0
        self._progress: Progress | None = None
        if console.is_terminal:
            self._progress = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                console=console,
            )
            self._task = self._progress.add_task("compile", total=total)

    def __enter__(self) -> None:
        if self._progress:
            self._progress.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.update()
        if self._progress:
            self._progress.stop()
        elif self.finished != self._shown:
            self._print_line()

    @property
    def finished(self) -> int:
        """Variants that have an outcome."""
        return sum(self.counts.values())

    def update(self) -> None:
        """Read what was appended since the last call, and show it."""
        for line in self._new_lines():
            self.counts[line.split(" ", 1)[0]] += 1
        if self._progress:
            failed = f", {self.counts['failed']} failed" if self.counts["failed"] else ""
            description = f"compile ({self.counts['cached']} cached{failed})"
            if self.finished == self.total:
                description = f"check and pack{failed}"
            self._progress.update(self._task, completed=self.finished, description=description)
        elif (
            self.finished != self._shown
            and time.monotonic() - self._last_line >= SECONDS_BETWEEN_LINES
        ):
            self._print_line()

    def _new_lines(self) -> list[str]:
        try:
            with self.log.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        complete = data[: data.rfind(b"\n") + 1]
        self._offset += len(complete)
        return complete.decode().splitlines()

    def _print_line(self) -> None:
        counts = self.counts
        line = f"compile: {self.finished}/{self.total} variants, {counts['cached']} cached"
        if counts["failed"]:
            line += f", {counts['failed']} failed"
        worked = counts["compiled"] + counts["failed"]
        if worked and self.finished < self.total:
            seconds = (time.monotonic() - self._started) / worked * (self.total - self.finished)
            line += f", {seconds:.0f} s left"
        self.console.print(line, highlight=False)
        self._shown = self.finished
        self._last_line = time.monotonic()
