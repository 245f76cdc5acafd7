"""Fakes of the operators: what torch.compile, torch.export and AOTInductor need to know of them.

The operators are ``torch.ops.tbe_aot.forward``, ``check_bounds``, ``forward_checked``, ``transpose_indices``,
``backward_update`` and ``per_sample_weights_gradient``; docs/operators.md describes them. Their CUDA and CPU implementations are in
libtbe_aot.so. A fake checks its arguments by the rules that those implementations follow, generated from the same file,
and answers with the shape and dtype of the result.
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
    small_tables: str = "auto",
    work_stealing: str = "never",
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
        small_tables,
        work_stealing,
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


@torch.library.register_fake("tbe_aot::forward_checked")  # type: ignore[untyped-decorator]  # torch's
def _forward_checked(
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
    small_tables: str = "auto",
    work_stealing: str = "never",
    bounds_mode: str = "warning",
    invalid_count: torch.Tensor | None = None,
    fused_checks: str = "auto",
) -> tuple[torch.Tensor, torch.Tensor]:
    sizes = rules.accept_forward_checked(
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
        small_tables,
        work_stealing,
        bounds_mode,
        invalid_count,
        fused_checks,
    )
    shape = (vbe_output_numel,) if sizes.vbe else (sizes.batch_size, sizes.output_width)
    return (
        weights.new_empty(shape, dtype=getattr(torch, output_dtype)),
        offsets.new_empty(offsets.shape, dtype=indices.dtype),
    )


@torch.library.register_fake("tbe_aot::transpose_indices")  # type: ignore[untyped-decorator]
def _transpose_indices(
    features: torch.Tensor,
    layout: list[int],
    indices: torch.Tensor,
    offsets: torch.Tensor,
    per_sample_weights: torch.Tensor | None = None,
    pooling: str = "sum",
    vbe_bag_offsets: torch.Tensor | None = None,
    vbe_output_offsets: torch.Tensor | None = None,
    vbe_max_batch: int = 0,
) -> torch.Tensor:
    sizes = rules.accept_transpose_indices(
        features,
        layout,
        indices,
        offsets,
        per_sample_weights,
        pooling,
        vbe_bag_offsets,
        vbe_output_offsets,
        vbe_max_batch,
    )
    return features.new_empty((sizes.transposed_numel,), dtype=torch.int32)


@torch.library.register_fake("tbe_aot::backward_update")  # type: ignore[untyped-decorator]
def _backward_update(
    grad_output: torch.Tensor,
    weights: torch.Tensor,
    features: torch.Tensor,
    layout: list[int],
    indices: torch.Tensor,
    offsets: torch.Tensor,
    optimizer: str,
    learning_rate: torch.Tensor,
    momentum1: torch.Tensor | None = None,
    momentum2: torch.Tensor | None = None,
    step: torch.Tensor | None = None,
    eps: float = 1e-8,
    beta1: float = 0.9,
    beta2: float = 0.999,
    weight_decay: float = 0.0,
    weight_decay_mode: str = "none",
    per_sample_weights: torch.Tensor | None = None,
    pooling: str = "sum",
    gradient_clip: float = 0.0,
    gradient_scale: torch.Tensor | None = None,
    found_inf: torch.Tensor | None = None,
    vbe_bag_offsets: torch.Tensor | None = None,
    vbe_output_offsets: torch.Tensor | None = None,
    vbe_max_batch: int = 0,
    transposed: torch.Tensor | None = None,
    rounding_seed: torch.Tensor | None = None,
    small_tables: str = "auto",
    fused_long_runs: str = "auto",
) -> None:
    rules.accept_backward_update(
        grad_output,
        weights,
        features,
        layout,
        indices,
        offsets,
        optimizer,
        learning_rate,
        momentum1,
        momentum2,
        step,
        eps,
        beta1,
        beta2,
        weight_decay,
        weight_decay_mode,
        per_sample_weights,
        pooling,
        gradient_clip,
        gradient_scale,
        found_inf,
        vbe_bag_offsets,
        vbe_output_offsets,
        vbe_max_batch,
        transposed,
        rounding_seed,
        small_tables,
        fused_long_runs,
    )


@torch.library.register_fake("tbe_aot::per_sample_weights_gradient")  # type: ignore[untyped-decorator]
def _per_sample_weights_gradient(
    grad_output: torch.Tensor,
    weights: torch.Tensor,
    features: torch.Tensor,
    layout: list[int],
    indices: torch.Tensor,
    offsets: torch.Tensor,
    pooling: str = "sum",
    vbe_bag_offsets: torch.Tensor | None = None,
    vbe_output_offsets: torch.Tensor | None = None,
    vbe_max_batch: int = 0,
) -> torch.Tensor:
    rules.accept_per_sample_weights_gradient(
        grad_output,
        weights,
        features,
        layout,
        indices,
        offsets,
        pooling,
        vbe_bag_offsets,
        vbe_output_offsets,
        vbe_max_batch,
    )
    return weights.new_empty(indices.shape, dtype=torch.float32)
