"""The command line."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from aot_build.__main__ import main
from aot_build.build import BuildResult, default_jobs
from aot_build.errors import BuildError
from tests.unit.aot_build.toy_specs import TOY, edit


def command(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["aot_build", *map(str, arguments)])
    with pytest.raises(SystemExit) as left:
        main()
    return int(left.value.code or 0)


def test_plan(monkeypatch, capsys):
    assert command(monkeypatch, "plan", "--specs", TOY) == 0
    out = capsys.readouterr().out
    assert "Multiply by a factor." in out
    assert '"short", "long"' in out


def test_plan_of_a_kernel(monkeypatch, capsys):
    assert command(monkeypatch, "plan", "--specs", TOY, "--kernel", "scale") == 0
    assert "scale__fp16_64_short" in capsys.readouterr().out
    assert command(monkeypatch, "plan", "--specs", TOY, "--kernel", "scales") == 1
    assert "error: no kernel 'scales'; allowed: fill, scale" in capsys.readouterr().err


def test_build(monkeypatch, capsys, toy_build: BuildResult, shared_cache: Path, tmp_path: Path):
    arguments = ["--specs", TOY, "--cache", shared_cache, "--archs", "sm90", "--profile", "tiny"]
    assert command(monkeypatch, "build", *arguments, "--out", tmp_path / "out") == 0
    captured = capsys.readouterr()
    assert "most registers" in captured.out
    assert "0 variants compiled, 5 from the cache" in captured.out
    assert "compile: 5/5 variants, 5 cached" in captured.err


def test_mistakes_are_messages(monkeypatch, capsys, specs: Path):
    edit(specs / "scale" / "spec.toml", "num_warps = 2", "num_warps = 3")
    assert command(monkeypatch, "build", "--specs", specs) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"error: {specs}/scale/spec.toml: tuning.rules[2].set.num_warps = 3: ")
    assert "Traceback" not in err


@pytest.mark.parametrize("stage", ["build", "native"])
@pytest.mark.parametrize("jobs", ["abc", "0", "-2"])
def test_a_number_of_jobs_that_is_none(monkeypatch, capsys, tmp_path: Path, jobs, stage):
    monkeypatch.setenv("TBE_AOT_JOBS", jobs)
    with pytest.raises(BuildError, match=f"TBE_AOT_JOBS is '{jobs}', expected a whole number"):
        default_jobs()
    given = ["--specs", TOY] if stage == "build" else ["--artifacts", tmp_path]
    assert command(monkeypatch, stage, *given, "--out", tmp_path / "out") == 2
    error = capsys.readouterr().err
    assert "TBE_AOT_JOBS" in error
    assert "Traceback" not in error
    assert not (tmp_path / "out").exists()


def test_folders_that_cannot_be_written_are_messages(monkeypatch, capsys, tmp_path: Path):
    (tmp_path / "file").touch()
    assert command(monkeypatch, "build", "--specs", TOY, "--out", tmp_path / "file") == 1
    error = capsys.readouterr().err
    assert error.startswith("error: [Errno 20] Not a directory")
    assert "Traceback" not in error


def test_usage(monkeypatch, capsys):
    assert command(monkeypatch, "build", "--fast") == 2
    assert "No such option" in capsys.readouterr().err


def test_check_and_compare(monkeypatch, capsys, toy_build: BuildResult, tmp_path: Path):
    copy = tmp_path / "copy"
    shutil.copytree(toy_build.out, copy)
    assert command(monkeypatch, "check", copy) == 0
    assert "11 variants in 11 cubins, profile full, sm100, sm90" in capsys.readouterr().out
    assert command(monkeypatch, "compare", toy_build.out, copy) == 0
    (copy / "sm100.pack").write_bytes(b"")
    assert command(monkeypatch, "compare", toy_build.out, copy) == 1
    assert command(monkeypatch, "check", copy) == 1
    err = capsys.readouterr().err
    assert "differs: sm100.pack" in err
    assert "missing or changed since the build: sm100.pack" in err
    assert command(monkeypatch, "check", tmp_path / "nothing") == 1
