"""Calling Triton. Everything here runs in a compile process; nothing else of the build imports triton."""

from __future__ import annotations

import contextlib
import io
import os
from pathlib import Path
from typing import Any

from .archs import ARCHS, Arch
from .cubin import CubinRecord, record_of
from .errors import BuildError
from .jobs import Batch, Job, check_sources
from .loader import load_function
from .toolchain import TRITON_ENVIRONMENT, TRITON_OPTIONS, tool


def pin_environment(arch: Arch, cache: Path) -> None:
    """Pin Triton's environment in this process; must come before its import.

    One assembler per process and a cache folder of its own: a path changed later leaves the recorded version wrong.
    Always compiling makes ptxas print its log, which alone tells spills.
    """
    if "TRITON_INTERPRET" in os.environ:
        raise BuildError("TRITON_INTERPRET is set: interpreted kernels cannot be compiled")
    # Inherited settings of Triton or ptxas would change cubins without changing their keys.
    for name in list(os.environ):
        if name.startswith(("TRITON_", "PTXAS_", "MLIR_", "LLVM_")) or name == "DISABLE_PTXAS_OPT":
            del os.environ[name]
    os.environ["TRITON_PTXAS_BLACKWELL_PATH"] = str(tool(arch.ptxas))
    os.environ["TRITON_PTXAS_PATH"] = str(tool(arch.ptxas))
    os.environ["TRITON_CACHE_DIR"] = str(cache)
    os.environ["TRITON_ALWAYS_COMPILE"] = "1"
    os.environ["TRITON_DUMP_PTXAS_LOG"] = "1"
    os.environ |= TRITON_ENVIRONMENT


class TritonCompiler:
    """Compiles the jobs of one batch with one imported kernel."""

    def __init__(self, batch: Batch, specs_dir: Path, scratch: Path) -> None:
        self.arch = ARCHS[batch.arch]
        self.scratch = scratch
        self.function = load_function(specs_dir, batch.kernel, batch.function)
        check_sources(batch, specs_dir)

    def compile(self, job: Job) -> tuple[CubinRecord, bytes]:
        """Compile one variant.

        Raises:
            Exception: whatever Triton or ptxas raises.
            BuildError: the result is not what the launcher can run.
        """
        log = io.StringIO()
        with contextlib.redirect_stdout(log):
            compiled = self.translate(job)
        return self._record(compiled, log.getvalue())

    def translate(self, job: Job) -> Any:
        """Triton's result for one variant, which has every stage of it in ``asm``; ptxas' log goes to stdout."""
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource

        names = [name for name, _ in job.signature]
        source = ASTSource(
            self.function,
            dict(job.signature),
            dict(job.constexprs),
            {
                (names.index(name),): [["tt.divisibility", value]]
                for name, value in job.divisibility.items()
            },
        )
        options = {**job.options, "maxnreg": job.options["maxnreg"] or None} | TRITON_OPTIONS
        return triton.compile(
            source, target=GPUTarget("cuda", self.arch.capability, 32), options=options
        )

    def _record(self, compiled: Any, log: str) -> tuple[CubinRecord, bytes]:
        cubin: bytes = compiled.asm["cubin"]
        metadata = compiled.metadata
        # The launcher passes null for both.
        if metadata.global_scratch_size or metadata.profile_scratch_size:
            raise BuildError("the kernel wants scratch memory, which the launcher does not provide")
        record = record_of(
            cubin,
            self.scratch,
            entry=metadata.name,
            shared_bytes=metadata.shared,
            num_warps=metadata.num_warps,
            ptxas_log=log,
        )
        return record, cubin
