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
from benchmarks.timing import Step

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
        optimizer: str = "sgd",
        learning_rate: float = 0.0,
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

        self._features = case.features
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
            optimizer={
                "sgd": EmbOptimType.EXACT_SGD,
                "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD,
            }[optimizer],
            learning_rate=learning_rate,
            eps=1e-8,
            # Its default. Ours has none: half-precision weights are rounded to the nearest in both.
            stochastic_rounding=False,
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

    def step(
        self,
        sets: list[Inputs],
        gradients: list[torch.Tensor],
        sample_weights: list[torch.Tensor] | None,
    ) -> Step:
        """A training step with fp32 output by the default forward, which is the one that has a backward.

        FBGEMM computes the gradient of per-sample weights unless every feature is said not to need it; ``sample_weights``
        that do not require a gradient are the sign for that here.
        """
        wants_gradient = sample_weights is not None and sample_weights[0].requires_grad
        no_gradient = torch.zeros(self._features, dtype=torch.int32, device=gradients[0].device)

        def forward(s: int) -> torch.Tensor:
            module = self._module
            module.is_experimental = False
            module.output_dtype = self._output_types[torch.float32].as_int()
            weights = None if sample_weights is None else sample_weights[s]
            options: dict[str, Any] = {}
            if weights is not None and not wants_gradient:
                options["feature_requires_grad"] = no_gradient
            output: torch.Tensor = module(sets[s].indices, sets[s].offsets, weights, **options)
            return output

        return Step(forward, lambda output, s: output.backward(gradients[s]))

    def reset_state(self) -> None:
        """Set the optimizer's state to 0."""
        state = getattr(self._module, "momentum1_dev", None)
        if state is not None:
            state.detach().zero_()
