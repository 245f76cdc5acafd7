"""Compile jobs: one per variant and arch, named by a hash over everything that decides the cubin's bytes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from .archs import ARCHS
from .conditions import AxisValue
from .errors import BuildError
from .files import canonical_json, readable_json, sha256_hex
from .kernel_source import Language, source_sha256
from .plan import KernelPlan, Plan, Variant
from .toolchain import NVRTC_FLAGS, TRITON_FLAGS, nvrtc_version, ptxas_version, triton_version

# Part of every key: raise it when the compile stage itself changes what comes out.
KEY_VERSION = 1
# The words for these flags in the keys of cubins that caches already hold; other flags stand for themselves.
_FLAGS_IN_KEYS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("TRITON_DISABLE_LINE_INFO=1", "num_ctas=1"): (
        "no line info",
        "enable_fp_fusion explicit",
        "num_ctas 1",
    )
}
# Importing Triton costs as much as compiling two variants; more per batch would leave processes idle at the end.
BATCH_SIZE = 16


class Job(BaseModel):
    """One cubin to compile; ``key`` is its name in the cache."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    variant: str
    key: str
    signature: list[tuple[str, str]]
    constexprs: dict[str, AxisValue]
    divisibility: dict[str, int]
    options: dict[str, int | bool]


class Batch(BaseModel):
    """Jobs of one kernel for one arch that share a process."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    kernel: str
    function: str
    language: Language
    arch: str
    source_sha256: str
    jobs: list[Job]

    def to_json(self) -> bytes:
        """The bytes of the batch's file."""
        return readable_json(self.model_dump())

    @classmethod
    def read(cls, path: Path) -> Batch:
        """Read a batch's file."""
        return cls.model_validate_json(path.read_bytes())


def check_sources(batch: Batch, specs_dir: Path) -> None:
    """Refuse sources other than those that the plan saw: the keys were made from them.

    Raises:
        BuildError: they changed during the build.
    """
    if source_sha256(specs_dir, batch.kernel) != batch.source_sha256:
        raise BuildError(f"the sources of {batch.kernel} changed during the build: run it again")


def make_job(kernel: KernelPlan, variant: Variant, arch: str) -> Job:
    """The job of one variant on one arch."""
    build = variant.builds[arch]
    values = {
        **{axis.upper(): value for axis, value in variant.axes.items()},
        **build.kernel_constants,
    }
    constexprs = {name: values[name] for name, type_ in variant.signature if type_ == "constexpr"}
    compiler: dict[str, object] = (
        {"flags": _FLAGS_IN_KEYS.get(TRITON_FLAGS, TRITON_FLAGS), "triton": triton_version()}
        if kernel.language == "triton"
        else {"flags": NVRTC_FLAGS, "nvrtc": nvrtc_version()}
    )
    ingredients = {
        "version": KEY_VERSION,
        "source": kernel.source_sha256,
        "function": kernel.function,
        "arch": arch,
        "signature": variant.signature,
        "constexprs": constexprs,
        "divisibility": variant.divisibility,
        "options": build.options,
        **compiler,
        "ptxas": ptxas_version(ARCHS[arch]),
    }
    return Job(
        variant=variant.name,
        key=sha256_hex(canonical_json(ingredients)),
        signature=variant.signature,
        constexprs=constexprs,
        divisibility=variant.divisibility,
        options=build.options,
    )


def make_batches(plan: Plan) -> Iterator[Batch]:
    """All jobs of a build in batches, in the plan's order."""
    for kernel in plan.kernels.values():
        for arch in plan.archs:
            if arch not in kernel.archs:
                continue
            selected = [variant for variant in kernel.variants if variant.selected]
            for start in range(0, len(selected), BATCH_SIZE):
                yield Batch(
                    name=f"{kernel.name}-{arch}-{start // BATCH_SIZE:03d}",
                    kernel=kernel.name,
                    function=kernel.function,
                    language=kernel.language,
                    arch=arch,
                    source_sha256=kernel.source_sha256,
                    jobs=[
                        make_job(kernel, variant, arch)
                        for variant in selected[start : start + BATCH_SIZE]
                    ],
                )
