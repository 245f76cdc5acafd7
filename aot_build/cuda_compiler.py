"""Calling NVRTC and ptxas: kernels in CUDA C++. NVRTC makes PTX, and the arch's ptxas, which also serves Triton, the cubin."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

from .archs import ARCHS
from .cubin import CubinRecord, record_of
from .cuda_source import WARPS_MACRO
from .errors import BuildError
from .jobs import Batch, Job, check_sources
from .kernel_source import kernel_file
from .toolchain import NVRTC_FLAGS, nvrtc_library, tool


class _Nvrtc:
    """The few functions of NVRTC's C interface that turn a source into PTX."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL(str(nvrtc_library()))
        self.library.nvrtcGetErrorString.restype = ctypes.c_char_p

    def to_ptx(self, name: str, source: str, options: list[str]) -> bytes:
        """Compile one source.

        Raises:
            BuildError: with the compiler's log.
        """
        program = ctypes.c_void_p()
        self._call(
            "nvrtcCreateProgram",
            ctypes.byref(program),
            source.encode(),
            name.encode(),
            0,
            None,
            None,
        )
        try:
            encoded = [option.encode() for option in options]
            array = (ctypes.c_char_p * len(encoded))(*encoded)
            if self.library.nvrtcCompileProgram(program, len(encoded), array) != 0:
                log = self._text(program, "nvrtcGetProgramLogSize", "nvrtcGetProgramLog")
                raise BuildError(f"NVRTC: {log.decode(errors='replace').strip()}")
            return self._text(program, "nvrtcGetPTXSize", "nvrtcGetPTX")
        finally:
            self.library.nvrtcDestroyProgram(ctypes.byref(program))

    def _text(self, program: ctypes.c_void_p, size_function: str, function: str) -> bytes:
        size = ctypes.c_size_t()
        self._call(size_function, program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self._call(function, program, buffer)
        return buffer.value

    def _call(self, function: str, *arguments: object) -> None:
        result = getattr(self.library, function)(*arguments)
        if result != 0:
            reason = self.library.nvrtcGetErrorString(result).decode()
            raise BuildError(f"{function}: {reason}")


class CudaCompiler:
    """Compiles the jobs of one batch from one source."""

    def __init__(self, batch: Batch, specs_dir: Path, scratch: Path) -> None:
        check_sources(batch, specs_dir)
        self.arch = ARCHS[batch.arch]
        self.function = batch.function
        self.specs_dir = specs_dir.resolve()
        self.scratch = scratch
        self.path = kernel_file(specs_dir / batch.kernel)
        self.nvrtc = _Nvrtc()

    def compile(self, job: Job) -> tuple[CubinRecord, bytes]:
        """Compile one variant.

        Raises:
            BuildError: NVRTC or ptxas refuses it.
        """
        warps = int(job.options["num_warps"])
        constants = {**job.constexprs, WARPS_MACRO: warps}
        ptx = self.nvrtc.to_ptx(
            self.path.name,
            self.path.read_text(encoding="utf-8"),
            [
                f"--gpu-architecture=compute_{self.arch.capability}a",
                f"--include-path={self.specs_dir}",
                *NVRTC_FLAGS,
                *(f"--define-macro={name}={int(value)}" for name, value in constants.items()),
            ],
        )
        cubin, log = self._assemble(ptx, int(job.options["maxnreg"]))
        record = record_of(
            cubin, self.scratch, entry=self.function, shared_bytes=0, num_warps=warps, ptxas_log=log
        )
        return record, cubin

    def _assemble(self, ptx: bytes, most_registers: int) -> tuple[bytes, str]:
        source, result = self.scratch / "kernel.ptx", self.scratch / "assembled.cubin"
        source.write_bytes(ptx)
        command = [
            str(tool(self.arch.ptxas)),
            "-v",
            f"--gpu-name=sm_{self.arch.capability}a",
            *([f"--maxrregcount={most_registers}"] if most_registers else []),
            f"--output-file={result}",
            str(source),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        log = done.stdout + done.stderr
        if done.returncode != 0:
            raise BuildError(f"{self.arch.ptxas} failed with code {done.returncode}: {log.strip()}")
        return result.read_bytes(), log
