"""FBGEMM's CUDA TBE as the yardstick, on the same weights and the same input tensors.

``v1`` is its default forward, ``v2`` the one behind ``use_experimental_tbe``.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.cases import Case, Inputs

IMPLEMENTATIONS = ("v1", "v2")


def load(folder: Path | None) -> str:
    """Import fbgemm_gpu, from ``folder`` if given, and return its version."""
    if folder is not None:
        sys.path.insert(0, str(folder))
    import fbgemm_gpu

    # It logs every construction.
    logging.getLogger().setLevel(logging.WARNING)
    return str(fbgemm_gpu.__version__)


class Peer:
    """FBGEMM's module over ``weights`` (1-D fp16, the tables one after another), shared and not copied."""

    def __init__(
        self,
        case: Case,
        weights: torch.Tensor,
        index_dtype: torch.dtype,
        *,
        check_bounds: bool = False,
    ) -> None:
        from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
        from fbgemm_gpu.split_table_batched_embeddings_ops_common import (
            BoundsCheckMode,
            EmbeddingLocation,
            PoolingMode,
        )
        from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
            ComputeDevice,
            SplitTableBatchedEmbeddingBagsCodegen,
        )

        self._output_types = {torch.float32: SparseType.FP32, torch.float16: SparseType.FP16}
        width: dict[str, Any] = {}
        if index_dtype != torch.int64:
            width = {
                "embedding_table_index_type": index_dtype,
                "embedding_table_offset_type": index_dtype,
            }
        self._module = SplitTableBatchedEmbeddingBagsCodegen(
            [
                (case.rows, dim, EmbeddingLocation.DEVICE, ComputeDevice.CUDA)
                for dim in case.feature_dims()
            ],
            weights_precision=SparseType.FP16,
            output_dtype=SparseType.FP32,
            optimizer=EmbOptimType.EXACT_SGD,
            learning_rate=0.0,
            pooling_mode=PoolingMode.SUM,
            bounds_check_mode=BoundsCheckMode.WARNING if check_bounds else BoundsCheckMode.NONE,
            device=weights.device,
            **width,
        )
        held = self._module.weights_dev
        if held.shape != weights.shape or held.dtype != weights.dtype:
            message = f"FBGEMM holds weights {held.dtype} {list(held.shape)}, not {weights.dtype} {list(weights.shape)}"
            raise RuntimeError(message)
        held.data = weights

    def forward(
        self,
        implementation: str,
        sets: list[Inputs],
        *,
        weighted: bool,
        output_dtype: torch.dtype,
    ) -> Callable[[int], torch.Tensor]:
        """A call on input set s; it holds only until the next ``forward`` selects something else of this module."""

        def call(s: int) -> torch.Tensor:
            inputs = sets[s]
            module = self._module
            module.is_experimental = implementation == "v2"
            module.output_dtype = self._output_types[output_dtype].as_int()
            weights = inputs.per_sample_weights if weighted else None
            output: torch.Tensor = module(inputs.indices, inputs.offsets, weights)
            return output

        return call
