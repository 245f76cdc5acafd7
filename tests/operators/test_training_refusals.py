"""The rules of the backward's operators refuse what they should, in the same words in an eager call and in a fake."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.operators.support import Lookup, make_lookup
from tests.operators.training import make_training


def lookup() -> Lookup:
    return make_lookup([4, 8], [5, 7], [1, 2, 0, 1], weighted=True)


def vbe_lookup() -> Lookup:
    return make_lookup([4, 8], [5, 7], [1, 2, 0, 1], batch_sizes=[[1, 1], [2, 0]])


REFUSED: list[tuple[str, str, Any, str]] = [
    ("sgd", "grad_output", torch.ones(2, 12).double(), "grad_output is float64, expected float32"),
    ("sgd", "grad_output", torch.ones(24), "grad_output has 1 dimensions, expected 2"),
    ("sgd", "grad_output", torch.ones(3, 12), r"has shape \[3, 12\], expected \[2, 12\]"),
    ("sgd", "grad_output", torch.ones(2, 12).requires_grad_(), "grad_output requires grad, but"),
    ("sgd", "weights", torch.empty(75), "weights has 75 elements, expected at least 76"),
    ("sgd", "weights", torch.empty(76).requires_grad_(), "weights requires grad, but"),
    ("sgd", "layout", [1, 2, 12, 76, 12, 7, 16, 3, 2], "a group with aligned = 3, expected 0 to 2"),
    ("sgd", "layout", [1, 2, 12, 76, -12, 7, 16, 1, 2], "layout has the negative integer -12"),
    ("sgd", "offsets", torch.zeros(4).long(), r"offsets has 4 elements, expected T\*B\+1"),
    ("sgd", "optimizer", "lamb", "optimizer is 'lamb', expected 'sgd', 'rowwise_adagrad', "),
    ("sgd", "learning_rate", torch.ones(2), "learning_rate has 2 elements, expected 1"),
    ("sgd", "learning_rate", torch.ones(1).double(), "learning_rate is float64, expected float32"),
    ("sgd", "momentum1", torch.ones(3), "momentum1 has 3 elements, expected 0 for optimizer 'sgd'"),
    ("rowwise_adagrad", "momentum1", None, "momentum1 has 0 elements, expected 12 for optimizer"),
    ("rowwise_adagrad", "momentum1", torch.ones(12).half(), "momentum1 is float16, expected float"),
    ("adagrad", "momentum1", torch.ones(12), "momentum1 has 12 elements, expected 76 for"),
    ("adagrad", "momentum1", torch.ones(152)[::2], "momentum1 is not contiguous"),
    ("adam", "momentum2", None, "momentum2 has 0 elements, expected 76 for optimizer 'adam'"),
    ("adam", "step", None, "step has 0 elements, expected 1 for optimizer 'adam'"),
    ("adam", "step", torch.ones(1), "step is float32, expected int64"),
    ("adam", "eps", -0.001, "eps is -0.001, expected at least 0"),
    ("adam", "eps", float("nan"), "eps is nan, expected at least 0"),
    ("adam", "beta1", 1.0, "beta1 is 1, expected at least 0 and below 1"),
    ("adam", "beta2", -1e-7, "beta2 is -1e-07, expected at least 0 and below 1"),
    ("sgd", "weight_decay", -0.123456789, "weight_decay is -0.123457, expected at least 0"),
    ("sgd", "weight_decay_mode", "L2", "weight_decay_mode is 'L2', expected 'none', 'l2' or"),
    ("sgd", "per_sample_weights", torch.ones(3), "per_sample_weights has 3 elements, expected 4"),
    ("sgd", "gradient_clip", -1.0, "gradient_clip is -1, expected at least 0"),
    ("sgd", "gradient_scale", torch.ones(2), "gradient_scale has 2 elements, expected 1"),
    ("sgd", "found_inf", torch.ones(3), "found_inf has 3 elements, expected 1"),
    ("sgd", "vbe_max_batch", 3, "vbe_max_batch is 3, expected 0 without vbe_bag_offsets"),
    ("sgd", "fused_long_runs", "fused", "fused_long_runs is 'fused', expected 'auto', 'never' or"),
]
REFUSED_VBE: list[tuple[str, Any, str]] = [
    ("grad_output", torch.ones(2, 12), "grad_output has 2 dimensions, expected 1"),
    ("vbe_bag_offsets", torch.zeros(4).long(), "vbe_bag_offsets has 4 elements, expected 3"),
    ("vbe_output_offsets", None, "vbe_output_offsets has 0 elements, expected 4, one per bag"),
    ("vbe_max_batch", 1, "vbe_max_batch is 1, too few for 4 bags of 2 features"),
    ("vbe_max_batch", -1, "vbe_max_batch is -1, too few for 4 bags of 2 features"),
]
SAMPLE_WEIGHTS = (
    "grad_output",
    "weights",
    "features",
    "layout",
    "indices",
    "offsets",
    "pooling",
    "vbe_bag_offsets",
    "vbe_output_offsets",
    "vbe_max_batch",
)


def verify(operator: str, arguments: dict[str, Any], message: str) -> None:
    call = getattr(torch.ops.tbe_aot, operator)
    with pytest.raises(RuntimeError) as eager:
        call(**arguments)
    with FakeTensorMode() as mode, pytest.raises(RuntimeError) as traced:
        call(
            **{
                name: mode.from_tensor(value) if isinstance(value, torch.Tensor) else value
                for name, value in arguments.items()
            }
        )
    assert str(traced.value) == str(eager.value)
    assert str(eager.value).startswith(f"tbe_aot::{operator}: ")
    assert re.search(message, str(eager.value))


def sample_weights_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if name in SAMPLE_WEIGHTS}


@pytest.mark.parametrize(("optimizer", "name", "value", "message"), REFUSED)
def test_refused(optimizer, name, value, message):
    training = make_training(lookup(), optimizer)
    before = training.snapshot()
    arguments = training.arguments() | {name: value}
    verify("backward_update", arguments, message)
    assert training.equals(before)
    if name in SAMPLE_WEIGHTS:
        verify("per_sample_weights_gradient", sample_weights_arguments(arguments), message)


@pytest.mark.parametrize(("name", "value", "message"), REFUSED_VBE)
def test_refused_of_a_variable_batch(name, value, message):
    arguments = make_training(vbe_lookup(), "sgd").arguments() | {name: value}
    verify("backward_update", arguments, message)
    verify("per_sample_weights_gradient", sample_weights_arguments(arguments), message)


def test_a_tensor_on_another_device_is_named():
    for name in ("grad_output", "momentum1", "learning_rate", "indices"):
        arguments = make_training(lookup(), "adam").arguments()
        with (
            FakeTensorMode(),
            pytest.raises(RuntimeError, match=f"{name} is on cpu, expected cuda:0, the device of"),
        ):
            torch.ops.tbe_aot.backward_update(
                **{
                    key: torch.empty(
                        value.shape, dtype=value.dtype, device="cpu" if key == name else "cuda"
                    )
                    if isinstance(value, torch.Tensor)
                    else value
                    for key, value in arguments.items()
                }
            )
