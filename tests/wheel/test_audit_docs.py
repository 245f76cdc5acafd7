"""The commands of docs/audit.md, run as they stand there, on the wheel of the small matrix."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tbe_aot_audit.verify import CHECKS
from tests.wheel.conftest import ROOT

# The first fixture builds a wheel.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PAGE = (ROOT / "docs" / "audit.md").read_text()
# Those of the JSON section are for a shell with jq.
BLOCKS = [text for text in re.findall(r"^```sh\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE) if "jq" not in text]  # fmt: skip
COMMANDS = [line.partition("#")[0].strip() for block in BLOCKS for line in block.splitlines() if line.startswith("tbe-aot")]  # fmt: skip
# The small matrix leaves out what they ask for.
LEFT_OUT = {
    "tbe-aot explain WHEEL --weights fp16 --dim 100 --indices int32 --mean-length 20",
    "tbe-aot explain WHEEL --weights bf16 --dim 17 --optimizer adagrad --output bf16 --kernel update_short_runs",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_command(command: str, wheel: Path, tmp_path: Path):
    words = [str(wheel) if word in {"WHEEL", "OLD.whl", "NEW.whl"} else word for word in shlex.split(command)]  # fmt: skip
    # The small matrix lacks that variant of the forward on int32 indices.
    if words[1] == "show":
        words[2] = words[2].replace("fp16", "fp32")
    expected = 1 if command in LEFT_OUT else 0
    done = subprocess.run(
        [sys.executable, "-m", "tbe_aot_audit", *words[1:]],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT / "python")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == expected, done.stdout + done.stderr
    assert done.stdout.strip()


def test_every_check_is_described():
    described = re.findall(r"^\| `(\w+)` \|", PAGE.partition("looks at")[2].partition("The chain")[0], re.MULTILINE)  # fmt: skip
    assert described == list(CHECKS)


def test_every_picture_is_there():
    for name in re.findall(r"\]\((images/[^)]+)\)", PAGE):
        assert (ROOT / "docs" / name).is_file()
