"""Every rule of operators.toml refuses what it should, in the same words in an eager call and in a fake."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tbe_aot._operator_rules import SCHEMAS
from tests.operators.support import Lookup, make_lookup, refusals

ARGUMENTS = {
    name: [argument.name for argument in getattr(torch.ops.tbe_aot, name).default._schema.arguments]
    for name in ("forward", "check_bounds")
}


def lookup() -> Lookup:
    return make_lookup([4, 8], [5, 7], [1, 2, 0, 1], weighted=True)


def vbe_lookup() -> Lookup:
    return make_lookup([4, 8], [5, 7], [1, 2, 0, 1], batch_sizes=[[1, 1], [2, 0]])


def forward_arguments(source: Lookup) -> dict[str, Any]:
    return dict(zip(ARGUMENTS["forward"], source.arguments(), strict=False))


def bounds_arguments() -> dict[str, Any]:
    source = lookup()
    return {
        "indices": source.indices,
        "offsets": source.offsets,
        "features": source.metadata.features,
        "layout": source.metadata.layout,
        "bounds_mode": "warning",
        "invalid_count": torch.zeros(1, dtype=torch.int64),
    }


def changed_layout(position: int, value: int) -> list[int]:
    layout = list(lookup().metadata.layout)
    layout[position] = value
    return layout


FORWARD: list[tuple[str, Any, str]] = [
    (
        "weights",
        torch.empty(200).double(),
        "weights is float64, expected float32, float16 or bfloat16",
    ),
    ("weights", torch.empty(200, 1), "weights has 2 dimensions, expected 1"),
    ("weights", torch.empty(400)[::2], "weights is not contiguous, expected contiguous memory"),
    ("weights", torch.empty(75), "weights has 75 elements, expected at least 76 for the tables"),
    ("features", torch.zeros(2, 8).int(), "features is int32, expected int64"),
    ("features", torch.zeros(3, 8).long(), r"features has shape \[3, 8\], expected \[2, 8\]"),
    ("features", torch.zeros(8, 2).long().t(), "features is not contiguous"),
    ("layout", [1, 2], r"layout has 2 integers, expected 6 and then 3 per group"),
    ("layout", [1, 2, 3, 4, 5, 6, 7], r"layout has 7 integers, expected 6 and then 3 per group"),
    ("layout", changed_layout(0, 2), "layout has format version 2, expected 1"),
    ("layout", [1, 0, 0, 0, 0, 0], "layout says 0 features, expected at least 1"),
    ("layout", changed_layout(3, -1), "layout has the negative integer -1"),
    ("layout", changed_layout(8, -2), "layout has the negative integer -2"),
    ("layout", [*changed_layout(8, 4), 16, 1, -2], "layout has the negative integer -2"),
    ("layout", changed_layout(6, 0), "layout has buckets of 0 to 0, expected 1 to 2147483647"),
    ("layout", [*changed_layout(6, 2**31), 16, 1, 0], "layout has buckets of 16 to 2147483648, "),
    ("layout", changed_layout(7, 3), "layout has a group with aligned = 3, expected 0 to 2"),
    ("layout", changed_layout(8, 5), "layout's groups hold 5 features, expected 2"),
    ("indices", torch.empty(4), "indices is float32, expected int32 or int64"),
    ("indices", torch.zeros(2, 2).long(), "indices has 2 dimensions, expected 1"),
    ("indices", torch.zeros(4, dtype=torch.bool), "indices is bool, expected int32 or int64"),
    ("offsets", torch.empty(5), "offsets is float32, expected int32 or int64"),
    ("offsets", torch.empty(0).long(), "offsets is empty, expected the number of bags plus 1"),
    ("offsets", torch.zeros(4).long(), r"offsets has 4 elements, expected T\*B\+1 with T = 2"),
    (
        "per_sample_weights",
        torch.zeros(3),
        "per_sample_weights has 3 elements, expected 4, one per",
    ),
    ("per_sample_weights", torch.zeros(4).int(), "per_sample_weights is int32, expected float32"),
    ("per_sample_weights", torch.zeros(4, 1), "per_sample_weights has 2 dimensions, expected 1"),
    ("pooling", "max", "pooling is 'max', expected 'sum' or 'mean'"),
    ("small_tables", "often", "small_tables is 'often', expected 'auto', 'never' or 'always'"),
    ("work_stealing", "auto", "work_stealing is 'auto', expected 'never' or 'always'"),
    (
        "output_dtype",
        "float64",
        "output_dtype is 'float64', expected 'float32', 'float16' or 'bfloat16'",
    ),
    (
        "vbe_output_offsets",
        torch.zeros(4).long(),
        "vbe_output_offsets has 4 elements, expected none",
    ),
    ("vbe_max_batch", 3, "vbe_max_batch is 3 and vbe_output_numel is 0, expected 0 without vbe"),
    ("vbe_output_numel", 3, "vbe_max_batch is 0 and vbe_output_numel is 3, expected 0 without vbe"),
]
FORWARD_VBE: list[tuple[str, Any, str]] = [
    (
        "vbe_bag_offsets",
        torch.zeros(4).long(),
        "vbe_bag_offsets has 4 elements, expected 3 for T = 2",
    ),
    ("vbe_bag_offsets", torch.zeros(3).int(), "vbe_bag_offsets is int32, expected int64"),
    ("vbe_bag_offsets", torch.zeros(6).long()[::2], "vbe_bag_offsets is not contiguous"),
    ("vbe_output_offsets", torch.zeros(3).long(), "vbe_output_offsets has 3 elements, expected 4"),
    ("vbe_output_offsets", None, "vbe_output_offsets has 0 elements, expected 4, one per bag"),
    ("vbe_max_batch", 1, "vbe_max_batch is 1, too few for 4 bags of 2 features"),
    ("vbe_max_batch", 2**31, "a feature has 2147483648 bags, expected less than 2147483648"),
    ("vbe_output_numel", -1, "vbe_max_batch is 2 and vbe_output_numel is -1, expected at least 0"),
]
CHECK_BOUNDS: list[tuple[str, Any, str]] = [
    ("indices", torch.empty(4), "indices is float32, expected int32 or int64"),
    ("offsets", torch.zeros(4).long(), r"offsets has 4 elements, expected T\*B\+1 with T = 2"),
    ("features", torch.zeros(1, 8).long(), r"features has shape \[1, 8\], expected \[2, 8\]"),
    ("layout", [], "layout has 0 integers"),
    ("layout", changed_layout(5, -7), "layout has the negative integer -7"),
    ("layout", changed_layout(7, 3), "layout has a group with aligned = 3, expected 0 to 2"),
    (
        "bounds_mode",
        "raise",
        "bounds_mode is 'raise', expected 'none', 'ignore', 'warning' or 'fatal'",
    ),
    ("invalid_count", torch.zeros(2).long(), "invalid_count has 2 elements, expected 1"),
    ("invalid_count", torch.zeros(1).int(), "invalid_count is int32, expected int64"),
    ("vbe_bag_offsets", torch.zeros(2).long(), "vbe_bag_offsets has 2 elements, expected 3"),
]


def verify(operator: str, arguments: dict[str, Any], name: str, value: Any, message: str) -> None:
    ordered = dict.fromkeys(ARGUMENTS[operator])
    ordered |= {
        "pooling": "sum",
        "output_dtype": "float32",
        "bounds_mode": "warning",
        "vbe_max_batch": 0,
        "vbe_output_numel": 0,
        "small_tables": "auto",
        "work_stealing": "never",
    }
    ordered = {
        key: (arguments | {name: value}).get(key, ordered[key]) for key in ARGUMENTS[operator]
    }
    eager, traced = refusals(operator, ordered.values())
    assert eager.startswith(f"tbe_aot::{operator}: ")
    assert traced == eager
    assert re.search(message, eager)


@pytest.mark.parametrize(("name", "value", "message"), FORWARD)
def test_forward(name, value, message):
    verify("forward", forward_arguments(lookup()), name, value, message)


@pytest.mark.parametrize(("name", "value", "message"), FORWARD_VBE)
def test_forward_of_a_variable_batch(name, value, message):
    verify("forward", forward_arguments(vbe_lookup()), name, value, message)


@pytest.mark.parametrize(("name", "value", "message"), CHECK_BOUNDS)
def test_check_bounds(name, value, message):
    verify("check_bounds", bounds_arguments(), name, value, message)


def test_int32_indices_of_a_table_with_too_many_rows():
    message = "indices is int32, expected int64 because a table has 2147483648 rows"
    layout = changed_layout(5, 2**31)
    forward = forward_arguments(lookup()) | {"layout": layout}
    forward["indices"] = forward["indices"].int()
    assert message in refusals("forward", forward.values())[0]
    verify("forward", forward, "layout", layout, message)
    bounds = bounds_arguments() | {"indices": forward["indices"]}
    verify("check_bounds", bounds, "layout", layout, message)


@pytest.mark.parametrize("name", ["weights", "per_sample_weights"])
def test_a_tensor_that_requires_grad(name):
    arguments = forward_arguments(lookup())
    arguments[name] = arguments[name].clone().requires_grad_()
    message = (
        f"{name} requires grad, but this operator has no gradient: call it under torch.no_grad\\(\\) or pass"
        f" {name}.detach\\(\\)"
    )
    verify("forward", arguments, name, arguments[name], message)
    # A view and a result of autograd's are noticed as well.
    verify("forward", arguments, name, arguments[name].view(-1), message)
    verify("forward", arguments, name, arguments[name] * 2, message)
    with torch.no_grad():
        torch.ops.tbe_aot.forward(*arguments.values())
    with torch.inference_mode():
        torch.ops.tbe_aot.forward(*arguments.values())


def cuda_fakes(operator: str, cpu: str) -> Callable[[], None]:
    """A call with every tensor on a GPU but one; no GPU is needed to trace it."""
    vbe = vbe_lookup() if cpu.startswith("vbe_") else None
    if operator == "forward":
        arguments = forward_arguments(vbe or lookup())
    else:
        arguments = bounds_arguments()
        if vbe:
            arguments["vbe_bag_offsets"] = forward_arguments(vbe)["vbe_bag_offsets"]

    def call() -> None:
        with FakeTensorMode():
            tensors = {
                name: torch.empty(
                    value.shape, dtype=value.dtype, device="cpu" if name == cpu else "cuda"
                )
                if isinstance(value, torch.Tensor)
                else value
                for name, value in arguments.items()
            }
            getattr(torch.ops.tbe_aot, operator)(*tensors.values())

    return call


@pytest.mark.parametrize(
    "name",
    [
        "features",
        "indices",
        "offsets",
        "per_sample_weights",
        "vbe_bag_offsets",
        "vbe_output_offsets",
    ],
)
def test_torchrec_995_a_cpu_tensor_among_cuda_tensors(name):
    with pytest.raises(
        RuntimeError, match=f"{name} is on cpu, expected cuda:0, the device of weights"
    ):
        cuda_fakes("forward", name)()


@pytest.mark.parametrize("name", ["indices", "offsets", "invalid_count", "vbe_bag_offsets"])
def test_torchrec_995_a_cpu_tensor_among_cuda_tensors_of_the_bounds_check(name):
    with pytest.raises(
        RuntimeError, match=f"{name} is on cpu, expected cuda:0, the device of features"
    ):
        cuda_fakes("check_bounds", name)()


def test_all_on_a_gpu_is_accepted_by_the_fakes():
    cuda_fakes("forward", "")()
    cuda_fakes("check_bounds", "")()


def test_the_schemas_are_those_of_the_description():
    for name, schema in SCHEMAS.items():
        assert str(torch._C.parse_schema(f"tbe_aot::{schema}")) == str(
            getattr(torch.ops.tbe_aot, name).default._schema
        )
