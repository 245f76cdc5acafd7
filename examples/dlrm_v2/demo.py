"""The embedding tables of MLPerf's DLRM v2, looked up with an installed wheel and compared with torch.nn.EmbeddingBag.

    python -m examples.dlrm_v2.demo [--batch 65536] [--rows N] [--dtype fp16] [--device cuda]

26 tables of 128 columns, fixed bag sizes (multi-hot), SUM. On a GPU with room for them the tables have their full size (204 million rows);
elsewhere the rows of each table are capped so that all fit. Ids follow production traffic's reuse (reuse.py). Exits with 1 if a
result is off by more than the tolerance.
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.table import Table

import tbe_aot
from wheels import report

from . import reuse

MULTI_HOT = (3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1)
ROWS = (
    *(40000000, 39060, 17295, 7424, 20265, 3, 7122, 1543, 63, 40000000, 3067956, 405282, 10, 2209),
    *(11938, 155, 4, 976, 14, 40000000, 40000000, 40000000, 590152, 12973, 108, 36),
)
D = 128
BATCH = 65536
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
# The share of free memory that the tables may take, and their most bytes where the point is not to fill memory.
GPU_SHARE = 0.6
CPU_SHARE, CPU_BYTES = 0.25, 2**30
# Of max(1, sum of |row|), for an fp32 output.
TOLERANCE = 1e-5
GIB = 2**30


@dataclass(frozen=True)
class Comparison:
    """Two implementations on the same inputs: seconds a call, and the largest error over its bound."""

    ours: float
    embedding_bag: float
    worst: float


def rows_that_fit(available: int, element_size: int) -> list[int]:
    """The tables' rows, the largest capped alike until all tables fit in so many bytes."""

    def size(cap: int) -> int:
        return sum(min(rows, cap) for rows in ROWS) * D * element_size

    low, high = 1, max(ROWS)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if size(middle) <= available else (low, middle - 1)
    return [min(rows, low) for rows in ROWS]


def memory_for_tables(device: torch.device) -> int:
    """Bytes that the tables may take on the device."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0] * GPU_SHARE)
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(int(free * CPU_SHARE), CPU_BYTES)


def timed(call: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Median seconds of a call, after one that is not counted."""

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    seconds = []
    for _ in range(repeats + 1):
        wait()
        start = time.perf_counter()
        call()
        wait()
        seconds.append(time.perf_counter() - start)
    return sorted(seconds[1:])[repeats // 2]


def make_inputs(
    rows: list[int], batch: int, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids int64 [N] and offsets int64 [T * batch + 1], feature-major."""
    ids = [
        reuse.draw_ids(e, hot * batch, generator) for e, hot in zip(rows, MULTI_HOT, strict=True)
    ]
    lengths = torch.tensor(MULTI_HOT).repeat_interleave(batch)
    return torch.cat(ids), torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])


def compare(
    bags: tbe_aot.TableBatchedEmbeddingBags,
    ids: torch.Tensor,
    offsets: torch.Tensor,
    batch: int,
    repeats: int,
) -> Comparison:
    """Look all features up with both, check every output element, time both.

    torch.nn.EmbeddingBag looks up the same tables one by one in their own dtype when it is timed; what is checked is its result on the
    widened rows, since it rounds sums of half precision weights to half precision.
    """
    device = ids.device
    tables = bags.table_views()
    starts = [int(start) for start in offsets[::batch][: len(MULTI_HOT)]]
    features = [
        (table, ids[start : start + batch * hot], torch.arange(batch, device=device) * hot)
        for table, start, hot in zip(tables.values(), starts, MULTI_HOT, strict=True)
    ]
    output = bags(ids, offsets)
    worst = 0.0
    for column, (table, feature_ids, feature_offsets) in enumerate(features):
        unique, positions = feature_ids.unique(return_inverse=True)
        rows = table[unique].float()
        expected = torch.nn.functional.embedding_bag(positions, rows, feature_offsets, mode="sum")
        magnitude = torch.nn.functional.embedding_bag(
            positions, rows.abs(), feature_offsets, mode="sum"
        )
        error = (output[:, column * D : (column + 1) * D] - expected).abs()
        worst = max(worst, float((error / (TOLERANCE * magnitude.clamp(min=1))).max()))
    del output
    modules = [
        torch.nn.EmbeddingBag.from_pretrained(table, mode="sum", freeze=True)
        for table, _, _ in features
    ]

    def embedding_bags() -> torch.Tensor:
        return torch.cat(
            [module(i, o) for module, (_, i, o) in zip(modules, features, strict=True)], dim=1
        )

    with torch.no_grad():
        ours = timed(lambda: bags(ids, offsets), device, repeats)
        theirs = timed(embedding_bags, device, repeats)
    return Comparison(ours, theirs, worst)


def main() -> int:
    """Run the demo; 0 when every element agrees."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--rows", type=int, help="most rows of a table; default: what fits")
    parser.add_argument("--dtype", choices=DTYPES, default="fp16", help="of the tables")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--repeats", type=int, default=3, help="timed calls")
    options = parser.parse_args()
    device = torch.device(options.device)
    dtype = DTYPES[options.dtype]
    console = report.console()
    start = time.perf_counter()

    lib = Path(tbe_aot.__file__).parent / "lib"
    built = report.read(lib)
    console.print(report.largest_table(built, 10))
    console.print(report.built_table(built))
    library = (lib / "libtbe_aot.so").stat().st_size
    console.print(f"libtbe_aot.so: {library / report.MIB:.2f} MiB")

    fitting = rows_that_fit(memory_for_tables(device), dtype.itemsize)
    rows = [min(e, options.rows or e) for e in fitting]
    generator = torch.Generator().manual_seed(0)
    specs = [tbe_aot.TableSpec(f"t{i}", e, D) for i, e in enumerate(rows)]
    bags = tbe_aot.TableBatchedEmbeddingBags(specs, weights_dtype=dtype, device=device)
    for table in bags.table_views().values():
        # Of size 1, so that the tolerance means something: the module's own start is 1 / sqrt(rows).
        table.uniform_(-1, 1)
    ids, offsets = (tensor.to(device) for tensor in make_inputs(rows, options.batch, generator))
    prepared = time.perf_counter() - start

    result = compare(bags, ids, offsets, options.batch, options.repeats)
    shown = Table(title="MLPerf DLRM v2: 26 tables, D = 128, SUM")
    shown.add_column("what")
    shown.add_column("value", justify="right")
    scaled = "" if rows == list(ROWS) else f" (of {sum(ROWS):,}: scaled down)"
    for what, value in (
        ("device", torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"),
        ("torch", torch.__version__),
        ("rows", f"{sum(rows):,}{scaled}"),
        ("tables", f"{sum(rows) * D * dtype.itemsize / GIB:.2f} GiB {options.dtype}"),
        ("batch, lookups", f"{options.batch:,}, {len(ids):,}"),
        ("unique rows", f"{unique_rows(ids, offsets, options.batch):,}"),
        ("tables and ids prepared in", f"{prepared:.1f} s"),
        ("tbe_aot", f"{result.ours * 1e3:.2f} ms"),
        ("torch.nn.EmbeddingBag, 26 modules", f"{result.embedding_bag * 1e3:.2f} ms"),
        ("EmbeddingBag's time / tbe_aot's", f"{result.embedding_bag / result.ours:.2f}"),
        ("largest error / tolerance", f"{result.worst:.1e}"),
    ):
        shown.add_row(what, value)
    console.print(shown)
    agrees = result.worst <= 1
    console.print("all elements agree" if agrees else "[bold red]elements differ[/]")
    return 0 if agrees else 1


def unique_rows(ids: torch.Tensor, offsets: torch.Tensor, batch: int) -> int:
    """Rows that the batch touches, summed over the features."""
    bounds: list[int] = offsets[::batch].tolist()
    unique = 0
    for start, end in itertools.pairwise(bounds):
        unique += ids[start:end].unique().numel()
    return unique


if __name__ == "__main__":
    raise SystemExit(main())
