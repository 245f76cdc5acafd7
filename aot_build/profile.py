"""Which variants a profile builds: what its rules include, and a cover of all axis values and pairs of values."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from .conditions import AxisValue, When, matches


def _traits(axes: Mapping[str, AxisValue]) -> set[tuple[object, ...]]:
    """The axis values of a variant, alone and in pairs."""
    # The type is part of it: True and 1 are equal and hash alike.
    singles = [(axis, type(value).__name__, value) for axis, value in axes.items()]
    return {*singles, *itertools.combinations(singles, 2)}


def select(variants: Sequence[Mapping[str, AxisValue]], include: Sequence[When]) -> list[bool]:
    """Mark what is built.

    Greedy and deterministic: as long as a pair of axis values that some variant has is missing, add the variant
    that brings most missing ones, the first of equals.
    """
    selected = [any(matches(when, axes) for when in include) for axes in variants]
    traits = [_traits(axes) for axes in variants]
    missing = set().union(*traits)
    for chosen, brought in zip(selected, traits, strict=True):
        if chosen:
            missing -= brought
    if not any(selected) and not missing and variants:
        # A kernel without axes has no values to cover, and one variant.
        selected[0] = True
    while missing:
        gains = [len(brought & missing) for brought in traits]
        best = gains.index(max(gains))
        selected[best] = True
        missing -= traits[best]
    return selected
