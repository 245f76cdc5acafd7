"""A mistake in a spec names file, key, value and what is allowed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from aot_build.errors import BuildError, SpecError
from aot_build.planner import make_plan
from tests.unit.aot_build.toy_specs import ARCHS, edit

# (text to replace, with what, what the message must say after the file's name)
SCALE_MISTAKES = [
    pytest.param("[axes]", "[axis]\n[axes]", [r"axis = \{\}: unknown key; allowed: .*axes"], id="unknown table"),
    pytest.param('doc = "the factor"', 'doc = "the factor"\nunit = "s"', [r'params\[4\]\.unit = "s": unknown key; allowed: name, type, doc'], id="unknown key"),
    pytest.param("schema_version = 1", "schema_version = 2", [r"schema_version = 2: .*; allowed: 1"], id="schema version"),
    pytest.param('summary = "Multiply by a factor."', "", [r"kernel\.summary: missing"], id="missing key"),
    pytest.param('name = "scale"', 'name = "scales"', [r'kernel\.name = "scales": differs from the folder\'s name; allowed: scale'], id="kernel name"),
    pytest.param('archs = ["sm90", "sm100"]', 'archs = ["sm90", "sm80"]', [r'kernel\.archs = .*: "sm80" is no arch; allowed: sm90, sm100'], id="arch"),
    pytest.param('archs = ["sm90", "sm100"]', 'archs = ["sm90", "sm90"]', [r"kernel\.archs = .*: an arch is listed twice"], id="arch twice"),
    pytest.param("values = [64, 256]", "values = [64, 64]", [r"axes\.size\.values = \[64, 64\]: a value is listed twice"], id="value twice"),
    pytest.param("values = [64, 256]", "values = [64, true]", [r"axes\.size\.values = .*: values of different types"], id="mixed values"),
    pytest.param("values = [64, 256]", "values = [64, 256.5]", [r"axes\.size\.values\[1\] = 256\.5: not a boolean, 32-bit integer or string"], id="value type"),
    pytest.param("values = [64, 256]", "values = [64, 256000000000]", [r"axes\.size\.values\[1\] = 256000000000: not a boolean"], id="value range"),
    pytest.param("values = [64, 256],", 'values = [64, 256], labels = ["a"],', [r"axes\.size\.labels = \[\"a\"\]: 1 labels for 2 values; allowed: one label per value"], id="labels"),
    pytest.param("values = [64, 256],", 'values = [64, 256], labels = ["a", "a"],', [r"axes\.size\.labels = .*: a label is used twice"], id="label twice"),
    pytest.param("values = [64, 256],", 'values = [64, 256], labels = ["a", "b__c"],', [r"axes\.size\.labels = .*: \"b__c\" cannot be part of a name; allowed: letters"], id="label text"),
    pytest.param("size = { values = [64, 256]", "arch = { values = [64, 256]", [r"axes\.arch: not a name for an axis"], id="axis name"),
    pytest.param('when = { size = 256, shape = "short" }', 'when = { size = 128, shape = "short" }', [r"exclude\[0\]\.when\.size = 128: not a value of this axis; allowed: 64, 256"], id="axis value"),
    pytest.param('when = { size = 256, shape = "short" }', "when = { width = 256 }", [r"exclude\[0\]\.when\.width: unknown axis; allowed: dtype, size, shape"], id="unknown axis"),
    pytest.param('when = { size = 256, shape = "short" }', 'when = { arch = "sm90" }', [r"exclude\[0\]\.when\.arch: unknown axis; allowed: dtype, size, shape$"], id="arch in exclude"),
    pytest.param('when = { size = 256, shape = "short" }', "when = { size = [] }", [r"exclude\[0\]\.when\.size = \[\]: an empty list matches nothing"], id="empty condition"),
    pytest.param('when = { size = 256, shape = "short" }', "when = 256", [r"exclude\[0\]\.when = 256: not a table"], id="condition"),
    pytest.param('when = { size = 256, shape = "short" }', "when = { size = true }", [r"exclude\[0\]\.when\.size = true: not a value of this axis; allowed: 64, 256"], id="true is not 1"),
    pytest.param('use = { shape = "long" }', 'use = { shape = "wide" }', [r'exclude\[0\]\.use\.shape = "wide": not a value of this axis; allowed: "short", "long"'], id="use value"),
    pytest.param('use = { shape = "long" }', 'use = { shape = "short" }', [r'exclude\[0\]\.use = \{ shape = "short" \}: leads cell .* back to an excluded cell'], id="use cycle"),
    pytest.param('dtype = "fp32", size = 64, shape = "short" }', 'dtype = "fp32", size = 256, shape = "short" }', [r"exclude\[1\]\.when = .*: matches no cell"], id="exclude after exclude"),
    pytest.param('reason = "nobody scales so little"', 'reason = ""', [r"exclude\[1\]\.reason = \"\": .*at least 1"], id="reason"),
    pytest.param('type = "fp32"', 'type = "fp31"', [r'params\[4\]\.type = "fp31": fp31 is no type; allowed: i1, i8, i32'], id="type"),
    pytest.param('type = "*{dtype}"', 'type = "*{kind}"', [r'params\[0\]\.type = "\*\{kind\}": unknown axis kind; allowed: dtype, size, shape'], id="axis in type"),
    pytest.param('type = "*{dtype}"', 'type = "*{size}"', [r'params\[0\]\.type = "\*\{size\}": \*64 is no type'], id="expanded type"),
    pytest.param('type = "fp32"', 'type = "{dtype}"', [r"params\[4\]\.type = .*: a scalar's type may not depend on an axis"], id="scalar of an axis"),
    pytest.param('name = "factor"', 'name = "facto"', [r'params\[4\]\.name = "facto": scale_kernel has no such run-time parameter; allowed: output, source, negate, numel, factor', r"params: parameter factor of scale_kernel is not listed"], id="parameter"),
    pytest.param('name = "negate"', 'name = "numel"', [r'params\[3\]\.name = "numel": a parameter is listed twice'], id="parameter twice"),
    pytest.param("value = 16,", "value = 1,", [r"params\[0\]\.divisible_by\[0\]\.value = 1: .*greater than 1"], id="divisibility"),
    pytest.param('kernel_constants = ["UNROLL"]', 'kernel_constants = ["UNROLL", "WAYS"]', [r'tuning\.kernel_constants\[1\] = "WAYS": not a constexpr of scale_kernel, or an axis; allowed: UNROLL'], id="constant that the kernel lacks"),
    pytest.param('kernel_constants = ["UNROLL"]', "kernel_constants = []", [r"tuning\.kernel_constants = \[\]: constexpr UNROLL of scale_kernel is neither an axis nor listed here"], id="constexpr not listed"),
    pytest.param('kernel_constants = ["UNROLL"]', 'kernel_constants = ["unroll"]', [r'tuning\.kernel_constants = .*: "unroll" is no constant; allowed: UPPER_CASE'], id="constant name"),
    pytest.param('exported_constants = ["UNROLL"]', 'exported_constants = ["SHORT_BELOW"]', [r'tuning\.exported_constants\[0\] = "SHORT_BELOW": not a kernel constant; allowed: UNROLL'], id="exported"),
    pytest.param('host_constants = ["SHORT_BELOW"]', 'host_constants = ["SHORT_BELOW", "UNROLL"]', [r'tuning\.host_constants\[1\] = "UNROLL": also a kernel constant'], id="host"),
    pytest.param("UNROLL = 4, num_warps = 2", "UNROLL = 4, num_warp = 2", [r"tuning\.rules\[2\]\.set\.num_warp = 2: neither a constant nor an option; allowed: UNROLL, SHORT_BELOW, num_warps"], id="tuning key"),
    pytest.param("num_warps = 2", "num_warps = 3", [r"tuning\.rules\[2\]\.set\.num_warps = 3: not a number of warps; allowed: 1, 2, 4"], id="warps"),
    pytest.param("num_stages = 1", "num_stages = 0", [r"tuning\.rules\[0\]\.set\.num_stages = 0: not a number of stages"], id="stages"),
    pytest.param("maxnreg = 0", "maxnreg = 256", [r"tuning\.rules\[0\]\.set\.maxnreg = 256: not a register limit"], id="register limit"),
    pytest.param("UNROLL = 4, num", 'UNROLL = "4", num', [r'tuning\.rules\[2\]\.set\.UNROLL = "4": read by the host; allowed: an integer'], id="constant type"),
    pytest.param("SHORT_BELOW = 512, ", "", [r"tuning\.rules: no rule sets SHORT_BELOW for scale__fp16_64_short on sm90"], id="constant not set"),
    pytest.param('when = { shape = "long", arch = "sm100" }', 'when = { shape = "long", arch = "sm80" }', [r'tuning\.rules\[2\]\.when\.arch = "sm80": not a value of this axis; allowed: "sm90", "sm100"'], id="arch of a rule"),
    pytest.param('when = { shape = "long", arch = "sm100" }', 'when = { shape = "short", size = 256 }', [r'tuning\.rules\[2\]\.when = \{ shape = "short", size = 256 \}: matches no variant'], id="tuning of no variant"),
    pytest.param('when = { shape = "long", size = 256, arch = "sm90" }', 'when = { shape = "short", size = 256 }', [r"row_loads\[0\]\.when = .*: matches no variant"], id="row loads of no variant"),
    pytest.param("bytes = 16", "bytes = 12", [r"row_loads\[0\]\.bytes = 12: .*; allowed: 1, 2, 4, 8, 16 or 32"], id="row load width"),
    pytest.param("set = { registers = 64, spill", "set = { register = 64, spill", [r"budgets\[0\]\.set\.register = 64: unknown key; allowed: registers, spill_bytes"], id="budget key"),
    pytest.param("[[budgets]]\nwhen = {}", '[[budgets]]\nwhen = { dtype = "fp32", size = 64, shape = "short" }', [r"budgets\[0\]\.when = .*: matches no variant"], id="budget of no variant"),
    pytest.param('include = [{ dtype = "fp32", size = 256 }]', 'include = [{ dtype = "fp32", size = 256, shape = "short" }]', [r"profiles\.ci\.include\[0\] = .*: matches no variant"], id="profile of no variant"),
    pytest.param("[profiles.tiny]", "[profiles.full]", [r"profiles\.full: full is every variant"], id="profile full"),
    pytest.param("[axes]", '[axes]\nidle = { values = [1, 2], doc = "nothing" }', [r"axes\.idle: changes nothing"], id="idle axis"),
    pytest.param("[axes]", "[axes", ["TOML: "], id="TOML"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "messages"), SCALE_MISTAKES)
def test_spec_mistake(specs: Path, old: str, new: str, messages: list[str]):
    path = specs / "scale" / "spec.toml"
    edit(path, old, new)
    with pytest.raises(SpecError) as raised:
        make_plan(specs, "ci", ARCHS)
    lines = str(raised.value).splitlines()
    for message in messages:
        assert any(re.search(f"^{re.escape(str(path))}: {message}", line) for line in lines), lines


KERNEL_MISTAKES = [
    pytest.param("@triton.jit\ndef scale", "def scale", r'function = "scale_kernel": no @triton.jit function of that name; allowed: nothing', id="not jitted"),
    pytest.param("def scale_kernel", "def scale_kernels", r"allowed: scale_kernels", id="function name"),
    pytest.param("UNROLL: tl.constexpr,", "UNROLL: tl.constexpr, *more,", r"scale_kernel: only plain parameters are possible", id="star"),
    pytest.param("def scale_kernel(", "def scale_kernel((", r"line \d+: syntax error", id="syntax"),
    pytest.param("from common.blocks import", "from fill.kernel import", r"import fill\.kernel: kernels share code through one package only; allowed: common", id="import of a kernel"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "message"), KERNEL_MISTAKES)
def test_kernel_mistake(specs: Path, old: str, new: str, message: str):
    path = specs / "scale" / "kernel.py"
    edit(path, old, new)
    with pytest.raises(SpecError, match=f"{re.escape(str(path))}: .*{message}"):
        make_plan(specs, "ci", ARCHS)


def test_parameters_in_another_order(specs: Path):
    edit(specs / "scale" / "kernel.py", "    negate,\n    numel,\n", "    numel,\n    negate,\n")
    with pytest.raises(
        SpecError,
        match=r"params = .*: not in the order of the kernel function; allowed: output, source, numel, negate, factor",
    ):
        make_plan(specs, "ci", ARCHS)


def test_mistakes_of_all_files_are_reported_together(specs: Path):
    edit(specs / "scale" / "spec.toml", "num_warps = 2", "num_warps = 3")
    edit(specs / "scale" / "spec.toml", "[profiles.tiny]", "[profiles.full]")
    edit(specs / "fill" / "spec.toml", "BLOCK = 128", "BLOK = 128")
    with pytest.raises(SpecError) as raised:
        make_plan(specs, "ci", ARCHS)
    keys = {problem.key for problem in raised.value.problems}
    assert keys == {"tuning.rules[2].set.num_warps", "profiles.full", "tuning.rules[0].set.BLOK"}


def test_missing_files(specs: Path, tmp_path: Path):
    (specs / "fill" / "kernel.py").unlink()
    with pytest.raises(SpecError, match=r"fill/kernel\.py: file: does not exist"):
        make_plan(specs, "ci", ARCHS)
    with pytest.raises(SpecError, match="no kernel spec in this folder"):
        make_plan(tmp_path / "nowhere", "ci", ARCHS)


def test_a_kernel_without_a_spec(specs: Path):
    (specs / "fill" / "spec.toml").unlink()
    with pytest.raises(SpecError, match=r"fill/spec\.toml: file: does not exist"):
        make_plan(specs, "ci", ARCHS)


def test_a_spec_in_another_encoding(specs: Path):
    path = specs / "fill" / "spec.toml"
    path.write_bytes(path.read_bytes() + "# größer".encode("latin-1"))
    with pytest.raises(SpecError, match=r"fill/spec\.toml: UTF-8: .*can't decode"):
        make_plan(specs, "ci", ARCHS)


def test_more_cells_than_can_be_planned(specs: Path):
    values = ", ".join(map(str, range(64)))
    axes = "\n".join(f'x{i} = {{ values = [{values}], doc = "x" }}' for i in range(6))
    edit(specs / "fill" / "spec.toml", "[axes]", f"[axes]\n{axes}")
    with pytest.raises(SpecError, match=r"axes: \d+ cells; allowed: at most 100000"):
        make_plan(specs, "ci", ARCHS)


def test_unknown_profile_and_arch(specs: Path):
    with pytest.raises(BuildError, match=r"profile 'all' is unknown; allowed: ci, full, tiny"):
        make_plan(specs, "all", ARCHS)
    with pytest.raises(BuildError, match=r"archs sm80: allowed: sm90, sm100"):
        make_plan(specs, "ci", ["sm80"])
    with pytest.raises(BuildError, match=r"archs nothing: allowed: sm90, sm100"):
        make_plan(specs, "ci", [])
