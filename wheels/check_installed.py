"""Check an installed wheel where it shall work: no triton, no compiler, any torch from 2.10 on. Exits with 1 and the reason if something fails.

    python wheels/check_installed.py          (in the environment; wheels/clean_env.py makes one)

Lookups through the module and through the operators are compared with torch.nn.EmbeddingBag, on the CPU and on a GPU if there is one.
"""

from __future__ import annotations

import itertools
import re
import shutil
import sys
from importlib.metadata import requires, version
from importlib.util import find_spec

import torch

import tbe_aot
from tbe_aot import _launcher
from tbe_aot_audit.source import installed
from tbe_aot_audit.verify import verify

TABLES = {
    "narrow": (50, 16),
    "odd": (7, 5),
    "usual": (1000, 128),
    "one": (1, 64),
    "wide": (20, 512),
}
B = 33
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# Bounds of |error| / max(1, sum |w * row|) by output dtype.
TOLERANCES = {torch.float32: 1e-5, torch.float16: 8e-3, torch.bfloat16: 8e-3}


def check_nothing_can_compile() -> str:
    """Triton is hidden and no CUDA compiler is on PATH."""
    try:
        hidden = find_spec("triton") is None
    except ModuleNotFoundError:
        hidden = True
    if not hidden:
        raise AssertionError("triton can be imported here; set PYTHONPATH=wheels/no_triton")
    if found := shutil.which("nvcc") or shutil.which("ptxas"):
        raise AssertionError(f"{found} is on PATH")
    return "no triton, no nvcc, no ptxas"


def check_metadata() -> str:
    """The wheel asks for torch from 2.10 on and for no compiler."""
    wanted = requires("tbe-aot") or []
    if "torch>=2.10" not in wanted or any(re.match("triton|nvidia", line) for line in wanted):
        raise AssertionError(f"requirements are {wanted}")
    return (
        f"tbe-aot {version('tbe-aot')} with torch {torch.__version__}; requires {', '.join(wanted)}"
    )


def check_packs() -> str:
    """Every cubin of every pack has the hash that the library was built with."""
    cubins = _launcher.verify()
    return ", ".join(f"{arch}: {count} cubins" for arch, count in cubins.items())


def check_audit() -> str:
    """The installation is what was built, by the audit that came with it."""
    result = verify(installed())
    findings = [f"{f.subject}: {f.message}" for check in result.checks for f in check.findings]
    if findings:
        raise AssertionError("\n".join(findings))
    passed = [check.name for check in result.checks if check.status == "passed"]
    return f"what was built: {', '.join(passed)}"


def check_lookups(device: torch.device) -> str:
    """Each combination of dtypes, index width, pooling and weighting against torch.nn.EmbeddingBag on fp64 rows."""
    generator = torch.Generator().manual_seed(0)
    specs = [tbe_aot.TableSpec(name, rows, dim) for name, (rows, dim) in TABLES.items()]
    lengths = torch.randint(0, 9, (len(specs), B), generator=generator)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.flatten().cumsum(0)])
    ids = torch.cat(
        [
            torch.randint(spec.rows, (int(row.sum()),), generator=generator)
            for spec, row in zip(specs, lengths, strict=True)
        ]
    )
    weights = torch.rand(len(ids), generator=generator)
    count = 0
    worst = 0.0
    for dtype, output_dtype, width, pooling, weighted in itertools.product(
        DTYPES, DTYPES, (torch.int32, torch.int64), ("sum", "mean"), (False, True)
    ):
        bags = tbe_aot.TableBatchedEmbeddingBags(
            specs, weights_dtype=dtype, output_dtype=output_dtype, pooling=pooling, device=device
        )
        for table in bags.table_views().values():
            table.copy_(torch.rand(table.shape, generator=generator) - 0.5)
        output = bags(
            ids.to(device, width),
            offsets.to(device, width),
            weights.to(device) if weighted else None,
        )
        if output.dtype != output_dtype:
            raise AssertionError(f"output is {output.dtype}, asked for {output_dtype}")
        used = weights if weighted else torch.ones(len(ids))
        expected, magnitude = reference(bags, ids, offsets, used, pooling)
        error = ((output.cpu().double() - expected).abs() / magnitude.clamp(min=1)).max()
        if float(error) > TOLERANCES[output_dtype]:
            raise AssertionError(
                f"{dtype} -> {output_dtype}, {width}, {pooling}, weighted {weighted}: error {error}"
            )
        worst = max(worst, float(error) / TOLERANCES[output_dtype])
        count += 1
    return f"{count} combinations agree, largest error {worst:.2f} of its tolerance"


def reference(
    bags: tbe_aot.TableBatchedEmbeddingBags,
    ids: torch.Tensor,
    offsets: torch.Tensor,
    weights: torch.Tensor,
    pooling: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    """torch.nn.EmbeddingBag's result in fp64, [B, sum of D], and the sum of |w * row| of each element."""
    results: list[list[torch.Tensor]] = [[], []]
    for feature, table in enumerate(bags.table_views().values()):
        bounds = offsets[feature * B : (feature + 1) * B + 1]
        span = slice(int(bounds[0]), int(bounds[-1]))
        lengths = bounds.diff().clamp(min=1).double()[:, None]
        for result, rows in zip(
            results,
            (table.cpu().double(), table.cpu().double().abs()),
            strict=True,
        ):
            bag = torch.nn.EmbeddingBag.from_pretrained(rows, mode="sum")
            pooled = bag(ids[span], bounds[:-1] - bounds[0], weights[span].double())
            result.append(pooled / lengths if pooling == "mean" else pooled)
    expected, magnitude = (torch.cat(result, dim=1) for result in results)
    return expected, magnitude


def main() -> int:
    """Run every check and print what each one says."""
    checks = [check_nothing_can_compile, check_metadata, check_packs, check_audit]
    for check in checks:
        print(f"{check.__name__.removeprefix('check_').replace('_', ' ')}: {check()}")
    devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    for device in devices:
        print(f"lookups on {device}: {check_lookups(torch.device(device))}")
    if "triton" in sys.modules:
        raise AssertionError("triton was imported")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
