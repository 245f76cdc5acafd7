"""A module around the operators: tables, metadata, bounds check, lookup and training in one place."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from ._rules import dtype_name
from .explanations import Explanation, explain, explain_backward
from .features import TableSpec, make_features
from .inspection import preload as preload_kernels
from .optimizers import Optimizer
from .training import (
    Batch,
    DeferredStep,
    PendingUpdate,
    keeps_dtype,
    look_up,
    no_updates,
    prune_features,
)
from .vbe import vbe_layout

POOLINGS = ("sum", "mean")
BOUNDS_CHECKS = ("none", "ignore", "warning", "fatal")
PATH_CHOICES = ("auto", "never", "always")
WORK_STEALING = ("never", "always")
OUTPUT_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def _expect(name: str, value: object, allowed: Sequence[object]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} is {value!r}, expected one of {', '.join(map(repr, allowed))}")


class TableBatchedEmbeddingBags(nn.Module):
    """Pooled lookups of many features in many tables, one launch per width of table.

    Example:
        >>> bags = TableBatchedEmbeddingBags([TableSpec("user", 1000, 64), TableSpec("item", 500, 32)])
        >>> pooled = bags(indices, offsets)  # [B, 96]

    Args:
        tables: the tables.
        feature_tables: per feature, in the order of offsets and output, the name of its table; several features may
            look up one table. Default: each table is one feature.
        weights_dtype: of the tables: float32, float16 or bfloat16.
        output_dtype: of the result, independent of the weights' dtype.
        pooling: "sum" or "mean".
        bounds_check: what happens to an index or offset that is out of bounds. "none": not looked at, the caller is
            trusted; "ignore": an index is treated as 0, offsets are clamped; "warning": the same, and the invalid
            indices are counted (``invalid_index_count``); "fatal": RuntimeError, at the price of waiting for the device.
            What is checked is never changed: offsets are copied, indices where a kernel of their own checks them.
        optimizer: how ``loss.backward()`` trains the tables: SGD, RowwiseAdagrad, Adagrad or Adam. Default: not at all.
        frozen: names of tables that are looked up but not trained.
        gradient_clip: if above 0, every element of the result's gradient is clamped to [-gradient_clip, gradient_clip].
        deferred: the backward only keeps what the update needs, and ``step`` applies it.
        hoist_transpose: the forward of a training step already sorts its lookups by row, and keeps the result until the
            update, which then need not: the same bits (but see ``small_tables``), and less to do in the backward for more
            memory between the two. Inside torch.compile it is torch that decides in which of the two they are sorted.
        stochastic_rounding: rows of float16 and bfloat16 tables are rounded to one of the two numbers around the updated
            weight, by chance, so that steps too small to reach the next number move it on average. By
            ``rounding_seed``, drawn from torch's generator; float32 tables are not affected.
        small_tables: whether a module of one small table looks up and updates with the kernels for such, which count
            rows and multiply the counts with the table and with the gradient: "auto", where bags are long on average;
            "never"; or "always", where the kernels can. An update whose lookups ``hoist_transpose`` has sorted takes
            the general kernels.
        fused_long_runs: whether rows with 128 lookups and more are updated in one launch, with the bits of two: "auto",
            where that was measured to be faster; "never"; or "always", where there is a kernel for that.
        work_stealing: whether lookups take the kernel whose blocks go on with the work of others: "never", or "always",
            where there is one, which is on sm100. It has not run so far.
        fused_checks: whether the kernels that look up check the indices, too, rather than a kernel before them
            (bounds_check "ignore" or "warning"): "auto", where bags are so short on average that it pays; "never"; or
            "always", wherever one can. The results are the same to the bit, but that "always" has long bags added in the
            order of the kernels for short ones.
        device: of tables and metadata.

    Attributes:
        weights: 1-D parameter of all tables. ``table`` and ``table_views`` show its tables. It requires grad if there is
            an optimizer and a feature whose table is not frozen, so that autograd knows of it, but never has a ``grad``:
            the backward changes it in place.
        features, layout: the operators' description of tables and features.
        learning_rate: float32 [1], read when an update runs; ``set_learning_rate`` changes it.
        rounding_seed: int64 [1], with stochastic rounding: each update adds 1.
        pending_updates: of a deferred module, what ``step`` will apply. Loading a state dict drops them.

    The state dict holds, as ``<table>.weight``, a [rows, dim] view of each table, without the padding between rows:
    the keys and shapes of an ``nn.ModuleDict`` of ``nn.EmbeddingBag``. With an optimizer it also holds its state:
    ``<table>.momentum1`` and ``<table>.momentum2`` as the optimizer has them ([rows] or [rows, dim]), ``learning_rate``
    and, for Adam, ``update_count``; with stochastic rounding also ``rounding_seed``.

    Raises:
        ValueError: an argument is not one of those allowed, or names are missing or doubled.
    """

    weights: torch.Tensor
    features: torch.Tensor
    invalid_count: torch.Tensor
    learning_rate: torch.Tensor
    update_count: torch.Tensor
    rounding_seed: torch.Tensor
    frozen_features: torch.Tensor
    layout: list[int]
    feature_dims: list[int]

    def __init__(
        self,
        tables: Iterable[TableSpec],
        *,
        feature_tables: Iterable[str] | None = None,
        weights_dtype: torch.dtype = torch.float32,
        output_dtype: torch.dtype = torch.float32,
        pooling: str = "sum",
        bounds_check: str = "warning",
        optimizer: Optimizer | None = None,
        frozen: Iterable[str] = (),
        gradient_clip: float = 0.0,
        deferred: bool = False,
        hoist_transpose: bool = False,
        stochastic_rounding: bool = False,
        small_tables: str = "auto",
        fused_long_runs: str = "auto",
        work_stealing: str = "never",
        fused_checks: str = "auto",
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        _expect("pooling", pooling, POOLINGS)
        _expect("bounds_check", bounds_check, BOUNDS_CHECKS)
        _expect("output_dtype", output_dtype, OUTPUT_DTYPES)
        _expect("small_tables", small_tables, PATH_CHOICES)
        _expect("fused_long_runs", fused_long_runs, PATH_CHOICES)
        _expect("work_stealing", work_stealing, WORK_STEALING)
        _expect("fused_checks", fused_checks, PATH_CHOICES)
        tables, frozen = tuple(tables), tuple(frozen)
        feature_tables = None if feature_tables is None else tuple(feature_tables)
        self.table_specs = tables
        self.feature_tables = feature_tables or tuple(table.name for table in tables)
        self.output_dtype = output_dtype
        self.output_dtype_name = dtype_name(output_dtype)
        self.pooling = pooling
        self.bounds_check = bounds_check
        self.metadata = make_features(tables, feature_tables, weights_dtype, device)
        self.weights_dtype = weights_dtype
        self.layout = self.metadata.layout
        self.feature_dims = self.metadata.feature_dims
        weights = torch.empty(self.metadata.weights_numel, dtype=weights_dtype, device=device)
        self.optimizer = optimizer
        self._optimizer_numbers = () if optimizer is None else optimizer.numbers
        self.gradient_clip = gradient_clip
        self.deferred = deferred
        self.hoist_transpose = hoist_transpose
        self.stochastic_rounding = stochastic_rounding
        self.small_tables = small_tables
        self.fused_long_runs = fused_long_runs
        self.work_stealing = work_stealing
        self.fused_checks = fused_checks
        self.pending_updates = no_updates()
        trained = optimizer is not None and not set(self.feature_tables) <= set(frozen)
        self.weights = nn.Parameter(weights, requires_grad=trained)
        # Neither belongs in a checkpoint: one follows from the arguments, the other is a measurement.
        self.register_buffer("features", self.metadata.features, persistent=False)
        count = torch.zeros(1, dtype=torch.int64, device=device)
        self.register_buffer("invalid_count", count, persistent=False)
        self._register_training(frozen, device)
        self.reset_parameters()

    def _register_training(
        self, frozen: tuple[str, ...], device: torch.device | str | None
    ) -> None:
        unknown = sorted(set(frozen) - {table.name for table in self.table_specs})
        if unknown:
            raise ValueError(f"frozen names {', '.join(unknown)}, expected names of tables")
        if not 0 <= self.gradient_clip < math.inf:
            raise ValueError(f"gradient_clip is {self.gradient_clip}, expected at least 0")
        self.frozen = frozen
        self.register_buffer("frozen_features", self._frozen_features(device), persistent=False)
        if self.optimizer is None:
            return
        self.register_buffer("learning_rate", torch.empty(1, device=device), persistent=False)
        for name in (*self.optimizer.row_state, *self.optimizer.weight_state):
            state = torch.empty(self._state_numel(name), device=device)
            self.register_buffer(name, state, persistent=False)
        if self.optimizer.counts_updates:
            count = torch.empty(1, dtype=torch.int64, device=device)
            self.register_buffer("update_count", count, persistent=False)
        if self.stochastic_rounding:
            seed = torch.empty(1, dtype=torch.int64, device=device)
            self.register_buffer("rounding_seed", seed, persistent=False)

    def _frozen_features(self, device: torch.device | str | None) -> torch.Tensor:
        # One more entry, for lookups that belong to no bag.
        frozen = [name in self.frozen for name in self.feature_tables]
        return torch.tensor([*frozen, False], device=device)

    def forward(
        self,
        indices: torch.Tensor,
        offsets: torch.Tensor,
        per_sample_weights: torch.Tensor | None = None,
        batch_size_per_feature_per_rank: list[list[int]] | None = None,
    ) -> torch.Tensor:
        """Pool the rows that each bag looks up.

        Args:
            indices: int32 or int64 [N], bag after bag; -1 is a pruned row and adds nothing.
            offsets: int32 or int64 [T * B + 1], where each bag starts in ``indices``; bags are feature-major.
            per_sample_weights: floating [N], a factor for each looked up row.
            batch_size_per_feature_per_rank: for a variable batch (VBE) the number of bags per feature and rank; bags
                are feature-major, then by rank, then by sample.

        Returns:
            [B, sum of the features' dims]; with a variable batch 1-D, rank-major, then by feature, then by sample.

        Raises:
            RuntimeError: dtypes, shapes or devices do not fit; with bounds_check="fatal" a bad index or offset.
        """
        bag_offsets, output_offsets, max_batch, output_numel = self._vbe_layout(
            batch_size_per_feature_per_rank
        )
        bounds_mode = self.bounds_check
        # Nothing may be looked up before the verdict of "fatal", and the gradient of per-sample weights needs indices
        # that are right: there the check goes before. Else it is a part of the lookup, and the update needs none.
        weighs = per_sample_weights is not None and per_sample_weights.requires_grad
        checks_first = bounds_mode == "fatal" or weighs
        # So does a compiled backward, or it copies: it would take the caller's tensors as what follows the lookup in the
        # graph has left them, without the error that eager mode has for that.
        copies = False
        # torch's own types do not name is_scripting.
        if not torch.jit.is_scripting():  # type: ignore[attr-defined]
            compiles = torch.compiler.is_compiling()
            copies = compiles and self._needs_backward(per_sample_weights)
        if copies:
            checks_first = True
            if bounds_mode == "none":
                indices, offsets = indices.clone(), offsets.clone()
            if per_sample_weights is not None:
                per_sample_weights = per_sample_weights.clone()
        if checks_first and bounds_mode != "none":
            indices, offsets = torch.ops.tbe_aot.check_bounds(
                indices,
                offsets,
                self.features,
                self.layout,
                bounds_mode,
                self.invalid_count,
                bag_offsets,
            )
            bounds_mode = "none"
        if not torch.jit.is_scripting():  # type: ignore[attr-defined]
            batch = Batch(
                indices,
                offsets,
                per_sample_weights,
                bag_offsets,
                output_offsets,
                vbe_max_batch=max_batch,
                vbe_output_numel=output_numel,
                bounds_mode=bounds_mode,
            )
            if self._needs_backward(per_sample_weights):
                trained: torch.Tensor = look_up(
                    self, self._parameters["weights"], per_sample_weights, batch
                )
                return trained
            return self.pooled(batch)[0]
        if bounds_mode != "none":
            checked: torch.Tensor = torch.ops.tbe_aot.forward_checked(
                self.weights,
                self.features,
                self.layout,
                indices,
                offsets,
                per_sample_weights,
                self.pooling,
                self.output_dtype_name,
                bag_offsets,
                output_offsets,
                max_batch,
                output_numel,
                self.small_tables,
                self.work_stealing,
                bounds_mode,
                self.invalid_count,
                self.fused_checks,
            )[0]
            return checked
        pooled: torch.Tensor = torch.ops.tbe_aot.forward(
            self.weights,
            self.features,
            self.layout,
            indices,
            offsets,
            per_sample_weights,
            self.pooling,
            self.output_dtype_name,
            bag_offsets,
            output_offsets,
            max_batch,
            output_numel,
            self.small_tables,
            self.work_stealing,
        )
        return pooled

    def _needs_backward(self, per_sample_weights: torch.Tensor | None) -> bool:
        if not torch.is_grad_enabled():
            return False
        # Without an optimizer, weights that require grad are left to the operator, which refuses them.
        if per_sample_weights is None or not per_sample_weights.requires_grad:
            return self.is_trained()
        return self.optimizer is not None or not self.weights.requires_grad

    def is_trained(self) -> bool:
        """Whether a backward updates the tables."""
        weights = self._parameters["weights"]
        return self.optimizer is not None and weights is not None and weights.requires_grad

    # What follows reads parameters and buffers from where torch keeps them: as attributes, each costs half a microsecond
    # of an eager step's host time.

    def pooled(self, batch: Batch) -> tuple[torch.Tensor, Batch]:
        """The result of a lookup, and the batch as an update takes it; the result has no gradient."""
        weights = self._parameters["weights"]
        buffers = self._buffers
        if batch.bounds_mode != "none":
            result, offsets = torch.ops.tbe_aot.forward_checked(
                weights,
                buffers["features"],
                self.layout,
                batch.indices,
                batch.offsets,
                batch.per_sample_weights,
                self.pooling,
                self.output_dtype_name,
                batch.vbe_bag_offsets,
                batch.vbe_output_offsets,
                batch.vbe_max_batch,
                batch.vbe_output_numel,
                self.small_tables,
                self.work_stealing,
                batch.bounds_mode,
                buffers["invalid_count"],
                self.fused_checks,
            )
            return result, batch._replace(offsets=offsets)
        result = torch.ops.tbe_aot.forward(
            weights,
            buffers["features"],
            self.layout,
            batch.indices,
            batch.offsets,
            batch.per_sample_weights,
            self.pooling,
            self.output_dtype_name,
            batch.vbe_bag_offsets,
            batch.vbe_output_offsets,
            batch.vbe_max_batch,
            batch.vbe_output_numel,
            self.small_tables,
            self.work_stealing,
        )
        return result, batch

    def per_sample_weights_gradient(self, grad_output: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Gradient of a batch's per-sample weights, in their dtype, from the rows as they are now."""
        gradient: torch.Tensor = torch.ops.tbe_aot.per_sample_weights_gradient(
            grad_output,
            self.weights,
            self.features,
            self.layout,
            batch.indices,
            batch.offsets,
            self.pooling,
            batch.vbe_bag_offsets,
            batch.vbe_output_offsets,
            batch.vbe_max_batch,
        )
        weights = batch.per_sample_weights
        # Empty weights mean none, and have an empty gradient.
        return gradient if weights is None else gradient[: weights.numel()].to(weights)

    def transposed(self, batch: Batch) -> Batch:
        """The batch with what the update needs of its lookups, sorted by row."""
        trained = prune_features(batch, self.frozen_features) if self.frozen else batch
        result: torch.Tensor = torch.ops.tbe_aot.transpose_indices(
            self.features,
            self.layout,
            trained.indices,
            trained.offsets,
            trained.per_sample_weights,
            self.pooling,
            trained.vbe_bag_offsets,
            trained.vbe_output_offsets,
            trained.vbe_max_batch,
        )
        return batch._replace(transposed=result, transposed_for=self.weights_dtype)

    def backward_update(self, grad_output: torch.Tensor, batch: Batch) -> None:
        """Train the rows of a batch on the gradient of its result; in a deferred module, leave that to ``step``.

        Grad mode is off.
        """
        if self.frozen:
            batch = prune_features(batch, self.frozen_features)
        if not self.deferred:
            self._update(grad_output, batch, None, None)
            return
        # Copies: until the step, others may change what they own, and a GradScaler changes the gradient.
        gradient = grad_output.clone(memory_format=torch.contiguous_format)
        self.pending_updates.append(PendingUpdate(gradient, batch.copy()))

    def _update(
        self,
        grad_output: torch.Tensor,
        batch: Batch,
        gradient_scale: torch.Tensor | None,
        found_inf: torch.Tensor | None,
    ) -> None:
        if self.optimizer is None:
            raise RuntimeError("the module has no optimizer: it looks up only")
        is_current = batch.transposed_for == self.weights_dtype
        buffers = self._buffers
        torch.ops.tbe_aot.backward_update(
            grad_output,
            self._parameters["weights"],
            buffers["features"],
            self.layout,
            batch.indices,
            batch.offsets,
            self.optimizer.name,
            buffers["learning_rate"],
            buffers.get("momentum1"),
            buffers.get("momentum2"),
            buffers.get("update_count"),
            *self._optimizer_numbers,
            batch.per_sample_weights,
            self.pooling,
            self.gradient_clip,
            gradient_scale,
            found_inf,
            batch.vbe_bag_offsets,
            batch.vbe_output_offsets,
            batch.vbe_max_batch,
            batch.transposed if is_current else None,
            buffers.get("rounding_seed"),
            self.small_tables,
            self.fused_long_runs,
        )

    @torch.no_grad()
    def step(
        self, gradient_scale: torch.Tensor | None = None, found_inf: torch.Tensor | None = None
    ) -> None:
        """Apply the updates that backwards have left since the last step, in their order (``deferred=True``).

        Args:
            gradient_scale: one element on the module's device: what the loss was multiplied by.
            found_inf: one element on the module's device: if it is not 0, the updates are dropped.

        Raises:
            RuntimeError: the module is not deferred.
        """
        if not self.deferred:
            raise RuntimeError(
                "step() is for a module with deferred=True; in this one the backward updates"
            )
        scale, found = (
            None if flag is None else flag.reshape(1).float()
            for flag in (gradient_scale, found_inf)
        )
        while self.pending_updates:
            pending = self.pending_updates[0]
            self._update(pending.grad_output, pending.batch, scale, found)
            # Only what is applied goes: after an error the next step begins with the update that failed.
            self.pending_updates.pop(0)

    def deferred_step(self) -> DeferredStep:
        """``step`` as an optimizer for ``torch.amp.GradScaler.step``."""
        return DeferredStep(self)

    def set_learning_rate(self, value: float | torch.Tensor) -> None:
        """Set the learning rate of all updates that run from now on; a tensor of one element is copied.

        Raises:
            RuntimeError: the module has no optimizer.
            ValueError: a tensor has another number of elements.
        """
        if self.optimizer is None:
            raise RuntimeError("the module has no optimizer: it has no learning rate")
        if isinstance(value, torch.Tensor) and value.numel() != 1:
            raise ValueError(f"the learning rate has {value.numel()} elements, expected 1")
        rate = self.learning_rate.data  # A compiled backward may hold the tensor and its version.
        if isinstance(value, torch.Tensor):
            # Unlike copy_, it does not wait for the device when the value is on the CPU.
            rate.fill_(value.detach().reshape(()))
        else:
            rate.fill_(value)

    def optimizer_state(self) -> dict[str, dict[str, torch.Tensor]]:
        """Per state of the optimizer and per table the view of it: [rows, dim], or [rows] for a number per row."""
        optimizer = self.optimizer
        names = () if optimizer is None else (*optimizer.row_state, *optimizer.weight_state)
        return {name: self._state_views(name, self.get_buffer(name)) for name in names}

    def _state_views(self, name: str, state: torch.Tensor) -> dict[str, torch.Tensor]:
        if not self._is_per_row(name):
            return self._views(state)
        return {
            spec.name: state[start : start + spec.rows]
            for spec, start in zip(self.table_specs, self.metadata.first_global_rows, strict=True)
        }

    def _state_numel(self, name: str) -> int:
        if not self._is_per_row(name):
            return self.metadata.weights_numel
        return sum(spec.rows for spec in self.table_specs)

    def _is_per_row(self, name: str) -> bool:
        return self.optimizer is not None and name in self.optimizer.row_state

    def table(self, name: str) -> torch.Tensor:
        """The [rows, dim] view of one table: writing to it changes the table.

        Raises:
            KeyError: there is no such table.
        """
        return self.table_views()[name]

    def table_views(self) -> dict[str, torch.Tensor]:
        """The [rows, dim] view of every table by name, in the order given at construction."""
        return self._views(self.weights.detach())

    def _views(self, weights: torch.Tensor) -> dict[str, torch.Tensor]:
        start = weights.storage_offset()
        return {
            spec.name: weights.as_strided((spec.rows, spec.dim), (pitch, 1), start + offset)
            for spec, pitch, offset in zip(
                self.table_specs,
                self.metadata.row_pitches,
                self.metadata.table_offsets,
                strict=True,
            )
        }

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every table anew from U(-1, 1) / sqrt(rows); padding becomes 0, and so does the invalid index count.

        The optimizer starts anew too: its state becomes 0, the learning rate that of its description; pending updates are
        dropped.
        """
        padded = any(
            pitch != spec.dim
            for pitch, spec in zip(self.metadata.row_pitches, self.table_specs, strict=True)
        )
        if padded:
            self.weights.zero_()
        for spec, view in zip(self.table_specs, self.table_views().values(), strict=True):
            bound = 1 / math.sqrt(max(spec.rows, 1))
            view.uniform_(-bound, bound)
        self.invalid_count.zero_()
        self.pending_updates.clear()
        self._reset_optimizer()

    def _state_names(self) -> list[str]:
        """The buffers that are the optimizer's."""
        mine = ("learning_rate", "momentum1", "momentum2", "update_count", "rounding_seed")
        return [name for name in mine if name in self._buffers]

    @torch.no_grad()
    def _reset_optimizer(self) -> None:
        for name in self._state_names():
            self.get_buffer(name).zero_()
        if self.optimizer is not None:
            self.learning_rate.fill_(self.optimizer.lr)
        if "rounding_seed" in self._buffers:
            self.rounding_seed.random_()

    def invalid_index_count(self) -> int:
        """Invalid indices seen since the last reset (bounds_check "warning" or "fatal"); waits for the device."""
        return int(self.invalid_count.item())

    def reset_invalid_index_count(self) -> None:
        """Start counting from 0 again."""
        self.invalid_count.zero_()

    def preload(self) -> list[str]:
        """Load every kernel that this module can launch on its device, and tell their names; none on a CPU.

        The first call then loads nothing, and it may be captured into a CUDA graph.

        Raises:
            RuntimeError: the device is none that this build has kernels for.
            ImportError: ``tbe_aot._launcher`` was not built for this Python.
        """
        return preload_kernels(
            self.weights,
            self.layout,
            bounds_check=self.bounds_check != "none",
            fused_checks="never" if self.bounds_check == "fatal" else self.fused_checks,
            optimizer=None if self.optimizer is None else self.optimizer.name,
            output_dtype=self.output_dtype,
            work_stealing=self.work_stealing,
        )

    def explain(
        self,
        indices: torch.Tensor,
        offsets: torch.Tensor,
        per_sample_weights: torch.Tensor | None = None,
        batch_size_per_feature_per_rank: list[list[int]] | None = None,
        *,
        arch: str | None = None,
    ) -> Explanation:
        """Which kernels ``forward`` would launch for a batch, and why; launches none.

        Those of the bounds check are among them, except with "fatal", where they come before in an operator of their
        own.
        """
        bag_offsets, output_offsets, max_batch, output_numel = self._vbe_layout(
            batch_size_per_feature_per_rank
        )
        return explain(
            self.weights.detach(),
            self.features,
            self.layout,
            indices,
            offsets,
            None if per_sample_weights is None else per_sample_weights.detach(),
            self.pooling,
            self.output_dtype_name,
            small_tables=self.small_tables,
            work_stealing=self.work_stealing,
            bounds_mode="none" if self.bounds_check == "fatal" else self.bounds_check,
            fused_checks=self.fused_checks,
            vbe_bag_offsets=bag_offsets,
            vbe_output_offsets=output_offsets,
            vbe_max_batch=max_batch,
            vbe_output_numel=output_numel,
            arch=arch,
        )

    def _vbe_layout(
        self, batch_sizes: list[list[int]] | None
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, int, int]:
        if batch_sizes is None:
            return None, None, 0, 0
        return vbe_layout(batch_sizes, self.feature_dims, self.features.device)

    def explain_backward(
        self,
        indices: torch.Tensor,
        offsets: torch.Tensor,
        per_sample_weights: torch.Tensor | None = None,
        grad_output: torch.Tensor | None = None,
        batch_size_per_feature_per_rank: list[list[int]] | None = None,
        *,
        arch: str | None = None,
        multiprocessors: int | None = None,
    ) -> Explanation:
        """Which kernels the update of a training step would launch for a batch, and why.

        Launches none and changes nothing. With ``hoist_transpose`` the first of them, up to ``find_runs``, run in the
        forward.

        ``grad_output`` is the gradient of the result, by default a contiguous one of ``output_dtype``; ``arch`` and
        ``multiprocessors`` are as in ``tbe_aot.explain_backward``, the other arguments the forward's.

        Raises:
            RuntimeError: the module has no optimizer, or the operator would refuse the arguments.
            ValueError: the build has no such arch.
            ImportError: ``tbe_aot._launcher`` was not built for this Python.
        """
        if self.optimizer is None:
            raise RuntimeError("the module has no optimizer: it looks up only")
        bag_offsets, output_offsets, max_batch, output_numel = self._vbe_layout(
            batch_size_per_feature_per_rank
        )
        if grad_output is None:
            batch = (offsets.numel() - 1) // len(self.feature_tables)
            shape = (batch, sum(self.feature_dims)) if bag_offsets is None else (output_numel,)
            grad_output = self.weights.new_empty(shape, dtype=self.output_dtype)
        return explain_backward(
            grad_output.detach(),
            self.weights.detach(),
            self.features,
            self.layout,
            indices,
            offsets,
            self.optimizer.name,
            self.learning_rate,
            self._buffers.get("momentum1"),
            self._buffers.get("momentum2"),
            self._buffers.get("update_count"),
            *self.optimizer.numbers,
            None if per_sample_weights is None else per_sample_weights.detach(),
            self.pooling,
            self.gradient_clip,
            vbe_bag_offsets=bag_offsets,
            vbe_output_offsets=output_offsets,
            vbe_max_batch=max_batch,
            rounding_seed=self._buffers.get("rounding_seed"),
            # What has been transposed before is updated by the general kernels.
            small_tables="never" if self.hoist_transpose else self.small_tables,
            fused_long_runs=self.fused_long_runs,
            arch=arch,
            multiprocessors=multiprocessors,
        )

    def extra_repr(self) -> str:
        """What print shows."""
        tables = ", ".join(f"{t.name}[{t.rows}, {t.dim}]" for t in self.table_specs)
        return (
            f"{tables}; {len(self.feature_tables)} features, {self.weights_dtype} -> {self.output_dtype},"
            f" pooling={self.pooling}, bounds_check={self.bounds_check}"
            + ("" if self.optimizer is None else f", optimizer={self.optimizer}")
        )

    def _apply(
        self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True
    ) -> "TableBatchedEmbeddingBags":
        was_meta = self.weights.is_meta
        # Asked of an empty tensor first, so that a dtype without kernels changes nothing.
        new_dtype = fn(self.weights.detach()[:0]).dtype
        metadata = make_features(self.table_specs, self.feature_tables, new_dtype, "cpu")
        state = [self.get_buffer(name) for name in self._state_names()]
        super()._apply(keeps_dtype(fn, state), recurse)  # type: ignore[no-untyped-call]
        if new_dtype != self.weights_dtype:
            # 16 bytes hold another number of elements now: pitches, offsets and the order of slots change.
            old_views = self._views(self.weights.detach())
            old_states = self.optimizer_state()
            self.metadata = metadata
            self.weights_dtype = new_dtype
            self.layout = metadata.layout
            moved = self._laid_out(old_views, metadata.weights_numel, self._views)
            self.weights = nn.Parameter(moved, requires_grad=self.weights.requires_grad)
            for name, views in old_states.items():
                self._buffers[name] = self._laid_out(
                    views, self._state_numel(name), partial(self._state_views, name)
                )
        # `to_empty` leaves the buffers without values.
        self.features = metadata.features.to(self.weights.device)
        if was_meta and not self.weights.is_meta:
            self.invalid_count.zero_()
            self._reset_optimizer()
            self.frozen_features = self._frozen_features(self.weights.device)
        return self

    @staticmethod
    def _laid_out(
        old: Mapping[str, torch.Tensor],
        numel: int,
        views_of: Callable[[torch.Tensor], dict[str, torch.Tensor]],
    ) -> torch.Tensor:
        """Copies of views of tables in one new tensor, where ``views_of`` has their places."""
        laid_out = next(iter(old.values())).new_zeros(numel)
        for name, view in views_of(laid_out).items():
            view.copy_(old[name])
        return laid_out

    def _saved(self, weights: torch.Tensor) -> dict[str, torch.Tensor]:
        """What the state dict holds, by key."""
        saved = {f"{name}.weight": view for name, view in self._views(weights).items()}
        for state, views in self.optimizer_state().items():
            saved |= {f"{name}.{state}": view for name, view in views.items()}
        for name in ("learning_rate", "update_count", "rounding_seed"):
            if name in self._buffers:
                saved[name] = self.get_buffer(name)
        return saved

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        weights = self.weights if keep_vars else self.weights.detach()
        for key, view in self._saved(weights).items():
            destination[f"{prefix}{key}"] = view

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Mapping[str, Any],  # noqa: ARG002 - the signature is torch's
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        saved = self._saved(self.weights.detach())
        views = {f"{prefix}{key}": view for key, view in saved.items()}
        for key, view in views.items():
            if key not in state_dict:
                missing_keys.append(key)
            elif state_dict[key].shape != view.shape:
                error_msgs.append(
                    f"size mismatch for {key}: {list(state_dict[key].shape)} in the checkpoint,"
                    f" {list(view.shape)} in the module"
                )
            elif view.is_meta:
                error_msgs.append(f"{key} is on the meta device: call to_empty(device=...) first")
            else:
                with torch.no_grad():
                    view.copy_(state_dict[key])
        if any(key in state_dict for key in views):
            # They are of the tables before.
            self.pending_updates.clear()
        if strict:
            mine = [key for key in state_dict if key.startswith(prefix)]
            unexpected_keys.extend(key for key in mine if key not in views)
