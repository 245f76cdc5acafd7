"""Table metadata: from names, rows and dims to the `features` tensor and the `layout` integers of the operators.

docs/operators.md describes both. Tables lie one after another in one 1-D tensor; a row starts every ``row_pitch``
elements, the dim rounded up to 16 bytes, so that rows can be read 16 bytes at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
        weights_numel: elements of all tables.
    """

    features: torch.Tensor
    layout: list[int]
    feature_tables: list[int]
    feature_dims: list[int]
    table_offsets: list[int]
    row_pitches: list[int]
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
        tables: the tables, in the order in which they lie.
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
    starts, first_rows = [0], [0]
    for table, pitch in zip(tables, pitches, strict=True):
        starts.append(starts[-1] + table.rows * pitch)
        first_rows.append(first_rows[-1] + table.rows)

    buckets = _buckets()
    groups: dict[int, list[list[int]]] = {}
    column = 0
    for feature, position in enumerate(positions):
        dim = tables[position].dim
        bucket = next(bucket for bucket in buckets if bucket >= dim)
        row = [feature, starts[position], pitches[position], dim, tables[position].rows]
        row += [column, position, first_rows[position]]
        groups.setdefault(bucket, []).append(row)
        column += dim

    ordered = sorted(groups.items())
    layout = [LAYOUT_VERSION, len(positions), column, starts[-1], first_rows[-1]]
    layout.append(max(table.rows for table in tables))
    for bucket, rows in ordered:
        # Aligned: pitches and where tables start are multiples of 16 bytes by construction.
        layout += [bucket, 1, len(rows)]
    return FeatureMetadata(
        features=torch.tensor(
            [row for _, rows in ordered for row in rows], dtype=torch.int64, device=device
        ),
        layout=layout,
        feature_tables=positions,
        feature_dims=[tables[position].dim for position in positions],
        table_offsets=starts[:-1],
        row_pitches=pitches,
        weights_numel=starts[-1],
    )
