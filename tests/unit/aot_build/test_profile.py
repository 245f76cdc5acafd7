"""A profile covers every axis value and every pair of values that some variant has."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aot_build.conditions import AxisValue
from aot_build.planner import make_plan
from aot_build.profile import select
from tests.unit.aot_build.toy_specs import ARCHS, REPOSITORY, TOY

VARIANTS = st.sets(
    st.tuples(st.integers(0, 2), st.booleans(), st.sampled_from(["p", "q", "r"])), min_size=1
).map(lambda chosen: [dict(zip("xyz", values, strict=True)) for values in sorted(chosen)])


def pairs(axes: dict[str, AxisValue]) -> set[tuple[object, ...]]:
    return set(itertools.combinations(axes.items(), 2))


@given(VARIANTS)
def test_cover(variants: list[dict[str, AxisValue]]):
    selected = select(variants, [])
    chosen = [axes for axes, is_selected in zip(variants, selected, strict=True) if is_selected]
    assert set().union(*map(pairs, chosen)) == set().union(*map(pairs, variants))
    assert select(variants, []) == selected


@given(VARIANTS)
def test_included_variants_are_built(variants: list[dict[str, AxisValue]]):
    selected = select(variants, [{"x": (1,)}])
    assert all(
        is_selected or axes["x"] != 1 for axes, is_selected in zip(variants, selected, strict=True)
    )


def test_a_kernel_without_axes_is_built():
    assert select([{}], []) == [True]


@pytest.mark.parametrize("specs", [TOY, REPOSITORY / "kernel_specs"], ids=["toy", "kernel_specs"])
def test_ci_shows_every_kernel_and_axis_value(specs):
    for kernel in make_plan(specs, "ci", ARCHS).kernels.values():
        built = [variant for variant in kernel.variants if variant.selected]
        assert built
        for axis in kernel.axes:
            assert {variant.axes[axis.name] for variant in built} == {
                variant.axes[axis.name] for variant in kernel.variants
            }
