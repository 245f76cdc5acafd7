"""The demo's comparison: a demo that always agrees would show nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tbe_aot
from examples.dlrm_v2 import demo

BATCH = 16


class OffByALittle(tbe_aot.TableBatchedEmbeddingBags):
    """One element of the output is wrong."""

    def forward(self, *args: Any) -> torch.Tensor:
        output = super().forward(*args)
        output[-1, -1] += 1e-3
        return output


@pytest.mark.parametrize(
    ("module", "agrees"), [(tbe_aot.TableBatchedEmbeddingBags, True), (OffByALittle, False)]
)
def test_comparison_sees_one_wrong_element(
    module: type[tbe_aot.TableBatchedEmbeddingBags], agrees: bool
):
    rows = [min(e, 50) for e in demo.ROWS]
    specs = [tbe_aot.TableSpec(f"t{i}", e, demo.D) for i, e in enumerate(rows)]
    bags = module(specs, weights_dtype=torch.float16)
    ids, offsets = demo.make_inputs(rows, BATCH, torch.Generator().manual_seed(0))
    result = demo.compare(bags, ids, offsets, BATCH, repeats=1)
    assert (result.worst <= 1) is agrees


def test_tables_are_capped_alike_until_they_fit():
    full = sum(demo.ROWS) * demo.D * 2
    assert demo.rows_that_fit(full, 2) == list(demo.ROWS)
    capped = demo.rows_that_fit(10**8, 2)
    assert sum(capped) * demo.D * 2 <= 10**8
    assert {e for e, whole in zip(capped, demo.ROWS, strict=True) if e < whole} == {max(capped)}
