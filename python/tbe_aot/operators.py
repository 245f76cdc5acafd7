"""Fakes of the operators: what torch.compile, torch.export and AOTInductor need to know of them.

The operators are ``torch.ops.tbe_aot.forward`` and ``torch.ops.tbe_aot.check_bounds``; docs/operators.md describes
them. Their CUDA and CPU implementations are in libtbe_aot.so. A fake checks its arguments by the rules that those
implementations follow, generated from the same file, and answers with the shape and dtype of the result.
"""

from __future__ import annotations

import torch

from . import _operator_rules as rules

# torch leaves the decorator untyped.


@torch.library.register_fake("tbe_aot::forward")  # type: ignore[untyped-decorator]
def _forward(
    weights: torch.Tensor,
    features: torch.Tensor,
    layout: list[int],
    indices: torch.Tensor,
    offsets: torch.Tensor,
    per_sample_weights: torch.Tensor | None = None,
    pooling: str = "sum",
    output_dtype: str = "float32",
    vbe_bag_offsets: torch.Tensor | None = None,
    vbe_output_offsets: torch.Tensor | None = None,
    vbe_max_batch: int = 0,
    vbe_output_numel: int = 0,
) -> torch.Tensor:
    sizes = rules.accept_forward(
        weights,
        features,
        layout,
        indices,
        offsets,
        per_sample_weights,
        pooling,
        output_dtype,
        vbe_bag_offsets,
        vbe_output_offsets,
        vbe_max_batch,
        vbe_output_numel,
    )
    shape = (vbe_output_numel,) if sizes.vbe else (sizes.batch_size, sizes.output_width)
    return weights.new_empty(shape, dtype=getattr(torch, output_dtype))


@torch.library.register_fake("tbe_aot::check_bounds")  # type: ignore[untyped-decorator]
def _check_bounds(
    indices: torch.Tensor,
    offsets: torch.Tensor,
    features: torch.Tensor,
    layout: list[int],
    bounds_mode: str = "warning",
    invalid_count: torch.Tensor | None = None,
    vbe_bag_offsets: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    rules.accept_check_bounds(
        indices, offsets, features, layout, bounds_mode, invalid_count, vbe_bag_offsets
    )
    return (
        indices.new_empty(indices.shape),
        offsets.new_empty(offsets.shape, dtype=indices.dtype),
    )
