"""A model around a lookup, compiled in one process (``compile FOLDER``) and run in another without triton (``run FOLDER``).

Inductor needs triton to compile; what it leaves behind must not. Run as a program.
"""

from __future__ import annotations

import sys
from pathlib import Path

if sys.argv[1] == "run":
    # Hidden, not absent: whatever runs here was compiled before.
    sys.modules["triton"] = None  # type: ignore[assignment]

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

    layout: list[int]

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
            torch.float16,
        )
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


def compile_models(folder: Path) -> None:
    """torch.compile is compared at once; an AOTInductor package, an exported program and a script are left in ``folder``."""
    device = torch.device("cuda", 0)
    model, inputs = make(device)
    with torch.no_grad():
        expected = [model(*pair) for pair in inputs]
        compiled = torch.compile(model, fullgraph=True, dynamic=True)
        for pair, result in zip(inputs, expected, strict=True):
            torch.testing.assert_close(compiled(*pair), result, rtol=2e-3, atol=2e-3)
        dynamic = {
            "indices": {0: torch.export.Dim.AUTO},
            "offsets": {0: torch.export.Dim.AUTO},
        }
        exported = torch.export.export(model, inputs[0], dynamic_shapes=dynamic)
        torch.export.save(exported, folder / "exported.pt2")
        torch._inductor.aoti_compile_and_package(exported, package_path=str(folder / "package.pt2"))
        torch.jit.script(model).save(str(folder / "script.pt"))
    torch.save({"inputs": inputs, "expected": expected}, folder / "numbers.pt")


def run_models(folder: Path) -> None:
    """Load each artifact and compare."""
    numbers = torch.load(folder / "numbers.pt", map_location="cuda")
    models = {
        "AOTInductor package": torch._inductor.aoti_load_package(str(folder / "package.pt2")),
        "exported program": torch.export.load(folder / "exported.pt2").module(),
        "script": torch.jit.load(str(folder / "script.pt"), map_location="cuda"),
    }
    with torch.no_grad():
        for name, model in models.items():
            print("loaded:", name)
            for pair, expected in zip(numbers["inputs"], numbers["expected"], strict=True):
                torch.testing.assert_close(model(*pair), expected, rtol=2e-3, atol=2e-3)
            print("right:", name)


if __name__ == "__main__":
    {"compile": compile_models, "run": run_models}[sys.argv[1]](Path(sys.argv[2]))
