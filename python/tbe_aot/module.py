"""A module around the operators: tables, metadata, bounds check and lookup in one place."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ._rules import dtype_name
from .features import TableSpec, make_features
from .inspection import Explanation, explain
from .inspection import preload as preload_kernels
from .vbe import vbe_layout

POOLINGS = ("sum", "mean")
BOUNDS_CHECKS = ("none", "ignore", "warning", "fatal")
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
        device: of tables and metadata.

    Attributes:
        weights: 1-D parameter of all tables; it does not require grad, this release looks up only. ``table`` and
            ``table_views`` show its tables.
        features, layout: the operators' description of tables and features.

    The state dict holds, as ``<table>.weight``, a [rows, dim] view of each table, without the padding between rows:
    the keys and shapes of an ``nn.ModuleDict`` of ``nn.EmbeddingBag``.

    Raises:
        ValueError: an argument is not one of those allowed, or names are missing or doubled.
    """

    weights: torch.Tensor
    features: torch.Tensor
    invalid_count: torch.Tensor
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
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        _expect("pooling", pooling, POOLINGS)
        _expect("bounds_check", bounds_check, BOUNDS_CHECKS)
        _expect("output_dtype", output_dtype, OUTPUT_DTYPES)
        tables = tuple(tables)
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
        self.weights = nn.Parameter(weights, requires_grad=False)
        # Neither belongs in a checkpoint: one follows from the arguments, the other is a measurement.
        self.register_buffer("features", self.metadata.features, persistent=False)
        count = torch.zeros(1, dtype=torch.int64, device=device)
        self.register_buffer("invalid_count", count, persistent=False)
        self.reset_parameters()

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
        bag_offsets: torch.Tensor | None = None
        output_offsets: torch.Tensor | None = None
        max_batch = 0
        output_numel = 0
        if batch_size_per_feature_per_rank is not None:
            bag_offsets, output_offsets, max_batch, output_numel = vbe_layout(
                batch_size_per_feature_per_rank, self.feature_dims, self.features.device
            )
        if self.bounds_check != "none":
            indices, offsets = torch.ops.tbe_aot.check_bounds(
                indices,
                offsets,
                self.features,
                self.layout,
                self.bounds_check,
                self.invalid_count,
                bag_offsets,
            )
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
        )
        return pooled

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
        """Draw every table anew from U(-1, 1) / sqrt(rows); padding becomes 0, and so does the invalid index count."""
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
        return preload_kernels(self.weights, self.layout, bounds_check=self.bounds_check != "none")

    def explain(
        self,
        indices: torch.Tensor,
        offsets: torch.Tensor,
        per_sample_weights: torch.Tensor | None = None,
        *,
        arch: str | None = None,
    ) -> Explanation:
        """Which kernels ``forward`` would launch for a batch of equal size per feature, and why; launches none."""
        return explain(
            self.weights,
            self.features,
            self.layout,
            indices,
            offsets,
            per_sample_weights,
            self.pooling,
            self.output_dtype_name,
            arch=arch,
        )

    def extra_repr(self) -> str:
        """What print shows."""
        tables = ", ".join(f"{t.name}[{t.rows}, {t.dim}]" for t in self.table_specs)
        return (
            f"{tables}; {len(self.feature_tables)} features, {self.weights_dtype} -> {self.output_dtype},"
            f" pooling={self.pooling}, bounds_check={self.bounds_check}"
        )

    def _apply(
        self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True
    ) -> "TableBatchedEmbeddingBags":
        was_meta = self.weights.is_meta
        # Asked of an empty tensor first, so that a dtype without kernels changes nothing.
        new_dtype = fn(self.weights.detach()[:0]).dtype
        metadata = make_features(self.table_specs, self.feature_tables, new_dtype, "cpu")
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if new_dtype != self.weights_dtype:
            # 16 bytes hold another number of elements now: pitch, offsets and alignment change.
            old_views = self._views(self.weights.detach())
            self.metadata = metadata
            moved = torch.zeros(metadata.weights_numel, dtype=new_dtype, device=self.weights.device)
            for name, view in self._views(moved).items():
                view.copy_(old_views[name])
            self.weights = nn.Parameter(moved, requires_grad=self.weights.requires_grad)
            self.weights_dtype = new_dtype
            self.layout = metadata.layout
        # `to_empty` leaves the buffers without values.
        self.features = metadata.features.to(self.weights.device)
        if was_meta and not self.weights.is_meta:
            self.invalid_count.zero_()
        return self

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        weights = self.weights if keep_vars else self.weights.detach()
        for name, view in self._views(weights).items():
            destination[f"{prefix}{name}.weight"] = view

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
        views = {f"{prefix}{name}.weight": view for name, view in self.table_views().items()}
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
        if strict:
            mine = [key for key in state_dict if key.startswith(prefix)]
            unexpected_keys.extend(key for key in mine if key not in views)
