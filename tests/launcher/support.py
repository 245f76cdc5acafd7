"""The launcher core in processes of its own, with the stand-in driver.

A core loads its driver once and keeps what it loaded, and a process can hold one copy of libtbe_aot.so: so each
scenario of a test runs in a child process. It gets a ``Child`` and returns something that can be pickled.
"""

from __future__ import annotations

import ctypes
import fcntl
import importlib.util
import json
import multiprocessing
import os
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from aot_build import native
from tests.launcher.artifacts import write_artifacts

ROOT = Path(__file__).resolve().parents[2]
BUILD_DIR = ROOT / "build" / "tests" / "launcher"
DRIVER_NAME = "libcuda.so.1"
Result = TypeVar("Result")


@dataclass(frozen=True)
class Built:
    """A package folder (module, library, packs) and the folder of the stand-in driver."""

    package: Path
    driver: Path


def build() -> Built:
    """Build core, module and stand-in, or find them built; test processes wait for each other."""
    BUILD_DIR.mkdir(parents=True, exist_ok=True)
    with (BUILD_DIR / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        write_artifacts(BUILD_DIR / "artifacts")
        core = native.build(BUILD_DIR / "artifacts", BUILD_DIR / "native", torch=None)
        driver = BUILD_DIR / "driver"
        driver.mkdir(exist_ok=True)
        compile_driver(Path(__file__).with_name("standin.cpp"), driver)
    return Built(core.package, driver)


def compile_driver(source: Path, folder: Path) -> None:
    """Compile a stand-in for the driver, unless that was done since its source changed."""
    target = folder / DRIVER_NAME
    if target.exists() and target.stat().st_mtime >= source.stat().st_mtime:
        return
    compiler = os.environ.get("CXX", "g++")
    flags = [
        "-std=c++17",
        "-O1",
        "-Wall",
        "-Wextra",
        "-fPIC",
        "-shared",
        f"-Wl,-soname,{DRIVER_NAME}",
    ]
    subprocess.run([compiler, *flags, source, "-o", target], check=True)


@dataclass(frozen=True)
class Call:
    """One call of the driver as the stand-in recorded it; ``device``: of the then current context, or -1."""

    function: str
    device: int
    result: int
    details: dict[str, Any]


class Standin:
    """The stand-in driver of this process."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(DRIVER_NAME)
        self._library.standin_take_records.restype = ctypes.c_char_p
        self._library.standin_capture.argtypes = [ctypes.c_void_p, ctypes.c_int]

    def take(self, *functions: str) -> list[Call]:
        """The calls since the last time, perhaps only those of some functions."""
        calls = []
        for entry in json.loads(self._library.standin_take_records()):
            call = Call(entry.pop("function"), entry.pop("device"), entry.pop("result"), entry)
            if not functions or call.function in functions:
                calls.append(call)
        return calls

    def fail(self, function: str, result: int, skip: int = 0) -> None:
        """Let calls of a function fail; result 0 ends that."""
        self._library.standin_fail(function.encode(), result, skip)

    def capture(self, stream: int, *, active: bool) -> None:
        """Begin or end the capture of a stream."""
        self._library.standin_capture(stream, int(active))

    def set_current(self, device: int) -> None:
        """Make a device's primary context current in this thread; -1: none."""
        self._library.standin_set_current(device)

    def current(self) -> tuple[int, int]:
        """Device of this thread's current context (or -1), and how many contexts are stacked."""
        return self._library.standin_current(), self._library.standin_stacked()


class Child:
    """What a scenario works with, in its process."""

    def __init__(self, package: Path) -> None:
        module = next(package.glob("_launcher*.so"))
        spec = importlib.util.spec_from_file_location("_launcher", module)
        assert spec is not None
        assert spec.loader is not None
        self.launcher: Any = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.launcher)

    @property
    def standin(self) -> Standin:
        return Standin()


_child: list[Child] = []


def _start(package: Path) -> None:
    _child.append(Child(package))


def _call(function: Callable[..., Result], arguments: tuple[Any, ...]) -> Result:
    return function(_child[0], *arguments)


class Process:
    """A child process that runs scenarios one after the other."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool

    def run(self, scenario: Callable[..., Result], *arguments: Any) -> Result:
        """Call ``scenario(child, *arguments)``; what it raises is raised here."""
        return self._pool.submit(_call, scenario, arguments).result()


@contextmanager
def process(
    built: Built, devices: str = "9.0 NVIDIA H200", **environment: str
) -> Iterator[Process]:
    """A child process whose driver is the stand-in, with the devices given."""
    changed = {
        "LD_LIBRARY_PATH": str(built.driver),
        "STANDIN_DEVICES": devices,
        **environment,
    }
    saved = {name: os.environ.get(name) for name in changed}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        1, mp_context=context, initializer=_start, initargs=(built.package,)
    ) as pool:
        # The environment is read when the process starts, and a pool starts it with the first task.
        os.environ.update(changed)
        try:
            pool.submit(os.getpid).result()
        finally:
            for name, value in saved.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
        yield Process(pool)


def error_of(action: Callable[[], object]) -> str:
    """The message of the error that an action raises; empty when it raises none."""
    try:
        action()
    except (RuntimeError, TypeError, ValueError) as error:
        return str(error)
    return ""
