"""operators.toml: its mistakes are named, its dispatch is served by the plan, its expressions mean the same twice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import tbe_aot
from aot_build.errors import SpecError
from aot_build.expressions import ExpressionError, Scope, translate, translate_message
from aot_build.operators import OPERATORS_FILE, load_operators
from aot_build.plan import cell_number
from aot_build.planner import make_plan
from tbe_aot._operator_rules import OPTIMIZERS
from tests.operators.training import OPTIMIZERS as TESTED

SPECS = Path(__file__).resolve().parents[2] / "kernel_specs"
ORIGINAL = (SPECS / OPERATORS_FILE).read_text()


@pytest.fixture
def load_changed(tmp_path: Path) -> Callable[[str, str], None]:
    """Load operators.toml with one text replaced."""

    def load(old: str, new: str) -> None:
        assert old in ORIGINAL
        for path in SPECS.iterdir():
            if path.name != OPERATORS_FILE:
                (tmp_path / path.name).symlink_to(path)
        (tmp_path / OPERATORS_FILE).write_text(ORIGINAL.replace(old, new, 1))
        load_operators(tmp_path)

    return load


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("schema_version = 1", "schema_version = 2", "schema_version = 2"),
        ("summary =", "sumary =", "sumary"),
        ('dtypes = ["int64"]', 'dtypes = ["int63"]', r"forward.features.dtypes = .*int63.*float32"),
        ('device_of = "weights"', 'device_of = "weight"', "device_of = .*no other required tensor"),
        (
            'type = "int[]"',
            'type = "int[]"\nrank = 1',
            "forward.layout.rank: says nothing about int",
        ),
        ('type = "int[]"', 'type = "ints"', "type = .*ints"),
        (
            "default = '\"float32\"'\nvalues",
            "values",
            "no default after an argument that has one",
        ),
        ('include = "bags"', 'include = "bag"', "no such set of checks; allowed: metadata, bags"),
        ("numel(offsets) >= 1", "numel(offset) >= 1", r"`numel\(offset\)` is not allowed"),
        ("numel(offsets) >= 1", "numel(offsets) >= ", "invalid syntax"),
        ("numel(offsets) >= 1", "numel(offsets)", "`numel\\(offsets\\)` is no condition"),
        ('value = "given(vbe_bag_offsets)"', 'value = "dtype(indices)"', "an integer or a bool"),
        ('message = "offsets is empty', 'massage = "offsets is empty', "massage"),
        ('let = "vbe"', 'let = "vbe"\nrequire = "vbe"', "neither or both of `let` and `require`"),
        ('kernel = "forward"', 'kernel = "forwards"', "no such kernel; allowed: .*forward"),
        ('bucket = { chosen_by = "layout" }\n', "", "not the axes of the kernel"),
        ('gradient_dtype = "bf16" }', 'gradient_dtype = "bf17" }', "bf17.*not values of an axis"),
        (
            'gradient_dtype = "bf16" }',
            'gradient = "bf16" }',
            "never.*gradient.*not values of an axis",
        ),
        ('float16 = "fp16"', 'float16 = "fp17"', "fp17.*not a value of the axis"),
        ('float16 = "fp16", ', "", "not the dtypes of weights"),
        (
            'kernel_formula = "adam"',
            'kernel_formula = "lamb"',
            "adam.kernel_formula = .*lamb.*not a value of the axis optimizer of update_.*rowwise.*adagrad",
        ),
        (
            'kernel_formula = "adam"',
            'kernel_formula = "rowwise"',
            "adam.*a value of the axis optimizer of update_long_runs that no optimizer asks for",
        ),
        (
            'name = "adam"\n',
            'name = "adagrad"\n',
            "optimizers.adagrad.*this optimizer is listed twice",
        ),
        ('row_state = ["momentum1"]', 'row_state = ["momentum"]', "unknown state.*momentum1"),
        ('["momentum1", "momentum2"]', '["momentum1", "momentum1"]', "a state is listed twice"),
        ("if optimizer in momentum1_per_row", "if optimizer in bags", "is not allowed"),
        ('values_of = "optimizers"\n', "", "optimizer.*neither `values` nor a `values_of`"),
    ],
)
def test_a_mistake_is_named_with_file_key_and_what_is_allowed(load_changed, old, new, message):
    with pytest.raises(SpecError, match=message) as error:
        load_changed(old, new)
    assert OPERATORS_FILE in str(error.value)


def test_broken_and_missing_files(load_changed, tmp_path):
    with pytest.raises(SpecError, match="TOML"):
        load_changed("schema_version = 1", "schema_version = ")
    (tmp_path / "empty").mkdir()
    with pytest.raises(SpecError, match="does not exist"):
        load_operators(tmp_path / "empty")


@pytest.mark.parametrize("profile", ["ci", "full"])
def test_every_cell_that_an_operator_accepts_has_exactly_one_variant(profile):
    plan = make_plan(SPECS, profile, ["sm90", "sm100"])
    asked: dict[str, set[int]] = {name: set() for name in plan.kernels}
    for _, name, axes in load_operators(SPECS).dispatch_cells():
        kernel = plan.kernels[name]
        variant = kernel.cells[cell_number({axis.name: axis.values for axis in kernel.axes}, axes)]
        assert 0 <= variant < len(kernel.variants)
        asked[name].add(variant)
    # And nothing is built that nobody can ask for.
    for name, variants in asked.items():
        assert variants == set(range(len(plan.kernels[name].variants)))


def test_every_optimizer_has_its_numbers_in_python_and_its_tests():
    names = [optimizer.name for optimizer in load_operators(SPECS).optimizers]
    public = [getattr(tbe_aot, name) for name in tbe_aot.__all__]
    described = {
        kind.name for kind in public if hasattr(kind, "row_state") and hasattr(kind, "name")
    }
    assert names == list(OPTIMIZERS) == list(TESTED)
    assert described == set(names)


SCOPE = Scope(
    frozenset({"t", "u"}),
    frozenset({"l"}),
    frozenset({"a", "b"}),
    floats=frozenset({"x"}),
    strings=frozenset({"s"}),
    string_sets={"words": ["sum", "max"], "nothing": []},
)


class Tensor:
    """What an expression asks of a tensor."""

    dtype = "int64"

    def __init__(self, *sizes: int) -> None:
        self.sizes = sizes

    def size(self, dimension: int) -> int:
        return self.sizes[dimension]

    def dim(self) -> int:
        return len(self.sizes)


class Rules:
    """The vocabulary of the generated Python, plain."""

    numel = staticmethod(lambda tensor: tensor.sizes[0] * tensor.sizes[1])
    given = staticmethod(lambda tensor: tensor is not None)
    dtype_name = staticmethod(lambda dtype: dtype)
    every = staticmethod(lambda *values: all(values))
    either = staticmethod(lambda *values: any(values))
    negate = staticmethod(lambda value: not value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a + 2 * b", 17),
        ("a // b % 3 - 1", -1),
        ("(a - b) * 2", -2),
        ("numel(t) == 12 and size(t, 1) == 4", True),
        ("not (a == 5 and b == 5)", True),
        ("a == 4 or b == 5 or a == 6", False),
        ("sum(l[1::2]) + len(l) + l[0]", (2 + 2) + 4 + 1),
        ("min(l[1::1]) * 10 + max(l[0::2])", 2 * 10 + 3),
        ("min(l[4::1]) + max(l[9::3])", 0),
        ("dtype(t) == 'int64'", True),
        ("a if given(t) else b", 5),
        ("2147483648 > a", True),
        ("x >= 0 and x < 1", True),
        ("x == x", True),
        ("s == 'sum'", True),
        ("rank(t) == (1 if s == 'mean' else 2)", True),
        ("s in words", True),
        ("not s in words or s in nothing", False),
    ],
)
def test_an_expression_in_python(text, expected):
    expression = translate(text, SCOPE)
    names = {
        "a": 5,
        "b": 6,
        "t": Tensor(3, 4),
        "l": [1, 2, 3, 2],
        "x": 0.5,
        "s": "sum",
        "rules": Rules,
    }
    assert eval(expression.python, names) == expected


NOT_ALLOWED = """
    a +
    c
    t
    a and b
    numel(l)
    len(t)
    a < 'x'
    'x' < 'y'
    a ** 2
    f(a)
    l['x']
    sum(l)
    min(l)
    max(a, b)
    a < b < 3
    True
    1.5
    not a
    size(t, a)
    a if b else 1
    a if given(t) else 'x'
    numel(t=t)
    0 <= x
    x + 1
    s < 'x'
    s == x
    rank(l)
    a in words
    s in l
    s in 'sum'
    s not in words
"""


@pytest.mark.parametrize("text", NOT_ALLOWED.strip().splitlines())
def test_an_expression_that_is_not_allowed(text):
    with pytest.raises(ExpressionError):
        translate(text.strip(), SCOPE)


def test_messages_in_both_languages():
    message = translate_message("t has {numel(t)} elements, expected {a + 1}", SCOPE)
    assert message.cpp == '"t has ", in.t.numel, " elements, expected ", (in.a + 1)'
    assert message.python == 'f"t has {rules.numel(t)} elements, expected {(a + 1)}"'
    message = translate_message("x is {x}, s is '{s}'", SCOPE)
    assert message.cpp == '"x is ", in.x, ", s is \'", in.s, "\'"'
    assert message.python == """f"x is {x:g}, s is '{s}'\""""
    assert translate_message("wrong", SCOPE).python == '"wrong"'
    for text in ('a "quote"', "a {{brace}}", "{a:5}", "{a!r}", "{nobody}"):
        with pytest.raises(ExpressionError):
            translate_message(text, SCOPE)
