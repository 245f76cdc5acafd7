"""Table batched embedding lookups for PyTorch, compiled ahead of time."""

from . import _library

_library.load()

from . import operators  # noqa: E402
