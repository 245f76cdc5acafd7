"""Which kernels a call launches and why; nothing here launches any."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ._operator_rules import accept_backward_update, accept_forward, accept_forward_checked
from ._rules import given
from .inspection import WEIGHT_DTYPES, launcher

# Of the largest GPU of an arch, for calls that are on no GPU: H200 and B200.
MULTIPROCESSORS = {"sm90": 132, "sm100": 148}
VECTOR_BYTES = 16


@dataclass(frozen=True)
class PlannedLaunch:
    """One launch of a call."""

    variant: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]


@dataclass(frozen=True)
class Explanation:
    """The launches of a call on an arch, in their order, and a sentence about each.

    Attributes:
        arch: what the call was planned for.
        launches: in the order in which they start.
        reasons: a sentence per launch; one that says so where there is none.
        notes: what else is worth knowing, such as which tables keep a bucket from its aligned variant.
    """

    arch: str
    launches: tuple[PlannedLaunch, ...]
    reasons: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join([f"on {self.arch}:", *(f"  {line}" for line in self.reasons + self.notes)])


def explain(
    weights: torch.Tensor,
    features: torch.Tensor,
    layout: list[int],
    indices: torch.Tensor,
    offsets: torch.Tensor,
    per_sample_weights: torch.Tensor | None = None,
    pooling: str = "sum",
    output_dtype: str = "float32",
    *,
    small_tables: str = "auto",
    work_stealing: str = "never",
    bounds_mode: str = "none",
    fused_checks: str = "auto",
    vbe_bag_offsets: torch.Tensor | None = None,
    vbe_output_offsets: torch.Tensor | None = None,
    vbe_max_batch: int = 0,
    vbe_output_numel: int = 0,
    arch: str | None = None,
) -> Explanation:
    """Which kernels ``torch.ops.tbe_aot.forward`` would launch for these arguments, and why; launches none.

    With a ``bounds_mode`` other than "none", which ``torch.ops.tbe_aot.forward_checked`` would. The arguments are the
    operators'; ``arch`` is the arch to plan for, by default that of the weights' device, or the
    first of the build for tensors on a CPU.

    Raises:
        RuntimeError: the operator would refuse the arguments.
        ValueError: the build has no such arch.
        ImportError: see ``launcher``.
    """
    checked = bounds_mode != "none"
    lookup = (weights, features, layout, indices, offsets, per_sample_weights, pooling)
    vbe = (vbe_bag_offsets, vbe_output_offsets, vbe_max_batch, vbe_output_numel)
    paths = (small_tables, work_stealing)
    sizes: Any = (
        accept_forward_checked(*lookup, output_dtype, *vbe, *paths, bounds_mode, None, fused_checks)
        if checked
        else accept_forward(*lookup, output_dtype, *vbe, *paths)
    )
    native = launcher()
    arch = arch or _arch_of(weights)
    # The check reads offsets and indices in the wider dtype of the two.
    read = offsets if checked and offsets.dtype == torch.int64 else indices
    index_width = 8 * read.dtype.itemsize
    request = native.ForwardRequest(
        arch=arch,
        weight_dtype=WEIGHT_DTYPES[weights.dtype],
        output_dtype=WEIGHT_DTYPES[getattr(torch, output_dtype)],
        index_width=index_width,
        mean=pooling == "mean",
        weights=weights.data_ptr(),
        features=features.data_ptr(),
        indices=indices.data_ptr(),
        offsets=offsets.data_ptr(),
        per_sample_weights=_address(per_sample_weights),
        vbe_bag_offsets=_address(vbe_bag_offsets),
        vbe_output_offsets=_address(vbe_output_offsets),
        lookups=indices.numel(),
        batch_size=sizes.batch_size,
        total_bags=sizes.total_bags,
        small_tables=small_tables,
        work_stealing=work_stealing == "always",
        fused_checks=fused_checks,
    )
    check = None
    if checked:
        check = native.CheckBoundsRequest(
            arch=arch,
            index_width=index_width,
            features=features.data_ptr(),
            vbe_bag_offsets=_address(vbe_bag_offsets),
            feature_count=sizes.feature_count,
            lookups=indices.numel(),
            offsets_numel=offsets.numel(),
            batch_size=sizes.batch_size,
        )
    return _explanation(native.plan_forward(request, layout, check))


def explain_backward(
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
    *,
    arch: str | None = None,
    multiprocessors: int | None = None,
) -> Explanation:
    """Which kernels ``torch.ops.tbe_aot.backward_update`` would launch for these arguments, and why; launches none.

    The arguments are the operator's; none of them is changed. ``arch`` is as in ``explain``; ``multiprocessors`` are those
    of the GPU to plan for, which bound the grids of the updating kernels: by default those of the weights' device, or of
    the arch's largest GPU for tensors on a CPU. Reads ``features``, for which it waits for the device.

    Raises:
        RuntimeError: the operator would refuse the arguments.
        ValueError: the build has no such arch.
        ImportError: see ``launcher``.
    """
    sizes = accept_backward_update(
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
    native = launcher()
    arch = arch or _arch_of(weights)
    if multiprocessors is None:
        multiprocessors = (
            native.device_multiprocessors(weights.get_device())
            if weights.is_cuda
            else MULTIPROCESSORS.get(arch, 1)
        )
    # Gradients of other dtypes, and strided ones, are copied first, to memory that is aligned.
    has_kernels = grad_output.dtype in {torch.float32, weights.dtype}
    is_read = has_kernels and grad_output.is_contiguous()
    counts = {"lookups": indices.numel(), "total_bags": sizes.total_bags}
    transpose = native.TransposeRequest(
        arch=arch,
        index_width=8 * indices.dtype.itemsize,
        mean=pooling == "mean",
        features=features.data_ptr(),
        indices=indices.data_ptr(),
        offsets=offsets.data_ptr(),
        per_sample_weights=_address(per_sample_weights),
        vbe_bag_offsets=_address(vbe_bag_offsets),
        vbe_output_offsets=_address(vbe_output_offsets),
        batch_size=sizes.batch_size,
        **counts,
    )
    request = native.BackwardUpdateRequest(
        arch=arch,
        multiprocessors=multiprocessors,
        weight_dtype=WEIGHT_DTYPES[weights.dtype],
        gradient_dtype=WEIGHT_DTYPES[grad_output.dtype if has_kernels else torch.float32],
        optimizer=optimizer,
        factored=sizes.factored,
        vbe=sizes.vbe,
        weights=weights.data_ptr(),
        gradient=grad_output.data_ptr() if is_read else 0,
        momentum1=_address(momentum1),
        momentum2=_address(momentum2),
        step=_address(step),
        rounding_seed=_address(rounding_seed),
        learning_rate=learning_rate.data_ptr(),
        gradient_scale=_address(gradient_scale),
        found_inf=_address(found_inf),
        features=features.data_ptr(),
        transposed=_address(transposed),
        gradient_numel=grad_output.numel(),
        clip=gradient_clip,
        small_tables=small_tables,
        fused_long_runs=fused_long_runs,
        **counts,
    )
    # As the operator places them, from address 0 on.
    transpose.scratch = native.counters_bytes(request, layout)
    plan = native.plan_backward_update(request, layout, None if given(transposed) else transpose)
    notes = []
    if plan.launches and not has_kernels:
        notes.append(f"the gradient is {grad_output.dtype}: it is widened to float32 first")
    if plan.launches and counts["lookups"]:
        notes += _odd_features(features, layout, weights.dtype)
    return _explanation(plan, *notes)


def _arch_of(weights: torch.Tensor) -> str:
    """The arch of a tensor's device, or the first of the build for one on a CPU."""
    native = launcher()
    name: str = (
        native.device_arch(weights.get_device()) if weights.is_cuda else native.archs()[0].name
    )
    return name


def _address(tensor: torch.Tensor | None) -> int:
    """As the planner takes it: 0 for a tensor that is absent or empty."""
    return tensor.data_ptr() if given(tensor) else 0


def _explanation(plan: Any, *notes: str) -> Explanation:
    return Explanation(
        arch=plan.arch,
        launches=tuple(
            PlannedLaunch(launch.variant.name, tuple(launch.grid), tuple(launch.block))
            for launch in plan.launches
        ),
        reasons=tuple(plan.reasons),
        notes=notes,
    )


def _odd_features(features: torch.Tensor, layout: list[int], dtype: torch.dtype) -> list[str]:
    """Which features are why gradients are not read in whole vectors, a sentence per group."""
    unit = VECTOR_BYTES // dtype.itemsize
    width = layout[2]
    rows = features.tolist()
    notes = []
    if width % unit:
        notes.append(
            f"all variants are generic because rows of the gradient have {width} columns, and 16 bytes hold {unit}"
            f" elements of {dtype}"
        )
    start = 0
    for bucket, count in zip(layout[6::3], layout[8::3], strict=True):
        group = rows[start : start + count]
        start += count
        odd = [
            f"feature {feature} has dim {dim} at column {column}"
            for feature, _, _, dim, _, column, *_ in group
            if dim % unit or column % unit
        ]
        if odd:
            more = f" and {len(odd) - 3} more" if len(odd) > 3 else ""
            notes.append(
                f"bucket {bucket} has generic variants because of dims or columns that are no multiples of {unit}:"
                f" {', '.join(odd[:3])}{more}"
            )
    return notes
