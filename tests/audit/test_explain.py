"""The offline explanation: which variant, why, and which axis value is missing where there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from aot_build.manifest import make_manifest
from aot_build.pack import PackReport
from aot_build.planner import make_plan
from tbe_aot_audit.errors import AuditError
from tbe_aot_audit.explain import Call, explain
from tbe_aot_audit.manifest import Code, Manifest, parse_manifest
from tests.audit.making import LIB, Files, edit_manifest, write_wheel
from tests.audit.test_commands import document, run
from tests.unit.aot_build.toy_specs import ARCHS, REPOSITORY


@pytest.fixture(scope="session")
def planned() -> Manifest:
    """The project's own kernels, none of them compiled."""
    plan = make_plan(REPOSITORY / "kernel_specs", "full", ARCHS)
    empty = {
        arch: PackReport(
            arch=arch, file=f"{arch}.pack", sha256="", index_sha256="", size=0, blobs=[], records={}, machine_code={}
        )
        for arch in ARCHS
    }  # fmt: skip
    return Manifest.model_validate(make_manifest(plan, empty))


def test_a_call_decides_every_axis_of_the_forward(planned: Manifest):
    call = Call(weights="float16", dim=100, indices="int32", mean_length=1000, batch=5, features=3)
    found = explain(planned, call)
    assert [(d.axis, d.label) for d in found.decisions] == [
        ("weight_dtype", "fp16"),
        ("bucket", "d128"),
        ("index_width", "i32"),
        ("weighted", "unweighted"),
        ("aligned", "aligned"),
        ("checked", "trusting"),
        ("shape", "long"),
    ]
    (candidate,) = found.candidates
    assert candidate.variant == "forward__fp16_d128_i32_unweighted_aligned_long_trusting"
    bags = int(candidate.constants["BAGS"])
    assert candidate.grid == (-(-5 // bags), 3, 1)
    # Long bags have no variant that checks.
    assert {a.axis for a in found.alternatives} == {d.axis for d in found.decisions} - {"checked"}
    assert found.arch == "sm90"


def test_what_is_not_said_stays_open(planned: Manifest):
    found = explain(planned, Call(weights="fp16", dim=100, indices="int64"))
    assert found.open_axes == ["shape"]
    assert {c.when for c in found.candidates} == {"shape long", "shape medium", "shape short"}
    everything = explain(planned, Call(), kernel="check_indices")
    assert [c.when for c in everything.candidates] == ["index_width i32", "index_width i64"]


@pytest.mark.parametrize(
    ("call", "kernel", "label"),
    [
        (Call(rows=2**31 - 2), "find_runs", "k32"),
        (Call(rows=2**31 - 1), "find_runs", "k64"),
        (Call(rows=10, lookups=10), "sort_pass", "small"),
        (Call(rows=10, lookups=10**7), "sort_pass", "large"),
        (Call(weights="bf16", dim=16, optimizer="sgd"), "update_long_runs", "rowwise"),
        (Call(weights="bf16", dim=16, optimizer="adam"), "update_long_runs", "adam"),
        (Call(weights="fp16", dim=16, optimizer="adam", gradient="bf16"), "update_short_runs", "fp32"),
        (Call(weights="fp16", dim=16, optimizer="adam", gradient="fp16"), "update_short_runs", "fp16"),
        (Call(weights="fp16", dim=16, optimizer="adam", mean=True), "update_short_runs", "factored"),
        (Call(weights="fp16", dim=16, indices="int32", aligned=False), "per_sample_weights_gradient", "generic"),
    ],
)  # fmt: skip
def test_the_backward_s_axes(planned: Manifest, call: Call, kernel: str, label: str):
    found = explain(planned, call, kernel=kernel)
    assert found.open_axes == []
    assert label in {decision.label for decision in found.decisions}
    assert len(found.candidates) == 1


def test_an_axis_that_has_no_such_value(planned: Manifest):
    found = explain(planned, Call(weights="fp16", dim=2049, indices="int32"))
    assert found.problem == (
        "axis bucket has no value for dim 2049: it has 16, 32, 64, 128, 256, 512, 1024, 2048"
    )
    found = explain(
        planned, Call(weights="fp16", dim=16, optimizer="lion"), kernel="update_long_runs"
    )
    assert found.problem is not None
    assert found.problem.startswith("axis optimizer has no value for the optimizer lion")


def test_a_combination_that_no_operator_asks_for(planned: Manifest):
    call = Call(weights="fp32", dim=64, optimizer="adam", axes={"gradient_dtype": "fp16"})
    found = explain(planned, call, kernel="update_short_runs")
    assert found.problem is not None
    assert found.problem.startswith("no operator asks for this combination: ")
    assert found.candidates == []


def left_out(files: Files, *names: str) -> Manifest:
    """The toy kernels' manifest without some variants."""

    def change(manifest: dict[str, Any]) -> None:
        manifest["profile"] = "small"
        for variant in manifest["kernels"]["scale"]["variants"]:
            if variant["name"] in names:
                variant.update(built=False, blob=-1)
                for name in Code.model_fields:
                    variant.pop(name, None)

    return parse_manifest(edit_manifest(files, change)[f"{LIB}manifest.json"], "manifest")


def scale(dtype: str, size: str, shape: str) -> Call:
    return Call(axes={"dtype": dtype, "size": size, "shape": shape})


def test_the_axis_value_that_a_profile_lacks(files: Files):
    manifest = left_out(
        files, "scale__fp16_64_short", "scale__fp16_64_long", "scale__fp16_256_long"
    )
    found = explain(manifest, scale("fp16", "64", "long"), kernel="scale")
    assert found.problem == "the profile small builds no variant with dtype fp16"


def test_the_nearest_that_a_profile_builds(files: Files):
    manifest = left_out(files, "scale__fp16_64_long")
    found = explain(manifest, scale("fp16", "64", "long"), kernel="scale")
    start = "the profile small leaves out scale__fp16_64_long; it builds the same with "
    assert str(found.problem).startswith(start)
    for part in ("dtype fp32", "size 256", "shape short"):
        assert part in str(found.problem)


def test_a_cell_that_another_s_variant_serves(files: Files):
    manifest = parse_manifest(files[f"{LIB}manifest.json"], "manifest")
    found = explain(manifest, scale("fp16", "256", "short"), kernel="scale")
    (candidate,) = found.candidates
    assert candidate.variant == "scale__fp16_256_long"
    assert candidate.served_by_another_cell
    assert found.problem is None


@pytest.mark.parametrize(
    ("call", "kernel", "arch", "says"),
    [
        (Call(), "scal", "", "kernel 'scal': this build has advance_"),
        (Call(), "forward", "sm80", "arch 'sm80': this build has sm100, sm90"),
        (Call(weights="fp8"), "forward", "", "dtype of the weights 'fp8': allowed are float32"),
        (Call(indices="int16"), "forward", "", "dtype of the indices 'int16': allowed are int32, int64"),
        (Call(axes={"bits": "3"}), "forward", "", "axis 'bits': the axes of forward are weight_dtype, "),
        (Call(axes={"bucket": "3"}), "forward", "", "axis bucket has no value '3': d16, d32"),
    ],
)  # fmt: skip
def test_what_means_nothing(planned: Manifest, call: Call, kernel: str, arch: str, says: str):
    with pytest.raises(AuditError, match=says):
        explain(planned, call, kernel=kernel, arch=arch)


def test_the_command(files: Files, tmp_path: Path):
    wheel = write_wheel(tmp_path / "a.whl", files)
    options = ["--kernel", "scale", "--axis", "dtype=fp16", "--axis", "size=256"]
    found = document("explain", wheel, *options, "--axis", "shape=long")
    assert [candidate["variant"] for candidate in found["candidates"]] == ["scale__fp16_256_long"]
    assert "scale__fp16_256_long" in run("explain", wheel, *options)
    refused = ["--axis", "dtype=fp32", "--axis", "size=64", "--axis", "shape=short"]
    assert "nobody scales so little" in run(
        "explain", wheel, "--kernel", "scale", *refused, status=1
    )
