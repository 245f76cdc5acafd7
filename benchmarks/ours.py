"""tbe-aot's side of the benchmarks: tables, metadata and calls through ``torch.ops``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

import tbe_aot
from benchmarks.cases import Case, Inputs
from benchmarks.timing import Step

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


def _tables(case: Case) -> list[tbe_aot.TableSpec]:
    return [
        tbe_aot.TableSpec(f"table{t}", case.rows, dim) for t, dim in enumerate(case.feature_dims())
    ]


def _metadata(case: Case, device: torch.device) -> tbe_aot.FeatureMetadata:
    return tbe_aot.make_features(_tables(case), weights_dtype=torch.float16, device=device)


def make_weights(case: Case, device: torch.device) -> torch.Tensor:
    """The case's tables, fp16 and one after another in one 1-D tensor, uniform in [-0.1, 0.1]."""
    generator = torch.Generator(device=device).manual_seed(11)
    numel = _metadata(case, device).weights_numel
    weights = torch.empty(numel, dtype=torch.float16, device=device)
    return weights.uniform_(-0.1, 0.1, generator=generator)


class Lookup:
    """Calls of the operators on one case's tables."""

    def __init__(self, case: Case, weights: torch.Tensor) -> None:
        self._case = case
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

    def forward_checked(
        self, sets: list[Inputs], fused_checks: str
    ) -> Callable[[int], torch.Tensor]:
        """The same in one operator."""
        operator = torch.ops.tbe_aot.forward_checked
        invalid_count = torch.zeros(1, dtype=torch.int64, device=self._weights.device)

        def call(s: int) -> torch.Tensor:
            output: torch.Tensor = operator(
                self._weights,
                self._features,
                self._layout,
                sets[s].indices,
                sets[s].offsets,
                invalid_count=invalid_count,
                fused_checks=fused_checks,
            )[0]
            return output

        return call

    def module(self, sets: list[Inputs], *, bounds_check: str) -> Callable[[int], torch.Tensor]:
        """A lookup through a module with the same tables."""
        module = tbe_aot.TableBatchedEmbeddingBags(
            _tables(self._case),
            weights_dtype=torch.float16,
            bounds_check=bounds_check,
            device=self._weights.device,
        )
        module.weights.data = self._weights

        def call(s: int) -> torch.Tensor:
            output: torch.Tensor = module(sets[s].indices, sets[s].offsets)
            return output

        return call


class Training:
    """Training of one case's tables: through the module and autograd, or through the operators alone."""

    def __init__(
        self, case: Case, weights: torch.Tensor, optimizer: str, learning_rate: float
    ) -> None:
        kinds = {"sgd": tbe_aot.SGD, "rowwise_adagrad": tbe_aot.RowwiseAdagrad}
        self.module = tbe_aot.TableBatchedEmbeddingBags(
            _tables(case),
            weights_dtype=torch.float16,
            bounds_check="none",
            optimizer=kinds[optimizer](lr=learning_rate),
            device=weights.device,
        )
        # The memory that others train as well.
        self.module.weights.data = weights
        self._optimizer = optimizer

    def step(
        self,
        sets: list[Inputs],
        gradients: list[torch.Tensor],
        sample_weights: list[torch.Tensor] | None,
    ) -> Step:
        """An eager training step; ``sample_weights`` that require a gradient get one."""

        def forward(s: int) -> torch.Tensor:
            weights = None if sample_weights is None else sample_weights[s]
            output: torch.Tensor = self.module(sets[s].indices, sets[s].offsets, weights)
            return output

        return Step(forward, lambda output, s: output.backward(gradients[s]))

    def operator_steps(
        self, sets: list[Inputs], gradients: list[torch.Tensor], *, weighted: bool
    ) -> dict[str, Step]:
        """The same without autograd, by option: see ``benchmarks.results.OptionRow``."""
        module = self.module
        weights = module.weights.detach()
        momentum = module.get_buffer("momentum1") if module.optimizer_state() else None
        transpose = self.transpose(sets, weighted=weighted)
        transposed: list[torch.Tensor] = []
        seed = torch.zeros(1, dtype=torch.int64, device=weights.device)

        def forward(s: int, **options: str) -> torch.Tensor:
            factors = sets[s].per_sample_weights if weighted else None
            output: torch.Tensor = torch.ops.tbe_aot.forward(
                weights,
                module.features,
                module.layout,
                sets[s].indices,
                sets[s].offsets,
                factors,
                **options,
            )
            return output

        def forward_and_transpose(s: int) -> torch.Tensor:
            output = forward(s)
            transposed.append(transpose(s))
            return output

        def update(s: int, **options: torch.Tensor | str) -> None:
            torch.ops.tbe_aot.backward_update(
                gradients[s],
                weights,
                module.features,
                module.layout,
                sets[s].indices,
                sets[s].offsets,
                self._optimizer,
                module.learning_rate,
                momentum,
                per_sample_weights=sets[s].per_sample_weights if weighted else None,
                **options,
            )

        steps = {
            "plain": Step(forward, lambda _, s: update(s)),
            "hoisted": Step(
                forward_and_transpose, lambda _, s: update(s, transposed=transposed.pop())
            ),
            "fused": Step(forward, lambda _, s: update(s, fused_long_runs="always")),
            "two launches": Step(forward, lambda _, s: update(s, fused_long_runs="never")),
            "stochastic": Step(forward, lambda _, s: update(s, rounding_seed=seed)),
        }
        if len(module.table_specs) == 1 and not weighted:
            steps["general"] = Step(
                lambda s: forward(s, small_tables="never"),
                lambda _, s: update(s, small_tables="never"),
            )
        return steps

    def transpose(self, sets: list[Inputs], *, weighted: bool) -> Callable[[int], torch.Tensor]:
        """``transpose_indices`` of input set s."""
        module = self.module
        operator = torch.ops.tbe_aot.transpose_indices

        def call(s: int) -> torch.Tensor:
            factors = sets[s].per_sample_weights if weighted else None
            result: torch.Tensor = operator(
                module.features, module.layout, sets[s].indices, sets[s].offsets, factors
            )
            return result

        return call

    def global_rows(self, case: Case, inputs: Inputs) -> torch.Tensor:
        """The keys that the lookups are sorted by: int32 if they fit."""
        metadata = self.module.metadata
        starts = torch.tensor(metadata.first_global_rows, device=inputs.indices.device)
        ends = inputs.offsets[:: case.batch]
        rows = inputs.indices + starts.repeat_interleave(ends.diff())
        return rows.int() if metadata.layout[4] < 2**31 - 1 else rows

    def reset_state(self) -> None:
        """Set the optimizer's state to 0."""
        for views in self.module.optimizer_state().values():
            for view in views.values():
                view.zero_()
