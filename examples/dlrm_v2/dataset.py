"""The tables of MLPerf's DLRM v2, batches of lookups in them, and clicks that a hidden model makes of the lookups."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch

from . import reuse

MULTI_HOT = (3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1)
ROWS = (
    *(40000000, 39060, 17295, 7424, 20265, 3, 7122, 1543, 63, 40000000, 3067956, 405282, 10, 2209),
    *(11938, 155, 4, 976, 14, 40000000, 40000000, 40000000, 590152, 12973, 108, 36),
)
D = 128
# How much of a click the hidden model decides: its logits are about normal, with this deviation.
GAIN = 6.0


@dataclass(frozen=True)
class Batch:
    """Samples that look rows up in every table, and whether each was clicked.

    Attributes:
        ids: int64 [N], feature-major, then by sample.
        offsets: int64 [26 * samples + 1].
        clicks: float32 [samples], 0 or 1.
    """

    ids: torch.Tensor
    offsets: torch.Tensor
    clicks: torch.Tensor

    def to(self, device: torch.device) -> Batch:
        """The batch on a device."""
        return Batch(self.ids.to(device), self.offsets.to(device), self.clicks.to(device))

    def features(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Per feature its ids and where each sample's begin in them."""
        return split_features(self.ids, len(self.clicks))


def split_features(ids: torch.Tensor, batch: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Per feature its ids and offsets, as torch.nn.EmbeddingBag takes them."""
    starts = torch.arange(batch, device=ids.device)
    parts = ids.split([hot * batch for hot in MULTI_HOT])
    return [(part, starts * hot) for part, hot in zip(parts, MULTI_HOT, strict=True)]


def make_inputs(
    rows: list[int], batch: int, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids int64 [N] and offsets int64 [T * batch + 1], feature-major."""
    ids = [
        reuse.draw_ids(e, hot * batch, generator) for e, hot in zip(rows, MULTI_HOT, strict=True)
    ]
    lengths = torch.tensor(MULTI_HOT).repeat_interleave(batch)
    return torch.cat(ids), torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])


def make_batch(rows: list[int], batch: int, generator: torch.Generator) -> Batch:
    """A batch with clicks."""
    ids, offsets = make_inputs(rows, batch, generator)
    logits = torch.zeros(batch)
    for feature, (part, _) in enumerate(split_features(ids, batch)):
        scores = hidden_scores(feature, part).view(batch, -1)
        logits += scores.sum(1) / scores.shape[1] ** 0.5
    # A score's variance is 1/3.
    logits *= GAIN * (3 / len(MULTI_HOT)) ** 0.5
    return Batch(ids, offsets, torch.bernoulli(logits.sigmoid(), generator=generator))


def hidden_scores(feature: int, ids: torch.Tensor) -> torch.Tensor:
    """The hidden model's number for each row, from -1 to 1: a hash, so that no table of them is needed."""
    mixed = (ids + 1) * 0x9E3779B97F4A7C1 + feature * 0x5851F42D4C957F2
    mixed = (mixed ^ (mixed >> 29)) * 0x14057B7EF767814
    return (mixed >> 20 & 0xFFFFFF) / 0x800000 - 1


def unique_rows(ids: torch.Tensor, offsets: torch.Tensor, batch: int) -> int:
    """Rows that the batch touches, summed over the features."""
    bounds: list[int] = offsets[::batch].tolist()
    unique = 0
    for start, end in itertools.pairwise(bounds):
        unique += ids[start:end].unique().numel()
    return unique
