"""Every variant of the backward's kernels, reached through ``torch.ops`` and compared with float64."""

from __future__ import annotations

import json

import pytest

from tests.gpu import backward_calls, installed
from tests.gpu.processes import run_program

UPDATES = ("update_short_runs", "sum_chunks", "update_long_runs", "sum_and_update_long_runs")


@pytest.fixture(scope="module")
def outcomes(report_folder):
    """What every call of ``backward_calls`` came to, in a process that had loaded nothing."""
    lines = run_program("backward_calls", "cuda:0").splitlines()
    if report_folder is not None:
        (report_folder / "backward_calls.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return [json.loads(line) for line in lines]


def test_every_call_is_right(outcomes):
    wrong = {outcome["call"]: outcome["wrong"] for outcome in outcomes if outcome["wrong"]}
    listed = "\n".join(f"{call}: {faults[:3]}" for call, faults in wrong.items())
    assert not wrong, f"{len(wrong)} of {len(outcomes)} calls are wrong:\n{listed}"


def test_every_variant_was_reached(outcomes):
    loaded = {name for outcome in outcomes for name in outcome["loaded"]}
    built = {
        entry["name"]
        for kernel in backward_calls.KERNELS
        for entry in installed.built_variants(kernel)
    }
    missing = sorted(built - loaded)
    assert loaded <= built
    assert not missing, f"{len(missing)} of {len(built)} were not reached, the first: {missing[:9]}"


def test_a_call_loads_what_its_dtypes_and_alignment_need(outcomes):
    """The names that a call's variants have are those that the call is about."""
    axes = {
        entry["name"]: entry["axes"]
        for kernel in UPDATES
        for entry in installed.built_variants(kernel)
    }
    names = {"sgd": "rowwise", "rowwise_adagrad": "rowwise", "adagrad": "adagrad", "adam": "adam"}
    checked = 0
    for outcome in outcomes:
        kind, *words = outcome["call"].split()
        if kind != "update":
            continue
        weights, gradient, alignment, factors, optimizer = words[:5]
        wanted = {
            "weight_dtype": weights,
            "gradient_dtype": gradient,
            "aligned": alignment == "aligned",
            "factored": factors == "factored",
            "optimizer": names[optimizer],
        }
        for name in set(outcome["loaded"]) & axes.keys():
            mine = {axis: value for axis, value in axes[name].items() if axis in wanted}
            assert mine == {axis: wanted[axis] for axis in mine}, (outcome["call"], name)
            checked += 1
    assert checked == len(axes)
