"""Importing the package: one copy, a torch that is new enough, and words for what is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import tbe_aot
from tbe_aot import _library

PACKAGE = Path(tbe_aot.__file__).resolve().parent


def run(code: str, *paths: Path) -> subprocess.CompletedProcess[str]:
    """Run Python with the folders first on its path."""
    script = f"import sys; sys.path[:0] = {[str(path) for path in paths]!r}\n{code}"
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )


def last_line(process: subprocess.CompletedProcess[str]) -> str:
    assert process.returncode == 1
    return process.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize("version", ["2.9.1+cu128", "1.13.0", "2.9.0a0+git123"])
def test_fbgemm_2938_2715_a_torch_that_is_too_old(version):
    code = f"import torch; torch.__version__ = {version!r}; import tbe_aot"
    message = last_line(run(code, PACKAGE.parent))
    assert message.startswith("ImportError: tbe_aot needs torch >= 2.10")
    assert version in message


def test_versions_of_torch():
    assert _library.torch_version("2.13.0+cpu") == (2, 13)
    assert _library.torch_version("2.10.0a0+git1234567") == (2, 10)
    assert _library.torch_version("2.14.0.dev20261101+cu130") == (2, 14)
    assert _library.torch_version(torch.__version__) >= _library.LEAST_TORCH


@pytest.fixture
def copied_package(tmp_path: Path) -> Path:
    """A second installation of the package."""
    shutil.copytree(PACKAGE, tmp_path / "tbe_aot", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def test_a_second_copy_is_refused_before_it_ends_the_process(copied_package):
    first = PACKAGE / "lib" / _library.LIBRARY
    code = f"import torch; torch.ops.load_library({str(first)!r}); import tbe_aot"
    message = last_line(run(code, copied_package))
    assert message.startswith(
        f"ImportError: another copy of {_library.LIBRARY} is loaded from {first}"
    )


def test_the_same_copy_may_be_loaded_before(copied_package):
    library = copied_package / "tbe_aot" / "lib" / _library.LIBRARY
    code = f"import torch; torch.ops.load_library({str(library)!r}); import tbe_aot"
    assert run(code, copied_package).returncode == 0


def test_a_missing_library(copied_package):
    (copied_package / "tbe_aot" / "lib" / _library.LIBRARY).unlink()
    message = last_line(run("import tbe_aot", copied_package))
    assert message.startswith("ImportError: ")
    assert "is missing: install the wheel, or build the tree in place" in message


def test_a_library_that_does_not_load(copied_package):
    (copied_package / "tbe_aot" / "lib" / _library.LIBRARY).write_bytes(b"no library")
    message = last_line(run("import tbe_aot", copied_package))
    assert message.startswith("ImportError: ")
    assert f"does not load into torch {torch.__version__}" in message


def test_fbgemm_2938_2715_a_torch_without_a_function_that_the_library_needs(
    copied_package, tmp_path
):
    source = tmp_path / "library.cpp"
    source.write_text(
        'extern "C" int aoti_torch_no_such_function(); int x = aoti_torch_no_such_function();'
    )
    library = copied_package / "tbe_aot" / "lib" / _library.LIBRARY
    compiler = os.environ.get("CXX", "g++")
    subprocess.run([compiler, "-shared", "-fPIC", source, "-o", library], check=True)
    message = last_line(run("import tbe_aot", copied_package))
    assert message.startswith("ImportError: ")
    assert f"does not load into torch {torch.__version__}" in message
    assert "aoti_torch_no_such_function" in message
    assert "It is built for torch >= 2.10 on Linux x86_64; reinstall torch and tbe_aot" in message


def test_looking_up_needs_neither_the_launcher_module_nor_triton(copied_package):
    for module in (copied_package / "tbe_aot").glob("_launcher*.so"):
        module.unlink()
    code = """
sys.modules["triton"] = None
import torch, tbe_aot
bags = tbe_aot.TableBatchedEmbeddingBags([tbe_aot.TableSpec("t", 10, 8)])
assert bags(torch.arange(3), torch.tensor([0, 2, 3])).shape == (2, 8)
assert bags.preload() == []
bags.explain(torch.arange(3), torch.tensor([0, 2, 3]))
"""
    message = last_line(run(code, copied_package))
    assert message.startswith("ImportError: tbe_aot._launcher is not there for this Python")


def test_build_info_is_the_manifests():
    info = tbe_aot.build_info()
    assert len(info.build_id) == 64
    assert {"forward", "check_offsets", "repair_offsets", "check_indices"} <= set(info.kernels)
    for arch in info.archs:
        assert arch.variants >= arch.cubins > 0
        assert arch.pack_bytes == (PACKAGE / "lib" / f"{arch.name}.pack").stat().st_size


@pytest.mark.parametrize("damage", ["unlink()", "write_bytes(b'')", "write_bytes(b'\\xff')"])
def test_a_manifest_that_cannot_be_read(copied_package, damage):
    code = f"""
import pathlib, tbe_aot
(pathlib.Path(tbe_aot.__file__).parent / "lib" / "manifest.json").{damage}
tbe_aot.build_info()
"""
    message = last_line(run(code, copied_package))
    assert message.startswith("RuntimeError: ")
    assert "manifest.json cannot be read" in message
    assert "reinstall" in message
