"""What a build shows while it runs."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from aot_build import progress
from aot_build.progress import ProgressView
from aot_build.progress_log import ProgressLog


def test_lines_where_there_is_no_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    text = io.StringIO()
    log = ProgressLog(tmp_path / "log")
    view = ProgressView(tmp_path / "log", 4, Console(file=text, width=200))
    with view:
        view.update()
        log.done("a", cached=True)
        view.update()
        log.done("b", cached=False)
        view.update()
        with (tmp_path / "log").open("ab") as file:
            file.write(b"fail")
        view.update()
        with (tmp_path / "log").open("ab") as file:
            file.write(b"ed c\n")
        log.done("d", cached=False)
    lines = text.getvalue().splitlines()
    assert lines[0] == "compile: 1/4 variants, 1 cached"
    assert lines[1].startswith("compile: 2/4 variants, 1 cached, ")
    assert lines[1].endswith(" s left")
    assert lines[2] == "compile: 4/4 variants, 1 cached, 1 failed"
    assert view.counts == {"cached": 1, "compiled": 2, "failed": 1}


def test_a_bar_on_a_terminal(tmp_path: Path):
    text = io.StringIO()
    log = ProgressLog(tmp_path / "log")
    console = Console(file=text, width=120, force_terminal=True)
    view = ProgressView(tmp_path / "log", 2, console)
    with view:
        log.done("a", cached=False)
        view.update()
        assert view.finished == 1
        log.failed("b")
    shown = text.getvalue()
    assert "2/2" in shown
    assert "1 failed" in shown


def test_nobody_needs_to_listen():
    ProgressLog(None).done("a", cached=True)
