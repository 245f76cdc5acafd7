"""The kernels of small tables on the host: bags, tables and launches."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch

from aot_build.spec import load_spec
from tests.simt.host_kernel import SPECS, HostKernel, host_kernel, pointer

INDEX_DTYPES = {32: torch.int32, 64: torch.int64}
BAGS = 16  # Of a block.
# Of outputs and gradients, by the kernels' number.
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@dataclass(frozen=True)
class Lookups:
    """Bags of one feature."""

    indices: torch.Tensor
    offsets: torch.Tensor

    @property
    def batch(self) -> int:
        """The number of bags."""
        return self.offsets.numel() - 1

    def counts(self, rows: int) -> torch.Tensor:
        """How often each row is in each bag, int64 [B, rows]."""
        bag = torch.repeat_interleave(torch.arange(self.batch), self.offsets.long().diff())
        counts = torch.zeros(self.batch, rows, dtype=torch.int64)
        used = (self.indices >= 0) & (self.indices < rows)
        places = (bag[used], self.indices[used].long())
        return counts.index_put(places, torch.ones(1, dtype=torch.int64), accumulate=True)


def draw_lookups(
    lengths: list[int], rows: int, *, index_width: int = 64, pruned: float = 0.1, seed: int = 0
) -> Lookups:
    """Bags of these lengths that look up random rows, some of them pruned."""
    generator = torch.Generator().manual_seed(seed)
    count = sum(lengths)
    indices = torch.randint(0, rows, (count,), generator=generator)
    indices[torch.rand(count, generator=generator) < pruned] = -1
    dtype = INDEX_DTYPES[index_width]
    return Lookups(indices.to(dtype), torch.tensor([0, *lengths]).cumsum(0).to(dtype))


def spoil(lookups: Lookups, rows: int, share: float, seed: int = 0) -> tuple[Lookups, Lookups]:
    """(the lookups with a share of the indices out of bounds, the same as the bounds check repairs them)."""
    generator = torch.Generator().manual_seed(seed)
    indices = lookups.indices
    values = [rows, rows + 1, 255, 256, 2**31 - 1, -2, -(2**31)]
    if indices.dtype == torch.int64:
        values += [2**32, 2**32 + rows - 1, 2**32 - 1, 2**63 - 1, -(2**63), -(2**32), -(2**32) - 1]
    strange = torch.tensor([value for value in values if not -1 <= value < rows])
    drawn = strange[torch.randint(0, len(strange), indices.shape, generator=generator)]
    bad = torch.rand(indices.shape, generator=generator) < share
    repaired = torch.where(bad, 0 if rows else -1, indices)
    return (
        Lookups(torch.where(bad, drawn.to(indices.dtype), indices), lookups.offsets),
        Lookups(repaired, lookups.offsets),
    )


def variant(kernel: str, **axes: int) -> HostKernel:
    """A variant, with the warps of its spec."""
    spec = load_spec(SPECS / kernel)
    settings: dict[str, int] = {}
    for rule in spec.tuning.rules:
        if all(axes.get(name) in values for name, values in rule.when.items()):
            settings |= {name: int(value) for name, value in rule.set.items()}
    constants = {name: settings[name] for name in spec.tuning.kernel_constants}
    constants |= {name.upper(): value for name, value in axes.items()}
    return host_kernel(kernel, spec.kernel.function, settings["num_warps"], constants)


@dataclass(frozen=True)
class SmallTable:
    """A table whose rows start at multiples of 16 bytes, as an aligned group's do."""

    weights: torch.Tensor  # 1-D, with something before and after the table.
    rows: int
    dim: int

    OFFSET = 24

    @property
    def pitch(self) -> int:
        """Elements between rows."""
        return -(-self.dim // 8) * 8 + 8

    @property
    def table(self) -> torch.Tensor:
        """[rows, dim], a view."""
        size = self.rows * self.pitch
        return self.weights[self.OFFSET : self.OFFSET + size].view(-1, self.pitch)[:, : self.dim]

    @property
    def features(self) -> torch.Tensor:
        """The feature table of the one feature."""
        return torch.tensor([[0, self.OFFSET, self.pitch, self.dim, self.rows, 0, 0, 0]])


def draw_table(rows: int, dim: int, dtype: torch.dtype = torch.float16) -> SmallTable:
    """A random table between elements that nobody may use."""
    table = SmallTable(torch.empty(0), rows, dim)
    weights = torch.full((table.OFFSET + rows * table.pitch + 40,), torch.nan, dtype=dtype)
    table = SmallTable(weights, rows, dim)
    table.table.copy_(torch.randn(rows, dim, generator=torch.Generator().manual_seed(rows)))
    return table


def bucket_of(dim: int) -> int:
    """The bucket whose variant serves a dim."""
    return next(bucket for bucket in (64, 128, 256) if dim <= bucket)


def forward(
    table: SmallTable,
    lookups: Lookups,
    *,
    mean: bool = False,
    row_limit: int = 64,
    output_dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """The output of a launch of forward_small_table that trusts its indices."""
    return _forward(table, lookups, mean, row_limit, output_dtype, checked=False)[0]


def checked_forward(
    table: SmallTable, lookups: Lookups, *, mean: bool = False, row_limit: int = 64
) -> tuple[torch.Tensor, int, int]:
    """(output, invalid indices, position of the first one or their number) of a launch that checks its indices."""
    return _forward(table, lookups, mean, row_limit, torch.float32, checked=True)


def _forward(
    table: SmallTable,
    lookups: Lookups,
    mean: bool,
    row_limit: int,
    output_dtype: torch.dtype,
    *,
    checked: bool,
) -> tuple[torch.Tensor, int, int]:
    kernel = variant(
        "forward_small_table",
        bf16=int(table.weights.dtype == torch.bfloat16),
        bucket=bucket_of(table.dim),
        rows=row_limit,
        index_width=8 * lookups.indices.dtype.itemsize,
        checked=int(checked),
    )
    features = table.features
    count, report = torch.zeros(1, dtype=torch.int64), torch.zeros(4, dtype=torch.int64)
    # Something after the output that must stay.
    output = torch.full((lookups.batch + 1, table.dim), -7.0, dtype=output_dtype)
    kernel(
        -(-lookups.batch // BAGS),
        [
            pointer(output),
            pointer(table.weights),
            pointer(features),
            pointer(lookups.indices),
            pointer(lookups.offsets),
            ctypes.c_int(lookups.batch),
            ctypes.c_int(mean),
            ctypes.c_int(DTYPES.index(output_dtype)),
            ctypes.c_int(7),
            pointer(count),
            pointer(report),
            ctypes.c_longlong(lookups.indices.numel()),
        ],
        2,
    )
    assert (output[-1] == -7).all()
    assert report[[0, 1, 3]].tolist() == [0, 0, 0]
    return output[:-1], int(count), lookups.indices.numel() - int(report[2])


@dataclass(frozen=True)
class Gradient:
    """Of the output, and what is done to it before it is summed."""

    gradient: torch.Tensor  # [B, dim]
    mean: bool = False
    clip: float = float("inf")
    scale: float | None = None
    chunk_bags: int = 64


def sum_gradients(
    table: SmallTable, lookups: Lookups, given: Gradient
) -> tuple[torch.Tensor, torch.Tensor]:
    """(partials [rows, chunks, bucket], used [rows, chunks]) of a launch of sum_small_table."""
    kernel = variant(
        "sum_small_table",
        gradient_dtype=DTYPES.index(given.gradient.dtype),
        bucket=bucket_of(table.dim),
        index_width=8 * lookups.indices.dtype.itemsize,
    )
    rows, bucket = 64, bucket_of(table.dim)
    chunks = -(-lookups.batch // given.chunk_bags)
    partials = torch.full((rows + 1, chunks, bucket), -7.0)
    used = torch.full((rows + 1, chunks), -7, dtype=torch.int32)
    features = table.features
    scale = torch.tensor([1.0 if given.scale is None else given.scale])
    kernel(
        chunks,
        [
            pointer(partials),
            pointer(used),
            pointer(given.gradient),
            pointer(features),
            pointer(lookups.indices),
            pointer(lookups.offsets),
            pointer(scale),
            ctypes.c_int(lookups.batch),
            ctypes.c_int(given.chunk_bags),
            ctypes.c_int(given.mean),
            ctypes.c_float(given.clip),
            ctypes.c_int(given.scale is not None),
            ctypes.c_int(7),
        ],
        2,
    )
    assert (partials[-1] == -7).all()
    assert (used[-1] == -7).all()
    return partials[:-1, :, : table.dim], used[:-1]
