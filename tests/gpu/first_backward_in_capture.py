"""After preload(), the very first backwards of a process happen inside CUDA graph captures. Run as a program.

python -m tests.gpu.first_backward_in_capture 0
"""

from __future__ import annotations

import sys
from typing import Any

# Hidden, not absent: whatever is loaded came with the wheel.
sys.modules["triton"] = None  # type: ignore[assignment]  # None hides a module

import torch  # noqa: E402  after triton is hidden

import tbe_aot  # noqa: E402  after triton is hidden
from tests.gpu import installed  # noqa: E402  after triton is hidden

DIMS = (16, 33, 64, 300)


def main() -> None:
    """Exit status 0 if the replayed captures trained as the CPU does and loaded nothing."""
    device = torch.device("cuda", int(sys.argv[1]))
    # What torch itself does once: autograd's thread, and the buffers of its kernels.
    torch.ones(1, device=device, requires_grad=True).square().sum().backward()
    for number, optimizer in enumerate((tbe_aot.RowwiseAdagrad(lr=0.1), tbe_aot.Adam(lr=0.1))):
        tables = [tbe_aot.TableSpec(f"t{dim}", 100, dim) for dim in DIMS]
        options: dict[str, Any] = {
            "weights_dtype": torch.float16,
            "pooling": "mean",
            "optimizer": optimizer,
        }
        module = tbe_aot.TableBatchedEmbeddingBags(tables, device=device, **options)
        on_cpu = tbe_aot.TableBatchedEmbeddingBags(tables, **options)
        on_cpu.load_state_dict(module.state_dict())
        if number == 0:
            assert not installed.loaded(device)
        preloaded = set(module.preload())
        assert preloaded <= installed.loaded(device)
        ready = installed.loaded(device)

        generator = torch.Generator().manual_seed(number)
        lengths = torch.randint(0, 61, (len(DIMS) * 32,), generator=generator)
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
        indices = torch.randint(0, 100, (int(offsets[-1]),), generator=generator)
        # A row with a long run in every table.
        indices[::3] = 5
        weights = torch.rand(indices.shape, generator=generator)
        grad = torch.randn(32, sum(DIMS), generator=generator)
        arguments = [tensor.to(device) for tensor in (indices, offsets, weights)]
        arguments[2].requires_grad_()
        weights.requires_grad_()
        on_device = grad.to(device)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            module(*arguments).backward(on_device)
        assert installed.loaded(device) == ready, installed.loaded(device) - ready
        # A capture runs nothing.
        for _ in range(2):
            graph.replay()
            on_cpu(indices, offsets, weights).backward(grad)
        torch.cuda.synchronize()
        state, expected = module.state_dict(), on_cpu.state_dict()
        for name, value in expected.items():
            torch.testing.assert_close(state[name].cpu(), value, rtol=1e-2, atol=1e-2)
        assert arguments[2].grad is not None
        assert arguments[2].grad.isfinite().all()


if __name__ == "__main__":
    main()
