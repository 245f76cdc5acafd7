"""The README's example, run as a user would who has just installed the wheel."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.wheel.conftest import ROOT
from wheels import clean_env

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_example_runs(installed: Path, tmp_path: Path):
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    script = tmp_path / "example.py"
    script.write_text(code.replace('"bags.pt2"', repr(str(tmp_path / "bags.pt2"))))
    ran = clean_env.run(installed, ["python", str(script)])
    assert ran.returncode == 0, ran.stdout
    assert (tmp_path / "bags.pt2").exists()
