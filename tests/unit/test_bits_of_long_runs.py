"""What lets one launch for long runs have the bits of two, in the code that Triton makes of both.

Whether a product and a sum become one instruction, which rounds once, is the compiler's choice, and depends on what else
is in a kernel. So no sum takes a product but in an fma of the source. An option of the compiler would not do: ptxas joins
the packed products and sums of sm100 even where they forbid it (``mul.rn.f32x2``, ``--fmad=false``).

The rows of a chunk's tile are added in the order of their layout, which has to be the same.
"""

from __future__ import annotations

import multiprocessing
import re
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from aot_build.archs import ARCHS
from aot_build.jobs import Batch, make_job
from aot_build.planner import make_plan

SPECS = Path(__file__).resolve().parents[2] / "kernel_specs"
FUSED = "sum_and_update_long_runs"
VARIANTS = {
    FUSED: (
        "fp32_fp32_d64_plain",
        "fp16_fp16_d128_factored",
        "bf16_fp32_d128_factored",
        "bf16_bf16_d256_plain",
    ),
    "sum_chunks": (
        "fp32_d64_plain_aligned",
        "fp16_d128_factored_aligned",
        "fp32_d128_factored_aligned",
        "bf16_d256_plain_aligned",
    ),
    "update_long_runs": (
        "fp32_d64_aligned_rowwise",
        "fp16_d128_aligned_rowwise",
        "bf16_d128_aligned_rowwise",
        "bf16_d256_aligned_rowwise",
    ),
}
Code = dict[str, dict[str, str]]
"""By variant, without its kernel: "ptx" and "ttgir"."""

DEFINITION = re.compile(r"^\s*(?:@!?%p\d+\s+)?([a-z]\w*(?:\.\w+)*)\s+\{?(%[^;]*);", re.MULTILINE)
REGISTER = re.compile(r"%\w+")
PRODUCT = re.compile(r"(?:mul|div)\.(?:\w+\.)*f32(?:x2)?$")
SUM = re.compile(r"(?:add|sub)\.(?:\w+\.)*f32(?:x2)?$")
SUM_ANYWHERE = re.compile(r"\badd\.(?:rn\.)?f32")
# What hands a number on: copies, halves of a pair, signs.
COPY = re.compile(r"(?:mov|neg|abs)\.")


def _compile(arch: str, kernel: str, scratch: Path) -> Code:
    from aot_build.triton_compiler import TritonCompiler, pin_environment

    pin_environment(ARCHS[arch], scratch / "triton")
    plan = make_plan(SPECS, "full", [arch]).kernels[kernel]
    jobs = {
        variant.name.partition("__")[2]: make_job(plan, variant, arch) for variant in plan.variants
    }
    batch = Batch(
        name="bits",
        kernel=kernel,
        function=plan.function,
        language=plan.language,
        arch=arch,
        source_sha256=plan.source_sha256,
        jobs=[jobs[name] for name in VARIANTS[kernel]],
    )
    compiler = TritonCompiler(batch, SPECS, scratch)
    made = {name: compiler.translate(jobs[name]).asm for name in VARIANTS[kernel]}
    return {name: {stage: asm[stage] for stage in ("ptx", "ttgir")} for name, asm in made.items()}


@pytest.fixture(scope="module", params=["sm90", "sm100"])
def compiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Code:
    """The code of all variants on an arch; Triton has to be imported anew, in a process of its own."""
    scratch = tmp_path_factory.mktemp("bits")
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as pool:
        made = [pool.submit(_compile, request.param, kernel, scratch) for kernel in VARIANTS]
        return {name: code for kernel in made for name, code in kernel.result().items()}


def sums_of_products(ptx: str) -> list[str]:
    """The additions and subtractions of fp32 one of whose operands is a product or a quotient."""
    definitions: list[tuple[str, str, list[str]]] = []
    for operation, operands in DEFINITION.findall(ptx):
        names = REGISTER.findall(operands)
        # ``mov.b64 {%r1, %r2}, %rd3`` defines two.
        count = 2 if "}" in operands[:-1] else 1
        definitions += [(operation, name, names[count:]) for name in names[:count]]
    products = {name for operation, name, _ in definitions if PRODUCT.match(operation)}
    known = -1
    while known != len(products):
        known = len(products)
        products |= {
            name
            for operation, name, sources in definitions
            if COPY.match(operation) and not products.isdisjoint(sources)
        }
    return [
        f"{operation} {name}, {sources}"
        for operation, name, sources in definitions
        if SUM.match(operation) and not products.isdisjoint(sources)
    ]


def layout_of_rows(ttgir: str) -> str:
    """How the tile is spread over threads whose rows are added first."""
    reduced = re.search(r'"tt.reduce".*?\) : \(tensor<\d+x\d+xf32, (#\w+)>', ttgir, re.DOTALL)
    assert reduced is not None
    layout = re.search(rf"^{reduced[1]} = (.*)$", ttgir, re.MULTILINE)
    assert layout is not None
    return layout[1]


@pytest.mark.slow
def test_no_sum_takes_a_product_but_in_an_fma(compiled: Code) -> None:
    for name, code in compiled.items():
        assert SUM_ANYWHERE.search(code["ptx"]), name
        assert sums_of_products(code["ptx"]) == [], name


@pytest.mark.slow
def test_the_rows_of_a_chunk_are_added_in_one_order(compiled: Code) -> None:
    for fused, alone in zip(VARIANTS[FUSED], VARIANTS["sum_chunks"], strict=True):
        assert layout_of_rows(compiled[fused]["ttgir"]) == (
            layout_of_rows(compiled[alone]["ttgir"])
        )


@pytest.mark.parametrize(
    ("ptx", "found"),
    [
        ("mul.f32 %r3, %r1, %r2; add.f32 %r5, %r3, %r4;", True),
        ("mul.rn.f32x2 %rd3, %rd1, %rd2; add.rn.f32x2 %rd5, %rd4, %rd3;", True),
        ("div.full.f32 %r3, %r1, %r2; neg.f32 %r4, %r3; sub.f32 %r6, %r5, %r4;", True),
        (
            "mul.f32 %r3, %r1, %r2; mov.b64 %rd1, {%r3, %r9}; mov.b64 {%r4, %r5}, %rd1; add.f32 %r6, %r5, %r7;",
            True,
        ),
        ("mul.f32 %r3, %r1, %r2; fma.rn.f32 %r5, %r3, %r2, %r4; add.f32 %r6, %r5, %r1;", False),
        ("fma.rn.f32 %r3, %r1, %r2, 0f00000000; add.f32 %r5, %r3, %r4;", False),
        ("mul.wide.s32 %rd3, %r1, 4; add.s64 %rd5, %rd3, %rd4;", False),
    ],
)
def test_sums_of_products_are_found(ptx: str, found: bool) -> None:
    assert bool(sums_of_products(ptx.replace("; ", ";\n"))) == found
