"""What ``tbe-aot explain`` says from the manifest alone is what the planner does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import tbe_aot
from tbe_aot import TableBatchedEmbeddingBags, TableSpec
from tbe_aot_audit.explain import Call, explain
from tbe_aot_audit.source import open_source

MANIFEST = open_source(Path(tbe_aot.__file__).parent).manifest


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("indices", ["int32", "int64"])
@pytest.mark.parametrize("weights", ["float32", "float16", "bfloat16"])
def test_the_forward(weights: str, indices: str, weighted: bool):
    batch = 6
    checked = 0
    for arch in MANIFEST.archs:
        for dim in (1, 16, 17, 100, 128, 250, 1000, 2048):
            module = TableBatchedEmbeddingBags(
                [TableSpec("t", 3, dim)],
                weights_dtype=getattr(torch, weights),
                small_tables="never",
                bounds_check="none",
            )
            for length in (0, 1, 2, 3, 5, 6, 8, 10, 11, 20, 40):
                dtype = getattr(torch, indices)
                lookups = torch.zeros(batch * length, dtype=dtype)
                offsets = torch.arange(batch + 1, dtype=dtype) * length
                sample_weights = torch.ones(batch * length) if weighted and length else None
                call = Call(
                    weights=weights,
                    dim=dim,
                    indices=indices,
                    weighted=sample_weights is not None,
                    mean_length=length,
                    batch=batch,
                )
                (found,) = explain(MANIFEST, call, arch=arch).candidates
                try:
                    live = module.explain(lookups, offsets, sample_weights, arch=arch)
                except RuntimeError:
                    # The launcher refuses what the profile leaves out.
                    assert not found.built
                    continue
                (launch,) = live.launches
                assert (found.variant, found.grid) == (launch.variant, launch.grid)
                assert found.block == launch.block[0]
                checked += 1
    assert checked > 10
