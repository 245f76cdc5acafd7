"""One fresh process' first forward: run as ``python -m benchmarks.first_call DEVICE``, prints a line of JSON.

Everything that is not tbe-aot's is done beforehand: torch is imported, the CUDA context exists, memory is allocated.
"""

from __future__ import annotations

import json
import sys
import time

import torch


def main() -> None:
    """Measure and print."""
    device = torch.device(sys.argv[1])
    from benchmarks.cases import Case, make_inputs

    case = Case("first call", 4, 16, 2, (64,), 1000, "uniform")
    inputs = [make_inputs(case, 1, device)]
    _wait(device)
    start = time.perf_counter()
    import tbe_aot  # noqa: F401  timed

    imported = time.perf_counter()
    from benchmarks.ours import Lookup, make_weights

    lookup = Lookup(case, make_weights(case, device))
    call = lookup.forward(inputs, weighted=False, output_dtype=torch.float32)
    times = []
    for _ in range(5):
        _wait(device)
        before = time.perf_counter()
        call(0)
        _wait(device)
        times.append((time.perf_counter() - before) * 1e3)
    measured = {
        "import_ms": (imported - start) * 1e3,
        "first_call_ms": times[0],
        "later_call_ms": times[-1],
    }
    print(json.dumps(measured))


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    main()
