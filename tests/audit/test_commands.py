"""The command: what it prints, as tables and as documents, and its exit status."""

from __future__ import annotations

import hashlib
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from typer.testing import CliRunner

from tbe_aot_audit import cli
from tbe_aot_audit.baseline import make_baseline
from tbe_aot_audit.errors import AuditError
from tbe_aot_audit.manifest import parse_manifest
from tbe_aot_audit.schema import documents_schema
from tbe_aot_audit.source import open_source
from tests.audit.making import (
    LIB,
    Files,
    edit_manifest,
    flipped,
    with_provenance,
    write_package,
    write_wheel,
)
from tests.unit.aot_build.toy_specs import REPOSITORY

VARIANT = "scale__fp16_256_long"


def run(*arguments: object, status: int = 0) -> str:
    """What the command prints."""
    done = CliRunner().invoke(cli.app, list(map(str, arguments)), env={"COLUMNS": "160"})
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == status, done.output
    return done.output


def document(*arguments: object, status: int = 0) -> dict[str, Any]:
    """The document that a command prints; it fits the schema."""
    found: dict[str, Any] = json.loads(run(*arguments, "--json", status=status))
    jsonschema.validate(found, documents_schema())
    return found


def test_info(wheel: Path):
    assert "profile full" in run("info", wheel)
    found = document("info", wheel)
    assert found["document"] == "list"
    assert {arch["name"]: arch["variants"] for arch in found["archs"]} == {"sm100": 5, "sm90": 6}
    assert found["toolchain"]["ptxas"]["sm90"].startswith("12.")


def test_list(wheel: Path):
    everything = document("list", wheel)["variants"]
    assert len(everything) == 11
    assert all(entry["variant"]["code"]["registers"] for entry in everything)
    chosen = document("list", wheel, "--kernel", "scale", "--arch", "sm90", "--axis", "dtype=fp16")
    assert {entry["variant"]["name"] for entry in chosen["variants"]} == {
        "scale__fp16_64_short",
        "scale__fp16_64_long",
        VARIANT,
    }
    by_size = document("list", wheel, "--sort", "size")["variants"]
    sizes = [entry["variant"]["code"]["cubin_bytes"] for entry in by_size]
    assert sizes == sorted(sizes, reverse=True)
    shown = run("list", wheel)
    assert VARIANT in shown
    assert "11 variants" in shown


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--kernel", "scal"], "kernel 'scal': this build has fill, scale"),
        (["--arch", "sm80"], "arch 'sm80': this build has sm100, sm90"),
        (["--axis", "bits=3"], "axis 'bits': this build has "),
        (["--axis", "dtype=fp8"], "axis dtype has no value 'fp8': fp16, fp32"),
        (["--axis", "dtype"], "expected NAME=VALUE"),
        (["--sort", "speed"], "sort 'speed': this build has "),
    ],
)
def test_list_of_what_is_not_there(wheel: Path, options: list[str], says: str):
    with pytest.raises(AuditError, match=says):
        run("list", wheel, *options)


def test_show(wheel: Path):
    found = document("show", VARIANT, wheel, "--arch", "sm100")
    assert (found["variant"]["name"], found["variant"]["arch"]) == (VARIANT, "sm100")
    assert found["sass"] is None
    assert found["limits"]["warps"] == 64
    assert "registers" in run("show", VARIANT, wheel)
    # A part that one variant alone has.
    assert document("show", "fp16_256", wheel)["variant"]["name"] == VARIANT


def test_show_of_what_is_not_there(wheel: Path):
    with pytest.raises(
        AuditError, match=f"no variant is called 'scale__fp61_256_long'; the nearest: .*{VARIANT}"
    ):
        run("show", "scale__fp61_256_long", wheel)
    with pytest.raises(
        AuditError, match="3 variants match 'fp16'; the nearest: scale__fp16_256_long, "
    ):
        run("show", "fp16", wheel)
    with pytest.raises(AuditError, match="fill is not built for sm100"):
        run("show", "fill", wheel, "--arch", "sm100")


def test_show_with_machine_code(wheel: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    assert "LDG.E.128" in document("show", VARIANT, wheel, "--arch", "sm90", "--sass")["sass"]
    monkeypatch.setenv("TBE_AOT_NVDISASM", str(tmp_path / "nowhere"))
    with pytest.raises(AuditError, match="nowhere does not run"):
        run("show", VARIANT, wheel, "--sass")


def test_verify(wheel: Path, files: Files, tmp_path: Path):
    assert "It is what was built, by its own hashes. --sha256" in run("verify", wheel)
    sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
    assert "has the hash that was named" in run("verify", wheel, "--sha256", sha256)
    assert document("verify", wheel)["ok"]
    name = f"{LIB}sm90.pack"
    changed = {**files, name: flipped(files[name], len(files[name]) // 2)}
    other = write_wheel(tmp_path / "changed.whl", changed)
    assert "do not use it" in run("verify", other, status=1)
    checks = document("verify", other, status=1)["checks"]
    assert {check["name"] for check in checks if check["findings"]} == {
        "packs",
        "cubins",
        "provenance",
    }


@pytest.mark.parametrize("sha256", ["zz", "", "0" * 63, "0" * 65, "g" * 64])
def test_a_hash_that_is_none_is_no_finding(wheel: Path, sha256: str):
    assert "64 hexadecimal digits" in run("verify", wheel, "--sha256", sha256, status=2)


def test_what_did_not_apply_is_said(files: Files, tmp_path: Path):
    path = tmp_path / "manifest.json"
    path.write_bytes(files[f"{LIB}manifest.json"])
    shown = run("verify", path)
    assert "It is what was built" not in shown
    assert "Nothing wrong was found, but it was not all looked at: record, " in shown


def test_a_report_of_a_wheel_that_is_wrong(files: Files, tmp_path: Path):
    changed = {**files, "tbe_aot/__init__.py": b"evil"}
    wheel = write_wheel(tmp_path / "changed.whl", changed)
    out = tmp_path / "report.html"
    assert "1 finding: do not use it" in run("report", wheel, "--out", out, status=1)
    assert out.stat().st_size > 10_000
    good = write_wheel(tmp_path / "good.whl", files)
    assert "It is what was built" in run("report", good, "--out", out)


def test_sbom_and_record(wheel: Path, artifacts: Path):
    names = [component["name"] for component in json.loads(run("sbom", wheel))["components"]]
    assert f"{LIB}sm90.pack" in names
    assert json.loads(run("sbom", wheel, "--record"))["source"]["revision"] == "abc"
    with pytest.raises(AuditError, match="is no distribution, so it has no sboms/"):
        run("sbom", artifacts)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("missing.whl", None, "missing.whl does not exist"),
        ("empty.whl", b"", "empty.whl is no wheel"),
        ("text.json", b"hello", "text.json is no JSON"),
        (
            "old.json",
            b'{"schema_version": 1, "kernels": {}}',
            "schema version 1, this tool reads 2",
        ),
    ],
)
def test_errors_have_a_status_of_their_own(
    tmp_path: Path, name: str, content: bytes | None, says: str
):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    command = [sys.executable, "-m", "tbe_aot_audit", "list", str(path)]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY / "python")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert says in done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


def command(*arguments: object, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """The command as a process of its own."""
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY / "python")}
    line = [sys.executable, "-m", "tbe_aot_audit", *map(str, arguments)]
    return subprocess.run(line, env=environment, check=False, **options)


@pytest.mark.parametrize("build", ["x" * 5000, "x" * 300, "a/" * 300, "\udcff.whl", "\x1b[2J.whl"])
def test_a_path_that_is_none(build: str):
    done = command("list", os.fsencode(build).decode("utf-8", "surrogateescape"), capture_output=True)  # fmt: skip
    assert done.returncode == 2
    assert b"Traceback" not in done.stderr
    assert b"\x1b" not in done.stderr


def test_what_cannot_be_written(wheel: Path, tmp_path: Path):
    (tmp_path / "file").write_text("")
    for out in (tmp_path, tmp_path / "file" / "x", tmp_path / ("x" * 300)):
        with pytest.raises(AuditError, match="cannot be written: "):
            run("report", wheel, "--out", out)
        with pytest.raises(AuditError, match="cannot be written: "):
            run("baseline", wheel, out, "--accept")


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_full_disk(wheel: Path, options: list[str]):
    with Path("/dev/full").open("wb") as full:
        done = command("verify", wheel, *options, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 2
    assert done.stderr == b"error: the output cannot be written: No space left on device\n"


# What a build may say of itself: markup, its halves, escapes for terminals, a line of one's own, a change of direction.
HOSTILE = ["[/x]", "[/x", "y]", "[bold]", "\\", "\\[/x]", "\x1b[2J", "a\nIt is what was built.", "\u202e", "\u009b31m", ":smile:"]  # fmt: skip
# Names that lead from one part of a manifest to another; they are replaced everywhere at once.
LINKS = ("sm90", "scale", VARIANT)


def replaced(value: Any, hostile: str, names: dict[str, str]) -> Any:
    if isinstance(value, str):
        return names.get(value, value)
    if isinstance(value, list):
        return [replaced(item, hostile, names) for item in value]
    if isinstance(value, dict):
        free = {"summary", "doc", "reason", "entry", "limited_by", "triton", "type", "least_driver", "profile", "source_sha256", "nvrtc"}  # fmt: skip
        return {
            names.get(key, key): hostile
            if key in free and isinstance(item, str)
            else replaced(item, hostile, names)
            for key, item in value.items()
        }
    return value


def with_other_code(manifest: dict[str, Any]) -> None:
    for kernel in manifest["kernels"].values():
        for variant in kernel["variants"]:
            variant.update(registers=1, cubin_sha256="0")


@pytest.mark.parametrize("hostile", HOSTILE)
def test_nothing_that_a_build_says_reaches_the_terminal_as_it_is(
    files: Files, tmp_path: Path, hostile: str
):
    names = {link: f"{link}{hostile}" for link in LINKS}
    text = files[f"{LIB}manifest.json"]
    manifest = tmp_path / "manifest.json"
    document = replaced(json.loads(text), hostile, names)
    document["archs"][names["sm90"]]["elf_abi"] = [hostile]
    manifest.write_text(json.dumps(document))
    older = tmp_path / "older.json"
    worsened = edit_manifest({f"{LIB}manifest.json": manifest.read_bytes()}, with_other_code)
    older.write_bytes(worsened[f"{LIB}manifest.json"])
    baseline = tmp_path / "baseline.json"
    commands: list[list[object]] = [
        ["info", manifest],
        ["list", manifest],
        ["show", names[VARIANT], manifest],
        ["verify", manifest],
        ["diff", older, manifest],
        ["diff", tmp_path / "manifest.json", older],
        ["explain", manifest, "--kernel", names["scale"]],
        ["report", manifest, "--out", tmp_path / "report.html"],
        ["baseline", older, baseline, "--accept"],
        ["baseline", manifest, baseline],
    ]
    for words in commands:
        done = CliRunner().invoke(cli.app, list(map(str, words)), env={"COLUMNS": "500"})
        if not isinstance(done.exception, AuditError | SystemExit | None):
            raise done.exception
        assert all(char.isprintable() or char == "\n" for char in done.output)
        assert not any(line.startswith("It is what was built.") for line in done.output.splitlines())  # fmt: skip
    # Shown as it is, where it can be.
    if hostile in {"[/x]", "[bold]", "[/x", "y]", ":smile:"}:
        assert names[VARIANT] in run("show", names[VARIANT], manifest)
        assert names[VARIANT] in run("list", manifest)


def test_names_in_an_archive_reach_no_terminal(files: Files, tmp_path: Path):
    name = "tbe_aot/\x1b[2J[/x].py"
    wheel = write_wheel(tmp_path / "a.whl", {**files, name: b""})
    shown = run("verify", wheel, status=1)
    assert "\x1b" not in shown
    assert r"tbe_aot/\x1b[2J[/x].py" in shown
    assert "\x1b" not in run("verify", wheel, "--json", status=1)


def test_json_is_ascii(files: Files, tmp_path: Path):
    def change(manifest: dict[str, Any]) -> None:
        manifest["kernels"]["scale"]["summary"] = "\u009b31m \u202e \U0001f600"

    wheel = write_wheel(tmp_path / "a.whl", edit_manifest(files, change))
    assert run("info", wheel, "--json").isascii()
    assert document("info", wheel)["kernels"]["scale"] == "\u009b31m \u202e \U0001f600"


def test_a_folder_without_a_build(tmp_path: Path):
    with pytest.raises(AuditError, match="holds no build: expected a wheel"):
        run("list", tmp_path)


def worse(files: Files) -> Files:
    def change(manifest: dict[str, Any]) -> None:
        for variant in manifest["kernels"]["scale"]["variants"]:
            if variant["name"] == VARIANT and variant["arch"] == "sm90":
                variant.update(spill_bytes=16, registers=200, cubin_sha256="0" * 64)
                variant["constants"]["ROWS"] = 99
            if variant["name"] == "scale__fp16_64_long":
                variant.update(registers=variant["registers"] - 2, cubin_sha256="1" * 64)
        manifest["kernels"].pop("fill")
        manifest["toolchain"]["triton"] = "3.10.0"

    return edit_manifest(files, change)


def test_diff(wheel: Path, files: Files, tmp_path: Path):
    other = write_wheel(tmp_path / "other.whl", worse(files))
    found = document("diff", wheel, other)
    assert [name["name"] for name in found["removed"]] == ["fill"]
    assert found["toolchain"]["triton"] == ["3.9.0", "3.10.0"]
    first = found["changed"][0]
    assert (first["name"], first["arch"]) == (VARIANT, "sm90")
    assert first["settings"]["ROWS"][1] == 99
    spill = next(change for change in first["changes"] if change["metric"] == "spill_bytes")
    assert (spill["before"], spill["after"], spill["worse"], spill["intolerable"]) == (
        0,
        16,
        True,
        True,
    )
    better = [v for v in found["changed"] if v["name"] == "scale__fp16_64_long"]
    assert len(better) == 2
    assert not any(change["worse"] for v in better for change in v["changes"])
    assert "spilled bytes 0 -> 16" in run("diff", wheel, other)
    run("diff", wheel, other, "--check", status=1)
    same = document("diff", wheel, wheel, "--check")
    assert (same["changed"], same["unchanged"]) == ([], 11)
    # Back again it gets better.
    run("diff", other, wheel, "--check")


Edit = Callable[[dict[str, Any]], Any]


def scale_of(manifest: dict[str, Any], name: str = VARIANT) -> dict[str, Any]:
    """A variant on sm90."""
    found: list[dict[str, Any]] = manifest["kernels"]["scale"]["variants"]
    return next(v for v in found if (v["name"], v["arch"]) == (name, "sm90"))


def lead_elsewhere(manifest: dict[str, Any]) -> None:
    cells = manifest["kernels"]["scale"]["cells"]
    cells[scale_of(manifest)["cell"]] = cells[scale_of(manifest, "scale__fp16_64_short")["cell"]]


def rename_and_spill(manifest: dict[str, Any]) -> None:
    scale_of(manifest).update(name="scale__renamed", spill_bytes=500)


def without_a_reason(manifest: dict[str, Any]) -> None:
    manifest["kernels"]["scale"]["excluded"] = []


def refuse(manifest: dict[str, Any]) -> None:
    kernel = manifest["kernels"]["scale"]
    cell = scale_of(manifest)["cell"]
    kernel["cells"][cell] = -1
    kernel["excluded"].append({"cell": cell, "reason": "no more"})


def narrow(manifest: dict[str, Any]) -> None:
    wide = manifest["kernels"]["scale"]["variants"][0]["sass"]["global_load_bytes"]
    scale_of(manifest)["sass"]["global_load_bytes"] = {"16": 1, "2": 50} | dict.fromkeys(wide, 1)


def first_parameter(manifest: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = manifest["kernels"]["scale"]["params"][0]
    return found


@pytest.mark.parametrize(
    ("edit", "says", "fails"),
    [
        pytest.param(lead_elsewhere, "scale__fp16_64_short", True, id="cell"),
        pytest.param(refuse, "refused: no more", True, id="refused"),
        pytest.param(without_a_reason, "refused: no reason", False, id="reasons"),
        pytest.param(lambda m: m.update(optimizers={"sgd": "adam"}), "optimizer sgd", False, id="optimizers"),
        pytest.param(lambda m: m.update(profile="small"), "small", False, id="profile"),
        pytest.param(lambda m: first_parameter(m).update(type="*i8"), "parameter output", False, id="parameter"),
        pytest.param(lambda m: scale_of(m).update(enable_fp_fusion=True), "enable_fp_fusion False -> True", False, id="fusion"),
        pytest.param(lambda m: scale_of(m).update(budget={"registers": 255}), "budget of registers", False, id="budget"),
        pytest.param(lambda m: scale_of(m).update(row_loads=[{"bytes": 8, "min_count": 3, "forbid_narrow": False}]), "3 of 8 bytes", False, id="row-loads"),
        pytest.param(lambda m: scale_of(m).update(spill_bytes=8), "spilled bytes 0 -> 8", True, id="numbers"),
        pytest.param(lambda m: scale_of(m).update(entry="other"), "entry scale_kernel -> other", False, id="entry"),
        pytest.param(lambda m: m["archs"]["sm90"].update(least_driver="999.1"), "999.1", True, id="driver"),
        pytest.param(lambda m: m["kernels"]["scale"].update(source_sha256="1" * 64), "1" * 16, False, id="source"),
        pytest.param(lambda m: m["kernels"].pop("fill"), "kernel fill", True, id="kernel"),
        pytest.param(rename_and_spill, "scale__renamed", True, id="renamed"),
        pytest.param(narrow, "mean bytes of a global load", True, id="narrow"),
    ],
)  # fmt: skip
def test_diff_sees_what_a_call_runs(
    wheel: Path, files: Files, tmp_path: Path, edit: Edit, says: str, fails: bool
):
    other = write_wheel(tmp_path / "other.whl", edit_manifest(files, edit))
    assert says in " ".join(run("diff", wheel, other).split())
    document("diff", wheel, other, "--check", status=int(fails))


def test_a_lost_optimizer_or_arch_fails_the_check(wheel: Path, files: Files, tmp_path: Path):
    def change(manifest: dict[str, Any]) -> None:
        manifest["optimizers"] = {"sgd": "rowwise"}

    more = write_wheel(tmp_path / "more.whl", edit_manifest(files, change))
    run("diff", wheel, more, "--check")
    found = document("diff", more, wheel, "--check", status=1)
    (lost,) = found["differences"]
    assert (lost["what"], lost["before"], lost["after"]) == ("optimizer sgd", "rowwise", None)
    one = write_wheel(tmp_path / "one.whl", of_one_arch(files, "sm90"))
    assert "arch sm100" in run("diff", wheel, one, "--check", status=1)
    run("diff", one, wheel, "--check")


def test_cells_of_a_kernel_with_another_axis_are_matched(wheel: Path, files: Files, tmp_path: Path):
    def change(manifest: dict[str, Any]) -> None:
        kernel = manifest["kernels"]["scale"]
        axis = {"name": "level", "values": [0, 1], "labels": ["l0", "l1"], "doc": ""}
        kernel["axes"].append(axis)
        kernel["cells"] = [number for number in kernel["cells"] for _ in axis["values"]]
        for variant in kernel["variants"]:
            variant["axes"]["level"] = 0
            variant["cell"] *= 2
        kernel["excluded"] = [
            {**excluded, "cell": 2 * excluded["cell"] + level}
            for excluded in kernel["excluded"]
            for level in (0, 1)
        ]

    more = write_wheel(tmp_path / "more.whl", edit_manifest(files, change))
    found = document("diff", wheel, more, "--check")
    assert found["cells"] == []
    assert [difference["what"] for difference in found["differences"]] == ["axis level"]
    assert document("diff", more, wheel, "--check")["cells"] == []


def of_one_arch(files: Files, arch: str) -> Files:
    def change(manifest: dict[str, Any]) -> None:
        manifest["archs"] = {arch: manifest["archs"][arch]}
        for kernel in manifest["kernels"].values():
            kernel["variants"] = [v for v in kernel["variants"] if v["arch"] == arch]

    return edit_manifest(files, change)


def test_baseline(wheel: Path, files: Files, tmp_path: Path):
    record = tmp_path / "baseline.json"
    with pytest.raises(AuditError, match="record one with --accept"):
        run("baseline", wheel, record)
    assert "recorded 11 variants" in run("baseline", wheel, record, "--accept")
    assert record.read_bytes() == make_baseline(parse_manifest(files[f"{LIB}manifest.json"], ""))
    assert document("baseline", wheel, record)["unchanged"] == 11
    other = write_wheel(tmp_path / "other.whl", worse(files))
    shown = run("baseline", other, record, status=1)
    assert "worse than the baseline" in shown
    assert "spilled bytes 0 -> 16" in shown
    found = document("baseline", other, record, status=1)
    assert [v["name"] for v in found["worse"]] == [VARIANT]
    assert found["gone"] == ["fill on sm90"]
    run("baseline", other, record, "--accept")
    run("baseline", other, record)


def test_a_baseline_has_every_variant_and_no_other(wheel: Path, files: Files, tmp_path: Path):
    record = tmp_path / "baseline.json"
    fewer = write_wheel(
        tmp_path / "fewer.whl", edit_manifest(files, lambda m: m["kernels"].pop("fill"))
    )
    run("baseline", fewer, record, "--accept")
    found = document("baseline", wheel, record, status=1)
    assert [v["name"] for v in found["unrecorded"]] == ["fill"]
    assert "1 variants of the build are not in the baseline: if that is meant, record" in run(
        "baseline", wheel, record, status=1
    )
    run("baseline", wheel, record, "--accept")
    assert document("baseline", fewer, record, status=1)["gone"] == ["fill on sm90"]
    assert "1 variants of the baseline are not in the build" in run(
        "baseline", fewer, record, status=1
    )


def test_a_build_of_one_arch_keeps_the_rows_of_the_other(wheel: Path, files: Files, tmp_path: Path):
    record = tmp_path / "baseline.json"
    run("baseline", wheel, record, "--accept")
    whole = record.read_bytes()
    one = write_wheel(tmp_path / "one.whl", of_one_arch(files, "sm90"))
    found = document("baseline", one, record)
    assert (found["unchanged"], found["other_archs"]) == (6, ["sm100"])
    assert "not compared, this build has none of it: sm100" in run("baseline", one, record)
    run("baseline", one, record, "--accept")
    assert record.read_bytes() == whole
    record.unlink()
    run("baseline", one, record, "--accept")
    assert len(document("baseline", wheel, record, status=1)["unrecorded"]) == 5


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda b: b.update(variants={}), "holds no variant: nothing can be held against it"),
        (lambda b: b["variants"].update(sm100={}), "holds no variant of sm100"),
        (lambda b: b.update(columns=[], variants={a: {n: [] for n in v} for a, v in b["variants"].items()}), "lacks spill_bytes, "),
        (lambda b: b.update(profile="ci"), "holds the profile ci, this build is of full"),
        (lambda b: b.update(version=0), "has version 0, this tool reads 1"),
        (lambda b: b["variants"]["sm90"].update(fill=[math.nan] * len(b["columns"])), "nan is no number"),
    ],
)  # fmt: skip
def test_a_baseline_that_holds_nothing(wheel: Path, tmp_path: Path, edit: Edit, says: str):
    record = tmp_path / "baseline.json"
    run("baseline", wheel, record, "--accept")
    found = json.loads(record.read_bytes())
    edit(found)
    record.write_text(json.dumps(found))
    with pytest.raises(AuditError, match=says):
        run("baseline", wheel, record)


def test_the_committed_schema_is_the_documents_one():
    """After a wanted change: ``python -m tbe_aot_audit schema > docs/audit_schema.json``."""
    committed = json.loads((REPOSITORY / "docs" / "audit_schema.json").read_text())
    assert committed == documents_schema()


def test_the_audit_imports_neither_torch_nor_triton_nor_the_package(files: Files, tmp_path: Path):
    package = write_package(tmp_path, files)
    script = (
        "import sys; sys.modules.update(torch=None, triton=None, tbe_aot=None)\n"
        f"sys.argv = ['tbe-aot', 'verify', {str(package)!r}]\n"
        "from tbe_aot_audit.cli import main; main()"
    )
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY / "python")}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "It is what was built, by its own hashes." in done.stdout


def test_the_installed_build_is_found_without_importing_it(files: Files, tmp_path: Path):
    module = {"tbe_aot/__init__.py": b"raise ImportError('imported')\n"}
    write_package(tmp_path, with_provenance({**files, **module}))
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(REPOSITORY / "python")])
    }
    command = [sys.executable, "-m", "tbe_aot_audit", "verify"]
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr + done.stdout
    assert str(tmp_path) in done.stdout


def test_a_shell_completes_commands_and_variants(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    package = write_package(tmp_path, files)
    monkeypatch.setattr(cli, "open_source", lambda _: open_source(package))

    def completed(words: str) -> list[str]:
        environment = {"_TBE_AOT_COMPLETE": "complete_bash", "COMP_WORDS": words}
        environment["COMP_CWORD"] = str(len(words.split(" ")) - 1)
        return CliRunner().invoke(cli.app, [], prog_name="tbe-aot", env=environment).output.split()

    assert completed("tbe-aot ver") == ["verify"]
    assert completed("tbe-aot show scale__fp16_6") == [
        "scale__fp16_64_long",
        "scale__fp16_64_short",
    ]
