"""Two builds side by side: variants that came, went or changed, sorted by what got worse."""

from __future__ import annotations

import hashlib
import json
from typing import Literal

from .document import Document, Part
from .errors import AuditError
from .manifest import Manifest, Variant
from .metrics import METRICS, measure

BASELINE_VERSION = 1


class Change(Part):
    """One metric of a variant before and after; ``worse`` if it became worse, ``intolerable`` if beyond the tolerance."""

    metric: str
    before: float
    after: float
    worse: bool
    intolerable: bool


class ChangedVariant(Part):
    """A variant whose code or settings changed; ``settings`` are constants and launch options, as before and after."""

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
    """The result of ``diff``."""

    document: Literal["diff"] = "diff"
    before: str
    after: str
    before_build_id: str
    after_build_id: str
    toolchain: dict[str, tuple[str, str]]
    pack_bytes: dict[str, tuple[int, int]]
    added: list[Named]
    removed: list[Named]
    changed: list[ChangedVariant]
    unchanged: int

    @property
    def ok(self) -> bool:
        """Whether nothing became worse beyond the tolerance."""
        return not any(variant.intolerable for variant in self.changed)


def changes_of(before: dict[str, float], after: dict[str, float]) -> list[Change]:
    """The metrics that differ; only those that both have."""
    return [
        Change(
            metric=metric.name,
            before=before[metric.name],
            after=after[metric.name],
            worse=metric.worsening(before[metric.name], after[metric.name]) > 0,
            intolerable=metric.intolerable(before[metric.name], after[metric.name]),
        )
        for metric in METRICS
        if metric.name in before
        and metric.name in after
        and before[metric.name] != after[metric.name]
    ]


def _worst_first(variant: ChangedVariant) -> tuple[float, float, str, str]:
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
    return {
        **variant.constants,
        "num_warps": variant.num_warps,
        "num_stages": variant.num_stages,
        "maxnreg": variant.maxnreg,
    }


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
        first, second = _settings(left), _settings(right)
        settings = {
            name: (first.get(name), second.get(name))
            for name in sorted({*first, *second})
            if first.get(name) != second.get(name)
        }
        if left_code.cubin_sha256 != right_code.cubin_sha256 or settings:
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
        added=[
            Named(kernel=new[key][0], name=key[1], arch=key[0])
            for key in sorted(new.keys() - old.keys())
        ],
        removed=[
            Named(kernel=old[key][0], name=key[1], arch=key[0])
            for key in sorted(old.keys() - new.keys())
        ],
        changed=sorted(changed, key=_worst_first),
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


# A baseline: the metrics of every variant of one build, a line each, kept beside the sources so that a change shows in review.
_COLUMNS = [metric.name for metric in METRICS if metric.worse is not None]


class BaselineResult(Document):
    """The result of ``baseline``: what became worse than the recorded numbers, and variants that one side lacks."""

    document: Literal["baseline"] = "baseline"
    build_id: str
    baseline: str
    ok: bool
    worse: list[ChangedVariant]
    better: int
    unchanged: int
    unrecorded: list[Named]
    gone: list[str]


def make_baseline(manifest: Manifest) -> bytes:
    """The baseline file of a build."""
    archs: dict[str, list[str]] = {}
    for _, variant, code in sorted(manifest.built(), key=lambda item: (item[1].arch, item[1].name)):
        values = measure(code)
        numbers = json.dumps([_number(values[name]) for name in _COLUMNS])
        archs.setdefault(variant.arch, []).append(f"  {json.dumps(variant.name)}: {numbers}")
    body = ",\n".join(
        f" {json.dumps(arch)}: {{\n" + ",\n".join(lines) + "\n }" for arch, lines in archs.items()
    )
    head = {"version": BASELINE_VERSION, "profile": manifest.profile, "columns": _COLUMNS}
    return f'{json.dumps(head)[:-1]},\n"variants": {{\n{body}\n}}}}\n'.encode()


def _number(value: float) -> float:
    return int(value) if value == int(value) else value


def read_baseline(data: bytes, where: str) -> dict[tuple[str, str], dict[str, float]]:
    """The metrics of a baseline by arch and variant.

    Raises:
        AuditError: it is damaged or of another version.
    """
    try:
        found = json.loads(data)
        if found["version"] != BASELINE_VERSION:
            raise AuditError(
                f"{where} has version {found['version']!r}, this tool reads {BASELINE_VERSION}: make it anew"
            )
        return {
            (str(arch), str(name)): {
                str(column): float(value)
                for column, value in zip(found["columns"], values, strict=True)
            }
            for arch, variants in found["variants"].items()
            for name, values in variants.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise AuditError(f"{where} is no baseline, or damaged: {error!r}") from None


def check_baseline(manifest: Manifest, data: bytes, where: str) -> BaselineResult:
    """Compare a build with a baseline.

    Args:
        manifest: the build.
        data: the baseline file.
        where: its name.

    Raises:
        AuditError: the file is damaged or of another version.
    """
    recorded = read_baseline(data, where)
    worse, unrecorded = [], []
    better = unchanged = 0
    seen = set()
    for kernel, variant, code in manifest.built():
        key = (variant.arch, variant.name)
        seen.add(key)
        if key not in recorded:
            unrecorded.append(Named(kernel=kernel, name=variant.name, arch=variant.arch))
            continue
        changes = changes_of(recorded[key], measure(code))
        found = ChangedVariant(
            kernel=kernel, name=variant.name, arch=variant.arch, changes=changes, settings={}
        )
        if found.intolerable:
            worse.append(found)
        elif changes:
            better += 1
        else:
            unchanged += 1
    # A build of some archs is held against their part of the baseline.
    gone = [
        f"{name} on {arch}"
        for arch, name in sorted(recorded.keys() - seen)
        if arch in manifest.archs
    ]
    return BaselineResult(
        build_id=manifest.build_id,
        baseline=f"{where} (SHA-256 {hashlib.sha256(data).hexdigest()[:12]})",
        ok=not worse,
        worse=sorted(worse, key=_worst_first),
        better=better,
        unchanged=unchanged,
        unrecorded=unrecorded,
        gone=gone,
    )
