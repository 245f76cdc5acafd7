"""The baseline: the metrics of every variant of one build, a line each, kept beside the sources so that a change shows in review."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from typing import Literal

from .compare import ChangedVariant, Named, worst_first
from .document import Document, Part
from .errors import AuditError
from .manifest import Manifest
from .metrics import METRICS, changes_of, measure

BASELINE_VERSION = 1
_COLUMNS = [metric.name for metric in METRICS if metric.worse is not None]


class BaselineResult(Document):
    """The result of ``baseline``: what became worse than the recorded numbers, and variants that one side lacks.

    ``other_archs`` are in the baseline and not in the build; their rows are not compared. ``advice`` says what to do where ``ok`` is false.
    """

    document: Literal["baseline"] = "baseline"
    build_id: str
    baseline: str
    ok: bool
    worse: list[ChangedVariant]
    better: int
    unchanged: int
    unrecorded: list[Named]
    gone: list[str]
    other_archs: list[str]
    advice: list[str]


Rows = dict[str, dict[str, dict[str, float]]]


class Baseline(Part):
    """A baseline: metrics by arch, variant and name, of the builds of one profile."""

    profile: str
    columns: list[str]
    rows: Rows


def make_baseline(manifest: Manifest, kept: Baseline | None = None, where: str = "") -> bytes:
    """The baseline file of a build.

    Args:
        manifest: the build.
        kept: an older baseline, whose rows stay for archs that the build has not.
        where: its name.

    Raises:
        AuditError: rows that would stay are of another profile, or lack a metric.
    """
    rows: Rows = {}
    for _, variant, code in manifest.built():
        rows.setdefault(variant.arch, {})[variant.name] = measure(code)
    others = {} if kept is None else {arch: kept.rows[arch] for arch in kept.rows.keys() - rows}
    if kept is not None and others:
        _expect_same_kind(manifest, kept, where)
    archs = {**rows, **others}
    blocks = []
    for arch in sorted(archs):
        lines = [
            f"  {json.dumps(name)}: {json.dumps([_number(values[column]) for column in _COLUMNS])}"
            for name, values in sorted(archs[arch].items())
        ]
        blocks.append(f" {json.dumps(arch)}: {{\n" + ",\n".join(lines) + "\n }")
    head = {"version": BASELINE_VERSION, "profile": manifest.profile, "columns": _COLUMNS}
    body = ",\n".join(blocks)
    return f'{json.dumps(head)[:-1]},\n"variants": {{\n{body}\n}}}}\n'.encode()


def _expect_same_kind(manifest: Manifest, baseline: Baseline, where: str) -> None:
    """Rows of the baseline can stand beside those of the build."""
    if manifest.profile != baseline.profile:
        raise AuditError(
            f"{where} holds the profile {baseline.profile}, this build is of {manifest.profile}: build with the profile"
            f" {baseline.profile}, or record this one in a file of its own with --accept"
        )
    missing = [column for column in _COLUMNS if column not in baseline.columns]
    if missing:
        raise AuditError(
            f"{where} lacks {', '.join(missing)}, which this tool compares: record a build of all of its archs"
            f" ({', '.join(sorted(baseline.rows))}) with --accept"
        )


def _number(value: float) -> float:
    return int(value) if value == int(value) else value


def _finite(value: object) -> float:
    found = float(str(value))
    if not math.isfinite(found):
        raise ValueError(f"{value} is no number")
    return found


def read_baseline(data: bytes, where: str) -> Baseline:
    """A baseline from its file.

    Raises:
        AuditError: it is damaged or of another version.
    """
    try:
        found = json.loads(data)
        if found["version"] != BASELINE_VERSION:
            raise AuditError(
                f"{where} has version {found['version']!r}, this tool reads {BASELINE_VERSION}: delete it and record anew"
                " with --accept"
            )
        rows = {
            str(arch): {
                str(name): {
                    str(column): _finite(value)
                    for column, value in zip(found["columns"], values, strict=True)
                }
                for name, values in variants.items()
            }
            for arch, variants in found["variants"].items()
        }
        return Baseline(profile=str(found["profile"]), columns=found["columns"], rows=rows)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise AuditError(f"{where} is no baseline, or damaged: {error!r}") from None


def check_baseline(manifest: Manifest, data: bytes, where: str) -> BaselineResult:
    """Compare a build with a baseline: each has every variant of the other on the build's archs, and none is worse.

    Args:
        manifest: the build.
        data: the baseline file.
        where: its name.

    Raises:
        AuditError: the file is damaged, empty, of another version or another profile, or lacks a metric.
    """
    recorded = read_baseline(data, where)
    empty = [arch for arch, variants in recorded.rows.items() if not variants]
    if empty or not recorded.rows:
        raise AuditError(
            f"{where} holds no variant{' of ' + ', '.join(empty) if empty else ''}: nothing can be held against it; record a"
            " build with --accept"
        )
    _expect_same_kind(manifest, recorded, where)
    worse, unrecorded = [], []
    better = unchanged = 0
    seen = set()
    for kernel, variant, code in manifest.built():
        seen.add((variant.arch, variant.name))
        row = recorded.rows.get(variant.arch, {}).get(variant.name)
        if row is None:
            unrecorded.append(Named(kernel=kernel, name=variant.name, arch=variant.arch))
            continue
        changes = changes_of(row, measure(code))
        found = ChangedVariant(
            kernel=kernel, name=variant.name, arch=variant.arch, changes=changes, settings={}
        )
        if found.intolerable:
            worse.append(found)
        elif changes:
            better += 1
        else:
            unchanged += 1
    gone = [
        f"{name} on {arch}"
        for arch in sorted(recorded.rows.keys() & manifest.archs.keys())
        for name in sorted(recorded.rows[arch])
        if (arch, name) not in seen
    ]
    reasons: dict[str, Sequence[object]] = {
        "variants are worse beyond the tolerance": worse,
        "variants of the build are not in the baseline": unrecorded,
        "variants of the baseline are not in the build": gone,
    }
    return BaselineResult(
        build_id=manifest.build_id,
        baseline=f"{where} (SHA-256 {hashlib.sha256(data).hexdigest()[:12]})",
        ok=not any(reasons.values()),
        worse=sorted(worse, key=worst_first),
        better=better,
        unchanged=unchanged,
        unrecorded=unrecorded,
        gone=gone,
        other_archs=sorted(recorded.rows.keys() - manifest.archs.keys()),
        advice=[
            f"{len(found)} {what}: if that is meant, record the build with --accept and commit the file"
            for what, found in reasons.items()
            if found
        ],
    )
