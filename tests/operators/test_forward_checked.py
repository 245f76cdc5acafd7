"""A lookup with a bounds check: the check and the lookup, one behind the other, in one operator; and modules of it."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tbe_aot
from tbe_aot import SGD, Adam, RowwiseAdagrad, TableBatchedEmbeddingBags, TableSpec
from tests import oracle
from tests.operators.support import INDEX_DTYPES, WEIGHT_DTYPES, Lookup, make_lookup, refusals

MODES = ("none", "ignore", "warning", "fatal")
FUSED = ("auto", "never", "always")
NO_VBE = (None, None, 0, 0)


def checked_arguments(lookup: Lookup, pooling: str = "sum", **last: Any) -> tuple[Any, ...]:
    """Positional arguments of forward_checked; ``last``: those that forward has not."""
    arguments = lookup.arguments(pooling)
    arguments += () if lookup.batch_sizes is not None else NO_VBE
    options = {"bounds_mode": "warning", "invalid_count": None, "fused_checks": "auto", **last}
    return (*arguments, "auto", "never", *options.values())


def bag_counts(lookup: Lookup) -> list[int]:
    features = len(lookup.metadata.feature_tables)
    if lookup.batch_sizes is not None:
        return [sum(sizes) for sizes in lookup.batch_sizes]
    return [(lookup.offsets.numel() - 1) // features] * features


@st.composite
def damaged(draw: st.DrawFn) -> tuple[Lookup, list[int]]:
    """A lookup with some indices and offsets replaced by anything, and the rows of its tables."""
    features = draw(st.integers(1, 3))
    rows = draw(st.lists(st.integers(0, 6), min_size=features, max_size=features))
    batch_sizes, bags = None, [draw(st.integers(0, 3))] * features
    if draw(st.booleans()):
        batch_sizes = [[draw(st.integers(0, 3)) for _ in range(2)] for _ in range(features)]
        bags = [sum(sizes) for sizes in batch_sizes]
    lookup = make_lookup(
        [4] * features,
        rows,
        [draw(st.integers(0, 4)) for _ in range(sum(bags))],
        index_dtype=draw(st.sampled_from(INDEX_DTYPES)),
        offset_dtype=draw(st.sampled_from(INDEX_DTYPES)),
        weighted=draw(st.booleans()),
        batch_sizes=batch_sizes,
    )
    for _ in range(draw(st.integers(0, 4)) if lookup.indices.numel() else 0):
        lookup.indices[draw(st.integers(0, lookup.indices.numel() - 1))] = draw(st.integers(-9, 9))
    for _ in range(draw(st.integers(0, 2))):
        position = draw(st.integers(0, lookup.offsets.numel() - 1))
        lookup.offsets[position] = draw(st.integers(-20, 40))
    return lookup, rows


@settings(max_examples=150, deadline=None)
@given(damaged(), st.sampled_from(FUSED), st.sampled_from(["sum", "mean"]))
def test_any_damage_gives_what_check_and_lookup_give(case, fused, pooling):
    lookup, rows = case
    before = lookup.indices.clone(), lookup.offsets.clone()
    expected = oracle.check_bounds(lookup.indices, lookup.offsets, rows, bag_counts(lookup))
    repaired = lookup.with_(
        indices=expected.indices, offsets=expected.offsets.to(lookup.indices.dtype)
    )
    for mode, counts in (("warning", True), ("ignore", False)):
        count = torch.tensor([7])
        pooled, offsets = torch.ops.tbe_aot.forward_checked(
            *checked_arguments(
                lookup, pooling, bounds_mode=mode, invalid_count=count, fused_checks=fused
            )
        )
        assert torch.equal(pooled, repaired.forward(pooling))
        assert torch.equal(offsets, repaired.offsets)
        assert count.item() == 7 + counts * expected.invalid_indices
    assert torch.equal(lookup.indices, before[0])
    assert torch.equal(lookup.offsets, before[1])


@pytest.mark.parametrize("mode", ["none", "fatal"])
def test_other_modes_are_refused(mode):
    lookup = make_lookup([4], [10], [2, 1])
    eager, traced = refusals("forward_checked", checked_arguments(lookup, bounds_mode=mode))
    assert eager == traced
    assert f"bounds_mode is '{mode}', expected 'ignore' or 'warning'" in eager


def test_refused_as_forward_refuses():
    lookup = make_lookup([4], [10], [2, 1])
    eager, traced = refusals(
        "forward_checked",
        checked_arguments(lookup, invalid_count=torch.zeros(2, dtype=torch.int64)),
    )
    assert eager == traced
    assert "invalid_count has 2 elements, expected 1" in eager
    lookup = lookup.with_(per_sample_weights=torch.ones(2))
    eager, traced = refusals("forward_checked", checked_arguments(lookup))
    assert eager == traced
    assert "per_sample_weights has 2 elements, expected 3" in eager
    weights = make_lookup([4], [10], [2, 1]).weights.requires_grad_()
    with pytest.raises(RuntimeError, match="weights requires grad"):
        torch.ops.tbe_aot.forward_checked(*checked_arguments(lookup.with_(weights=weights)))


@pytest.mark.parametrize("damaged_entry", ["output_offsets", "layout"])
def test_a_lookup_that_is_refused_counts_nothing(damaged_entry):
    """On a CPU, which finds such only when it looks up, and tells the operator that was called."""
    lookup = make_lookup([4, 4], [10, 10], [2, 1, 1], batch_sizes=[[1, 1], [1, 0]])
    lookup.indices[0] = 99
    count = torch.tensor([7])
    arguments = list(checked_arguments(lookup, invalid_count=count))
    if damaged_entry == "layout":
        arguments[2] = [*arguments[2][:2], arguments[2][2] + 1, *arguments[2][3:]]
    else:
        arguments[9] = arguments[9] + 1000
    with pytest.raises(RuntimeError, match=r"tbe_aot::forward_checked: .*output|columns"):
        torch.ops.tbe_aot.forward_checked(*arguments)
    assert count.item() == 7


@pytest.mark.parametrize(("counted", "vbe"), list(itertools.product([False, True], repeat=2)))
@pytest.mark.parametrize("weighted", [False, True])
def test_fbgemm_3240_3755_3368_opcheck(weighted, counted, vbe):
    sizes = [[1, 1], [2, 0]] if vbe else None
    lookup = make_lookup([8, 5], [9, 9], [1, 2, 0, 3], weighted=weighted, batch_sizes=sizes)
    count = torch.zeros(1, dtype=torch.int64) if counted else None
    given = [
        value.clone() if isinstance(value, torch.Tensor) else value
        for value in checked_arguments(lookup, invalid_count=count)
    ]
    torch.library.opcheck(
        torch.ops.tbe_aot.forward_checked.default,
        tuple(given),
        test_utils=(
            "test_schema",
            "test_autograd_registration",
            "test_faketensor",
            "test_aot_dispatch_dynamic",
        ),
    )


# --- Modules ----------------------------------------------------------------------------------------

TABLES = [TableSpec("a", 10, 64), TableSpec("b", 6, 5)]
ROWS = [10, 6]
BAGS = [[3, 1], [0, 2]]


def bad_batch(dtype: torch.dtype, *, vbe: bool, kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    """(indices, offsets) of two features, with what cases 23 to 26 have in them."""
    bags = 6 if vbe else 8
    lengths = torch.tensor([2, 0, 3, 1, 4, 2, 1, 2])[:bags]
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    generator = torch.Generator().manual_seed(3)
    indices = torch.randint(0, 6, (int(offsets[-1]),), generator=generator)
    if kind == "an index of each sign":
        indices[1], indices[7] = 10, -7
    elif kind == "every index":
        indices[:] = 10
    elif kind == "offsets":
        offsets[0], offsets[-1] = -100, offsets[-1] + 100
    else:
        indices[3] = -1
    return indices.to(dtype), offsets.to(dtype)


KINDS = ("an index of each sign", "every index", "offsets", "pruned")


@pytest.mark.parametrize("vbe", [False, True])
@pytest.mark.parametrize("index_dtype", INDEX_DTYPES)
@pytest.mark.parametrize("fused", FUSED)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_torchrec_575_fbgemm_3979_cases_23_to_26_of_a_trained_module(
    kind, mode, fused, index_dtype, vbe
):
    options: dict[str, Any] = {
        "optimizer": RowwiseAdagrad(lr=0.5),
        "weights_dtype": torch.float16,
    }
    bags = TableBatchedEmbeddingBags(TABLES, bounds_check=mode, fused_checks=fused, **options)
    expected = TableBatchedEmbeddingBags(TABLES, bounds_check="none", **options)
    expected.load_state_dict(bags.state_dict())
    indices, offsets = bad_batch(index_dtype, vbe=vbe, kind=kind)
    given = indices.clone(), offsets.clone()
    sizes = BAGS if vbe else None
    counts = [sum(bags) for bags in BAGS] if vbe else [4, 4]
    repaired = oracle.check_bounds(indices, offsets, ROWS, counts)
    before = bags.weights.detach().clone()
    is_bad = bool(repaired.invalid_indices or repaired.invalid_offsets)
    if is_bad and mode in {"none", "fatal"}:
        # A CPU looks where a GPU trusts.
        with pytest.raises(RuntimeError):
            bags(indices, offsets, None, sizes)
        assert torch.equal(bags.weights, before)
        assert bags.invalid_index_count() == (repaired.invalid_indices if mode == "fatal" else 0)
        return
    pooled = bags(indices, offsets, None, sizes)
    wanted = expected(repaired.indices, repaired.offsets, None, sizes)
    assert torch.equal(pooled, wanted)
    gradient = torch.linspace(-1, 1, pooled.numel()).view(pooled.shape)
    pooled.backward(gradient)
    wanted.backward(gradient)
    assert torch.equal(bags.weights, expected.weights)
    assert torch.equal(bags.get_buffer("momentum1"), expected.get_buffer("momentum1"))
    assert torch.equal(indices, given[0])
    assert torch.equal(offsets, given[1])
    counted = repaired.invalid_indices if mode in {"warning", "fatal"} else 0
    assert bags.invalid_index_count() == counted


@pytest.mark.parametrize("weighted", ["no", "yes", "with a gradient"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"pooling": "mean"},
        {"hoist_transpose": True},
        {"frozen": ["b"]},
        {"frozen": ["a"], "hoist_transpose": True},
        {"deferred": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", WEIGHT_DTYPES)
def test_every_way_to_train_repairs_as_the_check_does(dtype, options, weighted):
    options = {"optimizer": Adam(lr=0.1), "weights_dtype": dtype, **options}
    bags = TableBatchedEmbeddingBags(TABLES, **options)
    expected = TableBatchedEmbeddingBags(TABLES, bounds_check="none", **options)
    expected.load_state_dict(bags.state_dict())
    indices, offsets = bad_batch(torch.int64, vbe=False, kind="an index of each sign")
    offsets[3] = 100
    repaired = oracle.check_bounds(indices, offsets, ROWS, [4, 4])
    gradients = []
    for module, batch in (
        (bags, (indices, offsets)),
        (expected, (repaired.indices, repaired.offsets)),
    ):
        weights = None
        if weighted != "no":
            weights = torch.linspace(0.5, 1, indices.numel())
            weights.requires_grad_(weighted == "with a gradient")
        module(*batch, weights).sum().backward()
        if module.deferred:
            module.step()
        gradients.append(None if weights is None else weights.grad)
    assert torch.equal(bags.weights, expected.weights)
    if weighted == "with a gradient":
        ours, theirs = gradients
        assert ours is not None
        assert theirs is not None
        assert torch.equal(ours, theirs)
    assert bags.invalid_index_count() == repaired.invalid_indices


@pytest.mark.slow
@pytest.mark.parametrize("hoisted", [False, True])
def test_a_compiled_module_trains_on_what_is_repaired(hoisted):
    modules = [
        TableBatchedEmbeddingBags(TABLES, optimizer=SGD(lr=0.5), hoist_transpose=hoisted)
        for _ in range(2)
    ]
    modules[1].load_state_dict(modules[0].state_dict())
    torch._dynamo.reset()
    calls: list[Any] = [torch.compile(modules[0], fullgraph=True), modules[1]]
    for _ in range(2):
        for call in calls:
            call(*bad_batch(torch.int64, vbe=False, kind="an index of each sign")).sum().backward()
    assert torch.equal(modules[0].weights, modules[1].weights)
    assert [module.invalid_index_count() for module in modules] == [4, 4]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("mode", MODES)
def test_fbgemm_719_1988_scripted_modules_check_too(mode):
    bags = TableBatchedEmbeddingBags(TABLES, bounds_check=mode)
    scripted = torch.jit.script(bags)
    indices, offsets = bad_batch(torch.int64, vbe=False, kind="pruned")
    assert torch.equal(scripted(indices, offsets), bags(indices, offsets))
    indices[0] = 10
    if mode in {"none", "fatal"}:
        with pytest.raises(RuntimeError, match="10 at position 0"):
            scripted(indices, offsets)
    else:
        repaired = torch.where(indices == 10, 0, indices)
        assert torch.equal(scripted(indices, offsets), bags(repaired, offsets))
        assert int(scripted.invalid_count) == (mode == "warning")


def test_a_gradient_needs_the_indices_of_the_forward():
    bags = TableBatchedEmbeddingBags(TABLES, optimizer=SGD())
    indices, offsets = bad_batch(torch.int64, vbe=False, kind="pruned")
    pooled = bags(indices, offsets)
    indices.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        pooled.sum().backward()


def test_explain_of_a_checked_call():
    pytest.importorskip("tbe_aot._launcher")
    lookup = make_lookup([8], [9], [1, 2, 0, 3])
    arguments = lookup.arguments()
    for dtype, width in ((torch.int32, "i32"), (torch.int64, "i64")):
        given = [*arguments]
        given[3], given[4] = given[3].int(), given[4].to(dtype)
        launches = tbe_aot.explain(*given, bounds_mode="warning", arch="sm90").launches
        assert launches[0].variant == f"check_offsets__{width}"
        assert launches[-1].variant.endswith("_short_checked")
    with pytest.raises(RuntimeError, match="bounds_mode is 'fatal'"):
        tbe_aot.explain(*arguments, bounds_mode="fatal")
