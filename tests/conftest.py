"""How workers share the tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    """A file belongs to one worker, as with ``--dist loadfile``, and so do all of the wheel's.

    Those share one wheel and one environment, which a second worker would make anew under the hands of the first.
    """
    from xdist.scheduler import LoadFileScheduling

    class FilesAndTheWheel(LoadFileScheduling):  # type: ignore[misc]  # xdist is untyped
        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            return "tests/wheel" if file.startswith("tests/wheel/") else file

    return FilesAndTheWheel(config, log) if config.getoption("dist") == "loadfile" else None
