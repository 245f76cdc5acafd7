"""The plan is total and disjoint: shown on the toy specs, on random ones, and on the project's own."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aot_build.conditions import AxisValue
from aot_build.errors import BuildError
from aot_build.plan import KernelPlan, Plan, cell_number, cell_values, check_total_and_disjoint
from aot_build.planner import make_plan
from aot_build.spec import load_specs
from tests.unit.aot_build.toy_specs import ARCHS, REPOSITORY, TOY, copy_toy, edit


@pytest.fixture(scope="module")
def toy() -> Plan:
    return make_plan(TOY, "full", ARCHS)


def test_names_and_cells(toy: Plan):
    scale = toy.kernels["scale"]
    assert [variant.name for variant in scale.variants] == [
        "scale__fp32_64_long",
        "scale__fp32_256_long",
        "scale__fp16_64_short",
        "scale__fp16_64_long",
        "scale__fp16_256_long",
    ]
    assert scale.cells == [-1, 0, 1, 1, 2, 3, 4, 4]
    assert [(cell.cell, cell.reason) for cell in scale.excluded] == [(0, "nobody scales so little")]
    assert [variant.name for variant in toy.kernels["fill"].variants] == ["fill"]
    assert toy.kernels["fill"].cells == [0]


def test_later_tuning_rules_override_earlier_ones(toy: Plan):
    builds = {v.name: v.builds for v in toy.kernels["scale"].variants}
    short, long = builds["scale__fp16_64_short"], builds["scale__fp16_64_long"]
    assert short["sm90"].launch_constants == {"UNROLL": 1, "SHORT_BELOW": 512}
    assert long["sm90"].launch_constants == {"UNROLL": 2, "SHORT_BELOW": 1024}
    assert long["sm100"].launch_constants == {"UNROLL": 4, "SHORT_BELOW": 1024}
    assert [long[arch].options["num_warps"] for arch in ARCHS] == [1, 2]


def test_signature_and_hints(toy: Plan):
    short, long = toy.kernels["scale"].variants[2:4]
    assert long.signature == [
        ("output", "*fp16"),
        ("source", "*fp16"),
        ("negate", "i1"),
        ("numel", "i64"),
        ("factor", "fp32"),
        ("SIZE", "constexpr"),
        ("UNROLL", "constexpr"),
    ]
    assert long.divisibility == {"output": 16, "source": 16, "numel": 16}
    assert short.divisibility == {}


def test_arguments_have_the_natural_layout(toy: Plan):
    slots = [(param.name, param.offset, param.size) for param in toy.kernels["scale"].params]
    assert slots == [
        ("output", 0, 8),
        ("source", 8, 8),
        ("negate", 16, 1),
        ("numel", 24, 8),
        ("factor", 32, 4),
        ("global_scratch", 40, 8),
        ("profile_scratch", 48, 8),
    ]
    assert toy.kernels["scale"].args_size == 56


def test_plan_survives_its_file(toy: Plan, tmp_path: Path):
    (tmp_path / "plan.json").write_bytes(toy.to_json())
    assert Plan.read(tmp_path / "plan.json") == toy


def test_profile_only_marks(toy: Plan):
    tiny = make_plan(TOY, "tiny", ["sm90"])
    assert tiny.archs == ["sm90"]
    for name, kernel in toy.kernels.items():
        unmarked = [v.model_copy(update={"selected": True}) for v in tiny.kernels[name].variants]
        assert unmarked == kernel.variants


def test_a_chain_of_uses_is_followed(tmp_path: Path):
    specs = copy_toy(tmp_path / "specs")
    edit(
        specs / "scale" / "spec.toml",
        'when = { dtype = "fp32", size = 64, shape = "short" }',
        'when = { dtype = "fp32", size = 64, shape = "short" }\nuse = { size = 256 }',
    )
    scale = make_plan(specs, "full", ARCHS).kernels["scale"]
    assert scale.cells == [1, 0, 1, 1, 2, 3, 4, 4]
    assert scale.excluded == []


def enumerate_cells(kernel: KernelPlan) -> list[dict[str, AxisValue]]:
    names = [axis.name for axis in kernel.axes]
    values = [axis.values for axis in kernel.axes]
    return [dict(zip(names, chosen, strict=True)) for chosen in itertools.product(*values)]


def assert_total_and_disjoint(kernel: KernelPlan) -> None:
    """Without the plan's own check: every combination of values, one by one."""
    axes = {axis.name: axis.values for axis in kernel.axes}
    excluded = {cell.cell for cell in kernel.excluded}
    owners: dict[int, list[dict[str, AxisValue]]] = {}
    combinations = enumerate_cells(kernel)
    assert len(combinations) == len(kernel.cells)
    for number, combination in enumerate(combinations):
        assert cell_number(axes, combination) == number
        assert cell_values(axes, number) == combination
        variant = kernel.cells[number]
        assert (variant == -1) == (number in excluded)
        if variant != -1 and kernel.variants[variant].axes == combination:
            owners.setdefault(variant, []).append(combination)
    assert sorted(owners) == list(range(len(kernel.variants)))
    assert all(len(own) == 1 for own in owners.values())
    assert len({variant.name for variant in kernel.variants}) == len(kernel.variants)


@pytest.mark.parametrize("specs", ["toy", "kernel_specs"])
def test_total_and_disjoint(specs: str):
    folder = TOY if specs == "toy" else REPOSITORY / "kernel_specs"
    for kernel in make_plan(folder, "full", ARCHS).kernels.values():
        assert_total_and_disjoint(kernel)


@pytest.mark.parametrize("specs", ["toy", "kernel_specs"])
def test_served_cells_differ_only_as_the_spec_says(specs: str):
    """A cell served by another one agrees with it on every axis that no `use` names."""
    folder = TOY if specs == "toy" else REPOSITORY / "kernel_specs"
    described = load_specs(folder)
    for name, kernel in make_plan(folder, "full", ARCHS).kernels.items():
        changed = {axis for rule in described[name].exclude for axis in rule.use}
        for number, combination in enumerate(enumerate_cells(kernel)):
            if kernel.cells[number] == -1:
                continue
            served_by = kernel.variants[kernel.cells[number]].axes
            differing = {axis for axis in combination if combination[axis] != served_by[axis]}
            assert differing <= changed


RULES = st.lists(
    st.tuples(
        st.dictionaries(st.sampled_from("ab"), st.integers(0, 2), min_size=1),
        st.dictionaries(st.sampled_from("ab"), st.integers(0, 2)),
    ),
    max_size=5,
)


@settings(max_examples=60, deadline=None)
@given(RULES)
def test_any_exclusions_give_a_total_plan_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, rules: list[tuple[dict[str, int], dict[str, int]]]
):
    folder = tmp_path_factory.mktemp("random")
    (folder / "k").mkdir()
    (folder / "k" / "kernel.py").write_text(
        "@triton.jit\ndef k(x, A: tl.constexpr, B: tl.constexpr): pass\n"
    )
    lines = [
        "schema_version = 1",
        '[kernel]\nname = "k"\nfunction = "k"\nsummary = "s"\narchs = ["sm90"]',
        '[axes]\na = { values = [0, 1, 2], doc = "" }\nb = { values = [0, 1, 2], doc = "" }',
        '[[params]]\nname = "x"\ntype = "*i8"\ndoc = ""',
        "[[tuning.rules]]\nset = { num_warps = 1, num_stages = 1, maxnreg = 0 }",
    ]
    for when, use in rules:
        conditions = ", ".join(f"{axis} = {value}" for axis, value in when.items())
        targets = ", ".join(f"{axis} = {value}" for axis, value in use.items())
        lines.append(f'[[exclude]]\nwhen = {{ {conditions} }}\nuse = {{ {targets} }}\nreason = "r"')
    (folder / "k" / "spec.toml").write_text("\n".join(lines))
    try:
        plan = make_plan(folder, "ci", ["sm90"])
    except BuildError as error:
        assert "matches no" in str(error) or "back to an excluded cell" in str(error)  # noqa: PT017
    else:
        assert_total_and_disjoint(plan.kernels["k"])


@pytest.mark.parametrize(
    "change",
    [
        {"cells": [0, 0, 1, 1, 2, 3, 4, 4]},
        {"cells": [-1, 1, 0, 1, 2, 3, 4, 4]},
        {"cells": [-1, 0, 1, 1, 2, 3, 4]},
        {"excluded": []},
    ],
)
def test_a_plan_that_is_not_total_and_disjoint_is_refused(toy: Plan, change: dict[str, object]):
    broken = toy.kernels["scale"].model_copy(update=change)
    with pytest.raises(BuildError, match="the plan of scale is not total and disjoint"):
        check_total_and_disjoint(toy.model_copy(update={"kernels": {"scale": broken}}))
