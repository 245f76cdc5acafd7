"""The demo's comparisons: a demo that always agrees would show nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tbe_aot
from examples.dlrm_v2 import dataset, demo, training

BATCH = 16
ROWS = [min(e, 50) for e in dataset.ROWS]


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
    bags = module(demo.table_specs(ROWS), weights_dtype=torch.float16)
    ids, offsets = dataset.make_inputs(ROWS, BATCH, torch.Generator().manual_seed(0))
    result = demo.compare(bags, ids, offsets, BATCH, repeats=1)
    assert (result.worst <= 1) is agrees


class OneWeightDiffers(tbe_aot.TableBatchedEmbeddingBags):
    """Every backward moves one weight a little."""

    def backward_update(self, *args: Any) -> None:
        super().backward_update(*args)
        with torch.no_grad():
            self.table("t25")[0, 0] += 1e-3


class LosesUpdates(tbe_aot.TableBatchedEmbeddingBags):
    """The backward trains nothing."""

    def backward_update(self, *args: Any) -> None:
        pass


class Overflows(tbe_aot.TableBatchedEmbeddingBags):
    """After one step the tables hold a NaN."""

    def backward_update(self, *args: Any) -> None:
        super().backward_update(*args)
        with torch.no_grad():
            self.table("t5").fill_(torch.nan)


def batches(count: int) -> list[dataset.Batch]:
    generator = torch.Generator().manual_seed(1)
    return [dataset.make_batch(ROWS, BATCH, generator) for _ in range(count)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_training_learns_and_is_that_in_float64(dtype: torch.dtype):
    optimizer = training.make_optimizer(BATCH)
    bags = tbe_aot.TableBatchedEmbeddingBags(
        demo.table_specs(ROWS), weights_dtype=dtype, optimizer=optimizer
    )
    epochs = training.train(bags, batches(2), 4)
    assert training.is_learning(epochs)
    assert all(epoch.worst <= 1 for epoch in epochs)


@pytest.mark.parametrize("module", [LosesUpdates, Overflows])
def test_training_that_is_wrong_is_seen(module: type[tbe_aot.TableBatchedEmbeddingBags]):
    bags = module(demo.table_specs(ROWS), optimizer=training.make_optimizer(BATCH))
    epochs = training.train(bags, batches(2), 4)
    assert not training.is_learning(epochs) or module is LosesUpdates
    assert not all(epoch.worst <= 1 for epoch in epochs)


def test_a_loss_that_stays_is_seen():
    epochs = [training.Epoch(0.7, 0.7, 0, 0), training.Epoch(0.69, 0.69, 0, 0)]
    assert not training.is_learning(epochs)
    assert training.is_learning([*epochs, training.Epoch(0.5, 0.5, 0, 0)])


def test_the_float64_run_holds_only_rows_that_are_looked_up():
    tables = [torch.rand(rows, dataset.D) for rows in ROWS]
    data = batches(2)
    run = training.Float64Run(tables, data, training.make_optimizer(BATCH))
    for feature, rows in enumerate(run.rows):
        parts = [batch.features()[feature][0] for batch in data]
        assert len(rows) == len(torch.cat(parts).unique()) <= len(tables[feature])
        for number, part in enumerate(parts):
            expected = tables[feature][part].double()
            assert torch.equal(rows[run.positions[feature][number]], expected)


@pytest.mark.parametrize(
    ("module", "agrees"), [(tbe_aot.TableBatchedEmbeddingBags, True), (OneWeightDiffers, False)]
)
@pytest.mark.parametrize(("optimizer", "make_sparse"), training.OPTIMIZERS)
def test_every_weight_is_compared_with_torch(optimizer, make_sparse, module, agrees):
    bags = module(demo.table_specs(ROWS), optimizer=optimizer)
    before = bags.weights.detach().clone()
    result = training.compare_with_torch(bags, make_sparse, batches(4))
    assert (result.worst <= 1) is agrees
    assert not torch.equal(bags.weights.detach(), before)


def test_clicks_follow_the_hidden_model():
    data = dataset.make_batch(ROWS, 2000, torch.Generator().manual_seed(0))
    share = float(data.clicks.mean())
    assert 0.2 < share < 0.8
    scores = sum(
        dataset.hidden_scores(feature, ids).view(2000, -1).sum(1) / hot**0.5
        for feature, ((ids, _), hot) in enumerate(
            zip(data.features(), dataset.MULTI_HOT, strict=True)
        )
    )
    assert isinstance(scores, torch.Tensor)
    liked = data.clicks[scores.argsort()]
    assert float(liked[:500].mean()) < share - 0.2
    assert float(liked[-500:].mean()) > share + 0.1


def test_tables_are_capped_alike_until_they_fit():
    full = sum(dataset.ROWS) * dataset.D * 2
    assert demo.rows_that_fit(full, 2) == list(dataset.ROWS)
    capped = demo.rows_that_fit(10**8, 2)
    assert sum(capped) * dataset.D * 2 <= 10**8
    assert {e for e, whole in zip(capped, dataset.ROWS, strict=True) if e < whole} == {max(capped)}
