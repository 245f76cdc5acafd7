"""The demo's ids follow the published histogram."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.dlrm_v2 import reuse


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@settings(max_examples=30, deadline=None)
@given(rows=st.integers(1, 5000), lookups=st.integers(0, 20000))
def test_ids_are_rows_of_the_table(rows: int, lookups: int):
    ids = reuse.draw_ids(rows, lookups, generator())
    assert len(ids) == lookups
    assert not lookups or 0 <= int(ids.min()) <= int(ids.max()) < rows


def test_shares_of_the_histogram_are_those_of_the_unique_rows():
    ids = reuse.draw_ids(10**8, 4 * 10**6, generator())
    uses = ids.unique(return_counts=True)[1]
    usual = uses[uses <= 2048]
    low = 1
    for entry, share in enumerate(reuse.REUSE_SHARE):
        found = float(((usual >= low) & (usual <= 2**entry)).float().mean())
        assert found == pytest.approx(share, abs=0.004), (low, 2**entry)
        low = 2**entry + 1
    hot = float(uses[uses > 2048].sum() / len(ids))
    assert hot == pytest.approx(reuse.HOT_INDEX_SHARE, abs=0.02)


def test_a_small_table_is_used_whole():
    assert len(reuse.draw_ids(976, 65536, generator()).unique()) == 976
