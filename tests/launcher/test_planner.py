"""The planner: sizes and pointers in, launches out; no driver is asked."""

from __future__ import annotations

import ast
from functools import partial
from math import ceil
from typing import Any

import pytest

from aot_build.plan import cell_number
from aot_build.planner import make_plan
from tests.launcher.artifacts import ARCHS, SPECS
from tests.launcher.planned import Planned, describe, layout, plan_forward
from tests.launcher.support import ROOT, Child, Process, error_of

POINTERS = {
    "output": 0x1000,
    "weights": 0x2000,
    "features": 0x3000,
    "indices": 0x4000,
    "offsets": 0x5000,
}


def _forward(child: Child, request: dict[str, Any]) -> tuple[list[Planned], list[str]]:
    plan = plan_forward(child, request)
    return describe(child, plan), plan.reasons


def _check_bounds(child: Child, request: dict[str, Any]) -> tuple[list[Planned], list[str]]:
    plan = child.launcher.plan_check_bounds(child.launcher.CheckBoundsRequest(**request))
    return describe(child, plan), plan.reasons


def request(
    *groups: tuple[int, int, int],
    width: int = 0,
    batch: int = 5,
    lookups: int = 10_000,
    **changes: Any,
) -> dict[str, Any]:
    """A forward request for fp16 weights on sm90."""
    features = sum(count for *_, count in groups)
    return {
        "arch": "sm90",
        "layout": layout(*groups, width=width),
        "weight_dtype": "fp16",
        **POINTERS,
        "lookups": lookups,
        "batch_size": batch,
        "total_bags": features * batch,
        **changes,
    }


@pytest.fixture
def forward(shared: Process) -> Any:
    return lambda *groups, **changes: shared.run(_forward, request(*groups, **changes))


@pytest.fixture
def check_bounds(shared: Process) -> Any:
    def plan(**changes: Any) -> Any:
        sizes = {"feature_count": 3, "lookups": 100, "offsets_numel": 16, "batch_size": 5}
        pointers = {
            "indices": 1,
            "offsets": 2,
            "features": 0x3000,
            "indices_out": 4,
            "offsets_out": 5,
        }
        given = {"arch": "sm90", "report": 0x6000, **pointers, **sizes, **changes}
        return shared.run(_check_bounds, given)

    return plan


# --- Requests -----------------------------------------------------------------------------------


def _stub_requests() -> dict[str, dict[str, Any]]:
    """The requests of _launcher.pyi: per class its fields with their defaults; None: none."""
    stub = ast.parse((ROOT / "python/tbe_aot/_launcher.pyi").read_text())
    return {
        node.name: {
            field.target.id: None if field.value is None else ast.literal_eval(field.value)
            for field in node.body
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        }
        for node in stub.body
        if isinstance(node, ast.ClassDef) and node.decorator_list
    }


def _bound_requests(child: Child, names: list[str]) -> dict[str, dict[str, Any]]:
    made = {name: getattr(child.launcher, name)(arch="sm100") for name in names}
    return {
        name: {field: getattr(request, field) for field in dir(request) if field[0] != "_"}
        for name, request in made.items()
    }


def test_requests_have_the_fields_and_defaults_of_the_stub(shared: Process) -> None:
    stub = _stub_requests()
    assert len(stub) == 5
    bound = shared.run(_bound_requests, list(stub))
    for name, fields in stub.items():
        assert bound[name] == {**fields, "arch": "sm100"}


def _changed_fields(child: Child) -> Any:
    launcher = child.launcher
    request = launcher.BackwardUpdateRequest(arch="sm90", optimizer="adam", weights=0x6000)
    request.arch, request.weight_dtype, request.momentum1 = "sm100", "bf16", 2**63
    changes: list[dict[str, Any]] = [
        {"weight_type": "fp16"},
        {"weight_dtype": "fp8"},
        {"weights": None},
        {"lookups": 1.5},
        {"arch": "sm80"},
    ]
    errors = [
        error_of(partial(launcher.ForwardRequest, **{"arch": "sm90", **change}))
        for change in changes
    ]
    shown = (request.arch, request.weight_dtype, request.momentum1, request.optimizer)
    return (*shown, request.weights), errors


def test_fields_of_a_request(shared: Process) -> None:
    fields, errors = shared.run(_changed_fields)
    assert fields == ("sm100", "bf16", 2**63, "adam", 0x6000)
    unknown, dtype, pointer, number, arch = errors
    assert unknown == "a request of this kind has no field 'weight_type'"
    assert dtype == "no dtype 'fp8'; allowed are fp32, fp16, bf16"
    assert "incompatible function arguments" in pointer
    assert "incompatible function arguments" in number
    assert arch == "no arch 'sm80' in this build; it holds sm90, sm100"


# --- A small table ------------------------------------------------------------------------------


def small(**changes: Any) -> dict[str, Any]:
    """The request of one feature with a table of 64 rows of 128 columns, 64 lookups per bag on average."""
    of_table = {"rows": 64, "width": 128, "bucket": 128, "aligned": 2, "features": 1}
    of_table |= {"weights_numel": 2**20, **changes}
    names = ("rows", "width", "bucket", "aligned", "features", "weights_numel")
    sizes = {name: of_table.pop(name) for name in names}
    given = request((sizes["bucket"], sizes["aligned"], sizes["features"]), width=sizes["width"])
    given |= {"lookups": 5 * 64, **of_table}
    given["layout"][3] = sizes["weights_numel"]
    given["layout"][5] = sizes["rows"]
    return given


def test_a_small_table_by_long_bags_has_a_kernel_of_its_own(shared: Process) -> None:
    (launch,), (reason,) = shared.run(_forward, small(batch_size=33, lookups=33 * 64))
    assert launch.variant == "forward_small_table__fp16_d128_e64_i64_trusting"
    assert launch.grid == (ceil(33 / 16), 1, 1)
    assert launch.args == {
        **POINTERS,
        "batch_size": 33,
        "mean": 0,
        "output_dtype": 0,
        "overlap": 0,
        "invalid_count": 0,
        "report": 0,
        "indices_numel": 0,
        "global_scratch": 0,
        "profile_scratch": 0,
    }
    assert "64 rows of 128 columns" in reason


@pytest.mark.parametrize(
    ("changes", "variant"),
    [
        ({}, "fp16_d128_e64_i64"),
        ({"arch": "sm100"}, "fp16_d128_e64_i64"),
        ({"rows": 1}, "fp16_d128_e64_i64"),
        ({"width": 64, "bucket": 64}, "fp16_d64_e64_i64"),
        ({"width": 65}, "fp16_d128_e64_i64"),
        ({"index_width": 32}, "fp16_d128_e64_i32"),
        ({"mean": True}, "fp16_d128_e64_i64"),
        ({"aligned": 1}, "fp16_d128_e64_i64"),
        ({"lookups": 5 * 16}, "fp16_d128_e64_i64"),
        ({"width": 100, "lookups": 5 * 16}, "fp16_d128_e64_i64"),
        ({"width": 64, "bucket": 64, "lookups": 5 * 32}, "fp16_d64_e64_i64"),
        ({"rows": 65, "lookups": 5 * 32}, "fp16_d128_e256_i64"),
        ({"rows": 256, "lookups": 5 * 32}, "fp16_d128_e256_i64"),
        ({"rows": 256, "width": 64, "bucket": 64}, "fp16_d64_e256_i64"),
        ({"width": 256, "bucket": 256, "lookups": 5 * 32}, "fp16_d256_e64_i64"),
        ({"width": 130, "bucket": 256, "lookups": 5 * 128}, "fp16_d256_e64_i64"),
        ({"weight_dtype": "bf16"}, "bf16_d128_e64_i64"),
        ({"weight_dtype": "bf16", "rows": 65, "lookups": 5 * 200}, "bf16_d128_e256_i64"),
        ({"weights_numel": 2**32}, "fp16_d128_e64_i64"),
        ({"output_dtype": "fp16"}, "fp16_d128_e64_i64"),
        ({"output_dtype": "bf16"}, "fp16_d128_e64_i64"),
        # Where it was slower, or nothing was measured, only when asked for.
        ({"rows": 65, "weight_dtype": "bf16", "small_tables": "always"}, "bf16_d128_e256_i64"),
        ({"lookups": 3, "small_tables": "always"}, "fp16_d128_e64_i64"),
        ({"lookups": 0, "small_tables": "always"}, "fp16_d128_e64_i64"),
    ],
)
def test_what_the_small_tables_kernel_takes(
    shared: Process, changes: dict[str, Any], variant: str
) -> None:
    (launch,), _ = shared.run(_forward, small(**changes))
    assert launch.variant == f"forward_small_table__{variant}_trusting"
    dtypes = ["fp32", "fp16", "bf16"]
    assert launch.args["output_dtype"] == dtypes.index(changes.get("output_dtype", "fp32"))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"small_tables": "never"}, "small_tables is never"),
        ({"lookups": 5 * 12 - 1}, "bags are too short on average"),
        ({"width": 127, "lookups": 5 * 48 - 1}, "bags are too short on average"),
        ({"rows": 65, "lookups": 5 * 28 - 1}, "bags are too short on average"),
        ({"width": 256, "bucket": 256, "lookups": 5 * 15 - 1}, "bags are too short on average"),
        ({"weight_dtype": "bf16", "lookups": 5 * 12 - 1}, "bags are too short on average"),
        ({"rows": 65, "weight_dtype": "bf16"}, "bags are too short on average"),
        (
            {"rows": 65, "weight_dtype": "bf16", "width": 127, "lookups": 5 * 500},
            "only when asked for",
        ),
        ({"weight_dtype": "fp32", "small_tables": "always"}, "the table is fp32"),
        ({"per_sample_weights": 0x6000, "small_tables": "always"}, "per-sample weights"),
        (
            {"vbe_bag_offsets": 0x6000, "vbe_output_offsets": 0x7000, "small_tables": "always"},
            "the batch is variable",
        ),
        ({"aligned": 0, "small_tables": "always"}, "rows of the table do not start at"),
        ({"weights": 0x2002, "small_tables": "always"}, "rows of the table do not start at"),
        ({"output": 0x1004, "small_tables": "always"}, "the output's address"),
        (
            {"rows": 65, "width": 256, "bucket": 256, "small_tables": "always"},
            "rows are too many and too wide",
        ),
        ({"rows": 257, "small_tables": "always"}, "not one feature with a small table"),
        ({"width": 63, "bucket": 64, "small_tables": "always"}, "not one feature with a small"),
        ({"width": 257, "bucket": 512, "small_tables": "always"}, "not one feature with a small"),
        (
            {"features": 2, "width": 256, "total_bags": 10, "small_tables": "always"},
            "not one feature with a small table",
        ),
        ({"weights_numel": 2**32 + 1, "small_tables": "always"}, "places of rows have 32 bits"),
        # No table that anybody would call small: nothing is said unless it was asked for.
        ({"rows": 257}, None),
        ({"width": 63, "bucket": 64}, None),
        ({"features": 2, "width": 256, "total_bags": 10}, None),
    ],
)
def test_what_the_general_kernel_takes_and_why(
    shared: Process, changes: dict[str, Any], why: str | None
) -> None:
    (launch,), (reason,) = shared.run(_forward, small(**changes))
    assert launch.kernel == "forward"
    assert ("small table's kernel" in reason) == (why is not None)
    assert (why or "") in reason


# --- Work stealing ------------------------------------------------------------------------------

STEALING = {"arch": "sm100", "work_stealing": True}


def test_blocks_that_go_on_with_the_work_of_others_have_a_kernel_of_their_own(forward: Any) -> None:
    (launch,), (reason,) = forward((64, 1, 3), batch=33, mean=True, output_dtype="bf16", **STEALING)
    assert launch.variant == "forward_work_stealing__fp16_d64_i64"
    assert launch.grid == (ceil(33 / launch.constants["BAGS"]), 3, 1)
    assert launch.args == {
        **POINTERS,
        "vbe_bag_offsets": 0,
        "vbe_output_offsets": 0,
        "batch_size": 33,
        "output_stride": 192,
        "output_dtype": 2,
        "mean": 1,
        "vbe": 0,
        "overlap": 0,
        "global_scratch": 0,
        "profile_scratch": 0,
    }
    assert "3 features of bucket 64; blocks go on with the work of others" in reason


@pytest.mark.parametrize("bucket", [16, 32, 64, 128])
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("width", [32, 64])
def test_what_work_stealing_takes(forward: Any, width: int, dtype: str, bucket: int) -> None:
    changes = {"weight_dtype": dtype, "index_width": width, **STEALING}
    for lookups in (0, 10_000):  # Whatever the length of bags.
        (launch,), _ = forward((bucket, 1, 1), lookups=lookups, **changes)
        assert launch.variant == f"forward_work_stealing__{dtype}_d{bucket}_i{width}"


def test_work_stealing_of_a_variable_batch(forward: Any) -> None:
    vbe = {"vbe_bag_offsets": 0x6000, "vbe_output_offsets": 0x7000}
    (launch,), _ = forward((64, 1, 2), **vbe, **STEALING)
    assert launch.kernel == "forward_work_stealing"
    assert launch.args | vbe | {"vbe": 1} == launch.args


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"arch": "sm90"}, "blocks of this arch cannot take over others"),
        ({"weight_dtype": "fp32"}, "the tables are fp32"),
        ({"per_sample_weights": 0x6000}, "there are per-sample weights"),
        ({"weights": 0x2008}, "rows or the output do not start at multiples of 16 bytes"),
        ({"output": 0x1004}, "rows or the output do not start at multiples of 16 bytes"),
        ({"work_stealing": False}, None),
    ],
)
def test_where_no_work_is_stolen_and_why(
    forward: Any, changes: dict[str, Any], why: str | None
) -> None:
    (launch,), (reason,) = forward((64, 1, 1), **{**STEALING, **changes})
    assert launch.kernel == "forward"
    assert ("work stealing" in reason) == (why is not None)
    assert (why or "") in reason


def test_each_group_has_its_own_answer(forward: Any) -> None:
    groups = ((16, 0, 1), (16, 1, 1), (128, 1, 1), (256, 1, 1))
    launches, reasons = forward(*groups, **STEALING)
    assert [launch.kernel for launch in launches] == [
        "forward",
        "forward_work_stealing",
        "forward_work_stealing",
        "forward",
    ]
    assert "no work stealing because rows are too wide" in reasons[0]
    assert "no work stealing because rows or the output do not start at" in reasons[3]
    # They overlap as launches of the general kernel do.
    assert [launch.args["overlap"] for launch in launches] == [1, 3, 3, 2]


def test_a_small_table_goes_before_work_stealing(shared: Process) -> None:
    for choice, kernel in (("auto", "forward_small_table"), ("never", "forward_work_stealing")):
        call = small(**STEALING, small_tables=choice)
        (launch,), _ = shared.run(_forward, call)
        assert launch.kernel == kernel


# --- Which variant ------------------------------------------------------------------------------


def _variants_of_all_cells(child: Child, arch: str, lengths: dict[Any, int]) -> dict[Any, str]:
    found = {}
    for axes, lookups in lengths.items():
        dtype, bucket, width, weighted, aligned, _ = axes
        changes: dict[str, Any] = {"arch": arch, "weight_dtype": dtype, "index_width": width}
        if weighted:
            changes["per_sample_weights"] = 0x6000
        plan = plan_forward(
            child, request((bucket, int(aligned), 1), batch=1, lookups=lookups, **changes)
        )
        found[axes] = plan.launches[0].variant.name
    return found


@pytest.mark.parametrize("arch", ARCHS)
def test_every_combination_finds_the_variant_of_the_plan(shared: Process, arch: str) -> None:
    kernel = make_plan(SPECS, "full", [arch]).kernels["forward"]
    lengths, expected = {}, {}
    for cell, number in enumerate(kernel.cells):
        *key_axes, checked = kernel.cell_axes(cell).values()
        if checked:
            continue  # Never without a check.
        shape, key = str(key_axes[-1]), tuple(key_axes)
        ends = {}
        for name in ("short", "medium"):
            place = {**kernel.cell_axes(cell), "shape": name}
            other = kernel.cells[cell_number({a.name: a.values for a in kernel.axes}, place)]
            constants = kernel.variants[other].builds[arch].launch_constants
            ends[name] = constants["MEAN_LENGTH_BELOW"]
        # The longest bag of a shape; without an end of its own, a shape is served by the next longer one.
        chosen = ends.get(shape, 0) - 1
        if chosen < 0 or (shape == "medium" and chosen < ends["short"]):
            chosen = max(ends.values()) if shape == "long" or not ends["medium"] else ends["short"]
        lengths[key] = chosen
        expected[key] = kernel.variants[number].name
    assert shared.run(_variants_of_all_cells, arch, lengths) == expected


def test_shape_follows_the_mean_bag_length(forward: Any) -> None:
    (launch,), _ = forward((64, 1, 2), lookups=0)
    assert launch.variant.endswith("_short_trusting")
    for shape, longer in (("short", "medium"), ("medium", "long")):
        below = launch.constants["MEAN_LENGTH_BELOW"]
        (launch,), (reason,) = forward((64, 1, 2), lookups=below * 10 - 1)
        assert launch.variant.endswith(f"_{shape}_trusting")
        assert f"lookups on average and it serves less than {below}" in reason
        (launch,), (reason,) = forward((64, 1, 2), lookups=below * 10)
        assert launch.variant.endswith(f"_{longer}_trusting")
        assert f"{longer} shape because bags have {below} lookups on average" in reason
    assert f"the others serve less than {below}" in reason
    (launch,), (reason,) = forward((2048, 1, 2), lookups=0)
    assert launch.variant.endswith("_long_trusting")
    assert "one shape serves this bucket" in reason


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"weights": 0x2008}, "the weights' address is not a multiple of 16"),
        ({"output": 0x1004}, "the output's address is not a multiple of 16"),
    ],
)
def test_a_call_that_is_not_aligned_runs_generic_variants(
    forward: Any, changes: dict[str, int], reason: str
) -> None:
    (launch,), (aligned_reason,) = forward((128, 1, 1))
    assert "_aligned_" in launch.variant
    assert (
        "aligned because every row of the group starts at a multiple of 16 bytes" in aligned_reason
    )
    (launch,), (generic_reason,) = forward((128, 1, 1), **changes)
    assert "_generic_" in launch.variant
    assert f"generic although the group is aligned, because {reason}" in generic_reason


def test_one_odd_group_does_not_demote_the_others(forward: Any) -> None:
    (even, odd), (_, reason) = forward((16, 0, 1), (64, 1, 1), width=72)
    assert "_generic_" in odd.variant
    assert "_aligned_" in even.variant
    assert "generic because rows of the group do not start at multiples of 16 bytes" in reason


def test_output_rows_need_no_alignment(forward: Any) -> None:
    # Kernels find out by themselves how wide they may store.
    (launch,), _ = forward((16, 1, 1), width=13)
    assert "_aligned_" in launch.variant


def test_vbe_demotes_no_group(forward: Any) -> None:
    vbe = {"vbe_bag_offsets": 0x7000, "vbe_output_offsets": 0x8000}
    (first, second), _ = forward((16, 0, 1), (64, 1, 1), **vbe)
    assert "_aligned_" in first.variant
    assert "_generic_" in second.variant
    assert first.args["vbe"] == 1
    assert (first.args["vbe_bag_offsets"], first.args["vbe_output_offsets"]) == (0x7000, 0x8000)


# --- Grids --------------------------------------------------------------------------------------


def test_each_group_has_its_features_and_the_last_group_comes_first(forward: Any) -> None:
    launches, _ = forward((16, 1, 3), (64, 0, 2), (2048, 1, 1), batch=7)
    assert [launch.args["features"] for launch in launches] == [
        0x3000 + 5 * 64,
        0x3000 + 3 * 64,
        0x3000,
    ]
    for launch, features in zip(launches, (1, 2, 3), strict=True):
        assert launch.grid == (ceil(7 / launch.constants["BAGS"]), features, 1)
        assert launch.args["batch_size"] == 7


def test_a_group_without_features_launches_nothing(forward: Any) -> None:
    launches, _ = forward((16, 1, 0), (64, 1, 1))
    assert [launch.args["features"] for launch in launches] == [0x3000]


def test_more_features_than_a_grid_holds(forward: Any) -> None:
    launches, reasons = forward((16, 1, 140_000), batch=1)
    assert [launch.grid[1] for launch in launches] == [65535, 65535, 8930]
    assert [launch.args["features"] for launch in launches] == [
        0x3000 + first * 64 for first in (0, 65535, 131_070)
    ]
    assert len(reasons) == 3


def test_more_groups_than_are_stored_inline(forward: Any) -> None:
    launches, _ = forward(*[(16, group % 2, 1) for group in range(40)])
    assert [launch.args["features"] for launch in launches] == [
        0x3000 + group * 64 for group in reversed(range(40))
    ]


def test_launches_of_a_call_overlap(forward: Any) -> None:
    # Bit 0: the next one may start; bit 1: this one overlaps the one before.
    assert [launch.args["overlap"] for launch in forward((16, 1, 1))[0]] == [0]
    launches, _ = forward((16, 1, 1), (32, 1, 0), (64, 1, 1), (128, 1, 70_000), batch=1)
    assert [launch.args["overlap"] for launch in launches] == [1, 3, 3, 2]


def test_no_lookups_still_write_zeros(forward: Any) -> None:
    launches, _ = forward((16, 1, 1), (64, 1, 1), lookups=0, indices=0)
    assert len(launches) == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"batch": 0},
        {"batch_size": 0, "total_bags": 0},
        {"layout": [1, 0, 0, 0, 0, 0], "total_bags": 0},
    ],
)
def test_without_bags_nothing_is_launched(forward: Any, changes: dict[str, Any]) -> None:
    launches, reasons = forward((16, 1, 1), **changes)
    assert launches == []
    assert reasons == ["nothing to look up: there are no bags"]


def test_largest_batch(forward: Any) -> None:
    (launch,), _ = forward((2048, 1, 1), batch=2**31 - 1)
    assert launch.grid == (2**31 - 1, 1, 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"batch": 2**31},
            "the number of bags per feature is 2147483648, allowed are 0 to 2147483647",
        ),
        ({"width": 2**31}, "the width of the output is 2147483648"),
        ({"lookups": -1}, "negative size: -1 lookups"),
        ({"index_width": 16}, "indices have 16 bits, allowed are 32 and 64"),
        ({"vbe_bag_offsets": 1}, "vbe_bag_offsets and vbe_output_offsets must be given together"),
        ({"layout": layout((48, 1, 1))}, "bucket 48; the kernels' buckets are 16 32 64"),
        ({"layout": [1, 0]}, "layout: 2 integers given; it has 6 and 3 more for each group"),
        ({"layout": [1, 1, 16, 1, 1, 1, 16, 1]}, "layout: 8 integers given"),
        ({"layout": [2, 0, 0, 0, 0, 0]}, "format version 2 given, this library reads version 1"),
        ({"layout": [1, 1, -16, 1, 1, 1, 16, 1, 1]}, "layout: entry 2 is negative: -16"),
        ({"layout": [1, 1, 16, 1, 1, 1, 16, 3, 1]}, "group 0 has aligned = 3"),
        ({"layout": [1, 1, 16, 1, 1, 1, 0, 1, 1]}, "group 0 has bucket 0"),
        ({"layout": [1, 1, 16, 1, 1, 1, 16, 1, 2]}, "group 0 has 2 features, but 1 of 1 are left"),
        (
            {"layout": [1, 2, 16, 1, 1, 1, 16, 1, 1]},
            "the groups hold 1 features, the layout says 2",
        ),
    ],
)
def test_what_the_planner_refuses(forward: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        forward((2048, 1, 1), **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arch": "sm80"}, "no arch 'sm80' in this build; it holds sm90, sm100"),
        ({"weight_dtype": "fp8"}, "no dtype 'fp8'; allowed are fp32, fp16, bf16"),
    ],
)
def test_unknown_names(forward: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        forward((16, 1, 1), **changes)


# --- Bounds check ---------------------------------------------------------------------------------


def test_bounds_check_launches(check_bounds: Any) -> None:
    (check, repair, indices), reasons = check_bounds(offsets_numel=5000, lookups=10_000)
    block = check.constants["BLOCK"]
    assert check.variant == "check_offsets__i64"
    assert check.grid == (ceil(5000 / block), 1, 1)
    assert (check.args["offsets_out"], check.args["offsets"]) == (5, 2)
    assert repair.variant == "repair_offsets__i64"
    assert repair.grid == (1, 1, 1)
    assert repair.args["offsets"] == 5
    assert indices.variant == "check_indices__i64"
    assert indices.grid == (ceil(ceil(10_000 / 3) / indices.constants["BLOCK"]), 3, 1)
    # The checked copy of the offsets decides which feature an index belongs to.
    assert (indices.args["offsets"], indices.args["indices_out"]) == (5, 4)
    assert indices.args["invalid_count"] == 0x6000 + 3 * 8
    assert len(reasons) == 3
    (_, _, indices), _ = check_bounds(invalid_count=0x9000, index_width=32)
    assert indices.args["invalid_count"] == 0x9000
    assert indices.variant == "check_indices__i32"


def test_bounds_check_launches_hide_one_another(check_bounds: Any) -> None:
    # Each waits for the one before, which it reads, but is launched beside it.
    launches, _ = check_bounds()
    assert [launch.args["overlap"] for launch in launches] == [1, 5, 4]


CHECK = {"indices": 0x14000, "offsets": 0x15000, "indices_out": 0x24000, "offsets_out": 0x25000}


def _checked(
    child: Child, request: dict[str, Any], counted: bool = True
) -> tuple[list[Planned], list[str]]:
    fields = dict(request)
    layout = fields.pop("layout")
    sizes = {name: request[name] for name in ("arch", "lookups", "batch_size")}
    check = child.launcher.CheckBoundsRequest(
        **CHECK,
        **sizes,
        index_width=request.get("index_width", 64),
        report=0x6000,
        features=0x3000,
        invalid_count=0x9000 if counted else 0,
        feature_count=layout[1],
        offsets_numel=request["total_bags"] + 1,
    )
    plan = child.launcher.plan_forward(child.launcher.ForwardRequest(**fields), layout, check)
    assert (plan.clear.address, plan.clear.bytes) == (0x6000, 32)
    return describe(child, plan), plan.reasons


def short(*groups: tuple[int, int, int], **changes: Any) -> dict[str, Any]:
    """The request of short bags."""
    return request(*(groups or ((64, 1, 2),)), **{"lookups": 10, **changes})


def test_a_lookup_of_short_bags_checks_its_indices(shared: Process) -> None:
    (*checks, lookup), reasons = shared.run(_checked, short())
    assert [launch.kernel for launch in checks] == ["check_offsets", "repair_offsets"]
    assert lookup.variant == "forward__fp16_d64_i64_unweighted_aligned_short_checked"
    # The caller's indices, the checked offsets.
    assert (lookup.args["indices"], lookup.args["offsets"]) == (0x14000, 0x25000)
    assert (lookup.args["invalid_count"], lookup.args["report"]) == (0x9000, 0x6000)
    assert lookup.args["indices_numel"] == 10
    assert [launch.args["overlap"] for launch in (*checks, lookup)] == [1, 5, 4]
    assert "checks the indices" in reasons[-1]
    (*_, lookup), _ = shared.run(_checked, short(), False)
    assert lookup.args["invalid_count"] == 0x6000 + 3 * 8


def test_several_checked_launches_overlap_with_one_another(shared: Process) -> None:
    launches, _ = shared.run(_checked, short((16, 1, 1), (32, 1, 1), (64, 1, 1)))
    assert [launch.args["overlap"] for launch in launches] == [1, 4, 1, 3, 2]


def test_what_is_checked_before_it_is_looked_up(shared: Process) -> None:
    launches, reasons = shared.run(_checked, short(fused_checks="never"))
    kernels = ["check_offsets", "repair_offsets", "check_indices", "forward"]
    assert [launch.kernel for launch in launches] == kernels
    assert [launch.args["overlap"] for launch in launches] == [1, 5, 4, 0]
    assert launches[-1].variant.endswith("_short_trusting")
    assert (launches[-1].args["indices"], launches[-1].args["offsets"]) == (0x24000, 0x25000)
    assert "fused_checks is never" in reasons[2]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (short(lookups=10_000), "bags are too long on average"),
        (short(per_sample_weights=0x6000), "there are per-sample weights"),
        (short((64, 0, 2)), "rows of a table do not start at multiples of 16 bytes"),
        (short((64, 1, 1), (64, 0, 1)), "rows of a table do not start at multiples of 16 bytes"),
        (short(weights=0x2002), "the weights' address"),
        (short(output=0x1002), "the output's address"),
        (short((64, 1, 1), (512, 1, 1)), "rows of a table are too wide"),
        (short((256, 1, 1), weight_dtype="fp32"), "rows of a table are too wide"),
        (small(fused_checks="never"), "fused_checks is never"),
    ],
)
def test_why_indices_are_checked_before(shared: Process, given: dict[str, Any], why: str) -> None:
    launches, reasons = shared.run(_checked, given)
    assert launches[2].kernel == "check_indices"
    assert all(launch.args["report"] == 0 for launch in launches[3:])
    assert f"not in the lookup because {why}" in reasons[2]


@pytest.mark.parametrize("lookups", [0, 10, 10_000])
def test_always_takes_short_shapes_for_any_bags(shared: Process, lookups: int) -> None:
    (*_, launch), (*_, reason) = shared.run(_checked, short(lookups=lookups, fused_checks="always"))
    assert launch.variant.endswith("_short_checked")
    assert ("because fused_checks is always" in reason) == (lookups == 10_000)


@pytest.mark.parametrize("choice", ["auto", "always"])
def test_a_small_table_s_kernel_checks(shared: Process, choice: str) -> None:
    (*_, launch), (*_, reason) = shared.run(_checked, small(fused_checks=choice))
    assert launch.variant == "forward_small_table__fp16_d128_e64_i64_checked"
    assert launch.args["overlap"] == 4
    assert "checks the indices" in reason


def test_a_check_without_bags_checks_the_offsets(shared: Process) -> None:
    launches, reasons = shared.run(_checked, short(batch=0))
    assert [launch.kernel for launch in launches] == ["check_offsets", "repair_offsets"]
    assert reasons[-1] == "nothing to look up: there are no bags"


@pytest.mark.parametrize("arch", ARCHS)
def test_every_checked_variant_is_found(shared: Process, arch: str) -> None:
    kernel = make_plan(SPECS, "full", [arch]).kernels["forward"]
    found = 0
    for variant in kernel.variants:
        axes = variant.axes
        if not axes["checked"]:
            continue
        given = short(
            (int(axes["bucket"]), 1, 1),
            arch=arch,
            batch=1,
            lookups=1,
            weight_dtype=axes["weight_dtype"],
            index_width=axes["index_width"],
        )
        (*_, launch), _ = shared.run(_checked, given)
        assert launch.variant == variant.name
        found += 1
    assert found == 28


def test_bounds_check_without_lookups_checks_offsets(check_bounds: Any) -> None:
    launches, _ = check_bounds(lookups=0)
    assert [launch.variant for launch in launches] == ["check_offsets__i64", "repair_offsets__i64"]


def test_bounds_check_of_nothing(check_bounds: Any) -> None:
    launches, _ = check_bounds(feature_count=0, lookups=0, offsets_numel=0)
    assert launches == []


def test_bounds_check_limits(check_bounds: Any) -> None:
    launches, _ = check_bounds(feature_count=70_000, lookups=10, offsets_numel=70_001, batch_size=1)
    assert [launch.grid[:2] for launch in launches[2:]] == [(1, 65535), (1, 4465)]
    assert launches[3].args["features"] == 0x3000 + 65535 * 64
    launches, _ = check_bounds(lookups=2**40)
    assert launches[2].grid == (65535, 3, 1)
    with pytest.raises(RuntimeError, match="allowed are 0 to 2147483647"):
        check_bounds(batch_size=2**31)
    with pytest.raises(RuntimeError, match="indices have 8 bits"):
        check_bounds(index_width=8)
    with pytest.raises(RuntimeError, match="negative size: 3 features, -1 lookups"):
        check_bounds(lookups=-1)
