"""The offline explanation: which variant, why, and which axis value is missing where there is none."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aot_build.manifest import make_manifest
from aot_build.pack import PackReport
from aot_build.planner import make_plan
from tbe_aot_audit.errors import AuditError
from tbe_aot_audit.explain import Call, Explained, explain
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
        ("shape", "long"),
        ("checked", "trusting"),
    ]
    (candidate,) = found.candidates
    assert candidate.variant == "forward__fp16_d128_i32_unweighted_aligned_long_trusting"
    bags = int(candidate.constants["BAGS"])
    assert candidate.grid == (-(-5 // bags), 3, 1)
    # Long bags have no variant that checks.
    assert {a.axis for a in found.alternatives} == {d.axis for d in found.decisions} - {"checked"}
    assert found.arch == "sm90"


def test_what_is_not_said_stays_open(planned: Manifest):
    known = Call(weights="fp16", dim=100, indices="int64", bounds_check="none")
    found = explain(planned, known)
    assert found.open_axes == ["shape"]
    assert {c.when for c in found.candidates} == {"shape long", "shape medium", "shape short"}
    # Bags that are short enough are checked in the lookup, others before.
    found = explain(planned, replace(known, bounds_check="warning"))
    assert {c.when for c in found.candidates} == {
        "shape long, checked trusting",
        "shape medium, checked trusting",
        "shape short, checked checked",
    }
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


HALF = Call(weights="fp16", dim=100, indices="int64", mean_length=3, batch=1000)
SMALL = replace(HALF, rows=10, mean_length=20)


def taken(found: Explained) -> dict[str, bool | None]:
    return {path.kernel: path.taken for path in found.paths}


@pytest.mark.parametrize(
    ("call", "arch", "variant"),
    [
        (HALF, "sm90", "forward__fp16_d128_i64_unweighted_aligned_short_checked"),
        (replace(HALF, mean_length=30, rows=1000, fused_checks="always"), "sm90", "forward__fp16_d128_i64_unweighted_aligned_short_checked"),
        (replace(HALF, fused_checks="never"), "sm90", "forward__fp16_d128_i64_unweighted_aligned_short_trusting"),
        (replace(HALF, bounds_check="fatal"), "sm90", "forward__fp16_d128_i64_unweighted_aligned_short_trusting"),
        (SMALL, "sm90", "forward_small_table__fp16_d128_e64_i64_checked"),
        (replace(SMALL, bounds_check="none"), "sm90", "forward_small_table__fp16_d128_e64_i64_trusting"),
        (replace(SMALL, small_tables="never"), "sm90", "forward__fp16_d128_i64_unweighted_aligned_long_trusting"),
        (replace(SMALL, dim=99), "sm90", "forward__fp16_d128_i64_unweighted_aligned_long_trusting"),
        (replace(HALF, bounds_check="none", work_stealing="always"), "sm100", "forward_work_stealing__fp16_d128_i64"),
        (replace(HALF, bounds_check="none", work_stealing="always"), "sm90", "forward__fp16_d128_i64_unweighted_aligned_short_trusting"),
        # Lookups and batch have a mean length; without lookups there are no weights.
        (replace(HALF, mean_length=None, lookups=3000), "sm90", "forward__fp16_d128_i64_unweighted_aligned_short_checked"),
        (replace(HALF, mean_length=0, weighted=True), "sm90", "forward__fp16_d128_i64_unweighted_aligned_short_checked"),
    ],
)  # fmt: skip
def test_the_kernel_that_looks_up(planned: Manifest, call: Call, arch: str, variant: str):
    found = explain(planned, call, arch=arch)
    assert [candidate.variant for candidate in found.candidates] == [variant]
    assert taken(found)[found.kernel] is True
    assert sum(path.taken is True for path in found.paths) == 1


def test_a_kernel_that_the_call_does_not_launch(planned: Manifest):
    found = explain(planned, SMALL, kernel="forward")
    assert found.candidates == []
    assert found.problem == "this call does not launch forward: forward_small_table runs instead"
    many = replace(SMALL, weights="fp32", features=8, mean_length=1)
    because = {path.kernel: path.because for path in explain(planned, many).paths}
    assert because["forward_small_table"] == "there is more than one feature"
    # What is not known leaves it open.
    unknown = explain(planned, replace(SMALL, rows=None))
    assert taken(unknown) == {
        "forward": None,
        "forward_small_table": None,
        "forward_work_stealing": False,
    }
    assert unknown.candidates[0].variant.startswith("forward__")


@pytest.mark.parametrize(
    ("call", "kernel", "variant"),
    [
        (Call(weights="bf16", output="bf16", dim=17, optimizer="adagrad"), "update_short_runs", "bf16_bf16_d32_plain_generic_adagrad"),
        (Call(weights="bf16", dim=24, optimizer="adagrad"), "update_short_runs", "bf16_fp32_d32_plain_aligned_adagrad"),
        (Call(weights="bf16", dim=24, optimizer="sgd", rows=10, lookups=500), "update_long_runs", "bf16_d32_aligned_rowwise"),
        (Call(weights="bf16", dim=64, optimizer="sgd", rows=10, lookups=500, features=2), "sum_and_update_long_runs", "bf16_fp32_d64_plain"),
        (Call(weights="bf16", dim=64, optimizer="sgd", rows=10, lookups=5000, features=2), "update_long_runs", "bf16_d64_aligned_rowwise"),
        (Call(weights="bf16", output="bf16", dim=64, optimizer="sgd", rows=10, batch=64, mean_length=20, indices="int32"), "sum_small_table", "bf16_d64_i32"),
        (Call(weights="bf16", dim=64, optimizer="adam", rows=10, batch=64, mean_length=20, indices="int32"), "update_small_table", "bf16_d64_adam"),
    ],
)  # fmt: skip
def test_the_kernels_of_an_update(planned: Manifest, call: Call, kernel: str, variant: str):
    found = explain(planned, call, kernel=kernel)
    assert [candidate.variant for candidate in found.candidates] == [f"{kernel}__{variant}"]


def test_thresholds_are_the_manifest_s(planned: Manifest):
    assert explain(planned, SMALL).kernel == "forward_small_table"
    edited = planned.model_copy(deep=True)
    for variant in edited.kernels["forward_small_table"].variants:
        variant.constants["MEAN_LENGTH_FROM"] = 21
    found = explain(edited, SMALL)
    assert found.kernel == "forward"
    because = {path.kernel: path.because for path in found.paths}
    assert because["forward_small_table"] == "bags are shorter than 21 on average"


def test_a_build_that_lacks_a_kernel_or_a_constant_is_explained_all_the_same(planned: Manifest):
    call = replace(SMALL, optimizer="sgd", multiprocessors=10)
    for removed in planned.kernels:
        kernels = {name: k for name, k in planned.kernels.items() if name != removed}
        fewer = planned.model_copy(update={"kernels": kernels})
        for kernel in kernels:
            assert explain(fewer, call, kernel=kernel).kernel == kernel
    edited = planned.model_copy(deep=True)
    for _, variant in edited.variants:
        variant.constants.clear()
    for kernel in edited.kernels:
        found = explain(edited, call, kernel=kernel)
        assert all(c.grid is None or kernel in ONE_ROW_OR_PROGRAM for c in found.candidates)


# Their grids need no constant.
ONE_ROW_OR_PROGRAM = {"advance_counters", "repair_offsets", "update_small_table"}


def test_kernels_of_a_name_with_other_axes_are_another_version_s(planned: Manifest):
    edited = planned.model_copy(deep=True)
    small = edited.kernels["forward_small_table"]
    small.axes[2] = small.axes[2].model_copy(update={"name": "height"})
    with pytest.raises(AuditError, match="has no axis rows: the build is of another version"):
        explain(edited, SMALL)


def test_a_narrow_kernel_that_is_not_known_is_a_note(planned: Manifest):
    new = planned.kernels["forward_work_stealing"].model_copy(update={"serves": "odd rows"})
    more = planned.model_copy(update={"kernels": {**planned.kernels, "forward_odd": new}})
    assert explain(more, SMALL, arch="sm100", kernel="forward").notes == [
        "forward_odd may run instead, for odd rows"
    ]


def test_launches_of_a_sort(planned: Manifest):
    for rows, passes in ((1, 1), (255, 1), (256, 2), (2**31, 4)):
        (found,) = explain(planned, Call(rows=rows, lookups=5000), kernel="sort_pass").candidates
        assert (found.launches, found.grid) == (passes, (-(-5000 // int(found.constants["TILE"])), 1, 1))  # fmt: skip


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
        (Call(bounds_check="never"), "forward", "", "bounds_check 'never': allowed are none, ignore, warning, fatal"),
        (Call(lookups=7, batch=2, mean_length=3), "forward", "", "7 lookups of 2 bags have a mean length of 3.5, not 3"),
        (Call(weights="fp8"), "forward", "", "dtype of the weights 'fp8': allowed are float32"),
        (Call(indices="int16"), "forward", "", "dtype of the indices 'int16': allowed are int32, int64"),
        (Call(axes={"bits": "3"}), "forward", "", "axis 'bits': the axes of forward are weight_dtype, "),
        (Call(axes={"bucket": "3"}), "forward", "", "axis bucket has no value '3': d16, d32"),
    ],
)  # fmt: skip
def test_what_means_nothing(planned: Manifest, call: Call, kernel: str, arch: str, says: str):
    with pytest.raises(AuditError, match=says):
        explain(planned, call, kernel=kernel, arch=arch)


def test_the_command_s_options(planned: Manifest, tmp_path: Path):
    manifest = tmp_path / "manifest.json"
    manifest.write_text(planned.model_dump_json())
    what = ["--weights", "fp16", "--dim", "100", "--indices", "int64", "--batch", "1000"]
    # This build has no code of any variant.
    found = document("explain", manifest, *what, "--mean-length", "3", status=1)
    assert found["candidates"][0]["variant"].endswith("_short_checked")
    more = ["--rows", "10", "--mean-length", "20", "--small-tables"]
    for choice, kernel in (("always", "forward_small_table"), ("never", "forward")):
        assert document("explain", manifest, *what, *more, choice, status=1)["kernel"] == kernel
    stealing = ["--arch", "sm100", "--mean-length", "3", "--work-stealing", "always"]
    found = document("explain", manifest, *what, *stealing, "--bounds-check", "none", status=1)
    assert found["kernel"] == "forward_work_stealing"
    update = ["--optimizer", "sgd", "--lookups", "3000", "--features", "2", "--rows", "100"]
    update += ["--multiprocessors", "10", "--kernel", "sum_and_update_long_runs"]
    what[3] = "128"
    shown = run("explain", manifest, *what, *update, status=1)
    assert re.search(r"runs +sum_and_update_long_runs", shown)
    shown = run("explain", manifest, *what, *update, "--fused-long-runs", "never", status=1)
    assert "this call does not launch sum_and_update_long_runs: fused_long_runs is never" in shown
    for options, label in (([], "aligned"), (["--no-aligned"], "generic")):
        found = document("explain", manifest, *what, "--mean-length", "3", *options, status=1)
        assert label in {decision["label"] for decision in found["decisions"]}


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
