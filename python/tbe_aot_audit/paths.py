"""Which kernels a call launches and which others run instead, as csrc_launcher/core/plan_*.cpp and its neighbours decide it.

What is not known of a call leaves a verdict open. Every number that decides is a constant in the manifest.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from .call import Facts
from .errors import AuditError
from .manifest import Axis, AxisValue, Kernel, Variant

LOOKUP = "forward"
# Elements that a lane of forward_small_table stores at once.
STORED_AT_ONCE = 4
# The formula that one launch can sum and update with.
FUSED_FORMULA = "rowwise"
# Labels of the axes `shape` and `checked`.
SHORTEST = "short"
TRUSTING, CHECKED = "trusting", "checked"


class Verdict(NamedTuple):
    """Whether something happens, None: that is open, and why."""

    taken: bool | None
    because: str


Condition = tuple[bool | None, str]


def judge(against: Iterable[Condition], otherwise: str) -> Verdict:
    """The verdict where these conditions speak against it, each with its words."""
    conditions = list(against)
    for holds, words in conditions:
        if holds:
            return Verdict(False, words)
    unknown = [words for holds, words in conditions if holds is None]
    if unknown:
        return Verdict(None, f"unless {', or '.join(unknown)}")
    return Verdict(True, otherwise)


def _either(*parts: bool | None) -> bool | None:
    if any(parts):
        return True
    return None if None in parts else False


def _agreed(answers: Iterable[bool | None]) -> bool | None:
    found = set(answers)
    return found.pop() if len(found) == 1 else None


def _below(value: float | None, bound: float | None) -> bool | None:
    return None if value is None or bound is None else value < bound


def _is(value: object, other: object) -> bool | None:
    return None if value is None else value == other


def _is_not(value: object, other: object) -> bool | None:
    return None if value is None else value != other


def _axis(kernel: Kernel, name: str) -> Axis:
    for axis in kernel.axes:
        if axis.name == name:
            return axis
    raise AuditError(
        f"{kernel.function} has no axis {name}: the build is of another version than this tool, use the tbe-aot-audit that came"
        " with it"
    )


def _numbers(kernel: Kernel, name: str) -> list[int]:
    return sorted(value for value in _axis(kernel, name).values if isinstance(value, int))


def _largest(kernel: Kernel, name: str) -> int | None:
    return max(_numbers(kernel, name), default=None)


def _values(axis: Axis, known: AxisValue | None) -> list[AxisValue]:
    """By value or label; all of them where nothing is known, none where it is none of them."""
    if known is None:
        return list(axis.values)
    return [
        value
        for value, label in zip(axis.values, axis.labels, strict=True)
        if known in (value, label)
    ]


def _cells(kernel: Kernel, known: dict[str, AxisValue | None]) -> Iterator[dict[str, AxisValue]]:
    names = [axis.name for axis in kernel.axes]
    for chosen in itertools.product(*(_values(axis, known.get(axis.name)) for axis in kernel.axes)):
        yield dict(zip(names, chosen, strict=True))


def _variant(facts: Facts, kernel: Kernel, axes: dict[str, AxisValue]) -> Variant | None:
    variants = kernel.on(facts.arch)
    number = kernel.cells[kernel.cell_of(axes)]
    return variants[number] if 0 <= number < len(variants) else None


def _variants(facts: Facts, kernel: Kernel, **known: AxisValue | None) -> list[Variant | None]:
    """Of all cells that fit; None for one without a variant."""
    return [_variant(facts, kernel, axes) for axes in _cells(kernel, known)]


def _constant(variant: Variant | None, name: str) -> int | None:
    value = None if variant is None else variant.constants.get(name)
    return value if isinstance(value, int) else None


# A constant that ends an axis value's range, the fact that is compared with it, and words for that.
THRESHOLDS: dict[str, tuple[Callable[[Facts], float | None], str]] = {
    "MEAN_LENGTH_BELOW": (lambda facts: facts.mean_length, "mean bag length"),
    "LOOKUPS_BELOW": (lambda facts: facts.lookups, "number of lookups"),
}


def pick_by_threshold(
    facts: Facts, kernel: Kernel, axis: Axis, axes: dict[str, AxisValue]
) -> tuple[AxisValue, str] | None:
    """The value of an axis whose ranges end at a constant, for values of the other axes.

    As the planner does it: from the last value to the first, which serves the rest.
    """
    name = next((name for name in THRESHOLDS if name in kernel.constants), None)
    if name is None:
        return None
    quantity, words = THRESHOLDS[name]
    value = quantity(facts)
    if value is None:
        return None
    ends = []
    for choice in reversed(axis.values[1:]):
        end = _constant(_variant(facts, kernel, {**axes, axis.name: choice}), name) or 0
        if value < end:
            return choice, f"the {words}, {value:g}, is below {end}"
        ends.append(end)
    if not any(ends):
        return axis.values[0], "one serves all of this bucket"
    return axis.values[0], f"the {words}, {value:g}, is {max(ends)} or more"


def _is_shortest(facts: Facts, kernel: Kernel) -> bool | None:
    """Whether the lookup without a check would take the shape for the shortest bags."""
    if facts.shape is not None:
        return facts.shape == SHORTEST
    axis = _axis(kernel, "shape")
    known = dict.fromkeys((axis.name for axis in kernel.axes), None) | {
        "weight_dtype": facts.dtype,
        "bucket": facts.bucket,
        "index_width": facts.index_width,
        "weighted": False,
        "aligned": True,
        "shape": SHORTEST,
        "checked": TRUSTING,
    }
    picked = [pick_by_threshold(facts, kernel, axis, axes) for axes in _cells(kernel, known)]
    return _agreed(
        None if found is None else axis.labels[axis.values.index(found[0])] == SHORTEST
        for found in picked
    )


def _small(facts: Facts) -> Iterator[Condition]:
    """Why there is not one feature with a small table."""
    kernel = facts.manifest.kernels.get("forward_small_table")
    if kernel is None:
        yield True, "the build has no forward_small_table, whose axes say what is small"
        return
    call = facts.call
    # The launcher's least dim is the first bucket, whole: dims of 33 to 63 have that bucket, too.
    least = min(_numbers(kernel, "bucket"), default=None)
    yield call.features != 1, "there is more than one feature"
    yield (
        _below(_largest(kernel, "rows"), call.rows),
        "the table has too many rows",
    )
    yield _below(call.dim, least), f"the dim is below {least}"
    yield _below(_largest(kernel, "bucket"), call.dim), "rows are too wide"


def _against_small_lookup(facts: Facts) -> Iterator[Condition]:
    kernel = facts.kernels.get("forward_small_table")
    if kernel is None:
        yield True, f"the build has no forward_small_table for {facts.arch}"
        return
    call = facts.call
    yield call.small_tables == "never", "small_tables is never"
    yield from _small(facts)
    yield _is(facts.dtype, "fp32"), "the table is fp32"
    yield facts.weighted, "there are per-sample weights"
    yield not facts.padded, "rows of the table do not start at multiples of 16 bytes"
    found = _variants(
        facts,
        kernel,
        bf16=facts.dtype,
        bucket=facts.bucket,
        rows=None
        if call.rows is None
        else next((size for size in _numbers(kernel, "rows") if size >= call.rows), None),
        index_width=facts.index_width,
        checked=TRUSTING,
    )
    if not found:
        return
    yield _agreed(variant is None for variant in found), "rows are too many and too wide"
    if call.small_tables == "always":
        return
    odd = None if call.dim is None else call.dim % STORED_AT_ONCE != 0
    names = {"MEAN_LENGTH_FROM": False, "ODD_MEAN_LENGTH_FROM": True}
    starts = [
        _constant(variant, name)
        for variant in found
        for name, is_odd in names.items()
        if variant and odd in {None, is_odd}
    ]
    yield (
        _agreed(start == 0 for start in starts),
        "for a table of this dtype and size it runs only when asked for",
    )
    yield (
        _agreed(_below(facts.mean_length, start) for start in starts),
        f"bags are shorter than {' or '.join(map(str, sorted({s for s in starts if s})))} on average",
    )


def small_lookup(facts: Facts) -> Verdict:
    """Whether forward_small_table takes a lookup."""
    return judge(
        _against_small_lookup(facts), "one feature with a small table, by bags long enough"
    )


def _against_stealing(facts: Facts) -> Iterator[Condition]:
    kernel = facts.kernels.get("forward_work_stealing")
    yield facts.call.work_stealing == "never", "work_stealing is never"
    if kernel is None:
        yield True, "blocks of this arch cannot take over others"
        return
    yield _is(facts.dtype, "fp32"), "the tables are fp32"
    yield facts.weighted, "there are per-sample weights"
    yield not facts.padded, "rows do not start at multiples of 16 bytes"
    yield _below(_largest(kernel, "bucket"), facts.bucket), "rows are too wide"


def fused_checks(facts: Facts) -> Verdict:
    """Whether the kernel ``forward`` checks the indices that it looks up."""
    return judge(
        _against_fused_checks(facts), "bags are short enough to check indices in the lookup"
    )


def _against_fused_checks(facts: Facts) -> Iterator[Condition]:
    call = facts.call
    kernel = facts.kernels.get(LOOKUP)
    yield call.bounds_check == "none", "bounds_check is none: indices are trusted"
    yield call.bounds_check == "fatal", "bounds_check is fatal: they are checked before"
    yield call.fused_checks == "never", "fused_checks is never: they are checked before"
    yield facts.weighted, "there are per-sample weights: indices are checked before"
    yield not facts.padded, "rows do not start at multiples of 16 bytes: indices are checked before"
    if kernel is None:
        return
    found = _variants(
        facts,
        kernel,
        weight_dtype=facts.dtype,
        bucket=facts.bucket,
        index_width=facts.index_width,
        weighted=False,
        aligned=True,
        shape=SHORTEST,
        checked=CHECKED,
    )
    yield (
        _agreed(variant is None for variant in found),
        "rows are too wide for several bags in a program: indices are checked before",
    )
    if call.fused_checks == "always":
        return
    stealing = judge(_against_stealing(facts), "").taken
    yield stealing, "the kernel that steals work does not check indices: they are checked before"
    short = _is_shortest(facts, kernel)
    yield _is_not(short, True), "bags are too long on average: indices are checked before"


def _checks_in_lookup(facts: Facts) -> bool | None:
    call = facts.call
    if call.bounds_check in {"none", "fatal"} or call.fused_checks == "never":
        return False
    return _either(small_lookup(facts).taken, fused_checks(facts).taken)


def small_table_checks(facts: Facts) -> Verdict:
    """Whether forward_small_table checks the indices that it counts."""
    call = facts.call
    against = [
        (call.bounds_check == "none", "bounds_check is none: indices are trusted"),
        (call.bounds_check == "fatal", "bounds_check is fatal: they are checked before"),
        (call.fused_checks == "never", "fused_checks is never: they are checked before"),
    ]
    return judge(against, f"bounds_check is {call.bounds_check}")


def _no_bags(facts: Facts) -> Condition:
    return facts.bags == 0, "there are no bags"


def _forward(facts: Facts) -> Verdict:
    against = [
        _no_bags(facts),
        (small_lookup(facts).taken, "forward_small_table runs instead"),
        (_steals(facts).taken, "forward_work_stealing runs instead"),
    ]
    return judge(against, "the general kernel: no narrower one takes the lookup")


def _forward_small_table(facts: Facts) -> Verdict:
    return judge([_no_bags(facts), *_against_small_lookup(facts)], small_lookup(facts).because)


def _steals(facts: Facts) -> Verdict:
    against = [
        _no_bags(facts),
        *_against_stealing(facts),
        (small_lookup(facts).taken, "forward_small_table runs instead"),
        (fused_checks(facts).taken, "the lookup checks the indices"),
    ]
    return judge(against, "work_stealing is always")


def _check_offsets(facts: Facts) -> Verdict:
    mode = facts.call.bounds_check
    return judge([(mode == "none", "bounds_check is none")], f"bounds_check is {mode}")


def _no_lookups(facts: Facts) -> Condition:
    return facts.lookups == 0 or facts.bags == 0, "there are no lookups"


def _check_indices(facts: Facts) -> Verdict:
    mode = facts.call.bounds_check
    against = [
        (mode == "none", "bounds_check is none"),
        _no_lookups(facts),
        (_checks_in_lookup(facts), "the kernel that looks up checks the indices"),
    ]
    return judge(against, "no kernel that looks up checks the indices")


def _against_small_update(facts: Facts) -> Iterator[Condition]:
    kernel = facts.kernels.get("sum_small_table")
    if kernel is None:
        yield True, f"the build has no sum_small_table for {facts.arch}"
        return
    yield facts.call.small_tables == "never", "small_tables is never"
    yield from _small(facts)
    yield _is(facts.dtype, "fp32"), "the table is fp32"
    yield facts.weighted, "there are per-sample weights"
    yield _below(_largest(kernel, "bucket"), facts.bucket), "rows are too wide"
    found = _variants(
        facts,
        kernel,
        gradient_dtype=facts.gradient,
        bucket=facts.bucket,
        index_width=facts.index_width,
    )
    rows = facts.call.rows
    yield _agreed(_below(_constant(v, "ROWS"), rows) for v in found), "rows are too many"
    if facts.call.small_tables == "auto":
        yield (
            _agreed(_below(facts.mean_length, _constant(v, "MEAN_LENGTH_FROM")) for v in found),
            "bags are too short on average",
        )


def _small_update(facts: Facts) -> Verdict:
    against = [_no_lookups(facts), *_against_small_update(facts)]
    return judge(against, "one feature with a small table, by bags long enough")


def _against_general_update(facts: Facts) -> Iterator[Condition]:
    yield _no_lookups(facts)
    yield _small_update(facts).taken, "sum_small_table and update_small_table run instead"


def _general_update(facts: Facts) -> Verdict:
    return judge(_against_general_update(facts), "no kernels of small tables take the update")


def _against_fused_long_runs(facts: Facts) -> Iterator[Condition]:
    kernel = facts.kernels.get("sum_and_update_long_runs")
    if kernel is None:
        yield True, f"the build has no sum_and_update_long_runs for {facts.arch}"
        return
    yield facts.call.fused_long_runs == "never", "fused_long_runs is never"
    yield _is_not(facts.formula, FUSED_FORMULA), "no kernel does both for this optimizer"
    yield _is_not(facts.aligned, True), "no kernel does both for generic rows"
    has_bucket = None if facts.bucket is None else facts.bucket in _numbers(kernel, "bucket")
    yield _is_not(has_bucket, True), "no kernel does both for this bucket"
    found = _variants(
        facts,
        kernel,
        weight_dtype=facts.dtype,
        gradient_dtype=facts.gradient,
        bucket=facts.bucket,
        factored=facts.factored,
    )
    yield (
        _agreed(variant is None for variant in found),
        "no kernel does both for gradients with a factor in this bucket",
    )
    if facts.call.fused_long_runs == "always":
        return
    rows, lookups = facts.call.rows, facts.lookups
    per_row = None if rows is None or lookups is None else lookups / rows
    ends = [_constant(variant, "LOOKUPS_PER_ROW_BELOW") for variant in found if variant]
    yield (
        _agreed(_is_not(_below(per_row, end), True) for end in ends),
        "nearly all rows have runs of many chunks",
    )


def _against_long_runs(facts: Facts) -> Iterator[Condition]:
    yield from _against_general_update(facts)
    kernel = facts.kernels.get("sum_chunks")
    chunks = {_constant(v, "CHUNK") for v in (kernel.on(facts.arch) if kernel else [])}
    words = f"there are fewer than {' or '.join(map(str, chunks))} lookups"
    yield _agreed(_below(facts.lookups, chunk) for chunk in chunks), words


def _fused_long_runs(facts: Facts) -> Verdict:
    against = [*_against_long_runs(facts), *_against_fused_long_runs(facts)]
    return judge(against, "one launch sums long runs and updates their rows")


def _two_launches(facts: Facts) -> Verdict:
    fused = judge(_against_fused_long_runs(facts), "")
    against = [
        *_against_long_runs(facts),
        (fused.taken, "sum_and_update_long_runs runs instead"),
    ]
    return judge(against, f"two launches for long runs: {fused.because}")


def _advance_counters(facts: Facts) -> Verdict:
    if facts.call.stochastic_rounding:
        return Verdict(True, "rows are rounded stochastically")
    return Verdict(None, "where the optimizer counts its updates, as Adam does")


def _sample_weights_gradient(facts: Facts) -> Verdict:
    return judge([_no_lookups(facts)], "the per-sample weights have a gradient")


VERDICTS: dict[str, Callable[[Facts], Verdict]] = {
    LOOKUP: _forward,
    "forward_small_table": _forward_small_table,
    "forward_work_stealing": _steals,
    "check_offsets": _check_offsets,
    "repair_offsets": _check_offsets,
    "check_indices": _check_indices,
    "linearise_lookups": _general_update,
    "sort_pass": _general_update,
    "find_runs": _general_update,
    "sum_chunks": _two_launches,
    "update_short_runs": _general_update,
    "update_long_runs": _two_launches,
    "sum_and_update_long_runs": _fused_long_runs,
    "sum_small_table": _small_update,
    "update_small_table": _small_update,
    "advance_counters": _advance_counters,
    "per_sample_weights_gradient": _sample_weights_gradient,
}
