"""What decides what a call runs, side by side: optimizers, archs, kernels, and the variant that each cell leads to."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from .document import Part
from .manifest import Arch, AxisValue, Kernel, Manifest, Variant
from .metrics import Change, changes_of, measure


class Difference(Part):
    """A fact of a build, an arch or a kernel before and after; None where there is none. ``worse``: something that was served is gone."""

    subject: str
    what: str
    before: str | None
    after: str | None
    worse: bool


class CellChange(Part):
    """Cells that lead elsewhere: variants by name, or why there is none. ``lost``: they had a variant and have none any more.

    ``changes`` are the metrics of the two variants, if there are two.
    """

    kernel: str
    arch: str
    before: str
    after: str
    lost: bool
    changes: list[Change]
    cells: list[str]

    @property
    def intolerable(self) -> bool:
        """Whether the cells lost their variant or got one that is worse beyond the tolerance."""
        return self.lost or any(change.intolerable for change in self.changes)


Facts = Mapping[str, str]


def differences(before: Manifest, after: Manifest) -> list[Difference]:
    """Every fact beside variants and cells that differs, in the order build, archs, kernels."""
    found = _compare("build", _build_facts(before), _build_facts(after), "optimizer ")
    for name in sorted({*before.archs, *after.archs}):
        if missing := _only_one(f"arch {name}", before.archs.get(name), after.archs.get(name)):
            found.append(missing)
            continue
        old, new = before.archs[name], after.archs[name]
        found += [
            difference.model_copy(update={"worse": _needs_newer(difference, old, new)})
            for difference in _compare(f"arch {name}", _arch_facts(old), _arch_facts(new))
        ]
    for name in sorted({*before.kernels, *after.kernels}):
        subject = f"kernel {name}"
        if missing := _only_one(subject, before.kernels.get(name), after.kernels.get(name)):
            found.append(missing)
            continue
        found += _compare(
            subject, _kernel_facts(before.kernels[name]), _kernel_facts(after.kernels[name])
        )
    return found


def _compare(subject: str, before: Facts, after: Facts, promise: str = "\0") -> list[Difference]:
    """``promise`` begins the facts whose absence is worse."""
    return [
        Difference(
            subject=subject,
            what=what,
            before=before.get(what),
            after=after.get(what),
            worse=what not in after and what.startswith(promise),
        )
        for what in dict.fromkeys([*before, *after])
        if before.get(what) != after.get(what)
    ]


def _only_one(subject: str, before: object, after: object) -> Difference | None:
    if (before is None) == (after is None):
        return None
    return Difference(
        subject=subject,
        what="all of it",
        before=None if before is None else "there",
        after=None if after is None else "there",
        worse=after is None,
    )


def _needs_newer(difference: Difference, before: Arch, after: Arch) -> bool:
    def version(text: str) -> list[int]:
        return [int(part) for part in text.split(".") if part.isdigit()]

    return difference.what == "least driver" and version(after.least_driver) > version(
        before.least_driver
    )


def _build_facts(manifest: Manifest) -> Facts:
    formulas = {f"optimizer {name}": value for name, value in manifest.optimizers.items()}
    return {"profile": manifest.profile, **formulas}


def _arch_facts(arch: Arch) -> Facts:
    return {
        "compute capability": ".".join(map(str, arch.compute_capability)),
        "least driver": arch.least_driver,
        "ELF ABI": " ".join(arch.elf_abi),
        **{f"limit of {name}": str(value) for name, value in arch.limits.model_dump().items()},
    }


def _kernel_facts(kernel: Kernel) -> Facts:
    axes = {
        f"axis {axis.name}": ", ".join(
            f"{label} ({value})" for label, value in zip(axis.labels, axis.values, strict=True)
        )
        for axis in kernel.axes
    }
    params = {
        f"parameter {param.name}": f"{param.type}, {param.size} bytes at {param.offset}"
        for param in kernel.params
    }
    return {
        "function": kernel.function,
        "language": kernel.language,
        "archs": " ".join(kernel.archs),
        "instead of": " ".join(kernel.instead_of),
        "serves": kernel.serves,
        "source": kernel.source_sha256[:16],
        "constants of the launcher": " ".join(kernel.constants),
        "bytes of arguments": str(kernel.args_size),
        **axes,
        **params,
    }


@dataclass(frozen=True)
class _Target:
    """Where a cell leads: a variant that is built, or none and why."""

    text: str
    variant: Variant | None = None


def _targets(kernel: Kernel, arch: str) -> list[_Target]:
    """Per cell."""
    variants = kernel.on(arch)
    reasons = {excluded.cell: excluded.reason for excluded in kernel.excluded}
    if not variants:
        return [_Target(f"not made for {arch}")] * len(kernel.cells)
    targets = []
    for cell, number in enumerate(kernel.cells):
        if not 0 <= number < len(variants):
            targets.append(_Target(f"refused: {reasons.get(cell, 'no reason')}"))
            continue
        variant = variants[number]
        targets.append(
            _Target(variant.name, variant)
            if variant.built
            else _Target(f"left out: {variant.name}")
        )
    return targets


def cell_changes(before: Manifest, after: Manifest) -> list[CellChange]:
    """Cells of kernels and archs that both have and that lead elsewhere, what got lost or worse first."""
    groups: dict[tuple[str, str, str, str], list[str]] = {}
    ends: dict[tuple[str, str, str, str], tuple[_Target, _Target]] = {}
    archs = [arch for arch in before.archs if arch in after.archs]
    for name in before.kernels.keys() & after.kernels.keys():
        old, new = before.kernels[name], after.kernels[name]
        partners = [_partners(old, new, cell) for cell in range(len(old.cells))]
        for arch in archs:
            now = _targets(new, arch)
            for cell, left in enumerate(_targets(old, arch)):
                others = partners[cell]
                rights = [_Target(others)] if isinstance(others, str) else [now[n] for n in others]
                # A cell that an axis has split is served if one of its parts is.
                right = next((target for target in rights if target.variant), rights[0])
                if left.text != right.text:
                    key = (name, arch, left.text, right.text)
                    groups.setdefault(key, []).append(_words(old, cell))
                    ends[key] = (left, right)
    found = [_change(key, cells, *ends[key]) for key, cells in groups.items()]
    return sorted(
        found,
        key=lambda change: (
            not change.lost,
            not change.intolerable,
            change.kernel,
            change.arch,
            change.before,
        ),
    )


def _change(
    key: tuple[str, str, str, str], cells: list[str], left: _Target, right: _Target
) -> CellChange:
    kernel, arch, before, after = key
    old = left.variant.code if left.variant else None
    new = right.variant.code if right.variant else None
    return CellChange(
        kernel=kernel,
        arch=arch,
        before=before,
        after=after,
        lost=left.variant is not None and right.variant is None,
        changes=[] if old is None or new is None else changes_of(measure(old), measure(new)),
        cells=cells,
    )


def _words(kernel: Kernel, cell: int) -> str:
    chosen = kernel.axes_of(cell)
    return ", ".join(
        f"{axis.name} {axis.labels[axis.values.index(chosen[axis.name])]}" for axis in kernel.axes
    )


def _partners(old: Kernel, new: Kernel, cell: int) -> list[int] | str:
    """The cells of a newer kernel for a cell of the older one, or the axis value that is gone.

    An axis that only one of them has is free.
    """
    chosen = old.axes_of(cell)
    choices: list[list[AxisValue]] = []
    for axis in new.axes:
        if axis.name not in chosen:
            choices.append(list(axis.values))
        elif chosen[axis.name] in axis.values:
            choices.append([chosen[axis.name]])
        else:
            return f"axis {axis.name} has no value {chosen[axis.name]}"
    names = [axis.name for axis in new.axes]
    return [
        new.cell_of(dict(zip(names, values, strict=True))) for values in itertools.product(*choices)
    ]
