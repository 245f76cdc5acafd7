"""Lookups on a CUDA device with an installation whose pack is not as it was built. Run as a program."""

from __future__ import annotations

import sys

# Hidden, not absent: whatever is loaded came with the wheel.
sys.modules["triton"] = None  # type: ignore[assignment]  # None hides a module

import torch  # noqa: E402  after triton is hidden

import tbe_aot  # noqa: E402  after triton is hidden
from tbe_aot import _launcher  # noqa: E402  after triton is hidden


def error_of(module: tbe_aot.TableBatchedEmbeddingBags, *inputs: torch.Tensor) -> str:
    """The message that a lookup ends with; empty if it does not fail."""
    try:
        module(*inputs)
    except RuntimeError as error:
        return str(error)
    return ""


def main() -> None:
    """Print the message of a lookup; exit status 0 if it was refused and everything else goes on."""
    device = torch.device("cuda", 0)
    tables = [tbe_aot.TableSpec("t", 10, 16)]
    inputs = torch.tensor([1, 2, 3]), torch.tensor([0, 2, 3])
    module = tbe_aot.TableBatchedEmbeddingBags(tables, bounds_check="none", device=device)
    # The second time as the first: nothing half-loaded is kept.
    first, second = (error_of(module, *(tensor.to(device) for tensor in inputs)) for _ in range(2))
    assert first
    assert first == second
    assert not _launcher.loaded()
    # The device is not harmed, and the CPU needs no pack.
    torch.ones(3, device=device).sum().item()
    assert error_of(module.cpu(), *inputs) == ""
    print(first)


if __name__ == "__main__":
    main()
