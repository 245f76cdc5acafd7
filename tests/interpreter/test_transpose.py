"""linearise_lookups and find_runs in Triton's interpreter, sort_pass on the host, against plain loops: equal bits."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aot_build.spec import load_spec
from tests.interpreter.harness import SPECS, Interpreter
from tests.interpreter.transposing import Lookups, run_kernels

SHAPES = ["long", "medium", "short"]
WIDTHS = [32, 64]
MIXED = Lookups(tables=(7, 40), lengths=((3, 0, 5), (1, 70, 2)))


def check(interpreter: Interpreter, lookups: Lookups) -> None:
    actual, expected = run_kernels(interpreter, lookups)
    assert actual.differences(expected) == []
    assert actual == expected


def of_runs(lengths: list[int]) -> tuple[int, ...]:
    """Indices whose runs have these lengths; the lookups of a row are not side by side."""
    indices = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    generator = torch.Generator().manual_seed(0)
    return tuple(indices[torch.randperm(indices.numel(), generator=generator)].tolist())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("index_width", WIDTHS)
@pytest.mark.parametrize("key_width", WIDTHS)
def test_every_variant(
    triton_interpreter: Interpreter, key_width: int, index_width: int, shape: str
) -> None:
    turn = SHAPES.index(shape) + index_width // 32
    lookups = replace(
        MIXED,
        key_width=key_width,
        index_width=index_width,
        shape=shape,
        size=["small", "large"][turn % 2],
        weighted=turn % 3 == 0,
        mean=turn % 2 == 0,
        vbe=turn % 3 == 1,
    )
    check(triton_interpreter, lookups)


@pytest.mark.parametrize("vbe", [False, True])
@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_every_run_time_choice(
    triton_interpreter: Interpreter, *, weighted: bool, mean: bool, vbe: bool
) -> None:
    lengths = ((3, 0, 5), (1, 70, 2, 0, 9)) if vbe else MIXED.lengths
    check(
        triton_interpreter, replace(MIXED, lengths=lengths, weighted=weighted, mean=mean, vbe=vbe)
    )


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("index_width", WIDTHS)
@pytest.mark.parametrize("key_width", WIDTHS)
def test_what_is_out_of_bounds_counts_as_row_0(
    triton_interpreter: Interpreter, key_width: int, index_width: int, shape: str
) -> None:
    lookups = replace(
        MIXED, key_width=key_width, index_width=index_width, shape=shape, invalid=0.4, mean=True
    )
    check(triton_interpreter, lookups)
    # Tables without rows have no row 0.
    check(triton_interpreter, replace(lookups, tables=(0, 5, 0), lengths=((3, 1), (2, 9), (4, 0))))


@pytest.mark.parametrize("count", [1, 127, 128, 255, 256, 257, 1023, 1024, 1025, 2047, 2048, 2049])
def test_lookups_around_the_edges_of_tiles(triton_interpreter: Interpreter, count: int) -> None:
    lookups = Lookups(tables=(300,), lengths=((count // 2, count - count // 2),), shape="long")
    check(triton_interpreter, lookups)


@pytest.mark.parametrize("pruned", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("distinct", [1, 4000])
def test_equal_distinct_and_pruned_keys(
    triton_interpreter: Interpreter, distinct: int, pruned: float
) -> None:
    lookups = Lookups(
        tables=(4000,), lengths=((600, 700),), distinct=distinct, pruned=pruned, shape="long"
    )
    check(triton_interpreter, lookups)


def test_every_key_once(triton_interpreter: Interpreter) -> None:
    count = 1300
    indices = tuple(torch.randperm(count, generator=torch.Generator().manual_seed(0)).tolist())
    check(
        triton_interpreter,
        Lookups(tables=(count,), lengths=((count,),), indices=indices, pruned=0.0, shape="long"),
    )


# Around one chunk, two, four; and over many tiles.
@pytest.mark.parametrize(
    "lengths",
    [
        [1, 2, 127, 128, 129, 3],
        [255, 256, 257],
        [511, 512, 513],
        [5, 5000, 127, 1],
        [896, 128, 128, 1],
        [1023, 128],
        [128] * 17,
    ],
)
def test_chunks_of_long_runs(triton_interpreter: Interpreter, lengths: list[int]) -> None:
    lookups = Lookups(
        tables=(len(lengths),),
        lengths=((sum(lengths),),),
        indices=of_runs(lengths),
        key_width=WIDTHS[len(lengths) % 2],
        shape="long",
    )
    check(triton_interpreter, lookups)


def test_pruned_lookups_have_no_chunks(triton_interpreter: Interpreter) -> None:
    indices = (0,) * 130 + (-1,) * 1400
    lookups = Lookups(tables=(1,), lengths=((len(indices),),), indices=indices, shape="long")
    actual, expected = run_kernels(triton_interpreter, lookups)
    assert actual == expected
    assert [start for start in actual.chunk_starts if start >= 0] == [0]


@pytest.mark.parametrize("used", [(0,), (2,), (4,), (1, 3)])
def test_features_without_lookups(triton_interpreter: Interpreter, used: tuple[int, ...]) -> None:
    lengths = tuple((3, 4) if feature in used else (0, 0) for feature in range(5))
    check(triton_interpreter, Lookups(tables=(9, 8, 7, 6, 5), lengths=lengths))


# More than a block of slots, before, between and after those that have lookups; and exactly one.
@pytest.mark.parametrize(("slots", "used"), [(300, (140, 141, 290)), (128, (1,))])
def test_many_slots_between_two_keys(
    triton_interpreter: Interpreter, slots: int, used: tuple[int, ...]
) -> None:
    lengths = tuple((7,) if feature in used else (0,) for feature in range(slots))
    check(triton_interpreter, Lookups(tables=(3,) * slots, lengths=lengths))


@pytest.mark.parametrize("rows", [1, 50])
def test_slots_that_end_where_a_tile_does(triton_interpreter: Interpreter, rows: int) -> None:
    lookups = Lookups(
        tables=(rows,) * 3, lengths=((1024,), (1024,), (3,)), pruned=0.0, shape="long"
    )
    check(triton_interpreter, lookups)


@pytest.mark.parametrize("tables", [(0, 5, 3), (5, 0, 3), (5, 3, 0), (0, 0, 0), (0, 0, 4)])
def test_tables_without_rows(triton_interpreter: Interpreter, tables: tuple[int, ...]) -> None:
    check(triton_interpreter, Lookups(tables=tables, lengths=((3, 1), (4, 2), (2, 5))))


def test_shared_tables_and_slots_in_another_order(triton_interpreter: Interpreter) -> None:
    lookups = Lookups(
        tables=(6, -1, 4, 9, -1, -1),
        lengths=((3, 1), (4, 2), (2, 5), (1, 1), (0, 9), (6, 0)),
        slot_features=(4, 1, 5, 0, 2, 3),
        before=3,
        after=4,
    )
    check(triton_interpreter, lookups)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("before", "after"), [(3, 0), (0, 700), (600, 1)])
def test_lookups_outside_of_all_bags_are_pruned(
    triton_interpreter: Interpreter, before: int, after: int, shape: str
) -> None:
    check(
        triton_interpreter,
        replace(MIXED, before=before, after=after, shape=shape, weighted=before == 0),
    )


@pytest.mark.parametrize("first_row", [250, 2**16 - 8, 2**24 - 8, 2**31 - 60, 2**31, 2**40])
def test_keys_of_any_number_of_bits(triton_interpreter: Interpreter, first_row: int) -> None:
    key_width = 32 if first_row + 48 < 2**31 else 64
    lookups = Lookups(
        tables=(0, 8, 40),
        lengths=((0, 0), (30, 4), (40, 7)),
        first_row=first_row,
        key_width=key_width,
        index_width=32,
    )
    check(triton_interpreter, lookups)


def test_the_largest_index_of_32_bits(triton_interpreter: Interpreter) -> None:
    rows = 2**31 - 1
    lookups = Lookups(
        tables=(rows, rows),
        lengths=((3,), (2,)),
        indices=(rows - 1, -1, 0, rows - 1, 0),
        key_width=64,
        index_width=32,
    )
    check(triton_interpreter, lookups)


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_any_lookups(triton_interpreter: Interpreter, data: st.DataObject) -> None:
    slots = data.draw(st.integers(1, 5), label="slots")
    batch, vbe = data.draw(st.integers(1, 6), label="batch"), data.draw(st.booleans(), label="vbe")
    bag = st.integers(0, data.draw(st.sampled_from([2, 20, 160]), label="longest"))
    lengths = [
        tuple(data.draw(st.lists(bag, min_size=(n := batch + vbe * f), max_size=n)))
        for f in range(slots)
    ]
    before, after = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 3))
    if sum(map(sum, lengths)) + before + after == 0:
        after = 1
    sizes = [data.draw(st.integers(0, 30), label="rows")]
    sizes += [data.draw(st.integers(-1, 30), label="rows") for _ in range(slots - 1)]
    lookups = Lookups(
        tables=tuple(sizes),
        lengths=tuple(lengths),
        slot_features=tuple(data.draw(st.permutations(range(slots)))),
        distinct=data.draw(st.sampled_from([1, 3, 100])),
        pruned=data.draw(st.sampled_from([0.0, 0.3, 1.0])),
        index_width=data.draw(st.sampled_from(WIDTHS)),
        key_width=data.draw(st.sampled_from(WIDTHS)),
        shape=data.draw(st.sampled_from(SHAPES)),
        size=data.draw(st.sampled_from(["small", "large"])),
        weighted=data.draw(st.booleans()),
        mean=data.draw(st.booleans()),
        vbe=vbe,
        before=before,
        after=after,
        seed=data.draw(st.integers(0, 2**31)),
    )
    check(triton_interpreter, lookups)


def test_one_size_of_digits() -> None:
    bits = {
        rule.set["DIGIT_BITS"]
        for kernel in ("linearise_lookups", "sort_pass")
        for rule in load_spec(SPECS / kernel).tuning.rules
        if "DIGIT_BITS" in rule.set
    }
    assert len(bits) == 1
