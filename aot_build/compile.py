"""The compile stage: one batch of variants into the cache.

The process of a batch looks up what the cache has, and leaves the rest to a child that loads the compiler. A variant that
fails, even one that takes the compiler down with it, is reported by name, and the others still compile.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import tempfile
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Protocol

from .archs import ARCHS
from .cache import CubinCache
from .cubin import CubinRecord
from .errors import BuildError
from .files import readable_json, write_if_changed
from .jobs import Batch, Job
from .progress_log import ProgressLog

STDERR_FILE = "stderr"


class Compiler(Protocol):
    """Compiles the jobs of one batch."""

    def compile(self, job: Job) -> tuple[CubinRecord, bytes]:
        """Compile one variant; raises whatever the compiler raises."""


@dataclass(frozen=True)
class Outcome:
    """The end of one job: an empty error means that the cache has it."""

    job: Job
    error: str = ""


def compile_batch(
    batch: Batch, specs_dir: Path, cache: CubinCache, results: Path, progress: ProgressLog
) -> None:
    """Compile what the cache lacks, then write the records of all variants to ``results``.

    Raises:
        BuildError: names every variant that failed, with the compiler's message; nothing is written then.
    """
    missing = []
    for job in batch.jobs:
        if cache.get(job.key) is None:
            missing.append(job)
        else:
            progress.done(job.variant, cached=True)
    failed: dict[str, list[str]] = {}
    for outcome in _compile_all(batch, missing, specs_dir, cache, progress):
        if outcome.error:
            failed.setdefault(outcome.error.strip(), []).append(outcome.job.variant)
    if failed:
        raise BuildError(
            "\n".join(
                f"{', '.join(variants)} on {batch.arch}: {error}".replace("\n", "\n  ")
                for error, variants in failed.items()
            )
        )
    records: dict[str, CubinRecord] = {}
    for job in batch.jobs:
        record = cache.get(job.key)
        if record is None:
            raise BuildError(
                f"{job.variant} on {batch.arch}: the cache lost it: run the build again"
            )
        records[job.variant] = record
    document = {
        "arch": batch.arch,
        "records": {name: r.model_dump() for name, r in records.items()},
    }
    write_if_changed(results, readable_json(document))


def _compile_all(
    batch: Batch, jobs: list[Job], specs_dir: Path, cache: CubinCache, progress: ProgressLog
) -> list[Outcome]:
    """Run children until every job has an outcome; one that crashes costs only the job it was at."""
    outcomes: list[Outcome] = []
    while len(outcomes) < len(jobs):
        pending = jobs[len(outcomes) :]
        finished, crash = _run_child(batch, pending, specs_dir, cache, progress)
        outcomes += finished
        if crash and len(outcomes) < len(jobs):
            job = jobs[len(outcomes)]
            outcomes.append(Outcome(job, crash))
            progress.failed(job.variant)
    return outcomes


def _run_child(
    batch: Batch, jobs: list[Job], specs_dir: Path, cache: CubinCache, progress: ProgressLog
) -> tuple[list[Outcome], str]:
    """Outcomes of the jobs that a child finished, and how it died if it did not finish all."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    # Here rather than in the child, which may die and leave it.
    with tempfile.TemporaryDirectory(prefix="aot_build-compile-") as folder:
        scratch = Path(folder)
        child = context.Process(
            target=_child_main, args=(batch, jobs, specs_dir, cache, sender, scratch)
        )
        child.start()
        sender.close()
        outcomes: list[Outcome] = []
        with contextlib.suppress(EOFError):
            while True:
                error = receiver.recv()
                outcome = Outcome(jobs[len(outcomes)], error)
                outcomes.append(outcome)
                if outcome.error:
                    progress.failed(outcome.job.variant)
                else:
                    progress.done(outcome.job.variant, cached=False)
        child.join()
        if len(outcomes) == len(jobs):
            return outcomes, ""
        said = (scratch / STDERR_FILE).read_text(errors="replace")[-4000:]
    return outcomes, f"the compiler died ({_exit_reason(child.exitcode)})\n{said}"


def _exit_reason(code: int | None) -> str:
    if code is not None and code < 0:
        return signal.Signals(-code).name
    return f"exit code {code}"


def _child_main(
    batch: Batch,
    jobs: list[Job],
    specs_dir: Path,
    cache: CubinCache,
    sender: Connection,
    scratch: Path,
) -> None:
    """Compile the jobs in order, sending an error text (empty: none) after each."""
    # MLIR and LLVM print their diagnostics to the file descriptor itself.
    with (scratch / STDERR_FILE).open("wb") as stderr:
        os.dup2(stderr.fileno(), 2)
    try:
        compiler = _make_compiler(batch, specs_dir, scratch)
    except Exception as error:  # noqa: BLE001 - kernel.py may raise anything
        for _ in jobs:
            sender.send(_describe(error))
        return
    for job in jobs:
        sender.send(_compile_one(compiler, job, cache))


def _make_compiler(batch: Batch, specs_dir: Path, scratch: Path) -> Compiler:
    """The compiler of the batch's language; importing Triton is left to those who need it."""
    if batch.language == "cuda":
        from .cuda_compiler import CudaCompiler

        return CudaCompiler(batch, specs_dir, scratch)
    from .triton_compiler import TritonCompiler, pin_environment

    pin_environment(ARCHS[batch.arch], scratch / "cache")
    return TritonCompiler(batch, specs_dir, scratch)


def _compile_one(compiler: Compiler, job: Job, cache: CubinCache) -> str:
    """Compile into the cache; the text of the error, or nothing."""
    try:
        record, cubin = compiler.compile(job)
    except Exception as error:  # noqa: BLE001 - the compiler may raise anything
        return _describe(error)
    cache.put(job.key, record, cubin)
    return ""


def _describe(error: Exception) -> str:
    return str(error) if isinstance(error, BuildError) else f"{type(error).__name__}: {error}"
