"""Errors that a person who edits specs or runs the build can act on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


class BuildError(Exception):
    """The build cannot go on; the message says what is wrong and where."""


@dataclass(frozen=True)
class Problem:
    """One mistake in a file: where it is, what stands there, and what may stand there."""

    file: str
    key: str
    value: Any
    message: str
    allowed: str = ""

    def __str__(self) -> str:
        shown = "" if self.value is None else f" = {format_value(self.value)}"
        allowed = f"; allowed: {self.allowed}" if self.allowed else ""
        return f"{self.file}: {self.key}{shown}: {self.message}{allowed}"


class SpecError(BuildError):
    """Specs are wrong; all mistakes found are listed, not only the first."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in problems))


@contextmanager
def collecting(problems: list[Problem]) -> Iterator[None]:
    """Add a SpecError's problems to the list instead of raising it, to find those of other files too."""
    try:
        yield
    except SpecError as error:
        problems += error.problems


def format_value(value: Any) -> str:
    """The value as it is written in TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(format_value(item) for item in value)}]"
    if isinstance(value, dict):
        items = ", ".join(f"{key} = {format_value(item)}" for key, item in value.items())
        return f"{{ {items} }}" if items else "{}"
    return str(value)


def format_values(values: Iterable[Any]) -> str:
    """The values side by side, or "nothing"."""
    return ", ".join(format_value(value) for value in values) or "nothing"


def format_names(names: Iterable[str]) -> str:
    """The names side by side, or "nothing"."""
    return ", ".join(names) or "nothing"
