"""Driving a build: plan, write what the stages read, let ninja run what is stale.

One build at a time works in a folder (a lock sees to it); any number may share a cache.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import ninja
from rich.console import Console

from .cache import CubinCache
from .checksums import CHECKSUMS_FILE, artifact_hashes, changed_files, read_checksums
from .errors import BuildError
from .files import readable_json, sha256_hex, write_if_changed
from .jobs import Batch, make_batches
from .ninja_file import Places, make_edges, ninja_file
from .operators import OPERATORS_FILE
from .plan import Plan
from .planner import make_plan
from .progress import ProgressView
from .spec import SPEC_FILE
from .stages import ERROR_PREFIX, PROGRESS_VARIABLE

POLL_SECONDS = 0.1


@dataclass(frozen=True)
class BuildResult:
    """What a build did."""

    out: Path
    plan: Plan
    compiled: int
    cached: int
    seconds: float


def default_cache(specs: Path) -> Path:
    """``TBE_AOT_CACHE``, or build/cache beside the folder of specs."""
    return Path(os.environ.get("TBE_AOT_CACHE") or specs.resolve().parent / "build" / "cache")


def jobs_from_environment() -> int | None:
    """``TBE_AOT_JOBS``; None if it is not set.

    Raises:
        BuildError: it is no number of jobs.
    """
    text = os.environ.get("TBE_AOT_JOBS")
    if not text:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise BuildError(f"TBE_AOT_JOBS is {text!r}, expected a whole number from 1 on")
    return int(text)


def default_jobs() -> int:
    """``TBE_AOT_JOBS``, or the number of cores this process may use.

    Raises:
        BuildError: ``TBE_AOT_JOBS`` is no number of jobs.
    """
    return jobs_from_environment() or len(os.sched_getaffinity(0))


def build(
    specs: Path,
    profile: str,
    archs: Sequence[str],
    out: Path,
    *,
    cache: Path | None = None,
    jobs: int | None = None,
    console: Console | None = None,
) -> BuildResult:
    """Build the artifacts of a folder of specs into ``out``.

    Args:
        specs: the folder of specs.
        profile: which variants are compiled: ``full``, ``ci`` or another one that the specs name.
        archs: the archs to compile for.
        out: the artifact folder.
        cache: the cubin cache; ``TBE_AOT_CACHE`` or build/cache beside the specs if not given.
        jobs: processes at a time; ``TBE_AOT_JOBS`` or the number of cores if not given.
        console: where progress is shown.

    Raises:
        SpecError: the specs are wrong; nothing was run.
        BuildError: a stage failed; what could be done besides is done and kept.
    """
    started = time.monotonic()
    console = console or Console(stderr=True)
    places = Places(
        specs=specs.resolve(),
        cache=(cache or default_cache(specs)).resolve(),
        out=out.resolve(),
    )
    # The specs as given: messages name files the way the caller does.
    plan = make_plan(specs, profile, list(archs))
    batches = list(make_batches(plan))
    with _locked(places, console) as lock:
        _forget_damaged(places, batches)
        _write_inputs(places, plan, batches)
        stale = _stale_batches(places, batches)
        view = _run_ninja(places, stale, jobs or default_jobs(), lock, console)
    return BuildResult(
        out=places.out,
        plan=plan,
        compiled=view.counts["compiled"] if view else 0,
        cached=view.counts["cached"] if view else 0,
        seconds=time.monotonic() - started,
    )


@contextmanager
def _locked(places: Places, console: Console) -> Iterator[int]:
    """Hold the folder's lock. Ninja inherits it: if this process is killed, the lock outlives it as ninja does."""
    places.work.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(places.work / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            console.print(f"waiting for another build of {places.out}", highlight=False)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def _forget_damaged(places: Places, batches: Sequence[Batch]) -> None:
    """Remove what is no longer what a stage wrote, so that ninja makes it again."""
    packs = {places.pack(batch.arch) for batch in batches}
    for pack in places.out.glob("*.pack"):
        if pack not in packs:
            pack.unlink()
            places.checksums.unlink(missing_ok=True)
    if places.checksums.exists():
        try:
            changed = changed_files(places.out, read_checksums(places.out))
        except BuildError:
            # The checksums themselves are damaged: nothing vouches for the other files.
            changed = [CHECKSUMS_FILE, *artifact_hashes(places.out)]
        for name in changed:
            (places.out / name).unlink(missing_ok=True)
            places.checksums.unlink(missing_ok=True)
            if Path(name).parent == Path("generated"):
                places.operators_stamp.unlink(missing_ok=True)
    cubins = CubinCache(places.cache)
    for batch in batches:
        results = places.results(batch)
        if results.exists():
            try:
                records = json.loads(results.read_bytes())["records"].values()
                hashes = {record["cubin_sha256"] for record in records}
            except ValueError:
                results.unlink()
                continue
            if not all(cubins.cubin_path(sha256).exists() for sha256 in hashes):
                results.unlink()


def _hashes(paths: Sequence[Path], root: Path) -> bytes:
    return readable_json(
        {path.relative_to(root).as_posix(): sha256_hex(path.read_bytes()) for path in sorted(paths)}
    )


def _write_inputs(places: Places, plan: Plan, batches: Sequence[Batch]) -> None:
    """Write what ninja compares; a file whose content stays keeps its time."""
    write_if_changed(places.plan, plan.to_json())
    for batch in batches:
        write_if_changed(places.batch(batch), batch.to_json())
    package = Path(__file__).parent
    tool_files = [*package.glob("*.py"), *package.glob("templates/*")]
    write_if_changed(places.tool_hashes, _hashes(tool_files, package))
    operators = places.specs / OPERATORS_FILE
    described = [*places.specs.glob(f"*/{SPEC_FILE}"), *([operators] if operators.exists() else [])]
    write_if_changed(places.specs_hashes, _hashes(described, places.specs))
    edges = make_edges(plan, batches, places, operators=operators.exists())
    text = ninja_file(edges, places.work)
    write_if_changed(places.ninja_file, text.encode())


def _ninja_command(places: Places, *options: str) -> list[str]:
    return [str(Path(ninja.BIN_DIR) / "ninja"), "-f", str(places.ninja_file), *options]


def _stale_batches(places: Places, batches: Sequence[Batch]) -> list[Batch] | None:
    """The batches that ninja would run, or None when nothing at all is stale."""
    done = subprocess.run(_ninja_command(places, "-n"), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BuildError(f"ninja: {done.stdout}{done.stderr}")
    if "no work to do" in done.stdout:
        return None
    # Lines such as "[3/20] compile forward-sm90-000".
    named = {line.split()[-1] for line in done.stdout.splitlines() if " compile " in line}
    return [batch for batch in batches if batch.name in named]


def _run_ninja(
    places: Places, stale: list[Batch] | None, jobs: int, lock: int, console: Console
) -> ProgressView | None:
    """Run ninja and show progress until it ends.

    Raises:
        BuildError: with the messages of all stages that failed.
    """
    if stale is None:
        return None
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(
            [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
        ),
        PROGRESS_VARIABLE: str(places.work / "progress"),
    }
    log = places.work / "ninja.log"
    total = sum(len(batch.jobs) for batch in stale)
    # Before ninja starts: it empties the log that the processes append to.
    view = ProgressView(places.work / "progress", total, console)
    with log.open("wb") as output:
        process = subprocess.Popen(
            # The others still finish when one fails.
            _ninja_command(places, "-k", "0", "-j", str(jobs)),
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            pass_fds=[lock],
        )
        with view, _stopping(process):
            while process.poll() is None:
                view.update()
                time.sleep(POLL_SECONDS)
    if process.returncode != 0:
        raise BuildError(_failure(log.read_text(errors="replace")))
    return view


@contextmanager
def _stopping(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """If the build is interrupted, so is ninja, which stops its children."""
    try:
        yield
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait()


def _failure(log: str) -> str:
    """The stages' own messages, or all that ninja said if there is none."""
    lines: list[str] = []
    inside = False
    for line in log.splitlines():
        if line.startswith(ERROR_PREFIX):
            inside = True
            lines.append(line.removeprefix(ERROR_PREFIX))
        elif inside and line.startswith(" "):
            lines.append(line)
        else:
            inside = False
    return "\n".join(lines) or log
