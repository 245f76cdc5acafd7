"""No variant of the small matrix got worse than the numbers beside the sources, beyond the tolerance."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.wheel.conftest import ROOT

# The fixture builds the kernels, which a fresh clone compiles.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_no_variant_is_worse_than_its_baseline(artifacts: Path):
    """After a wanted change: ``make audit-accept``, and commit the file."""
    command = [sys.executable, "-m", "tbe_aot_audit", "baseline"]
    command += [str(artifacts), str(ROOT / "wheels" / "baseline" / "ci.json")]
    environment = {"PYTHONPATH": str(ROOT / "python"), "COLUMNS": "160"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (
        f"{done.stdout}{done.stderr}after a wanted change: make audit-accept"
    )
    assert " 0 worse" in f" {done.stdout}"
    # Both archs of the baseline are in the build.
    assert "not compared" not in done.stdout
