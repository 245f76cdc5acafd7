from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.launcher.support import Built, Process, build, process

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def built() -> Built:
    return build()


@pytest.fixture
def fresh(built: Built) -> Iterator[Process]:
    """A process that has not used its driver, with one H200."""
    with process(built) as running:
        yield running


@pytest.fixture(scope="session")
def shared(built: Built) -> Iterator[Process]:
    """A process for scenarios that leave no traces."""
    with process(built) as running:
        yield running
