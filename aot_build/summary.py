"""Tables for people: what a plan holds, and what a build made."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console
from rich.table import Table

from .build import BuildResult
from .errors import BuildError, format_names, format_values
from .plan import Plan

LARGEST_SHOWN = 5


def print_plan(plan: Plan, console: Console) -> None:
    """The kernels, their axes, and how many variants the profile selects."""
    kernels = Table(title=f"profile {plan.profile}, {', '.join(plan.archs)}")
    for column in ("kernel", "cells", "variants", "selected", "args bytes", "summary"):
        kernels.add_column(column, justify="left" if column in {"kernel", "summary"} else "right")
    axes = Table(title="axes")
    for column in ("kernel", "axis", "values", "meaning"):
        axes.add_column(column)
    for kernel in plan.kernels.values():
        selected = sum(variant.selected for variant in kernel.variants)
        counts = (len(kernel.cells), len(kernel.variants), selected, kernel.args_size)
        kernels.add_row(kernel.name, *map(str, counts), kernel.summary)
        for axis in kernel.axes:
            axes.add_row(kernel.name, axis.name, format_values(axis.values), axis.doc)
    console.print(kernels)
    console.print(axes)


def print_kernel(plan: Plan, name: str, console: Console) -> None:
    """Every variant of a kernel with its constants on each arch."""
    if name not in plan.kernels:
        raise BuildError(f"no kernel {name!r}; allowed: {format_names(plan.kernels)}")
    kernel = plan.kernels[name]
    table = Table(title=f"{name}: {kernel.summary}")
    for column in ("cell", "variant", "built", *kernel.archs):
        table.add_column(column)
    for variant in kernel.variants:
        settings = [
            " ".join(
                f"{key}={value}"
                for key, value in {
                    **build.kernel_constants,
                    **build.launch_constants,
                    **build.options,
                }.items()
            )
            for build in variant.builds.values()
        ]
        built = "yes" if variant.selected else "no"
        table.add_row(str(variant.cell), variant.name, built, *settings)
    console.print(table)


def print_build(result: BuildResult, console: Console) -> None:
    """What was built, how big it is, and the variants that need most registers."""
    manifest = json.loads((result.out / "manifest.json").read_bytes())
    packs = Table(title=f"profile {manifest['profile']}, build {manifest['build_id'][:16]}")
    for column in ("arch", "variants", "unique cubins", "pack MiB"):
        packs.add_column(column, justify="left" if column == "arch" else "right")
    built = [variant for variant in _variants(manifest) if variant["built"]]
    for arch, entry in manifest["archs"].items():
        variants = sum(variant["arch"] == arch for variant in built)
        size = f"{entry['file_size'] / 2**20:.2f}"
        packs.add_row(arch, str(variants), str(entry["blob_count"]), size)
    largest = Table(title="most registers")
    for column in ("variant", "arch", "registers", "spilled bytes", "cubin bytes"):
        largest.add_column(column, justify="left" if column in {"variant", "arch"} else "right")
    for variant in sorted(built, key=lambda v: (-v["registers"], v["name"]))[:LARGEST_SHOWN]:
        keys = ("name", "arch", "registers", "spill_bytes", "cubin_bytes")
        largest.add_row(*(str(variant[key]) for key in keys))
    console.print(packs)
    console.print(largest)
    console.print(
        f"{result.out}: {result.compiled} variants compiled, {result.cached} from the cache, "
        f"{result.seconds:.1f} s",
        soft_wrap=True,
        markup=False,  # A folder may have brackets in its name.
    )


def _variants(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    return [variant for kernel in manifest["kernels"].values() for variant in kernel["variants"]]
