"""The bounds check kernels in Triton's interpreter against the oracle."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests import oracle
from tests.interpreter.harness import Interpreter, KernelCall

BLOCK = {"BLOCK": 8}  # small, so that a handful of elements crosses several blocks and programs


def check(
    interpreter: Interpreter,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    rows: list[int],
    bags: list[int],
    *,
    vbe: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]:
    """(checked indices, checked offsets, report, invalid count)."""
    n, entries = indices.numel(), offsets.numel()
    report = torch.zeros(4, dtype=torch.int64)
    offsets_out, indices_out = torch.full_like(offsets, 77), torch.full_like(indices, 77)
    count = torch.zeros(1, dtype=torch.int64)
    features = torch.tensor([[t, 0, 8, 8, r, 0, t, 0] for t, r in enumerate(rows)])
    features = features.flip(0)  # grouping may reorder features: only column 0 says which is which
    bag_offsets = torch.tensor([0, *bags]).cumsum(0)
    calls = [
        KernelCall(
            "check_offsets",
            (-(-entries // 8), 1),
            (offsets_out, report, offsets, entries, n, 1),
            BLOCK,
        ),
        KernelCall("repair_offsets", (1, 1), (offsets_out, report, entries, n, 5), BLOCK),
        KernelCall(
            "check_indices",
            (2, len(rows)),
            (
                indices_out,
                count,
                report,
                indices,
                offsets_out,
                features,
                bag_offsets,
                n,
                bags[0],
                int(vbe),
                4,
            ),
            BLOCK,
        ),
    ]
    checked, seen_count, seen_report, _, checked_offsets, *_ = interpreter.run(*calls)[-1]
    return checked, checked_offsets, seen_report, int(seen_count)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_any_input(triton_interpreter: Interpreter, data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from([torch.int32, torch.int64]))
    vbe = data.draw(st.booleans())
    rows = data.draw(st.lists(st.integers(0, 6), min_size=1, max_size=3))
    batch = data.draw(st.integers(1, 5))
    bags = [batch + vbe * t for t in range(len(rows))]
    n = data.draw(st.integers(0, 40))
    indices = torch.tensor(
        data.draw(st.lists(st.integers(-3, 8), min_size=n, max_size=n)), dtype=dtype
    )
    entry = st.integers(-5, n + 5) if data.draw(st.booleans()) else st.integers(0, n)
    drawn = data.draw(st.lists(entry, min_size=sum(bags) + 1, max_size=sum(bags) + 1))
    if data.draw(st.booleans()):
        drawn = [0, *sorted(drawn)[1:-1], n]
    offsets = torch.tensor(drawn, dtype=dtype)
    expected = oracle.check_bounds(indices, offsets, rows, bags)
    checked, checked_offsets, report, count = check(
        triton_interpreter, indices, offsets, rows, bags, vbe=vbe
    )
    assert torch.equal(checked_offsets, expected.offsets)
    assert torch.equal(checked, expected.indices)
    assert count == expected.invalid_indices
    assert report[0] == expected.invalid_offsets


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_first_bad_positions_are_reported(
    triton_interpreter: Interpreter, dtype: torch.dtype
) -> None:
    indices = torch.tensor([1, 9, 0, -2, 3], dtype=dtype)
    offsets = torch.tensor([0, 3, 2, 5], dtype=dtype)
    _, _, report, count = check(triton_interpreter, indices, offsets, [4], [3])
    assert [int(report[0]), offsets.numel() - int(report[1])] == [1, 2]
    assert indices.numel() - report[2] == 1
    assert count == 2


def test_fbgemm_3979_all_indices_invalid(triton_interpreter: Interpreter) -> None:
    indices = torch.full((21,), 10)
    checked, _, _, count = check(
        triton_interpreter, indices, torch.tensor([0, 10, 21]), [10, 10], [1, 1]
    )
    assert count == 21
    assert (checked == 0).all()


def test_a_table_without_rows_prunes(triton_interpreter: Interpreter) -> None:
    checked, _, _, count = check(
        triton_interpreter, torch.tensor([0, -1]), torch.tensor([0, 2]), [0], [1]
    )
    assert checked.tolist() == [-1, -1]
    assert count == 1
