"""What every table of results needs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence


def geometric_mean(values: Iterable[float]) -> float:
    """The geometric mean of positive values."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs))


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A Markdown table; every column but the first two is right-aligned."""
    marks = ["---" if i < 2 else "--:" for i in range(len(header))]
    return [
        "| " + " | ".join(header) + " |",
        "| " + " | ".join(marks) + " |",
        *("| " + " | ".join(row) + " |" for row in rows),
    ]
