"""What an installed wheel holds, as rich tables: read from the manifest beside its library."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.table import Table

MIB = 2**20


def read(lib: Path) -> dict[str, Any]:
    """The manifest in an installed package's ``lib`` folder."""
    manifest: dict[str, Any] = json.loads((lib / "manifest.json").read_text())
    return manifest


def built_variants(manifest: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every variant with a cubin, of every kernel and arch."""
    for kernel in manifest["kernels"].values():
        yield from (variant for variant in kernel["variants"] if variant["built"])


def built_table(manifest: dict[str, Any], lib: Path) -> Table:
    """One row per arch: variants, unique cubins, sizes; and the library's size in the caption."""
    table = Table(title=f"What was built: profile {manifest['profile']}")
    for column in ("arch", "variants", "unique cubins", "cubins MiB", "pack MiB"):
        table.add_column(column, justify="left" if column == "arch" else "right")
    for name, arch in sorted(manifest["archs"].items()):
        variants = [variant for variant in built_variants(manifest) if variant["arch"] == name]
        table.add_row(
            name,
            str(len(variants)),
            str(arch["blob_count"]),
            f"{sum(variant['cubin_bytes'] for variant in variants) / MIB:.2f}",
            f"{arch['file_size'] / MIB:.2f}",
        )
    library = (lib / "libtbe_aot.so").stat().st_size
    table.caption = f"libtbe_aot.so {library / MIB:.2f} MiB, build {manifest['build_id'][:12]}"
    return table


def largest_table(manifest: dict[str, Any], count: int = 10) -> Table:
    """The variants with the most registers."""
    table = Table(title="Largest variants by registers")
    for column in ("variant", "arch", "registers", "spill bytes", "shared bytes", "warps", "KiB"):
        table.add_column(column, justify="left" if column in ("variant", "arch") else "right")
    variants = sorted(
        built_variants(manifest), key=lambda v: (-v["registers"], v["name"], v["arch"])
    )
    for variant in variants[:count]:
        table.add_row(
            variant["name"],
            variant["arch"],
            str(variant["registers"]),
            str(variant["spill_bytes"]),
            str(variant["shared_bytes"]),
            str(variant["num_warps"]),
            f"{variant['cubin_bytes'] / 1024:.1f}",
        )
    return table
