"""Sixteen threads whose first forwards come at the same moment, on kernels that nobody has loaded. Run as a program."""

from __future__ import annotations

import sys
import threading

# Hidden, not absent: whatever is loaded came with the wheel.
sys.modules["triton"] = None  # type: ignore[assignment]  # None hides a module

import torch  # noqa: E402  after triton is hidden

from tests.gpu import installed  # noqa: E402  after triton is hidden
from tests.gpu.support import make_lookup, make_tables, worst_error  # noqa: E402  after triton is hidden


def main() -> None:
    """Exit status 0 if every thread got the right numbers and each variant was loaded once."""
    device = torch.device("cuda", int(sys.argv[1]))
    dims = (16, 33, 64, 128, 300)
    tables = make_tables([100] * len(dims), dims, torch.float16, device)
    lengths = torch.randint(0, 20, (len(dims) * 32,), generator=torch.Generator().manual_seed(0))
    lookup = make_lookup(tables, range(len(dims)), installed.buckets(), lengths)
    lookup.expected("sum")
    torch.cuda.synchronize()
    assert not installed.loaded(device)
    start = threading.Barrier(16)
    outputs: list[torch.Tensor] = []

    def work() -> None:
        start.wait()
        outputs.append(lookup.run())

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    assert len(outputs) == 16
    assert all(worst_error(output, lookup, "sum") <= 1e-5 for output in outputs)
    assert installed.loaded(device) == set(installed.explain_forward(lookup))


if __name__ == "__main__":
    main()
