"""Two builds side by side: what decides what a call runs, and variants that came, went or changed, sorted by what got worse."""

from __future__ import annotations

from typing import Literal

from .differences import CellChange, Difference, cell_changes, differences
from .document import Document, Part
from .manifest import Manifest, Variant
from .metrics import METRICS, Change, changes_of, measure


class ChangedVariant(Part):
    """A variant whose code or settings changed.

    ``settings`` are what else the manifest says of it, as before and after: constants, options, budgets, demands on row loads, and facts that
    are no numbers.
    """

    kernel: str
    name: str
    arch: str
    changes: list[Change]
    settings: dict[str, tuple[bool | int | str | None, bool | int | str | None]]

    @property
    def intolerable(self) -> bool:
        """Whether anything became worse beyond the tolerance."""
        return any(change.intolerable for change in self.changes)


class Named(Part):
    """A variant by its name."""

    kernel: str
    name: str
    arch: str


class Comparison(Document):
    """The result of ``diff``: ``differences`` and ``cells`` decide what a call runs, the rest is what a variant is."""

    document: Literal["diff"] = "diff"
    before: str
    after: str
    before_build_id: str
    after_build_id: str
    toolchain: dict[str, tuple[str, str]]
    pack_bytes: dict[str, tuple[int, int]]
    differences: list[Difference]
    cells: list[CellChange]
    added: list[Named]
    removed: list[Named]
    changed: list[ChangedVariant]
    unchanged: int

    @property
    def ok(self) -> bool:
        """Whether nothing that was served is gone, and nothing became worse beyond the tolerance."""
        return not (
            any(variant.intolerable for variant in self.changed)
            or any(cell.intolerable for cell in self.cells)
            or any(difference.worse for difference in self.differences)
        )


def worst_first(variant: ChangedVariant) -> tuple[float, float, str, str]:
    """The key that sorts variants by what got worse."""
    weights = {metric.name: metric.weight for metric in METRICS}
    worse = [change for change in variant.changes if change.worse]
    intolerable = max((weights[change.metric] for change in worse if change.intolerable), default=0)
    # Within a weight, the larger change in relation to what was there.
    score = sum(
        weights[change.metric] * abs(change.after - change.before) / max(change.before, 1)
        for change in worse
    )
    return -intolerable, -score, variant.name, variant.arch


def _settings(variant: Variant) -> dict[str, bool | int | str]:
    loads = [
        f"{wanted.min_count} of {wanted.bytes} bytes{', none narrow' if wanted.forbid_narrow else ''}"
        for wanted in variant.row_loads
    ]
    code = variant.code
    facts = (
        {}
        if code is None
        else {
            "entry": code.entry,
            "ELF ABI": code.elf_abi,
            "occupancy limited by": code.occupancy.limited_by,
        }
    )
    return {
        **{f"axis {name}": value for name, value in variant.axes.items()},
        **variant.constants,
        "num_warps": variant.num_warps,
        "num_stages": variant.num_stages,
        "maxnreg": variant.maxnreg,
        "enable_fp_fusion": variant.enable_fp_fusion,
        **{f"budget of {name}": value for name, value in variant.budget.items()},
        "least row loads": "; ".join(loads) or "none",
        **facts,
    }


# Numbers that places in tables have: they say nothing of the variant itself.
_PLACES = {"cell", "blob"}


def compare(before: Manifest, after: Manifest, names: tuple[str, str]) -> Comparison:
    """Compare two builds.

    Args:
        before: the older one.
        after: the newer one.
        names: what to call them.
    """
    old = {(v.arch, v.name): (kernel, v, code) for kernel, v, code in before.built()}
    new = {(v.arch, v.name): (kernel, v, code) for kernel, v, code in after.built()}
    changed = []
    for key in old.keys() & new.keys():
        kernel, left, left_code = old[key]
        _, right, right_code = new[key]
        if left.model_dump(exclude=_PLACES) == right.model_dump(exclude=_PLACES):
            continue
        first, second = _settings(left), _settings(right)
        settings = {
            name: (first.get(name), second.get(name))
            for name in sorted({*first, *second})
            if first.get(name) != second.get(name)
        }
        changed.append(
            ChangedVariant(
                kernel=kernel,
                name=left.name,
                arch=left.arch,
                changes=changes_of(measure(left_code), measure(right_code)),
                settings=settings,
            )
        )
    return Comparison(
        before=names[0],
        after=names[1],
        before_build_id=before.build_id,
        after_build_id=after.build_id,
        toolchain=_toolchains(before, after),
        pack_bytes={
            arch: (
                before.archs[arch].file_size if arch in before.archs else 0,
                after.archs[arch].file_size if arch in after.archs else 0,
            )
            for arch in sorted({*before.archs, *after.archs})
        },
        differences=differences(before, after),
        cells=cell_changes(before, after),
        added=[
            Named(kernel=new[key][0], name=key[1], arch=key[0])
            for key in sorted(new.keys() - old.keys())
        ],
        removed=[
            Named(kernel=old[key][0], name=key[1], arch=key[0])
            for key in sorted(old.keys() - new.keys())
        ],
        changed=sorted(changed, key=worst_first),
        unchanged=len(old.keys() & new.keys()) - len(changed),
    )


def _toolchains(before: Manifest, after: Manifest) -> dict[str, tuple[str, str]]:
    def flat(manifest: Manifest) -> dict[str, str]:
        tools = manifest.toolchain
        return {
            "triton": tools.triton,
            **{f"ptxas of {arch}": version for arch, version in tools.ptxas.items()},
            "nvdisasm": tools.nvdisasm,
            "nvrtc": tools.nvrtc or "none",
            "flags": " ".join([*tools.flags, *tools.nvrtc_flags]),
        }

    first, second = flat(before), flat(after)
    return {
        name: (first.get(name, "none"), second.get(name, "none"))
        for name in sorted({*first, *second})
        if first.get(name) != second.get(name)
    }
