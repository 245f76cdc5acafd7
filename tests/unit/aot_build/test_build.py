"""Whole builds of the toy specs: the same bytes everywhere, only what changed, nothing half-written."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from aot_build.build import BuildResult, build
from aot_build.cache import CubinCache
from aot_build.checksums import check_artifacts, compare
from aot_build.compile import compile_batch
from aot_build.errors import BuildError, SpecError
from aot_build.files import readable_json, write_atomically
from aot_build.jobs import make_batches
from aot_build.planner import make_plan
from aot_build.progress_log import ProgressLog
from aot_build.summary import print_build
from tests.unit.aot_build.toy_specs import ARCHS, REPOSITORY, TOY, edit

VARIANTS = 11


def run(
    specs: Path, out: Path, cache: Path, profile: str = "full", archs: list[str] | None = None
) -> BuildResult:
    console = Console(quiet=True)
    return build(specs, profile, archs or ARCHS, out, cache=cache, jobs=2, console=console)


@pytest.fixture
def copied_build(toy_build: BuildResult, specs: Path, tmp_path: Path, shared_cache: Path):
    """A finished build of specs that the test may change, and how to repeat it."""
    out = tmp_path / "out"
    run(specs, out, shared_cache)
    return specs, out, lambda: run(specs, out, shared_cache)


def times(folder: Path) -> dict[str, int]:
    return {
        path.relative_to(folder).as_posix(): path.stat().st_mtime_ns
        for path in folder.rglob("*")
        if path.is_file() and ".work" not in path.parts
    }


def test_same_inputs_same_bytes(toy_build: BuildResult, specs: Path, tmp_path: Path):
    """In another folder, with a cache of its own: everything is compiled again."""
    result = run(specs, tmp_path / "elsewhere" / "out", tmp_path / "cache")
    assert (result.compiled, result.cached) == (VARIANTS, 0)
    assert compare(toy_build.out, result.out) == []
    assert str(REPOSITORY) not in (result.out / "manifest.json").read_text()
    assert str(tmp_path) not in (result.out / "manifest.json").read_text()


def test_nothing_changed_nothing_done(copied_build):
    _, out, again = copied_build
    before = times(out)
    results = [again(), again()]
    # The better of two: the machine may be busy with other tests.
    assert min(result.seconds for result in results) < 3
    assert [(result.compiled, result.cached) for result in results] == [(0, 0), (0, 0)]
    assert times(out) == before


def test_content_decides_not_time(copied_build):
    specs, out, again = copied_build
    before = times(out)
    for path in specs.rglob("*.*"):
        path.touch()
    assert again().cached == 0
    assert times(out) == before


def test_a_changed_kernel_rebuilds_only_its_variants(copied_build):
    specs, out, again = copied_build
    before = times(out)
    edit(specs / "fill" / "kernel.py", "output + position, value,", "output + position, value + 1,")
    result = again()
    assert result.compiled == 1
    changed = {name for name, when in times(out).items() if when != before[name]}
    assert "sm90.pack" in changed
    assert "sm100.pack" not in changed
    check_artifacts(out)


def test_shared_code_rebuilds_the_kernels_that_import_it(copied_build):
    """And as the machine code stays the same, the packs are not written again."""
    specs, out, again = copied_build
    before = times(out)
    edit(specs / "common" / "blocks.py", '"""Which', '"""Tells which')
    assert again().compiled == VARIANTS - 1
    changed = {name for name, when in times(out).items() if when != before[name]}
    assert "manifest.json" in changed
    assert not {"sm90.pack", "sm100.pack"} & changed


def test_a_tuning_rule_rebuilds_the_variants_that_it_matches(copied_build):
    specs, _, again = copied_build
    edit(specs / "scale" / "spec.toml", "num_warps = 2", "num_warps = 4")
    result = again()
    assert result.compiled == 4
    assert result.compiled + result.cached == 5


def test_words_rebuild_nothing(copied_build):
    specs, out, again = copied_build
    edit(specs / "scale" / "spec.toml", "flips the sign", "turns the sign")
    assert again().compiled == 0
    assert "turns the sign" in (out / "generated" / "tbe_aot_generated.h").read_text()


def test_damaged_artifacts_are_made_again(copied_build, toy_build: BuildResult):
    _, out, again = copied_build
    for name in ("sm90.pack", "manifest.json"):
        (out / name).write_bytes((out / name).read_bytes()[:-1])
    (out / "generated" / "tbe_aot_generated.h").unlink()
    with pytest.raises(BuildError, match=r"changed since the build: generated/.*\.h, man.*, sm90"):
        check_artifacts(out)
    assert again().compiled == 0
    assert compare(toy_build.out, out) == []


@pytest.mark.parametrize(
    "names",
    [
        ["checksums.json"],
        ["checksums.json", "sm90.pack", "plan.json"],
        [".work/results/scale-sm90-000.json"],
    ],
)
@pytest.mark.parametrize("size", [0, 10])
def test_files_cut_short_by_a_power_failure_are_made_again(
    copied_build, toy_build: BuildResult, names: list[str], size: int
):
    _, out, again = copied_build
    for name in names:
        (out / name).write_bytes((out / name).read_bytes()[:size])
    assert again().compiled == 0
    assert compare(toy_build.out, out) == []
    check_artifacts(out)


def test_a_lost_cache_is_filled_again(specs: Path, tmp_path: Path):
    cache = tmp_path / "cache"
    out = tmp_path / "out"
    assert run(specs, out, cache, archs=["sm90"], profile="tiny").compiled == 5
    shutil.rmtree(cache)
    assert run(specs, out, cache, archs=["sm90"], profile="tiny").compiled == 5


def test_a_damaged_cubin_is_no_cubin(toy_build: BuildResult, tmp_path: Path, shared_cache: Path):
    cache = CubinCache(tmp_path / "cache")
    batch = next(iter(make_batches(toy_build.plan)))
    key = batch.jobs[0].key
    record = CubinCache(shared_cache).get(key)
    assert record is not None
    cubin = CubinCache(shared_cache).cubin(record.cubin_sha256)
    assert cache.get(key) is None
    cache.put(key, record, cubin)
    assert cache.get(key) == record
    path = cache.cubin_path(record.cubin_sha256)
    path.write_bytes(cubin[:-1])
    assert cache.get(key) is None
    with pytest.raises(BuildError, match="lost cubin"):
        cache.cubin(record.cubin_sha256)
    path.unlink()
    assert cache.get(key) is None


def test_profiles_and_archs(toy_build: BuildResult, tmp_path: Path, shared_cache: Path):
    out = tmp_path / "out"
    run(TOY, out, shared_cache)
    run(TOY, out, shared_cache, profile="ci", archs=["sm90"])
    fresh = run(TOY, tmp_path / "fresh", shared_cache, profile="ci", archs=["sm90"])
    assert compare(out, fresh.out) == []
    assert not (out / "sm100.pack").exists()
    manifest = json.loads((out / "manifest.json").read_bytes())
    assert list(manifest["archs"]) == ["sm90"]
    variants = manifest["kernels"]["scale"]["variants"]
    assert {variant["arch"] for variant in variants} == {"sm90"}
    unbuilt = [variant["name"] for variant in variants if not variant["built"]]
    assert unbuilt == ["scale__fp16_64_long"]
    assert all((variant["blob"] == -1) == (not variant["built"]) for variant in variants)
    assert check_artifacts(out).archs == ["sm90"]


def test_folders_of_any_name(toy_build: BuildResult, tmp_path: Path, shared_cache: Path):
    folder = tmp_path / "a $b c:d ü'[e]$"
    copied = shutil.copytree(TOY, folder / "specs")
    result = run(copied, folder / "out", shared_cache)
    assert compare(toy_build.out, result.out) == []
    shown = io.StringIO()
    print_build(result, Console(file=shown, width=500))
    assert f"{result.out}: 0 variants compiled" in shown.getvalue()


def test_a_mistake_in_the_operators_is_found_before_anything_is_compiled(
    specs: Path, tmp_path: Path
):
    (specs / "operators.toml").write_text("schema_version = 2\noperators = []\n")
    with pytest.raises(SpecError, match="schema_version = 2"):
        run(specs, tmp_path / "out", tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_failures_are_named_and_the_others_still_finish(
    specs: Path, tmp_path: Path, shared_cache: Path
):
    edit(
        specs / "scale" / "kernel.py",
        "    signed = ",
        '    tl.static_assert(SIZE != 64, "64 is too small")\n    signed = ',
    )
    out = tmp_path / "out"
    with pytest.raises(BuildError) as raised:
        run(specs, out, shared_cache)
    message = str(raised.value)
    assert "scale__fp32_64_long, scale__fp16_64_short, scale__fp16_64_long on sm90: " in message
    assert "64 is too small" in message
    assert "256" not in message.replace("_256", "").split("on sm90")[0]
    assert not (out / "sm90.pack").exists()
    # The others are in the cache: what fails again is all that is tried again.
    lines = (out / ".work" / "progress").read_text().splitlines()
    assert len(lines) == VARIANTS
    with pytest.raises(BuildError):
        run(specs, out, shared_cache)
    events = [line.split()[0] for line in (out / ".work" / "progress").read_text().splitlines()]
    assert (events.count("failed"), events.count("cached"), events.count("compiled")) == (6, 4, 0)


def test_a_crashing_compiler_costs_only_its_variant(
    specs: Path, tmp_path: Path, shared_cache: Path
):
    kernel = specs / "scale" / "kernel.py"
    edit(kernel, "import triton\n", "import os\n\nimport triton\n")
    edit(
        kernel,
        "@triton.jit\n",
        "@triton.constexpr_function\ndef crash(size):\n    if size == 64:\n        os.abort()\n    return size\n\n\n@triton.jit\n",
    )
    edit(kernel, "    signed = ", "    tl.static_assert(crash(SIZE) == SIZE)\n    signed = ")
    with pytest.raises(BuildError) as raised:
        run(specs, tmp_path / "out", shared_cache, archs=["sm90"])
    assert "scale__fp32_64_long" in str(raised.value)
    assert "the compiler died (SIGABRT)" in str(raised.value)
    events = (tmp_path / "out" / ".work" / "progress").read_text().splitlines()
    # Whether `fill` was in the shared cache depends on the tests before this one.
    finished = sorted(line.split()[1] for line in events if not line.startswith("failed"))
    assert finished == ["fill", "scale__fp16_256_long", "scale__fp32_256_long"]


def test_a_kernel_that_cannot_be_imported(specs: Path, tmp_path: Path, shared_cache: Path):
    edit(specs / "fill" / "kernel.py", "import triton\n", "import triton\nimport no_such_module\n")
    with pytest.raises(BuildError, match=r"fill on sm90: ModuleNotFoundError: .*no_such_module"):
        run(specs, tmp_path / "out", shared_cache, archs=["sm90"])


def test_exceeded_budgets_and_lost_hints_fail_the_build(
    specs: Path, tmp_path: Path, shared_cache: Path
):
    edit(specs / "scale" / "spec.toml", "registers = 64", "registers = 16")
    edit(specs / "scale" / "spec.toml", "bytes = 16", "bytes = 8")
    with pytest.raises(BuildError) as raised:
        run(specs, tmp_path / "out", shared_cache)
    message = str(raised.value)
    assert "scale__fp16_256_long on sm90: budget exceeded: registers = " in message
    assert "scale__fp16_256_long on sm90: row_loads: the widest global load must have 8" in message
    assert "on sm100: budget exceeded" in message
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_sources_that_change_during_a_build_are_noticed(
    specs: Path, tmp_path: Path, shared_cache: Path
):
    batch = next(iter(make_batches(make_plan(specs, "full", ["sm90"]))))
    edit(specs / "fill" / "kernel.py", '"""output', '"""Output')
    cache = CubinCache(tmp_path / "empty")
    with pytest.raises(BuildError, match="the sources of fill changed during the build"):
        compile_batch(batch, specs, cache, tmp_path / "results.json", ProgressLog(None))
    assert not (tmp_path / "results.json").exists()


def start(
    specs: Path, out: Path, cache: Path, archs: str = "sm90,sm100"
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [
            # On a busy machine the test must not be the one that waits.
            *("nice", sys.executable, "-m", "aot_build", "build", "--jobs", "1", "--archs", archs),
            *("--specs", str(specs), "--out", str(out), "--cache", str(cache)),
        ],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.DEVNULL,
        # Where these tests run behind a shell's &, it is ignored, and Python leaves it so.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - sets a signal, no more
    )


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_build_is_resumed(
    toy_build: BuildResult, specs: Path, tmp_path: Path, how: signal.Signals
):
    out, cache = tmp_path / "out", tmp_path / "cache"
    process = start(specs, out, cache)
    progress = out / ".work" / "progress"
    while not (progress.exists() and progress.read_text().count("compiled") >= 2):
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(how)
    assert process.wait() != 0
    with pytest.raises(BuildError, match="no finished build"):
        check_artifacts(out)
    # Killed outright, ninja goes on and holds the folder's lock: this build waits for it.
    result = run(specs, out, cache)
    assert compare(toy_build.out, result.out) == []
    assert result.compiled < VARIANTS
    leftovers = [path for path in out.rglob(".*") if path.is_file() and ".ninja" not in path.name]
    assert leftovers == [] or how == signal.SIGKILL


def test_builds_at_the_same_time(specs: Path, tmp_path: Path):
    """Two in one folder take turns; one elsewhere shares the cache with them."""
    cache = tmp_path / "cache"
    folders = ("together", "together", "apart")
    builds = [start(specs, tmp_path / folder, cache, archs="sm90") for folder in folders]
    assert [process.wait() for process in builds] == [0, 0, 0]
    assert check_artifacts(tmp_path / "together").variants == 6
    assert compare(tmp_path / "together", tmp_path / "apart") == []


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fchmod", fail)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_stored_json_is_json():
    value = {"b": [1, 2], "a": {"x": [{"y": [], "z": {}}, {"deep": {"deeper": {"deepest": [1]}}}]}}
    assert json.loads(readable_json(value)) == value
    assert readable_json(value, levels=1).count(b"\n") == 4
