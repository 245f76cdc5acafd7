"""A model around a lookup, compiled in one process (``compile FOLDER``) and run in others without triton (``run FOLDER NAME``).

Inductor needs triton to compile; what it leaves behind must not. Run as a program.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

if sys.argv[1] == "run":
    # Hidden, not absent: whatever runs here was compiled before.
    sys.modules["triton"] = None  # type: ignore[assignment]  # None hides a module

import torch

from tests.gpu import installed
from tests.gpu.support import (
    Lookup,
    make_lookup,
    make_tables,
)

DIMS = (16, 33, 128)
# The first is what is traced, the others have another number of bags and of lookups.
BATCHES = (32, 7, 200)


class Model(torch.nn.Module):
    """A MEAN lookup between pointwise work that Inductor compiles into kernels of its own."""

    def __init__(self, lookup: Lookup) -> None:
        super().__init__()
        self.register_buffer("weights", lookup.tables.weights)
        self.register_buffer("features", lookup.features)
        self.layout = lookup.layout

    def forward(self, indices: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        """[B, sum of D] fp16."""
        pooled = torch.ops.tbe_aot.forward(
            self.weights,
            self.features,
            self.layout,
            indices,
            offsets,
            None,
            "mean",
            "float16",
        )
        return torch.relu(pooled) * 2.0 + 1.0


class Plain(torch.nn.Module):
    """The pointwise work alone."""

    def forward(self, pooled: torch.Tensor) -> torch.Tensor:
        """Of any shape."""
        return torch.relu(pooled) * 2.0 + 1.0


def make(device: torch.device) -> tuple[Model, list[tuple[torch.Tensor, torch.Tensor]]]:
    """The model and its inputs."""
    tables = make_tables([500] * len(DIMS), DIMS, torch.bfloat16, device)
    lookups = []
    for batch in BATCHES:
        generator = torch.Generator().manual_seed(batch)
        lengths = torch.randint(0, 20, (len(DIMS) * batch,), generator=generator)
        lookups.append(make_lookup(tables, range(len(DIMS)), installed.buckets(), lengths))
    model = Model(lookups[0]).to(device).eval()
    return model, [(lookup.indices, lookup.offsets) for lookup in lookups]


def outcome(action: Callable[[], object]) -> str:
    """Either "right", or the traceback that the action ended with."""
    try:
        action()
    except Exception:  # noqa: BLE001  whatever it was, it is reported
        return traceback.format_exc()
    return "right"


def outcomes(actions: dict[str, Callable[[], object]]) -> dict[str, str]:
    """How each action ended; one that fails does not stop the others."""
    return {name: outcome(action) for name, action in actions.items()}


def compare(model: Any, numbers: dict[str, Any]) -> None:
    """On every batch size, also those that were not traced."""
    for pair, expected in zip(numbers["inputs"], numbers["expected"], strict=True):
        torch.testing.assert_close(model(*pair), expected, rtol=2e-3, atol=2e-3)


def compile_models(folder: Path) -> dict[str, str]:
    """Compare torch.compile with eager; leave a package, an exported program and a script in ``folder``."""
    model, inputs = make(torch.device("cuda", 0))
    numbers = {"inputs": inputs, "expected": [model(*pair) for pair in inputs]}
    torch.save(numbers, folder / "numbers.pt")
    dynamic = {name: {0: torch.export.Dim.AUTO} for name in ("indices", "offsets")}

    def export() -> torch.export.ExportedProgram:
        return torch.export.export(model, inputs[0], dynamic_shapes=dynamic)

    plain = torch.export.export(Plain(), (torch.ones(8, 8, device="cuda"),))
    torch._inductor.aoti_compile_and_package(plain, package_path=str(folder / "plain.pt2"))
    return outcomes(
        {
            "compile": lambda: compare(torch.compile(model, fullgraph=True, dynamic=True), numbers),
            "export": lambda: torch.export.save(export(), folder / "exported.pt2"),
            "package": lambda: torch._inductor.aoti_compile_and_package(
                export(), package_path=str(folder / "package.pt2")
            ),
            "script": lambda: torch.jit.script(model).save(str(folder / "script.pt")),
        }
    )


def run_model(folder: Path, name: str) -> dict[str, str]:
    """Load one artifact and compare."""
    numbers = torch.load(folder / "numbers.pt", map_location="cuda")
    load = {
        "export": lambda: torch.export.load(folder / "exported.pt2").module(),
        "package": lambda: torch._inductor.aoti_load_package(str(folder / "package.pt2")),
        "script": lambda: torch.jit.load(str(folder / "script.pt"), map_location="cuda"),
    }[name]
    return outcomes({name: lambda: compare(load(), numbers)})


def main() -> None:
    """Print a line of JSON: what each model ended with."""
    folder = Path(sys.argv[2])
    with torch.no_grad():
        ended = (
            compile_models(folder) if sys.argv[1] == "compile" else run_model(folder, sys.argv[3])
        )
    print(json.dumps(ended))


if __name__ == "__main__":
    main()
