"""The module on a CUDA device."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tbe_aot
from tests.gpu import installed

TABLES = [
    tbe_aot.TableSpec("user", 1000, 64),
    tbe_aot.TableSpec("item", 500, 33),
    tbe_aot.TableSpec("shop", 7, 128),
]
FEATURES = ["item", "user", "item", "shop"]


def bags(device: torch.device, **options: Any) -> tbe_aot.TableBatchedEmbeddingBags:
    return tbe_aot.TableBatchedEmbeddingBags(
        TABLES, feature_tables=FEATURES, device=device, **options
    )


def lookups(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(0, 9, (len(FEATURES) * 50,), generator=generator)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    indices = torch.randint(0, 7, (int(offsets[-1]),), generator=generator)
    return indices.to(device), offsets.to(device)


@pytest.mark.parametrize("weights_dtype", [torch.float32, torch.bfloat16], ids=str)
def test_equals_embedding_bags(weights_dtype, cuda):
    module = bags(cuda, weights_dtype=weights_dtype, pooling="mean")
    indices, offsets = lookups(cuda)
    parts = []
    for feature, table in enumerate(FEATURES):
        mine = offsets[feature * 50 : feature * 50 + 51]
        parts.append(
            torch.nn.functional.embedding_bag(
                indices[mine[0] : mine[-1]],
                module.table(table).float(),
                mine - mine[0],
                mode="mean",
                include_last_offset=True,
            )
        )
    torch.testing.assert_close(
        module(indices, offsets), torch.cat(parts, dim=1), rtol=1e-5, atol=1e-5
    )


def test_moves_between_devices(cuda):
    module = bags(torch.device("cpu"), weights_dtype=torch.float16)
    indices, offsets = lookups(torch.device("cpu"))
    expected = module(indices, offsets)
    module.to(cuda)
    output = module(indices.to(cuda), offsets.to(cuda))
    torch.testing.assert_close(output.cpu(), expected, rtol=1e-5, atol=1e-5)
    module.half().float()
    output = module(indices.to(cuda), offsets.to(cuda))
    torch.testing.assert_close(output.cpu(), expected, rtol=1e-5, atol=1e-5)


def test_counts_invalid_indices_by_default(cuda):
    module = bags(cuda)
    indices, offsets = lookups(cuda)
    indices[:3] = 10_000
    module(indices, offsets)
    assert module.invalid_index_count() == 3


def test_preload_loads_what_it_says(cuda):
    module = bags(cuda)
    names = set(module.preload())
    assert names
    assert names <= installed.loaded(cuda)
    indices, offsets = lookups(cuda)
    planned = {launch.variant for launch in module.explain(indices, offsets).launches}
    assert planned <= names


def test_explains_for_the_device_that_it_is_on(cuda):
    assert bags(cuda).explain(*lookups(cuda)).arch == installed.arch()
