from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.interpreter.harness import Interpreter, interpreter

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def triton_interpreter() -> Iterator[Interpreter]:
    with interpreter() as running:
        yield running
