"""What decides the value of a kernel's axis, by the axis' name."""

from __future__ import annotations

from collections.abc import Callable

from .call import Facts
from .manifest import Axis, AxisValue
from .paths import (
    CHECKED,
    LOOKUP,
    SHORTEST,
    THRESHOLDS,
    TRUSTING,
    fused_checks,
    pick_by_threshold,
    small_table_checks,
)

MOST_ROWS_OF_32_BITS = 2**31

# A value or a label, and why; None: nothing that is known decides.
Ruling = tuple[AxisValue, str] | None


def _known(value: AxisValue | None, because: str) -> Ruling:
    return None if value is None else (value, because)


def _weight_dtype(facts: Facts, _: Axis) -> Ruling:
    return _known(facts.dtype, "the dtype of the weights")


def _gradient_dtype(facts: Facts, _: Axis) -> Ruling:
    given = facts.call.gradient or facts.call.output
    return _known(
        facts.gradient,
        f"the output's gradient is {given}: kernels read that of the weights' dtype or fp32",
    )


def _index_width(facts: Facts, _: Axis) -> Ruling:
    return _known(facts.index_width, "the dtype of the indices")


def _bucket(facts: Facts, axis: Axis) -> Ruling:
    dim = facts.call.dim
    if dim is None:
        return None
    sizes = sorted(value for value in axis.values if isinstance(value, int))
    for size in sizes:
        if size >= dim:
            return size, f"the smallest bucket that holds dim {dim}"
    # No value: the caller says what there is.
    return dim, f"dim {dim}"


def _rows(facts: Facts, axis: Axis) -> Ruling:
    rows = facts.call.rows
    if rows is None:
        return None
    sizes = sorted(value for value in axis.values if isinstance(value, int))
    return next((size for size in sizes if size >= rows), rows), f"the table has {rows} rows"


def _weighted(facts: Facts, _: Axis) -> Ruling:
    if facts.weighted:
        return True, "per-sample weights are given"
    return False, "no lookups have per-sample weights" if facts.call.weighted else (
        "no per-sample weights"
    )


def _factored(facts: Facts, _: Axis) -> Ruling:
    if facts.factored:
        return True, "per-sample weights or MEAN give each lookup a factor"
    return False, "SUM without per-sample weights: no factors"


# Of kernels that read no gradient.
_READS_TABLES_ALONE = {LOOKUP}


def _aligned(facts: Facts, _: Axis) -> Ruling:
    call = facts.call
    if call.aligned is False:
        return False, "rows do not start at multiples of 16 bytes"
    if facts.kernel in _READS_TABLES_ALONE:
        words = "rows of tables start at multiples of 16 bytes, as the module pads them"
        return facts.padded, words
    if call.aligned:
        return True, "rows of weights and gradient start at multiples of 16 bytes"
    return _known(facts.aligned, f"rows of the gradient, which are not padded, have dim {call.dim}")


def _checked(facts: Facts, _: Axis) -> Ruling:
    verdict = (fused_checks if facts.kernel == LOOKUP else small_table_checks)(facts)
    if verdict.taken is None:
        return None
    return CHECKED if verdict.taken else TRUSTING, verdict.because


def _key_width(facts: Facts, _: Axis) -> Ruling:
    rows = facts.call.rows
    if rows is None:
        return None
    # One more row stands for pruned lookups.
    width = 32 if rows + 1 < MOST_ROWS_OF_32_BITS else 64
    return width, f"{rows} rows in all tables together"


def _optimizer(facts: Facts, _: Axis) -> Ruling:
    # Some share a formula: SGD and row-wise Adagrad are one kernel, without branches.
    return _known(facts.formula, f"the optimizer {facts.call.optimizer}")


def _range(facts: Facts, axis: Axis) -> Ruling:
    """Axes whose values end at a constant, which depends on the other axes' values."""
    kernel = facts.kernels.get(facts.kernel)
    if kernel is None or not any(name in kernel.constants for name in THRESHOLDS):
        return None
    others = {other.name for other in kernel.axes} - {axis.name}
    assigned = dict(facts.assigned)
    if facts.kernel == LOOKUP:
        asked = assigned.get("checked") is True and "checked" in facts.call.axes
        if asked or (facts.call.fused_checks == "always" and fused_checks(facts).taken):
            return SHORTEST, "variants that check indices are those for the shortest bags"
        if facts.mean_length is None and fused_checks(facts).taken:
            return SHORTEST, "variants that check indices are those for the shortest bags"
        # The lengths at which shapes end are those of the variants that do not check.
        assigned["checked"] = False
    if not others <= assigned.keys():
        return None
    return pick_by_threshold(facts, kernel, axis, {name: assigned[name] for name in others})


RULES: dict[str, Callable[[Facts, Axis], Ruling]] = {
    "weight_dtype": _weight_dtype,
    "bf16": _weight_dtype,
    "gradient_dtype": _gradient_dtype,
    "index_width": _index_width,
    "bucket": _bucket,
    "rows": _rows,
    "weighted": _weighted,
    "factored": _factored,
    "aligned": _aligned,
    "checked": _checked,
    "key_width": _key_width,
    "optimizer": _optimizer,
    "shape": _range,
    "size": _range,
}
