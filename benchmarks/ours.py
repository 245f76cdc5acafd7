"""tbe-aot's side of the benchmarks: tables, metadata and calls through ``torch.ops``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

import tbe_aot
from benchmarks.cases import Case, Inputs

CheckedLookups = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class BuildInfo:
    """The installed tbe-aot: its version, what its build was, and the bytes of what it carries."""

    version: str
    profile: str
    build_id: str
    sizes: dict[str, int]


def build_info() -> BuildInfo:
    """Read the package that is imported."""
    build = tbe_aot.build_info()
    folder = Path(tbe_aot.__file__).parent
    files = sorted([*folder.glob("lib/*.pack"), *folder.glob("lib/*.so"), *folder.glob("*.so")])
    sizes = {path.name: path.stat().st_size for path in files}
    return BuildInfo(tbe_aot.__version__, build.profile, build.build_id, sizes)


def _metadata(case: Case, device: torch.device) -> tbe_aot.FeatureMetadata:
    tables = [
        tbe_aot.TableSpec(f"table{t}", case.rows, dim) for t, dim in enumerate(case.feature_dims())
    ]
    return tbe_aot.make_features(tables, weights_dtype=torch.float16, device=device)


def make_weights(case: Case, device: torch.device) -> torch.Tensor:
    """The case's tables, fp16 and one after another in one 1-D tensor, uniform in [-0.1, 0.1]."""
    generator = torch.Generator(device=device).manual_seed(11)
    numel = _metadata(case, device).weights_numel
    weights = torch.empty(numel, dtype=torch.float16, device=device)
    return weights.uniform_(-0.1, 0.1, generator=generator)


class Lookup:
    """Calls of the operators on one case's tables."""

    def __init__(self, case: Case, weights: torch.Tensor) -> None:
        self._weights = weights
        metadata = _metadata(case, weights.device)
        self._features, self._layout = metadata.features, metadata.layout

    def forward(
        self, sets: list[Inputs], *, weighted: bool, output_dtype: torch.dtype
    ) -> Callable[[int], torch.Tensor]:
        """A SUM forward on input set s."""
        operator = torch.ops.tbe_aot.forward
        output = str(output_dtype).removeprefix("torch.")

        def call(s: int) -> torch.Tensor:
            inputs = sets[s]
            pooled: torch.Tensor = operator(
                self._weights,
                self._features,
                self._layout,
                inputs.indices,
                inputs.offsets,
                inputs.per_sample_weights if weighted else None,
                "sum",
                output,
            )
            return pooled

        return call

    def check_bounds(self, sets: list[Inputs]) -> Callable[[int], CheckedLookups]:
        """A bounds check in mode "warning" on input set s."""
        operator = torch.ops.tbe_aot.check_bounds
        invalid_count = torch.zeros(1, dtype=torch.int64, device=self._weights.device)

        def call(s: int) -> CheckedLookups:
            checked: CheckedLookups = operator(
                sets[s].indices,
                sets[s].offsets,
                self._features,
                self._layout,
                "warning",
                invalid_count,
            )
            return checked

        return call

    def checked_forward(self, sets: list[Inputs]) -> Callable[[int], torch.Tensor]:
        """A bounds check and an unweighted SUM forward with fp32 output on what it returns."""
        operator = torch.ops.tbe_aot.forward
        check = self.check_bounds(sets)

        def call(s: int) -> torch.Tensor:
            indices, offsets = check(s)
            output: torch.Tensor = operator(
                self._weights, self._features, self._layout, indices, offsets
            )
            return output

        return call
