"""The embedding tables of MLPerf's DLRM v2, looked up and trained with an installed wheel, and compared with torch.

    python -m examples.dlrm_v2.demo [--batch 65536] [--rows N] [--dtype fp16] [--device cuda] [--train-batch 65536]

26 tables of 128 columns, fixed bag sizes (multi-hot), SUM. On a GPU with room for them the tables have their full size (204 million rows);
elsewhere the rows of each table are capped so that all fit. Ids follow production traffic's reuse (reuse.py).

1. Lookups, against torch.nn.EmbeddingBag.
2. Training with row-wise Adagrad, 20 steps beside the same training in float64: the loss goes down, and is the one in float64.
3. Training of small tables with SGD, Adagrad and Adam, beside torch's sparse optimizers and against them in float64.

Exits with 1 if a result is off by more than its tolerance, or the loss does not go down.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

import tbe_aot
from tbe_aot_audit import tables
from tbe_aot_audit.listing import list_variants, summary_of
from tbe_aot_audit.source import open_source

from . import training
from .dataset import ROWS, D, make_batch, make_inputs, split_features, unique_rows

BATCH = 65536
# Samples of a training step, and of one beside torch's optimizers with the most rows of a table there.
TRAIN_BATCH = {"cuda": BATCH, "cpu": 1024}
TORCH_BATCH, TORCH_ROWS = {"cuda": 8192, "cpu": 256}, {"cuda": 100_000, "cpu": 5_000}
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
# The share of free memory that the tables may take, and their most bytes where the point is not to fill memory.
GPU_SHARE = 0.6
CPU_SHARE, CPU_BYTES = 0.25, 2**30
# Of max(1, sum of |row|), for an fp32 output.
TOLERANCE = 1e-5
GIB = 2**30
# Training takes all batches in each epoch.
BATCHES, EPOCHS = 4, 5
STEPS_WITH_TORCH = 6


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
    tables = bags.table_views().values()
    features = split_features(ids, batch)
    with torch.no_grad():
        output = bags(ids, offsets)
    errors = []
    for column, (table, (feature_ids, feature_offsets)) in enumerate(
        zip(tables, features, strict=True)
    ):
        unique, positions = feature_ids.unique(return_inverse=True)
        rows = table[unique].float()
        expected = torch.nn.functional.embedding_bag(positions, rows, feature_offsets, mode="sum")
        magnitude = torch.nn.functional.embedding_bag(
            positions, rows.abs(), feature_offsets, mode="sum"
        )
        error = (output[:, column * D : (column + 1) * D] - expected).abs()
        errors.append((error / (TOLERANCE * magnitude.clamp(min=1))).max())
    del output
    modules = [
        torch.nn.EmbeddingBag.from_pretrained(table, mode="sum", freeze=True) for table in tables
    ]

    def embedding_bags() -> torch.Tensor:
        return torch.cat(
            [module(*inputs) for module, inputs in zip(modules, features, strict=True)], dim=1
        )

    with torch.no_grad():
        ours = timed(lambda: bags(ids, offsets), device, repeats)
        theirs = timed(embedding_bags, device, repeats)
    # Not Python's max, which may overlook NaN.
    return Comparison(ours, theirs, float(torch.stack(errors).max()))


def show_lookups(
    bags: tbe_aot.TableBatchedEmbeddingBags, batch: int, repeats: int, console: Console
) -> bool:
    """Compare lookups with torch.nn.EmbeddingBag's: whether all elements agree."""
    start = time.perf_counter()
    device = bags.weights.device
    rows = [spec.rows for spec in bags.table_specs]
    for table in bags.table_views().values():
        # Of size 1, so that the tolerance means something: the module's own start is 1 / sqrt(rows).
        table.uniform_(-1, 1)
    generator = torch.Generator().manual_seed(0)
    ids, offsets = (tensor.to(device) for tensor in make_inputs(rows, batch, generator))
    prepared = time.perf_counter() - start

    result = compare(bags, ids, offsets, batch, repeats)
    shown = Table(title="MLPerf DLRM v2: 26 tables, D = 128, SUM")
    shown.add_column("what")
    shown.add_column("value", justify="right")
    scaled = "" if rows == list(ROWS) else f" (of {sum(ROWS):,}: scaled down)"
    size = sum(rows) * D * bags.weights_dtype.itemsize
    for what, value in (
        ("device", torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"),
        ("torch", torch.__version__),
        ("rows", f"{sum(rows):,}{scaled}"),
        ("tables", f"{size / GIB:.2f} GiB {str(bags.weights_dtype).removeprefix('torch.')}"),
        ("batch, lookups", f"{batch:,}, {len(ids):,}"),
        ("unique rows", f"{unique_rows(ids, offsets, batch):,}"),
        ("tables and ids prepared in", f"{prepared:.1f} s"),
        ("tbe_aot", f"{result.ours * 1e3:.2f} ms"),
        ("torch.nn.EmbeddingBag, 26 modules", f"{result.embedding_bag * 1e3:.2f} ms"),
        ("EmbeddingBag's time / tbe_aot's", f"{result.embedding_bag / result.ours:.2f}"),
        ("largest error / tolerance", f"{result.worst:.1e}"),
    ):
        shown.add_row(what, value)
    console.print(shown)
    return verdict(result.worst <= 1, "all elements agree", "elements differ", console)


def show_training(
    bags: tbe_aot.TableBatchedEmbeddingBags, batch: int, epochs: int, console: Console
) -> bool:
    """Train the tables beside float64: whether the loss went down, and is the one in float64."""
    rows = [spec.rows for spec in bags.table_specs]
    generator = torch.Generator().manual_seed(1)
    batches = [make_batch(rows, batch, generator).to(bags.weights.device) for _ in range(BATCHES)]
    bags.reset_parameters()
    done = training.train(bags, batches, epochs)
    shown = Table(
        "epoch",
        title=f"Row-wise Adagrad, {BATCHES} batches of {batch:,} clicks of a hidden model an epoch",
    )
    for column in ("loss", "loss in float64", "largest error / tolerance", "ms a step"):
        shown.add_column(column, justify="right")
    for number, epoch in enumerate(done, 1):
        shown.add_row(
            str(number),
            f"{epoch.loss:.4f}",
            f"{epoch.exact:.4f}",
            f"{epoch.worst:.1e}",
            f"{epoch.seconds * 1e3:.1f}",
        )
    console.print(shown)
    learns = verdict(
        training.is_learning(done), "the loss goes down", "the loss does not go down", console
    )
    agrees = all(epoch.worst <= 1 for epoch in done)
    return (
        verdict(agrees, "every loss is that in float64", "losses differ from float64", console)
        and learns
    )


def show_torch_optimizers(
    rows: list[int], batch: int, device: torch.device, console: Console
) -> bool:
    """Train small float32 tables as torch's sparse optimizers do: whether all weights are those of float64."""
    # torch warns where nobody has decided.
    torch.sparse.check_sparse_tensor_invariants.disable()
    generator = torch.Generator().manual_seed(2)
    batches = [make_batch(rows, batch, generator).to(device) for _ in range(STEPS_WITH_TORCH)]
    shown = Table(
        "torch's optimizer",
        title=f"{len(batches)} steps of {batch:,} clicks, {sum(rows):,} float32 rows, beside torch's sparse optimizers",
    )
    for column in (
        "tbe_aot, ms a step",
        "torch, ms a step",
        "ratio",
        "largest error / tolerance",
        "torch's",
    ):
        shown.add_column(column, justify="right")
    agrees = True
    for optimizer, make_sparse in training.OPTIMIZERS:
        bags = tbe_aot.TableBatchedEmbeddingBags(
            table_specs(rows), optimizer=optimizer, device=device
        )
        result = training.compare_with_torch(bags, make_sparse, batches)
        agrees = agrees and result.worst <= 1
        shown.add_row(
            result.name,
            f"{result.ours * 1e3:.1f}",
            f"{result.theirs * 1e3:.1f}",
            f"{result.theirs / result.ours:.2f}",
            f"{result.worst:.1e}",
            f"{result.theirs_worst:.1e}",
        )
    console.print(shown)
    return verdict(
        agrees, "all trained weights are those in float64", "trained weights differ", console
    )


def verdict(good: bool, said: str, otherwise: str, console: Console) -> bool:
    """Print what came out; ``good`` again."""
    console.print(said if good else f"[bold red]{otherwise}[/]")
    return good


def table_specs(rows: list[int]) -> list[tbe_aot.TableSpec]:
    """The tables, with so many rows."""
    return [tbe_aot.TableSpec(f"t{i}", e, D) for i, e in enumerate(rows)]


def main() -> int:
    """Run the demo; 0 when all is as it should be."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--batch", type=int, default=BATCH, help="samples of a lookup")
    parser.add_argument("--rows", type=int, help="most rows of a table; default: what fits")
    parser.add_argument("--dtype", choices=DTYPES, default="fp16", help="of the tables")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--repeats", type=int, default=3, help="timed lookups")
    parser.add_argument("--train-batch", type=int, help="samples of a training step")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="of training")
    options = parser.parse_args()
    device = torch.device(options.device)
    dtype = DTYPES[options.dtype]
    console = tables.console()
    # The tables' start.
    torch.manual_seed(0)

    lib = Path(tbe_aot.__file__).parent / "lib"
    built = open_source(lib.parent)
    listing = list_variants(built, sort="registers")
    console.print("The variants with the most registers:")
    console.print(tables.variants(listing, 10), soft_wrap=True)
    console.print(tables.summary(summary_of(built)))
    library = (lib / "libtbe_aot.so").stat().st_size
    console.print(f"libtbe_aot.so: {library / tables.MIB:.2f} MiB")

    fitting = rows_that_fit(memory_for_tables(device), dtype.itemsize)
    rows = [min(e, options.rows or e) for e in fitting]
    train_batch = options.train_batch or TRAIN_BATCH[device.type]
    bags = tbe_aot.TableBatchedEmbeddingBags(
        table_specs(rows),
        weights_dtype=dtype,
        optimizer=training.make_optimizer(train_batch),
        device=device,
    )
    good = [
        show_lookups(bags, options.batch, options.repeats, console),
        show_training(bags, train_batch, options.epochs, console),
    ]
    del bags
    small = [min(e, TORCH_ROWS[device.type]) for e in rows]
    good.append(
        show_torch_optimizers(small, min(train_batch, TORCH_BATCH[device.type]), device, console)
    )
    return 0 if all(good) else 1


if __name__ == "__main__":
    raise SystemExit(main())
