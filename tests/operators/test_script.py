"""The module in TorchScript: in this process, and in a C++ program that holds no Python."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import torch

import tbe_aot._library
from tests.operators.test_module import INDICES, OFFSETS, bags

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "cpp"

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.mark.parametrize("bounds_check", ["none", "warning", "fatal"])
@pytest.mark.parametrize("freeze", [False, True])
def test_fbgemm_719_1988_saved_and_loaded(freeze, bounds_check, tmp_path):
    module = bags(
        bounds_check=bounds_check, weights_dtype=torch.float16, output_dtype=torch.bfloat16
    ).eval()
    scripted = torch.jit.script(module)
    if freeze:
        scripted = torch.jit.freeze(scripted)
    scripted.save(str(tmp_path / "bags.pt"))
    loaded = torch.jit.load(str(tmp_path / "bags.pt"))
    sample_weights = torch.rand(INDICES.numel())
    sizes = [[1, 1], [0, 2], [1, 1]]
    # Profiling and then optimising executors: more than two calls.
    for _ in range(4):
        for args in ((), (sample_weights,), (None, sizes)):
            assert torch.equal(loaded(INDICES, OFFSETS, *args), module(INDICES, OFFSETS, *args))


def test_a_script_counts_invalid_indices():
    scripted = torch.jit.script(bags().eval())
    scripted(INDICES + 100, OFFSETS)
    assert scripted.invalid_count.item() == INDICES.numel()


def test_a_script_refuses_in_the_operators_words():
    scripted = torch.jit.script(bags().eval())
    with pytest.raises(RuntimeError, match=r"offsets has 6 elements, expected T\*B\+1 with T = 3"):
        scripted(INDICES, OFFSETS[:-1])


def test_a_traced_module():
    module = bags().eval()
    traced = torch.jit.trace(module, (INDICES, OFFSETS))
    assert torch.equal(traced(INDICES, OFFSETS), module(INDICES, OFFSETS))


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """examples/cpp, built against the installed torch."""
    path = tmp_path_factory.mktemp("cpp") / "lookup"
    build = {**os.environ, "TORCH": str(Path(torch.__file__).parent), "OUT": str(path)}
    subprocess.run(["bash", str(EXAMPLE / "build.sh")], env=build, check=True)
    return path


@pytest.mark.slow
def test_a_cpp_program_runs_the_scripted_module(program, tmp_path):
    module = bags(weights_dtype=torch.bfloat16).eval()
    torch.jit.script(module).save(str(tmp_path / "bags.pt"))
    library = tbe_aot._library.FOLDER / tbe_aot._library.LIBRARY
    ran = subprocess.run(
        [program, library, tmp_path / "bags.pt"], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    rows = [[float(word) for word in line.split()] for line in ran.stdout.splitlines()]
    # The program looks up rows 0, 1, 2, ... one per bag, two bags per feature.
    expected = module(torch.arange(6), torch.arange(7))
    torch.testing.assert_close(torch.tensor(rows), expected, rtol=1e-4, atol=1e-5)
    linked = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    assert "libpython" not in linked


@pytest.mark.slow
def test_the_cpp_program_says_what_is_wrong(program, tmp_path):
    ran = subprocess.run(
        [program, tmp_path / "nothing.so", tmp_path / "bags.pt"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1
    assert "nothing.so" in ran.stderr
    assert subprocess.run([program], capture_output=True, check=False).returncode == 2
