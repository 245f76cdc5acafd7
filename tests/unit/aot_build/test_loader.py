"""Kernels are imported from any folder of specs, each with its own `common`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.unit.aot_build.toy_specs import REPOSITORY, TOY, edit

PROGRAM = """
import sys
import torch
from aot_build.loader import load_kernel

first, second = sys.argv[1:]
scale = load_kernel(first, "scale")
negated = load_kernel(second, "scale")
again = load_kernel(first, "scale")

x = torch.arange(100, dtype=torch.float32)
for kernel in (scale, negated, again):
    out = torch.zeros(128)
    kernel[(2,)](out, x, False, 100, 3.0, SIZE=64, UNROLL=1)
    print(out[:100].equal(3 * x), out[28:128].equal(3 * x), float(out[100:].abs().sum()) == 0)
"""


def test_two_folders_in_one_process(specs: Path):
    edit(specs / "common" / "blocks.py", "tl.arange(0, SIZE)", "tl.arange(0, SIZE) + 0")
    edit(
        specs / "scale" / "kernel.py",
        "signed = tl.where(negate, -factor, factor)",
        "signed = -factor",
    )
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, TOY, specs],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "TRITON_INTERPRET": "1"},
    )
    assert done.stdout.splitlines() == ["True False True", "False False True", "True False True"]
    assert not list(TOY.rglob("__pycache__"))
