"""Training of the tables: what a lookup leaves for the backward, and the update that the backward makes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.autograd.function import once_differentiable
from torch.torch_version import TorchVersion

if TYPE_CHECKING:
    from .module import TableBatchedEmbeddingBags


class Batch(NamedTuple):
    """The inputs of one lookup.

    A tuple, tensors first: an eager step makes several, and they cost its host time.

    Attributes:
        indices: int32 or int64 [N]. Before the lookup, and where it does not change them, the caller's: an index out of
            bounds is for a lookup with a bounds check, and counts as row 0 in an update, too.
        offsets: int32 or int64 [bags + 1], checked by the lookup if ``bounds_mode`` says so.
        per_sample_weights: floating [N], or None.
        bounds_mode: "ignore" or "warning" if the lookup has to check indices and offsets, "none" otherwise.
        vbe_bag_offsets, vbe_output_offsets, vbe_max_batch, vbe_output_numel: of a variable batch, else None and 0.
        transposed: what ``torch.ops.tbe_aot.transpose_indices`` has made of the lookups that are trained, or None.
        transposed_for: the dtype of the tables then; tables of another one have their slots in another order.
    """

    indices: torch.Tensor
    offsets: torch.Tensor
    per_sample_weights: torch.Tensor | None = None
    vbe_bag_offsets: torch.Tensor | None = None
    vbe_output_offsets: torch.Tensor | None = None
    transposed: torch.Tensor | None = None
    vbe_max_batch: int = 0
    vbe_output_numel: int = 0
    transposed_for: torch.dtype | None = None
    bounds_mode: str = "none"

    def copy(self) -> Batch:
        """The batch with tensors that nobody else can change; those of VBE and ``transposed`` are the module's own."""
        weights = self.per_sample_weights
        return self._replace(
            indices=self.indices.clone(),
            offsets=self.offsets.clone(),
            per_sample_weights=None if weights is None else weights.detach().clone(),
        )


# The fields of a batch that are tensors.
TENSORS = 6


@dataclass(frozen=True)
class PendingUpdate:
    """What ``step`` of a deferred module needs of one backward."""

    grad_output: torch.Tensor
    batch: Batch


def no_updates() -> list[PendingUpdate]:
    """An empty list, typed where torch.jit.script does not look for types that it does not know."""
    return []


class Lookup(torch.autograd.Function):
    """The lookup as autograd sees it in eager mode: the backward updates the tables rather than returning a gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        bags: TableBatchedEmbeddingBags,
        weights: torch.Tensor,  # noqa: ARG004 - tells autograd whether the tables are trained
        per_sample_weights: torch.Tensor | None,  # noqa: ARG004 - as above
        batch: Batch,
    ) -> torch.Tensor:
        """Look up, and keep what the backward needs; not the weights, which the updates change in place."""
        ctx.set_materialize_grads(False)
        pooled, batch = bags.pooled(batch)
        if bags.hoist_transpose and bags.is_trained():
            batch = bags.transposed(batch)
        ctx.bags = bags
        ctx.numbers = batch[TENSORS:]
        ctx.save_for_backward(*batch[:TENSORS])
        return pooled

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        """The gradient of the per-sample weights, from the rows as they are; then the update."""
        # Most backwards are not differentiated, and need not be guarded against that.
        if torch.is_grad_enabled():
            return _guarded_backward(ctx, grad_output)
        return _backward(ctx, grad_output)


look_up: Callable[..., torch.Tensor] = Lookup.apply
if TorchVersion(torch.__version__) < "2.13":
    look_up = torch.compiler.disable(
        look_up, reason="torch.compile trains tables from torch 2.13 on; 2.11 refuses to"
    )


def _backward(ctx: Any, grad_output: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
    if grad_output is None:
        return None, None, None, None
    bags: TableBatchedEmbeddingBags = ctx.bags
    batch = Batch(*ctx.saved_tensors, *ctx.numbers)
    _, trains, weighs, _ = ctx.needs_input_grad
    gradient = bags.per_sample_weights_gradient(grad_output, batch) if weighs else None
    if trains:
        bags.backward_update(grad_output, batch)
    return None, None, gradient, None


_guarded_backward: Callable[..., tuple[torch.Tensor | None, ...]] = once_differentiable(_backward)


class DeferredStep:
    """A deferred module's ``step``, in the form that ``torch.amp.GradScaler.step`` takes for an optimizer.

    The scaler looks for inf and NaN in the gradients that wait, hands over its scale and what it found, and backs off
    as it does for any optimizer.
    """

    # How GradScaler recognises an optimizer that divides by the scale itself.
    _step_supports_amp_scaling = True

    grad_scale: torch.Tensor | None
    found_inf: torch.Tensor | None

    def __init__(self, bags: TableBatchedEmbeddingBags) -> None:
        self._bags = bags

    @property
    def param_groups(self) -> list[dict[str, list[torch.Tensor]]]:
        """The waiting gradients as ``grad`` of tensors, where a scaler looks for them."""
        held = []
        for pending in self._bags.pending_updates:
            tensor = pending.grad_output.detach()
            tensor.grad = pending.grad_output
            held.append(tensor)
        return [{"params": held}]

    def zero_grad(self) -> None:
        """Forget the waiting gradients."""
        self._bags.pending_updates.clear()

    def step(self) -> None:
        """Apply the waiting updates with the scaler's scale, unless it found inf or NaN."""
        scale = getattr(self, "grad_scale", None)
        found_inf = getattr(self, "found_inf", None)
        # Without a waiting gradient the scaler's sum over devices is the number 0.
        self._bags.step(scale, found_inf if isinstance(found_inf, torch.Tensor) else None)


def keeps_dtype(
    convert: Callable[[torch.Tensor], torch.Tensor], kept: list[torch.Tensor]
) -> Callable[[torch.Tensor], torch.Tensor]:
    """``convert``, but the tensors in ``kept`` are moved between devices only."""

    def apply(tensor: torch.Tensor) -> torch.Tensor:
        converted = convert(tensor)
        if converted.dtype == tensor.dtype or not any(tensor is other for other in kept):
            return converted
        return tensor.to(converted.device)

    return apply


def prune_features(batch: Batch, frozen: torch.Tensor) -> Batch:
    """The batch with every index of some features as -1, so that an update leaves their rows alone.

    Args:
        batch: the batch.
        frozen: bool [T + 1], the features in the caller's order; the last entry stands for lookups of no bag.
    """
    features = frozen.numel() - 1
    bag_ends = batch.vbe_bag_offsets
    if bag_ends is None:
        per_feature = (batch.offsets.numel() - 1) // features
        bag_ends = torch.arange(features + 1, device=frozen.device) * per_feature
    ends = batch.offsets.contiguous()[bag_ends[1:]]
    positions = torch.arange(batch.indices.numel(), device=frozen.device, dtype=ends.dtype)
    pruned = frozen[torch.bucketize(positions, ends, right=True)]
    indices = torch.where(pruned, -1, batch.indices)
    return batch._replace(indices=indices)
