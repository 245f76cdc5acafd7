"""After preload(), the very first forwards of a process happen inside CUDA graph captures. Run as a program."""

from __future__ import annotations

import sys

# Hidden, not absent: whatever is loaded came with the wheel.
sys.modules["triton"] = None  # type: ignore[assignment]  # None hides a module

import torch  # noqa: E402  after triton is hidden

import tbe_aot  # noqa: E402  after triton is hidden
from tests.gpu import installed  # noqa: E402  after triton is hidden


def main() -> None:
    """Exit status 0 if the replayed captures give the right numbers and loaded nothing."""
    device = torch.device("cuda", int(sys.argv[1]))
    tables = [tbe_aot.TableSpec(f"t{dim}", 100, dim) for dim in (16, 33, 64, 300)]
    module = tbe_aot.TableBatchedEmbeddingBags(
        tables, weights_dtype=torch.float16, pooling="mean", device=device
    )
    # The CPU operator on a copy of the tables: it loads nothing on the device.
    on_cpu = tbe_aot.TableBatchedEmbeddingBags(tables, weights_dtype=torch.float16, pooling="mean")
    on_cpu.load_state_dict(module.state_dict())
    assert not installed.loaded(device)

    preloaded = set(module.preload())
    assert installed.loaded(device) == preloaded
    # Long weighted bags of int64 indices, then short unweighted ones of int32.
    for longest, dtype, weighted in ((60, torch.int64, True), (2, torch.int32, False)):
        generator = torch.Generator().manual_seed(0)
        lengths = torch.randint(0, longest + 1, (len(tables) * 32,), generator=generator)
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]).to(dtype)
        indices = torch.randint(0, 100, (int(offsets[-1]),), generator=generator).to(dtype)
        weights = torch.rand(indices.shape, generator=generator) if weighted else None
        expected = on_cpu(indices, offsets, weights)
        on_device = weights.to(device) if weights is not None else None
        arguments = (indices.to(device), offsets.to(device), on_device)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = module(*arguments)
        assert installed.loaded(device) == preloaded
        output.fill_(torch.nan)
        graph.replay()
        torch.cuda.synchronize()
        torch.testing.assert_close(output.cpu(), expected, rtol=1e-5, atol=1e-5)
    assert module.invalid_index_count() == 0


if __name__ == "__main__":
    main()
