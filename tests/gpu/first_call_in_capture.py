"""After preload(), the very first forward of a process happens inside a CUDA graph capture. Run as a program."""

from __future__ import annotations

import sys

# Hidden, not absent: whatever is loaded came with the wheel.
sys.modules["triton"] = None  # type: ignore[assignment]

import torch  # noqa: E402  after triton is hidden

from tbe_aot import _launcher  # noqa: E402  after triton is hidden
from tests.gpu import installed  # noqa: E402  after triton is hidden
from tests.gpu.support import make_lookup, make_tables, worst_error  # noqa: E402  after triton is hidden


def main() -> None:
    """Exit status 0 if the replayed capture gives the right numbers and loaded nothing."""
    device = torch.device("cuda", int(sys.argv[1]))
    dims = (16, 33, 64, 300)
    tables = make_tables([100] * len(dims), dims, torch.float16, device)
    lengths = torch.randint(0, 20, (len(dims) * 32,), generator=torch.Generator().manual_seed(0))
    lookup = make_lookup(tables, range(len(dims)), installed.buckets(), lengths, weighted=True)
    lookup.expected("mean")
    _launcher.preload(device.index, "forward", {"weight_dtype": ["fp16"], "weighted": ["weighted"]})
    preloaded = installed.loaded(device)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = lookup.run("mean")
    assert installed.loaded(device) == preloaded
    assert set(installed.explain_forward(lookup)) <= preloaded
    output.fill_(torch.nan)
    graph.replay()
    torch.cuda.synchronize()
    assert worst_error(output, lookup, "mean") <= 1e-5


if __name__ == "__main__":
    main()
