"""The grid of a launch, and how many launches there are, where what is known of a call decides them."""

from __future__ import annotations

from collections.abc import Callable

from .call import Facts
from .manifest import Variant

Grid = tuple[int, int, int]
# CUDA's limit of a grid's second dimension; what exceeds it takes more launches.
MOST_IN_Y = 65535


def _share(value: int | None, variant: Variant, name: str) -> int | None:
    """How many programs there are for a constant number of something each; None where one of both is not known."""
    each = variant.constants.get(name)
    if value is None or not isinstance(each, int) or each < 1:
        return None
    return -(-value // each)


def _of(x: int | None, y: int = 1) -> Grid | None:
    return None if x is None or y > MOST_IN_Y else (x, y, 1)


def _bags(facts: Facts, variant: Variant) -> Grid | None:
    return _of(_share(facts.call.batch, variant, "BAGS"), facts.call.features)


def _tiles(facts: Facts, variant: Variant) -> Grid | None:
    return _of(_share(facts.lookups, variant, "TILE"))


def _programs(each: str) -> Callable[[Facts, Variant], Grid | None]:
    """As many programs as there may be work for, or as fit on the multiprocessors."""

    def grid(facts: Facts, variant: Variant) -> Grid | None:
        work = _share(facts.lookups, variant, each)
        resident = variant.constants.get("PROGRAMS_PER_SM")
        multiprocessors = facts.call.multiprocessors
        if work is None or multiprocessors is None or not isinstance(resident, int):
            return None
        return min(resident * multiprocessors, work), 1, 1

    return grid


def _one(_: Facts, __: Variant) -> Grid:
    return 1, 1, 1


def _offsets(facts: Facts, variant: Variant) -> Grid | None:
    return _of(_share(None if facts.bags is None else facts.bags + 1, variant, "BLOCK"))


def _indices(facts: Facts, variant: Variant) -> Grid | None:
    # Enough programs for the mean feature.
    features = facts.call.features
    mean = None if facts.lookups is None else -(-facts.lookups // features)
    blocks = _share(mean, variant, "BLOCK")
    return None if blocks is None else _of(min(max(blocks, 1), MOST_IN_Y), features)


def _rows(facts: Facts, _: Variant) -> Grid | None:
    return _of(facts.call.rows)


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
        # The largest key stands for pruned lookups: it is the number of rows.
        bits = None if facts.call.rows is None else max(facts.call.rows.bit_length(), 1)
        return _share(bits, variant, "DIGIT_BITS")
    return 1 if facts.call.features <= MOST_IN_Y else None
