"""The planner of the backward: which launches, on which grids, in which memory, and how they overlap."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from aot_build.planner import make_plan
from tests.launcher.artifacts import ARCHS, SPECS
from tests.launcher.planned import Planned, describe, layout
from tests.launcher.support import Child, Process, error_of
from tests.transposed import section_sizes, section_starts

FEATURES, TRANSPOSED, SCRATCH, PARTIALS = 0x3000, 0x100000, 0x10000000, 0x20000000
LOOKUP_POINTERS = {"features": FEATURES, "indices": 0x4000, "offsets": 0x5000}
UPDATE_POINTERS = {
    "weights": 0x6000,
    "gradient": 0x7000,
    "momentum1": 0x8000,
    "momentum2": 0x9000,
    "step": 0xA000,
    "learning_rate": 0xB000,
    "features": FEATURES,
    "transposed": TRANSPOSED,
    "partials": PARTIALS,
}
MULTIPROCESSORS = 132
NEXT_MAY_START, WAIT_LAST, WAIT_FIRST = 1, 2, 4
ONE_GROUP = layout((128, 2, 3), total_rows=10_000)
SORTED = ["sort_pass", "sort_pass", "find_runs"]


def _transpose_request(child: Child, changes: dict[str, Any], features: int) -> Any:
    batch = changes.get("batch_size", 50)
    given = {
        "arch": "sm90",
        **LOOKUP_POINTERS,
        "transposed": TRANSPOSED,
        "scratch": SCRATCH,
        "lookups": 10_000,
        "batch_size": batch,
        "total_bags": features * batch,
    }
    return child.launcher.TransposeRequest(**{**given, **changes})


def _transpose(child: Child, shape: list[int], changes: dict[str, Any]) -> Any:
    request = _transpose_request(child, changes, shape[1])
    plan = child.launcher.plan_transpose(request, shape)
    clear = (plan.clear.address, plan.clear.bytes)
    size = child.launcher.transpose_scratch_bytes(request, shape)
    return describe(child, plan), plan.reasons, clear, size


def _update(
    child: Child, shape: list[int], changes: dict[str, Any], transpose: dict[str, Any] | None
) -> tuple[list[Planned], list[str]]:
    request: dict[str, Any] = {
        "arch": "sm90",
        "multiprocessors": MULTIPROCESSORS,
        "weight_dtype": "fp16",
        "optimizer": "rowwise_adagrad",
        "fused_long_runs": "never",
        **UPDATE_POINTERS,
        "lookups": 10_000,
        "total_bags": 150,
        "gradient_numel": 50 * shape[2],
    }
    before = None if transpose is None else _transpose_request(child, transpose, shape[1])
    fields = {**request, **changes}
    shape = fields.pop("layout", shape)
    made = child.launcher.BackwardUpdateRequest(**fields)
    if "counters" not in changes:
        made.counters = SCRATCH - child.launcher.counters_bytes(made, shape)
    plan = child.launcher.plan_backward_update(made, shape, before)
    return describe(child, plan), plan.reasons


def _cleared(
    child: Child, changes: dict[str, Any], transpose: dict[str, Any] | None
) -> tuple[int, int] | None:
    """(address, bytes) of what the plan of an update clears."""
    made = child.launcher.BackwardUpdateRequest(
        arch="sm90", **{"transposed": TRANSPOSED, "total_bags": 150, "lookups": 10_000, **changes}
    )
    made.counters = SCRATCH - child.launcher.counters_bytes(made, ONE_GROUP)
    before = None if transpose is None else _transpose_request(child, transpose, ONE_GROUP[1])
    clear = child.launcher.plan_backward_update(made, ONE_GROUP, before).clear
    return None if clear is None else (clear.address, clear.bytes)


@pytest.fixture
def transpose(shared: Process) -> Any:
    return lambda shape=ONE_GROUP, **changes: shared.run(_transpose, shape, changes)


@pytest.fixture
def update(shared: Process) -> Any:
    def plan(
        shape: list[int] = ONE_GROUP, transpose: dict[str, Any] | None = None, **changes: Any
    ) -> Any:
        return shared.run(_update, shape, changes, transpose)

    return plan


def ceil(value: float, unit: int = 1) -> int:
    """Rounded up to a multiple."""
    return -int(-value // unit) * unit


def names(launches: list[Planned]) -> list[str]:
    return [launch.kernel for launch in launches]


# --- Transposing -------------------------------------------------------------------------------------


def test_launches_that_transpose(transpose: Any) -> None:
    launches, reasons, clear, size = transpose()
    linearise, first, second, runs = launches
    assert names(launches) == ["linearise_lookups", *SORTED]
    assert linearise.variant == "linearise_lookups__k32_i64_long"
    assert linearise.grid == (ceil(50 / linearise.constants["BAGS"]), 3, 1)
    assert first.variant == "sort_pass__k32_small"
    assert first.grid == second.grid == (ceil(10_000 / first.constants["TILE"]), 1, 1)
    assert runs.grid == (ceil(10_000 / runs.constants["TILE"]), 1, 1)
    assert [launch.args["shift"] for launch in (first, second)] == [0, 8]
    assert [launch.args["lookups"] for launch in launches] == [10_000] * 4
    assert (linearise.args["total_rows"], runs.args["total_rows"]) == (10_000, 10_000)
    assert linearise.args["output_width"] == 384
    assert runs.args["feature_count"] == 3
    assert len(reasons) == 4
    assert "keys of 32 bits for 10000 rows and one more" in reasons[0]
    assert "pass 2 of 2 of the sort by row" in reasons[2]
    assert clear[0] == SCRATCH
    assert clear[1] < size


def test_memory_of_the_launches_that_transpose(transpose: Any) -> None:
    launches, _, (_, cleared), size = transpose()
    linearise, first, second, runs = launches
    digits = 1 << first.constants["DIGIT_BITS"]
    tiles = first.grid[0]
    # Each pass has the histogram that the launch before counted, and a status of its own, all of them cleared.
    histograms = [linearise.args["histogram"], *(p.args["next_histogram"] for p in (first, second))]
    assert histograms == [SCRATCH + 4 * digits * i for i in range(3)]
    assert [p.args["histogram"] for p in (first, second)] == histograms[:2]
    status = histograms[2] + 4 * digits
    assert [p.args["status"] for p in (first, second)] == [status, status + 4 * digits * tiles]
    assert runs.args["status"] == status + 2 * 4 * digits * tiles
    # Statuses of find_runs: int64.
    assert cleared == ceil(runs.args["status"] - SCRATCH + 8 * runs.grid[0], 16)
    # Keys go back and forth.
    keys = [linearise.args["keys"], first.args["keys_out"]]
    assert first.args["keys_in"] == keys[0]
    assert (second.args["keys_in"], second.args["keys_out"]) == (keys[1], keys[0])
    assert runs.args["keys"] == keys[0]
    areas = sorted([SCRATCH + cleared, *keys, first.args["values_out"], SCRATCH + size])
    assert all(area % 16 == 0 for area in areas)
    assert all(end - start >= 40_000 for start, end in pairwise(areas[1:]))


def sections(lookups: int, features: int, *, factored: bool) -> dict[str, int]:
    starts, _ = section_starts(section_sizes(lookups, features, factored=factored))
    return {name: TRANSPOSED + 4 * start for name, start in starts.items()}


@pytest.mark.parametrize(("rows", "passes"), [(255, 1), (256, 2), (2**24, 4), (0, 1)])
def test_positions_end_in_the_result(transpose: Any, rows: int, passes: int) -> None:
    launches, *_ = transpose(layout((128, 2, 3), total_rows=rows))
    linearise, *sort, runs = launches
    assert len(sort) == passes
    values = [linearise.args["positions"], *(p.args["values_out"] for p in sort)]
    assert [p.args["values_in"] for p in sort] == values[:-1]
    assert [p.args["count_up"] for p in sort] == [0] * passes
    positions = sections(10_000, 3, factored=False)["positions"]
    assert values[-1] == runs.args["positions"] == positions
    assert all((value == positions) == (i % 2 == 0) for i, value in enumerate(reversed(values)))
    assert runs.args["factored"] == 0


@pytest.mark.parametrize("changes", [{"mean": True}, {"per_sample_weights": 0xC000}])
def test_with_factors_the_numbers_of_the_lookups_are_sorted(transpose: Any, changes: Any) -> None:
    launches, *_, size = transpose(**changes)
    linearise, first, second, runs = launches
    assert (first.args["count_up"], second.args["count_up"]) == (1, 0)
    assert linearise.args["positions"] == runs.args["lookup_positions"]
    assert linearise.args["factors"] == runs.args["lookup_factors"]
    assert linearise.args["positions"] not in (first.args["values_in"], first.args["values_out"])
    assert second.args["values_in"] == first.args["values_out"]
    at = sections(10_000, 3, factored=True)
    assert second.args["values_out"] == runs.args["values"] == at["positions"]
    for name, address in at.items():
        assert runs.args[name] == address
    assert runs.args["factored"] == 1
    assert linearise.args["mean"] == int("mean" in changes)
    assert linearise.args["weighted"] == int("mean" not in changes)
    assert size - transpose()[-1] == 2 * 40_000


@pytest.mark.parametrize(
    ("rows", "width", "passes"),
    [
        (2**31 - 2, 32, 4),
        (2**31 - 1, 64, 4),
        (2**32 - 1, 64, 4),
        (2**32, 64, 5),
        (2**63 - 1, 64, 8),
    ],
)
def test_key_width_follows_the_number_of_rows(
    transpose: Any, rows: int, width: int, passes: int
) -> None:
    launches, *_ = transpose(layout((16, 1, 2), total_rows=rows), index_width=64)
    assert launches[0].variant.startswith(f"linearise_lookups__k{width}_i64")
    assert launches[1].variant.startswith(f"sort_pass__k{width}_")
    assert launches[-1].variant == f"find_runs__k{width}"
    assert len(launches) == passes + 2
    keys = sorted({launches[1].args["keys_in"], launches[1].args["keys_out"]})
    assert keys[1] - keys[0] == width // 8 * 10_000


def test_shape_and_size_follow_the_numbers_of_bags_and_lookups(transpose: Any) -> None:
    def variants(**changes: Any) -> tuple[str, str]:
        launches, *_ = transpose(**changes)
        return launches[0].variant.rsplit("_", 1)[1], launches[1].variant.rsplit("_", 1)[1]

    assert variants(lookups=149, batch_size=50) == ("short", "small")
    assert variants(lookups=299, batch_size=50) == ("short", "small")
    assert variants(lookups=300, batch_size=50) == ("medium", "small")
    assert variants(lookups=6000, batch_size=50) == ("long", "small")
    small = transpose()[0][1].constants["LOOKUPS_BELOW"]
    assert variants(lookups=small - 1) == ("long", "small")
    assert variants(lookups=small) == ("long", "large")


def test_variable_batch(transpose: Any) -> None:
    vbe = {"vbe_bag_offsets": 0x7000, "vbe_output_offsets": 0x8000}
    launches, *_ = transpose(**vbe)
    assert launches[0].args["vbe"] == 1
    assert {name: launches[0].args[name] for name in vbe} == vbe


def test_launches_that_transpose_overlap(transpose: Any) -> None:
    launches, *_ = transpose()
    assert [launch.args["overlap"] for launch in launches] == [
        NEXT_MAY_START,
        *[WAIT_FIRST | NEXT_MAY_START] * 2,
        WAIT_FIRST,
    ]


@pytest.mark.parametrize("changes", [{"lookups": 0}, {"batch_size": 0}, {"total_bags": 0}])
def test_without_lookups_no_run_starts(transpose: Any, changes: dict[str, int]) -> None:
    launches, reasons, (address, cleared), size = transpose(**changes)
    assert launches == []
    assert reasons == ["nothing to launch: there are no lookups in bags"]
    at = sections(changes.get("lookups", 10_000), 3, factored=False)
    assert address == at["run_starts"]
    assert cleared == at["run_begins"] + 4 * 4 - at["run_starts"]
    assert size == 0


@pytest.mark.parametrize(
    ("shape", "changes", "message"),
    [
        (ONE_GROUP, {"lookups": 2**30}, "1073741824 lookups given; at most 1073741823 can be"),
        (ONE_GROUP, {"lookups": -1}, "negative size: -1 lookups"),
        (ONE_GROUP, {"index_width": 16}, "indices have 16 bits, allowed are 32 and 64"),
        (ONE_GROUP, {"vbe_bag_offsets": 1}, "must be given together"),
        (ONE_GROUP, {"batch_size": 2**31}, "the gradient has 2147483648 rows of 384 elements"),
        (
            layout((128, 2, 1)),
            {"batch_size": 2**25 + 1},
            "the gradient has 33554433 rows of 128 elements, allowed are 4294967296",
        ),
        (
            layout((16, 2, 65_536)),
            {"batch_size": 1},
            "the layout has 65536 features; the lookups of at most 65535 can be transposed",
        ),
        (
            ONE_GROUP,
            {"batch_size": 2**31, "vbe_bag_offsets": 1, "vbe_output_offsets": 2},
            "the number of bags per feature is 2147483648, allowed are 0 to 2147483647",
        ),
    ],
)
def test_what_cannot_be_transposed(
    shared: Process, shape: list[int], changes: dict[str, int], message: str
) -> None:
    with pytest.raises(RuntimeError, match=message):
        shared.run(_transpose, shape, changes)


def test_the_largest_gradient_can_be_transposed(transpose: Any) -> None:
    launches, *_ = transpose(layout((128, 2, 1)), batch_size=2**25)
    assert launches[0].args["batch_size"] == 2**25


# --- Updates -----------------------------------------------------------------------------------------


def test_launches_of_an_update(update: Any) -> None:
    launches, reasons = update()
    sums, short, long = launches
    assert sums.variant == "sum_chunks__fp32_d128_plain_aligned"
    assert short.variant == "update_short_runs__fp16_fp32_d128_plain_aligned_rowwise"
    assert long.variant == "update_long_runs__fp16_d128_aligned_rowwise"
    chunks = ceil(10_000 / 128)
    assert sums.grid == (min(chunks, sums.constants["PROGRAMS_PER_SM"] * MULTIPROCESSORS), 1, 1)
    assert short.grid == (
        min(
            ceil(10_000 / short.constants["RUNS"]),
            short.constants["PROGRAMS_PER_SM"] * MULTIPROCESSORS,
        ),
        1,
        1,
    )
    assert long.grid == (min(chunks, long.constants["PROGRAMS_PER_SM"] * MULTIPROCESSORS), 1, 1)
    assert len(reasons) == 3
    assert "the sums of the chunks of long runs of 3 features of bucket 128" in reasons[0]
    assert "aligned because rows of weights and gradient start at multiples of 16" in reasons[1]
    for launch in launches:
        for name, address in sections(10_000, 3, factored=False).items():
            if name in launch.args and name != "factors":
                assert launch.args[name] == address
        assert launch.args["group_slots"] == 3
        assert launch.args["features"] == FEATURES
    for launch in (sums, long):
        assert launch.args["chunk_slots"] == chunks
        assert launch.args["partial_stride"] == 128
        assert launch.args["partials"] == PARTIALS


def test_many_lookups_get_as_many_programs_as_the_device_can_hold(update: Any) -> None:
    for launch in update(lookups=2**29)[0]:
        assert launch.grid == (launch.constants["PROGRAMS_PER_SM"] * MULTIPROCESSORS, 1, 1)
    for launch in update(lookups=2**29, multiprocessors=3)[0]:
        assert launch.grid == (launch.constants["PROGRAMS_PER_SM"] * 3, 1, 1)


def test_numbers_of_the_optimizer(update: Any) -> None:
    numbers = {"eps": 0.5, "beta1": 0.1, "beta2": 0.7, "l2_decay": 0.25, "decoupled_decay": 2.0}
    launches, _ = update(optimizer="adam", clip=3.0, gradient_scale=16, found_inf=32, **numbers)
    step, sums, *updates = launches
    assert (step.args["step"], step.args["found_inf"], step.args["checked"]) == (0xA000, 32, 1)
    assert (sums.args["clip"], sums.args["scaled"], sums.args["gradient_scale"]) == (3.0, 1, 16)
    assert (updates[0].args["clip"], updates[0].args["scaled"]) == (3.0, 1)
    for launch in updates:
        assert {name: launch.args[name] for name in numbers} == numbers
        assert launch.args["checked"] == 1
        for name in ("weights", "momentum1", "momentum2", "step", "learning_rate"):
            assert launch.args[name] == UPDATE_POINTERS[name]
    _, short, long = update()[0]
    assert (short.args["scaled"], short.args["checked"], long.args["checked"]) == (0, 0, 0)
    assert short.args["clip"] == float("inf")


def test_the_step_is_counted_for_adam_alone_and_sgd_runs_as_rowwise(update: Any) -> None:
    for optimizer in ("sgd", "rowwise_adagrad", "adagrad", "adam"):
        launches, _ = update(optimizer=optimizer)
        assert names(launches) == [
            *(["advance_counters"] if optimizer == "adam" else []),
            *["sum_chunks", "update_short_runs", "update_long_runs"],
        ]
        kind = "rowwise" if optimizer in ("sgd", "rowwise_adagrad") else optimizer
        assert launches[-1].variant.endswith(kind)
        assert launches[-1].args["adagrad"] == int(optimizer == "rowwise_adagrad")


def test_long_runs_in_one_launch(update: Any) -> None:
    shape = layout((64, 2, 3), (128, 2, 2), total_rows=10_000)
    options = {"factored": True, "gradient_scale": 16, "clip": 3.0, "eps": 0.5, "found_inf": 32}
    launches, reasons = update(shape, fused_long_runs="auto", **options)
    assert names(launches) == [*["sum_and_update_long_runs"] * 2, *["update_short_runs"] * 2]
    assert [launch.variant for launch in launches[:2]] == [
        "sum_and_update_long_runs__fp16_fp32_d128_factored",
        "sum_and_update_long_runs__fp16_fp32_d64_factored",
    ]
    two, _ = update(shape, **options)
    assert names(two) == [
        kernel
        for kernel in ("sum_chunks", "update_short_runs", "update_long_runs")
        for _ in range(2)
    ]
    counters = SCRATCH - ceil(4 * ceil(10_000 / 128), 16)
    for fused, sums, long in zip(launches[:2], two[:2], two[4:], strict=True):
        # The same numbers and memory as the two kernels, and the counters.
        both = {**sums.args, **long.args, "overlap": fused.args["overlap"]}
        assert fused.args == {
            **{name: both[name] for name in fused.args if name in both},
            "counters": counters,
        }
        chunks = ceil(10_000 / 128)
        programs = fused.constants["PROGRAMS_PER_SM"] * MULTIPROCESSORS
        assert fused.grid == (min(chunks, programs), 1, 1)
    assert reasons[0].endswith("; one launch because a kernel does both for such rows")
    assert all(launch.args["overlap"] & WAIT_FIRST for launch in launches[1:])


def test_groups_of_one_call_take_one_launch_or_two(update: Any) -> None:
    shape = layout((16, 2, 1), (64, 1, 1), (64, 2, 1), (256, 2, 1), total_rows=10_000)
    launches, reasons = update(shape, fused_long_runs="auto")
    fused = "sum_and_update_long_runs"
    assert names(launches) == [
        *[fused, fused, "sum_chunks", "sum_chunks"],
        *["update_short_runs"] * 4,
        *["update_long_runs"] * 2,
    ]
    assert [reason.rpartition("; ")[2] for reason in reasons[:4]] == [
        "one launch because a kernel does both for such rows",
        "one launch because a kernel does both for such rows",
        "two launches because no kernel does both for generic rows",
        "two launches because no kernel does both for this bucket",
    ]
    slots = [launch.args["run_begins"] for launch in launches]
    assert slots[:4] == slots[4:8]
    assert slots[8:] == slots[2:4]


@pytest.mark.parametrize(
    ("shape", "changes", "why"),
    [
        (ONE_GROUP, {}, None),
        (ONE_GROUP, {"fused_long_runs": "never"}, "fused_long_runs is never"),
        (ONE_GROUP, {"optimizer": "sgd"}, None),
        (ONE_GROUP, {"optimizer": "adagrad"}, "no kernel does both for this optimizer"),
        (ONE_GROUP, {"optimizer": "adam"}, "no kernel does both for this optimizer"),
        (ONE_GROUP, {"weights": 0x6002}, "no kernel does both for generic rows"),
        (ONE_GROUP, {"gradient": 0x7004}, "no kernel does both for generic rows"),
        (layout((32, 2, 3), total_rows=10_000), {}, "no kernel does both for this bucket"),
        (layout((512, 2, 3), total_rows=10_000), {}, "no kernel does both for this bucket"),
        (layout((256, 2, 3), total_rows=10_000), {}, None),
        (
            layout((256, 2, 3), total_rows=10_000),
            {"factored": True},
            "no kernel does both for gradients with a factor in this bucket",
        ),
    ],
)
def test_when_long_runs_take_one_launch(
    update: Any, shape: list[int], changes: dict[str, Any], why: str | None
) -> None:
    for choice in ("auto", "always"):
        launches, reasons = update(shape, **{"fused_long_runs": choice, **changes})
        assert ("sum_and_update_long_runs" in names(launches)) == (why is None)
        assert ("sum_chunks" in names(launches)) == (why is not None)
        if why is not None:
            assert sum(reason.endswith(f"; two launches because {why}") for reason in reasons) == 1


def test_rows_of_many_chunks_take_two_launches_unless_asked(update: Any) -> None:
    fused = "sum_and_update_long_runs"
    few = layout((128, 2, 3), total_rows=100)
    assert fused in names(update(few, fused_long_runs="auto", lookups=25_599)[0])
    launches, reasons = update(few, fused_long_runs="auto", lookups=25_600)
    assert fused not in names(launches)
    assert reasons[0].endswith("; two launches because nearly all rows have runs of many chunks")
    launches, reasons = update(few, fused_long_runs="always", lookups=25_600)
    assert fused in names(launches)
    assert reasons[0].endswith("; one launch because fused_long_runs is always")


def test_one_memset_clears_all_that_is_counted(shared: Process, transpose: Any) -> None:
    counters = ceil(4 * ceil(10_000 / 128), 16)
    _, _, (_, scratch), _ = transpose()
    fused = {"fused_long_runs": "always"}
    assert shared.run(_cleared, fused, None) == (SCRATCH - counters, counters)
    assert shared.run(_cleared, fused, {}) == (SCRATCH - counters, counters + scratch)
    assert shared.run(_cleared, {"fused_long_runs": "never"}, {}) == (SCRATCH, scratch)
    assert shared.run(_cleared, {"fused_long_runs": "never"}, None) is None
    assert shared.run(_cleared, {**fused, "lookups": 127}, None) is None
    assert shared.run(_cleared, {**fused, "total_bags": 0}, {}) is None


def test_counters_elsewhere_are_refused(update: Any) -> None:
    message = "the counters, 320 bytes at 0x[0-9a-f]+, do not end where the scratch memory"
    with pytest.raises(RuntimeError, match=message):
        update(fused_long_runs="always", transpose={}, counters=SCRATCH)


def _unknown_choice(child: Child) -> str:
    return error_of(lambda: _update(child, ONE_GROUP, {"fused_long_runs": "one"}, None))


def test_unknown_choice_of_long_runs(shared: Process) -> None:
    assert shared.run(_unknown_choice) == (
        "no fused_long_runs 'one'; allowed are auto, never, always"
    )


def test_launches_of_an_update_overlap(update: Any) -> None:
    two = layout((16, 2, 1), (128, 2, 3), total_rows=10_000)

    def overlaps(**changes: Any) -> list[int]:
        return [launch.args["overlap"] for launch in update(two, **changes)[0]]

    first_waits, waits = WAIT_FIRST | NEXT_MAY_START, WAIT_LAST | NEXT_MAY_START
    updates = [*[first_waits] * 4, WAIT_FIRST]
    # The first launch behind whatever came before on the stream waits for it by itself.
    assert overlaps() == [NEXT_MAY_START, *updates]
    assert overlaps(optimizer="adam") == [NEXT_MAY_START, first_waits, *updates]
    transposing = [NEXT_MAY_START, first_waits, first_waits, first_waits]
    assert overlaps(transpose={}) == [*transposing, first_waits, *updates]
    assert overlaps(transpose={}, optimizer="adam") == [*transposing, waits, first_waits, *updates]
    assert overlaps(lookups=127) == [NEXT_MAY_START, WAIT_FIRST]
    few = {"transpose": {"lookups": 127}, "lookups": 127}
    assert overlaps(**few) == [*transposing, first_waits, WAIT_FIRST]
    assert overlaps(**few, optimizer="adam") == [*transposing, waits, first_waits, WAIT_FIRST]


def test_long_runs_need_a_chunk_of_lookups(update: Any, shared: Process) -> None:
    assert names(update(lookups=127)[0]) == ["update_short_runs"]
    assert "sum_chunks" in names(update(lookups=128)[0])
    assert shared.run(_partials_bytes, 127, ONE_GROUP) == 0
    assert shared.run(_partials_bytes, 129, ONE_GROUP) == 2 * 128 * 4
    mixed = layout((16, 1, 2), (256, 1, 1), (512, 1, 0))
    assert shared.run(_partials_bytes, 128, mixed) == 256 * 4


def _partials_bytes(child: Child, lookups: int, shape: list[int]) -> Any:
    return child.launcher.partials_bytes(lookups, shape)


def test_each_group_updates_its_slots_and_the_widest_comes_first(update: Any) -> None:
    mixed = layout((16, 2, 3), (64, 1, 2), (64, 2, 0), (256, 2, 1))
    launches, _ = update(mixed)
    assert names(launches) == [
        *["sum_chunks"] * 3,
        *["update_short_runs"] * 3,
        *["update_long_runs"] * 3,
    ]
    begins = sections(10_000, 6, factored=False)["run_begins"]
    for first in (0, 3, 6):
        assert [
            (launch.args["run_begins"] - begins, launch.args["group_slots"])
            for launch in launches[first : first + 3]
        ] == [(4 * 5, 1), (4 * 3, 2), (0, 3)]
    assert ["_aligned" in launch.variant for launch in launches[3:6]] == [True, False, True]
    assert {launch.args["partial_stride"] for launch in launches[:3]} == {256}


def test_more_launches_than_are_stored_inline(update: Any) -> None:
    many = layout(
        *[(bucket, 2, 1) for bucket in (16, 32, 64, 128, 256, 512, 1024, 2048)], total_rows=10_000
    )
    launches, reasons = update(many, transpose={}, optimizer="adam")
    assert len(launches) == len(reasons) == 4 + 1 + 8 * 3
    assert all(launch.args["overlap"] & NEXT_MAY_START for launch in launches[:-1])
    assert launches[-1].args["overlap"] == WAIT_FIRST
    assert [launch.args["partial_stride"] for launch in launches[5:13]] == [2048] * 8


def test_transposing_comes_first_and_in_the_same_plan(update: Any) -> None:
    launches, reasons = update(transpose={})
    assert names(launches)[:5] == ["linearise_lookups", *SORTED, "sum_chunks"]
    assert len(launches) == len(reasons) == 7


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"weights": 0x6008}, "the weights' address is not a multiple of 16"),
        ({"gradient": 0x7004}, "the gradient's address is not a multiple of 16"),
        (
            {"momentum1": 0x8004, "optimizer": "adagrad"},
            "the address of the optimizer's state is not a multiple of 16",
        ),
        (
            {"momentum2": 0x9004, "optimizer": "adam"},
            "the address of the optimizer's state is not a multiple of 16",
        ),
    ],
)
def test_an_update_that_is_not_aligned_runs_generic_variants(
    update: Any, changes: dict[str, Any], reason: str
) -> None:
    launches, reasons = update(**changes)
    assert all("_generic" in launch.variant for launch in launches[-3:])
    assert all(
        f"generic although the group is aligned, because {reason}" in r for r in reasons[-3:]
    )


def test_a_state_per_row_needs_no_alignment(update: Any) -> None:
    assert all("_aligned" in launch.variant for launch in update(momentum1=0x8004)[0])


def test_rows_of_the_weights_alone_are_not_enough(update: Any) -> None:
    launches, reasons = update(layout((128, 1, 3)))
    assert all("_generic" in launch.variant for launch in launches)
    assert "generic because rows of weights or gradient do not all start at" in reasons[0]


def test_a_variable_batch_is_aligned_where_every_feature_is(update: Any) -> None:
    assert all("_aligned" in launch.variant for launch in update(vbe=True)[0])
    mixed = layout((16, 1, 1), (128, 2, 1))
    launches, reasons = update(mixed, vbe=True)
    assert all("_generic" in launch.variant for launch in launches)
    assert "in a 1-D gradient rows of other features shift those of the group" in reasons[0]
    assert "_aligned" in update(mixed)[0][0].variant


def test_rounding_by_chance_has_a_seed_that_is_counted_too(update: Any) -> None:
    launches, _ = update(optimizer="sgd", rounding_seed=48)
    counters, _, *updates = launches
    assert counters.kernel == "advance_counters"
    args = counters.args
    assert (args["rounding_seed"], args["stochastic"], args["counts_steps"]) == (48, 1, 0)
    for launch in updates:
        assert (launch.args["rounding_seed"], launch.args["stochastic"]) == (48, 1)
    launches, _ = update(optimizer="adam", rounding_seed=48)
    args = launches[0].args
    assert (args["step"], args["stochastic"], args["counts_steps"]) == (0xA000, 1, 1)
    launches, _ = update(optimizer="sgd")
    assert all(launch.args.get("stochastic", 0) == 0 for launch in launches)


@pytest.mark.parametrize("changes", [{"lookups": 0}, {"total_bags": 0}])
def test_without_lookups_the_step_alone_is_counted(update: Any, changes: dict[str, int]) -> None:
    launches, reasons = update(transpose={}, **changes)
    assert launches == []
    assert reasons == ["no row is updated: there are no lookups"]
    (step,), _ = update(transpose={}, optimizer="adam", **changes)
    assert (step.kernel, step.args["overlap"]) == ("advance_counters", 0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lookups": 2**30}, "1073741824 lookups given; at most 1073741823 can be transposed"),
        ({"lookups": -1}, "negative size: -1 lookups"),
        ({"multiprocessors": 0}, "0 multiprocessors"),
        (
            {"gradient_numel": 2**32 + 1},
            "the gradient has 4294967297 elements, allowed are 4294967296",
        ),
        ({"weight_dtype": "fp32", "gradient_dtype": "bf16"}, "widen others before"),
        ({"weight_dtype": "fp16", "gradient_dtype": "bf16"}, "widen others before"),
        ({"transposed": TRANSPOSED + 4}, "is not a multiple of 16"),
        ({"layout": layout((48, 1, 1))}, "bucket 48; the kernels' buckets are 16 32 64"),
    ],
)
def test_what_is_not_updated(update: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        update(**changes)


def _unknown_optimizer(child: Child) -> str:
    return error_of(lambda: _update(child, ONE_GROUP, {"optimizer": "lamb"}, None))


def test_unknown_optimizer(shared: Process) -> None:
    assert shared.run(_unknown_optimizer) == (
        "no optimizer 'lamb'; allowed are sgd, rowwise_adagrad, adagrad, adam"
    )


def _variants_of_all_cells(child: Child, kernel: str, cells: list[dict[str, Any]]) -> list[str]:
    found = []
    optimizers = {"rowwise": "sgd", "adagrad": "adagrad", "adam": "adam"}
    for axes in cells:
        dtype = axes.get("weight_dtype", axes.get("gradient_dtype"))
        changes = {
            "weight_dtype": dtype,
            "gradient_dtype": axes.get("gradient_dtype", "fp32"),
            "factored": axes.get("factored", False),
            "optimizer": optimizers[axes.get("optimizer", "rowwise")],
            "fused_long_runs": "always" if kernel == "sum_and_update_long_runs" else "never",
        }
        shape = layout((axes["bucket"], 2 if axes.get("aligned", True) else 1, 1))
        launches, _ = _update(child, shape, changes, None)
        found.append(next(launch.variant for launch in launches if launch.kernel == kernel))
    return found


@pytest.mark.parametrize(
    "kernel",
    ["sum_chunks", "update_short_runs", "update_long_runs", "sum_and_update_long_runs"],
)
def test_every_combination_finds_the_variant_of_the_plan(shared: Process, kernel: str) -> None:
    plan = make_plan(SPECS, "full", ARCHS).kernels[kernel]
    cells = [plan.cell_axes(cell) for cell, number in enumerate(plan.cells) if number >= 0]
    expected = [plan.variants[number].name for number in plan.cells if number >= 0]
    assert shared.run(_variants_of_all_cells, kernel, cells) == expected


# --- The gradient of the per-sample weights ------------------------------------------------------------


def _sample_weights(child: Child, shape: list[int], changes: dict[str, Any]) -> Any:
    features = shape[1]
    request: dict[str, Any] = {
        "arch": "sm90",
        "weight_dtype": "fp16",
        "result": 0x1000,
        "gradient": 0x7000,
        "weights": 0x6000,
        **LOOKUP_POINTERS,
        "lookups": 10_000,
        "batch_size": 50,
        "total_bags": 50 * features,
    }
    fields = {**request, **changes}
    shape = fields.pop("layout", shape)
    made = child.launcher.SampleWeightsGradientRequest(**fields)
    plan = child.launcher.plan_per_sample_weights_gradient(made, shape)
    clear = None if plan.clear is None else (plan.clear.address, plan.clear.bytes)
    return describe(child, plan), plan.reasons, clear


@pytest.fixture
def sample_weights(shared: Process) -> Any:
    return lambda shape=ONE_GROUP, **changes: shared.run(_sample_weights, shape, changes)


def test_launches_of_the_gradient_of_sample_weights(sample_weights: Any) -> None:
    launches, reasons, clear = sample_weights(layout((16, 2, 3), (128, 1, 2)), mean=True)
    wide, narrow = launches
    assert wide.variant == "per_sample_weights_gradient__fp16_fp32_d128_i64_generic"
    assert narrow.variant == "per_sample_weights_gradient__fp16_fp32_d16_i64_aligned"
    assert wide.grid == (ceil(50 / wide.constants["BAGS"]), 2, 1)
    assert narrow.grid == (ceil(50 / narrow.constants["BAGS"]), 3, 1)
    assert [launch.args["features"] for launch in launches] == [FEATURES + 3 * 64, FEATURES]
    assert [launch.args["overlap"] for launch in launches] == [NEXT_MAY_START, WAIT_LAST]
    assert (wide.args["result"], wide.args["output_width"], wide.args["mean"]) == (0x1000, 304, 1)
    assert "2 features of bucket 128; generic because rows of weights or gradient" in reasons[0]
    assert clear is None


def test_gradient_of_sample_weights_of_more_features_than_a_grid_holds(sample_weights: Any) -> None:
    launches, *_ = sample_weights(layout((16, 2, 70_000)), batch_size=1, total_bags=70_000)
    assert [launch.grid[1] for launch in launches] == [65_535, 4_465]
    assert launches[1].args["features"] == FEATURES + 65_535 * 64


@pytest.mark.parametrize(
    "changes",
    [
        {"weights": 0x6008},
        {"gradient": 0x7008},
        {"layout": layout((16, 2, 1), (128, 1, 1)), "vbe_bag_offsets": 1, "vbe_output_offsets": 2},
    ],
)
def test_gradient_of_sample_weights_that_is_not_aligned(
    sample_weights: Any, changes: dict[str, Any]
) -> None:
    launches, *_ = sample_weights(**changes)
    assert all("_generic" in launch.variant for launch in launches)


@pytest.mark.parametrize("changes", [{"total_bags": 0}, {"batch_size": 0}])
def test_gradient_of_sample_weights_of_no_bag_is_zero(
    sample_weights: Any, changes: dict[str, int]
) -> None:
    launches, _, clear = sample_weights(**changes)
    assert launches == []
    assert clear == (0x1000, 40_000)
    launches, _, clear = sample_weights(lookups=0)
    assert (launches, clear) == ([], None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 2**31}, "the number of bags per feature is 2147483648, allowed are 0 to"),
        ({"lookups": -1}, "negative size: -1 lookups"),
        ({"vbe_bag_offsets": 1}, "must be given together"),
        ({"gradient_dtype": "bf16"}, "widen others before"),
        ({"index_width": 8}, "indices have 8 bits"),
        ({"layout": layout((48, 1, 1))}, "bucket 48"),
    ],
)
def test_gradient_of_sample_weights_refuses(
    sample_weights: Any, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(RuntimeError, match=message):
        sample_weights(**changes)


# --- A small table -----------------------------------------------------------------------------------


def small_layout(
    rows: int = 64, width: int = 128, bucket: int = 128, features: int = 1
) -> list[int]:
    made = layout((bucket, 2, features), width=width, total_rows=rows)
    made[5] = rows
    return made


def small_batch(mean: int = 8, bags: int = 300, **changes: Any) -> dict[str, Any]:
    return {"lookups": mean * bags, "batch_size": bags, "total_bags": bags, **changes}


@pytest.mark.parametrize(
    ("bags", "chunk_bags"), [(1, 64), (300, 64), (8192, 64), (8193, 128), (20_000, 192)]
)
def test_a_small_table_is_updated_without_transposing(
    update: Any, bags: int, chunk_bags: int
) -> None:
    batch = small_batch(bags=bags)
    counts = {"lookups": batch["lookups"], "total_bags": bags}
    launches, reasons = update(small_layout(), batch, clip=0.5, found_inf=0xC000, **counts)
    summing, updating = launches
    assert summing.variant == "sum_small_table__fp32_d128_i64"
    assert updating.variant == "update_small_table__fp16_d128_rowwise"
    chunks = -(-bags // chunk_bags)
    assert chunks <= 128
    assert (summing.grid, updating.grid) == ((chunks, 1, 1), (64, 1, 1))
    assert summing.args["chunk_bags"] == chunk_bags
    assert summing.args["batch_size"] == bags
    assert (summing.args["indices"], summing.args["offsets"]) == (0x4000, 0x5000)
    assert (summing.args["clip"], summing.args["mean"]) == (0.5, 0)
    used = PARTIALS + 64 * chunks * 128 * 4
    for launch in launches:
        assert (launch.args["partials"], launch.args["used"]) == (PARTIALS, used)
    assert updating.args["chunks"] == chunks
    assert (updating.args["adagrad"], updating.args["checked"]) == (1, 1)
    assert (summing.args["scaled"], updating.args["stochastic"]) == (0, 0)
    assert summing.args["overlap"] == NEXT_MAY_START
    assert updating.args["overlap"] == WAIT_FIRST
    assert (
        "nothing is transposed because there is one table of 64 rows of 128 columns" in reasons[0]
    )
    assert len(reasons) == 2


def test_an_update_of_a_small_table_is_counted_first(update: Any) -> None:
    given = {"optimizer": "adam", "rounding_seed": 0xD000, "weight_dtype": "bf16"}
    launches, _ = update(
        small_layout(width=64, bucket=64),
        small_batch(index_width=32, mean=8) | {"mean": True},
        lookups=2400,
        total_bags=300,
        factored=True,
        **given,
    )
    assert [launch.variant for launch in launches] == [
        "advance_counters",
        "sum_small_table__fp32_d64_i32",
        "update_small_table__bf16_d64_adam",
    ]
    assert [launch.args["overlap"] for launch in launches] == [
        NEXT_MAY_START,
        WAIT_LAST | NEXT_MAY_START,
        WAIT_FIRST,
    ]
    assert launches[1].args["mean"] == 1
    assert launches[2].args["stochastic"] == 1
    assert launches[2].args["rounding_seed"] == 0xD000


@pytest.mark.parametrize(
    ("shape", "batch", "changes", "why"),
    [
        ({}, {}, {"small_tables": "never"}, "small_tables is never"),
        ({}, {"lookups": 299}, {"lookups": 299}, "bags are too short on average"),
        ({"rows": 65}, {}, {}, "rows are too many"),
        ({"width": 129, "bucket": 256}, {}, {}, "rows are too wide"),
        ({}, {}, {"weight_dtype": "fp32"}, "the table is fp32"),
        ({}, {"per_sample_weights": 0xE000}, {"factored": True}, "there are per-sample weights"),
        (
            {},
            {"vbe_bag_offsets": 0xE000, "vbe_output_offsets": 0xF000},
            {"vbe": True},
            "the batch is variable",
        ),
        ({}, None, {}, "the lookups have been transposed already"),
        ({"rows": 257}, {}, {"small_tables": "always"}, "not one feature with a small table"),
        # No table that anybody would call small: nothing is said unless it was asked for.
        ({"width": 63, "bucket": 64}, {}, {}, None),
        ({"rows": 257}, {}, {}, None),
    ],
)
def test_when_a_small_table_is_updated_by_the_general_kernels(
    update: Any,
    shape: dict[str, Any],
    batch: dict[str, Any] | None,
    changes: dict[str, Any],
    why: str | None,
) -> None:
    given = None if batch is None else small_batch(**batch)
    fields = {"lookups": 2400, "total_bags": 300, **changes}
    launches, reasons = update(small_layout(**shape), given, **fields)
    assert not any("small_table" in name for name in names(launches))
    assert ("linearise_lookups" in names(launches)) == (batch is not None)
    (reason,) = (text for text in reasons if text.startswith("update_short_runs"))
    assert ("not the small table's kernels" in reason) == (why is not None)
    assert (why or "") in reason


def test_short_bags_of_a_small_table_when_asked_for(update: Any) -> None:
    batch = small_batch() | {"lookups": 30}
    launches, _ = update(small_layout(), batch, lookups=30, total_bags=300, small_tables="always")
    assert names(launches) == ["sum_small_table", "update_small_table"]
