"""The flags that a manifest records are what the compiler is told, word for word."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aot_build.archs import ARCHS
from aot_build.jobs import Job
from aot_build.toolchain import TRITON_FLAGS
from aot_build.triton_compiler import TritonCompiler, pin_environment


def what_triton_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """Environment and options of one compilation, from a module that stands where triton does."""
    told: dict[str, Any] = {}

    def pretend(source: Any, target: Any, options: dict[str, Any]) -> None:
        told.update({**os.environ, **options})

    monkeypatch.setattr(os, "environ", dict(os.environ))
    pin_environment(ARCHS["sm90"], tmp_path)
    stand_in = SimpleNamespace(
        GPUTarget=lambda *_: None, ASTSource=lambda *_: None, compile=pretend
    )
    for name in ("triton", "triton.backends", "triton.backends.compiler", "triton.compiler"):
        monkeypatch.setitem(sys.modules, name, stand_in)
    compiler = TritonCompiler.__new__(TritonCompiler)
    compiler.arch, compiler.function = ARCHS["sm90"], None
    job = Job(
        variant="toy", key="", signature=[], constexprs={}, divisibility={}, options={"maxnreg": 0}
    )
    compiler.translate(job)
    return told


def test_triton_is_told_what_is_recorded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    told = what_triton_is_told(monkeypatch, tmp_path)
    assert TRITON_FLAGS
    for flag in TRITON_FLAGS:
        name, _, value = flag.partition("=")
        assert str(told[name]) == value
