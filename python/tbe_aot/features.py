"""Table metadata: from names, rows and dims to the `features` tensor and the `layout` integers of the operators.

docs/operators.md describes both. Tables lie one after another in one 1-D tensor; a row starts every ``row_pitch``
elements, the dim rounded up to 16 bytes, so that rows can be read 16 bytes at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from ._operator_rules import AXES

LAYOUT_VERSION = 1
VECTOR_BYTES = 16
WEIGHT_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def _buckets() -> tuple[int, ...]:
    return tuple(sorted(int(value) for value in AXES["forward"]["bucket"]))


@dataclass(frozen=True)
class TableSpec:
    """A table of ``rows`` x ``dim`` weights.

    Raises:
        ValueError: the name is empty or has a dot, a number is not whole, there are less than 0 rows, or the dim has no
            kernel.
    """

    name: str
    rows: int
    dim: int

    def __post_init__(self) -> None:
        if not self.name or "." in self.name:
            raise ValueError(
                f"table name {self.name!r}: expected a name without dots, it becomes a state dict key"
            )
        for what, number in (("rows", self.rows), ("dim", self.dim)):
            if isinstance(number, bool) or not isinstance(number, int):
                raise ValueError(  # noqa: TRY004  one kind of error for a wrong description
                    f"table {self.name!r} has {what} {number!r}, expected an integer"
                )
        if self.rows < 0:
            raise ValueError(f"table {self.name!r} has {self.rows} rows, expected at least 0")
        largest = _buckets()[-1]
        if not 1 <= self.dim <= largest:
            raise ValueError(f"table {self.name!r} has dim {self.dim}, expected 1 to {largest}")


@dataclass(frozen=True)
class FeatureMetadata:
    """What the operators need to know of tables and features.

    Attributes:
        features: int64 [T, 8], one row per feature.
        layout: the host's half of the metadata.
        feature_tables: per feature, the position of its table.
        feature_dims: per feature, the dim of its table.
        table_offsets: per table, its first element in the weights.
        row_pitches: per table, elements between the starts of two rows.
        first_global_rows: per table, the number of its first row among the rows of all tables, by which the backward
            and the optimizer's states per row know it. Tables are counted in the order of ``features``.
        weights_numel: elements of all tables.
    """

    features: torch.Tensor
    layout: list[int]
    feature_tables: list[int]
    feature_dims: list[int]
    table_offsets: list[int]
    row_pitches: list[int]
    first_global_rows: list[int]
    weights_numel: int


def feature_positions(
    tables: Sequence[TableSpec], feature_tables: Sequence[str] | None
) -> list[int]:
    """Per feature the position of its table; without ``feature_tables`` every table is one feature.

    Raises:
        ValueError: no table or no feature, a name that occurs twice, or a feature of an unknown table.
    """
    if not tables:
        raise ValueError("no tables given, expected at least one")
    positions = {table.name: i for i, table in enumerate(tables)}
    if len(positions) != len(tables):
        names = [table.name for table in tables]
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"table names must differ, given more than once: {', '.join(twice)}")
    if feature_tables is None:
        return list(range(len(tables)))
    if not feature_tables:
        raise ValueError("feature_tables is empty, expected the name of a table per feature")
    unknown = sorted(set(feature_tables) - positions.keys())
    if unknown:
        raise ValueError(
            f"feature_tables names {', '.join(unknown)}, expected some of {', '.join(positions)}"
        )
    return [positions[name] for name in feature_tables]


def make_features(
    tables: Sequence[TableSpec],
    feature_tables: Sequence[str] | None = None,
    weights_dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> FeatureMetadata:
    """Lay out tables in one 1-D tensor and describe them for the operators.

    Args:
        tables: the tables, in the order in which they lie in the weights.
        feature_tables: per feature, in the order of offsets and output, the name of its table; several features may
            look up one table. Default: each table is one feature.
        weights_dtype: float32, float16 or bfloat16.
        device: of the ``features`` tensor.

    Raises:
        ValueError: a name is missing or doubled, or the dtype is another one.
    """
    if weights_dtype not in WEIGHT_DTYPES:
        raise ValueError(
            f"weights_dtype is {weights_dtype}, expected {', '.join(map(str, WEIGHT_DTYPES))}"
        )
    positions = feature_positions(tables, feature_tables)
    unit = VECTOR_BYTES // weights_dtype.itemsize
    pitches = [-(-table.dim // unit) * unit for table in tables]
    starts = _starts([table.rows * pitch for table, pitch in zip(tables, pitches, strict=True)])
    dims = [tables[position].dim for position in positions]
    columns = _starts(dims)

    groups = _table_groups(tables, positions, columns, unit)
    slots = sorted(
        range(len(positions)), key=lambda feature: (groups[positions[feature]], positions[feature])
    )
    # Tables that no feature looks up come last.
    counted = dict.fromkeys([*(positions[slot] for slot in slots), *range(len(tables))])
    *first_rows, total_rows = _starts([tables[position].rows for position in counted])
    numbered = dict(zip(counted, first_rows, strict=True))
    first_global_rows = [numbered[position] for position in range(len(tables))]

    features = [
        [
            feature,
            starts[position],
            pitches[position],
            dims[feature],
            tables[position].rows,
            columns[feature],
            position,
            first_global_rows[position],
        ]
        for feature, position in ((slot, positions[slot]) for slot in slots)
    ]
    layout = [LAYOUT_VERSION, len(positions), columns[-1], starts[-1], total_rows]
    layout.append(max((tables[position].rows for position in positions), default=0))
    for group, count in Counter(groups[positions[slot]] for slot in slots).items():
        layout += [*group, count]
    return FeatureMetadata(
        features=torch.tensor(features, dtype=torch.int64, device=device),
        layout=layout,
        feature_tables=positions,
        feature_dims=dims,
        table_offsets=starts[:-1],
        row_pitches=pitches,
        first_global_rows=first_global_rows,
        weights_numel=starts[-1],
    )


def _starts(sizes: Sequence[int]) -> list[int]:
    """Where each of some things begins that lie one after another; the last entry is the end."""
    return [0, *accumulate(sizes)]


def _table_groups(
    tables: Sequence[TableSpec], feature_tables: Sequence[int], columns: Sequence[int], unit: int
) -> list[tuple[int, int]]:
    """Per table the group (bucket, aligned) of its features.

    aligned is 2 if output rows, and the dim and every output column of the table, are whole vectors; else 1, since
    pitches and where tables start are whole vectors by construction. All features of a table are in one group, so that
    the order of slots is an order of tables.
    """
    buckets = _buckets()
    odd = {
        table
        for table, column in zip(feature_tables, columns, strict=False)
        if columns[-1] % unit or column % unit or tables[table].dim % unit
    }
    return [
        (next(bucket for bucket in buckets if bucket >= table.dim), 1 if position in odd else 2)
        for position, table in enumerate(tables)
    ]
