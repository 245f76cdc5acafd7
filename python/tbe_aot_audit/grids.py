"""The grid of a launch, and how many launches there are, where what is known of a call decides them."""

from __future__ import annotations

from collections.abc import Callable

from .call import Facts
from .manifest import Variant

Grid = tuple[int, int, int]
# CUDA's limit of a grid's second dimension; what exceeds it takes more launches.
MOST_IN_Y = 65535


def _divide(value: int, divisor: int) -> int:
    return -(-value // divisor)


def _constant(variant: Variant, name: str) -> int:
    return int(variant.constants[name])


def _bags(facts: Facts, variant: Variant) -> Grid | None:
    if facts.call.batch is None or facts.call.features > MOST_IN_Y:
        return None
    return _divide(facts.call.batch, _constant(variant, "BAGS")), facts.call.features, 1


def _tiles(facts: Facts, variant: Variant) -> Grid | None:
    if facts.lookups is None:
        return None
    return _divide(facts.lookups, _constant(variant, "TILE")), 1, 1


def _programs(per_program: str) -> Callable[[Facts, Variant], Grid | None]:
    """As many programs as there may be work for, or as fit on the multiprocessors."""

    def grid(facts: Facts, variant: Variant) -> Grid | None:
        multiprocessors = facts.call.multiprocessors
        if facts.lookups is None or multiprocessors is None:
            return None
        work = _divide(facts.lookups, _constant(variant, per_program))
        return min(_constant(variant, "PROGRAMS_PER_SM") * multiprocessors, work), 1, 1

    return grid


def _one(_: Facts, __: Variant) -> Grid:
    return 1, 1, 1


def _offsets(facts: Facts, variant: Variant) -> Grid | None:
    if facts.bags is None:
        return None
    return _divide(facts.bags + 1, _constant(variant, "BLOCK")), 1, 1


def _indices(facts: Facts, variant: Variant) -> Grid | None:
    features = facts.call.features
    if facts.lookups is None or features > MOST_IN_Y:
        return None
    blocks = _divide(_divide(facts.lookups, features), _constant(variant, "BLOCK"))
    return min(max(blocks, 1), MOST_IN_Y), features, 1


def _rows(facts: Facts, _: Variant) -> Grid | None:
    return None if facts.call.rows is None else (max(facts.call.rows, 1), 1, 1)


# Not sum_small_table: how many chunks a batch has is the launcher's, not the manifest's.
GRIDS: dict[str, Callable[[Facts, Variant], Grid | None]] = {
    "forward": _bags,
    "forward_small_table": _bags,
    "forward_work_stealing": _bags,
    "per_sample_weights_gradient": _bags,
    "linearise_lookups": _bags,
    "sort_pass": _tiles,
    "find_runs": _tiles,
    "sum_chunks": _programs("CHUNK"),
    "update_short_runs": _programs("RUNS"),
    "update_long_runs": _programs("CHUNK"),
    "sum_and_update_long_runs": _programs("CHUNK"),
    "update_small_table": _rows,
    "advance_counters": _one,
    "check_offsets": _offsets,
    "repair_offsets": _one,
    "check_indices": _indices,
}


def launches_of(facts: Facts, variant: Variant) -> int | None:
    """How many launches of a variant a call has: one, but for the passes of a sort and for more features than a grid holds."""
    if facts.kernel == "sort_pass":
        if facts.call.rows is None:
            return None
        # The largest key stands for pruned lookups: it is the number of rows.
        return max(1, _divide(facts.call.rows.bit_length(), _constant(variant, "DIGIT_BITS")))
    return 1 if facts.call.features <= MOST_IN_Y else None
