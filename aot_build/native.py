"""The native stage: libtbe_aot.so and the module ``_launcher``, from csrc_launcher and a folder of artifacts.

What comes out is laid out as in the wheel, so that the library finds its packs beside itself:

    <build_dir>/package/_launcher.<abi>.so
    <build_dir>/package/lib/{libtbe_aot.so, <arch>.pack, manifest.json}

Ninja decides what is stale, by the headers that each source really included and by the commands themselves.
Nothing of CUDA is needed: the driver is found at run time.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import ninja
from ninja.ninja_syntax import escape

from .errors import BuildError
from .files import write_if_changed
from .ninja_file import escape_path

SOURCE_DIR = Path(__file__).resolve().parent.parent / "csrc_launcher"
LIBRARY = "libtbe_aot.so"
MODULE = "_launcher"
# Which functions of LibTorch's stable ABI exist is decided by this: 2.10, the least torch that the wheel accepts.
TORCH_TARGET_VERSION = 0x020A_0000_0000_0000

# The folders of csrc_launcher whose sources include torch.
TORCH_FOLDERS = ("ops", "cpu")

COMPILE_FLAGS = (
    "-std=c++17",
    "-O2",
    "-g0",
    "-DNDEBUG",
    "-fPIC",
    "-fvisibility=hidden",
    "-fvisibility-inlines-hidden",
    "-Wall",
    "-Wextra",
)
# What the library's users may call; everything else, templates of the standard library included, stays inside.
EXPORTS = "{ global: tbe_aot_*; local: *; };\n"


@dataclass(frozen=True)
class NativeBuild:
    """Where the results lie."""

    package: Path
    library: Path
    module: Path


@dataclass(frozen=True)
class Interpreter:
    """What an extension module needs to know of the Python that will import it."""

    include: str
    extension_suffix: str

    @classmethod
    def ask(cls, python: Path) -> Interpreter:
        """Ask an interpreter about itself.

        Raises:
            BuildError: it does not run, or has no headers.
        """
        if python == Path(sys.executable):
            found = cls(sysconfig.get_path("include"), sysconfig.get_config_var("EXT_SUFFIX"))
        else:
            script = (
                "import json, sysconfig; print(json.dumps([sysconfig.get_path('include'),"
                " sysconfig.get_config_var('EXT_SUFFIX')]))"
            )
            try:
                answer = subprocess.run(
                    [python, "-c", script], capture_output=True, text=True, check=True
                )
            except (OSError, subprocess.CalledProcessError) as error:
                raise BuildError(f"{python}: cannot be asked about its headers: {error}") from error
            found = cls(*json.loads(answer.stdout))
        if not Path(found.include, "Python.h").exists():
            raise BuildError(
                f"{python}: {found.include} has no Python.h; install this Python's headers"
            )
        return found


def installed_torch() -> Path:
    """The folder of the torch package that this interpreter would import; torch itself is not imported.

    Raises:
        BuildError: there is none.
    """
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        raise BuildError("torch is not installed here; its headers and libraries are needed")
    return Path(found.origin).parent


def _rules(compiler: str) -> str:
    return f"""\
rule compile
  command = {compiler} $flags -MMD -MF $out.d -c $in -o $out
  depfile = $out.d
  deps = gcc
rule link
  command = {compiler} -shared $in $flags -o $out
rule copy
  command = cp $in $out
"""


def _edge(
    output: Path,
    rule: str,
    inputs: Iterable[Path],
    *,
    implicit: Sequence[Path] = (),
    flags: Sequence[str] = (),
) -> str:
    made, sources, waits = (
        " ".join(escape_path(str(path)) for path in paths) for paths in ([output], inputs, implicit)
    )
    return f"build {made}: {rule} {sources} | {waits}\n  flags = {escape(shlex.join(flags))}\n"


def _sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (SOURCE_DIR / folder).glob("*.cpp"))


def build(
    artifacts: Path,
    build_dir: Path,
    torch: Path | None,
    python: Path | None = None,
    jobs: int | None = None,
) -> NativeBuild:
    """Build the library and the module.

    Args:
        artifacts: a finished artifact folder: packs, manifest.json and generated/.
        build_dir: where objects and results go.
        torch: the torch package to build the operators against; None leaves the operators out, which gives the
            launcher core alone, for processes and tests without torch.
        python: the interpreter that the module is for; default this one.
        jobs: parallel compilations, default ninja's own choice.

    Raises:
        BuildError: something is missing, or a compilation failed.
    """
    artifacts = artifacts.resolve()
    build_dir = build_dir.resolve()
    interpreter = Interpreter.ask(Path(sys.executable) if python is None else python)
    result = NativeBuild(
        package=build_dir / "package",
        library=build_dir / "package" / "lib" / LIBRARY,
        module=build_dir / "package" / f"{MODULE}{interpreter.extension_suffix}",
    )
    text = _ninja_file(artifacts, build_dir, torch, interpreter, result)
    write_if_changed(build_dir / "exports.map", EXPORTS.encode())
    write_if_changed(build_dir / "build.ninja", text.encode())
    command = [str(Path(ninja.BIN_DIR, "ninja")), "-C", str(build_dir), "--quiet"]
    if jobs is not None:
        command.append(f"-j{jobs}")
    finished = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if finished.returncode != 0:
        raise BuildError(f"the native build in {build_dir} failed:\n{finished.stdout.strip()}")
    return result


def _ninja_file(
    artifacts: Path,
    build_dir: Path,
    torch: Path | None,
    interpreter: Interpreter,
    result: NativeBuild,
) -> str:
    import pybind11

    generated = artifacts / "generated"
    manifest = artifacts / "manifest.json"
    packs = sorted(artifacts.glob("*.pack"))
    if not packs or not manifest.exists() or not generated.is_dir():
        raise BuildError(
            f"{artifacts}: not a finished artifact folder; it needs packs, manifest.json and generated/"
        )
    pybind11_include = Path(pybind11.get_include()).resolve()
    # Assertions and messages of headers must not tell where the build took place.
    roots = {
        SOURCE_DIR: "csrc_launcher",
        generated: "generated",
        build_dir: "build",
        pybind11_include: "pybind11",
    }
    includes = [f"-I{SOURCE_DIR}", f"-iquote{SOURCE_DIR / 'core'}", f"-I{generated}"]
    torch_flags: list[str] = []
    link_flags: list[str] = []
    folders = ["core"]
    if torch is not None:
        torch = torch.resolve()
        if not (torch / "include" / "torch" / "csrc" / "stable").is_dir():
            raise BuildError(
                f"{torch}: no torch package with the stable ABI's headers (torch >= 2.10)"
            )
        folders += TORCH_FOLDERS
        roots[torch] = "torch"
        torch_flags = [
            f"-isystem{torch / 'include'}",
            f"-DTORCH_TARGET_VERSION={TORCH_TARGET_VERSION:#018x}",
        ]
        # libtorch.so has no symbols of its own, but brings libtorch_cuda in where there is one.
        link_flags = [f"-L{torch / 'lib'}", "-Wl,--no-as-needed", "-ltorch", "-ltorch_cpu"]
    common = [
        *COMPILE_FLAGS,
        *includes,
        *(f"-ffile-prefix-map={old}={new}" for old, new in roots.items()),
    ]

    edges = []

    def compile_source(source: Path, flags: Sequence[str]) -> Path:
        target = build_dir / "obj" / source.parent.name / f"{source.stem}.o"
        edges.append(_edge(target, "compile", [source], flags=[*common, *flags]))
        return target

    objects = [
        compile_source(source, torch_flags if source.parent.name in TORCH_FOLDERS else [])
        for source in [*_sources(*folders), *sorted(generated.glob("*.cpp"))]
    ]
    exports = build_dir / "exports.map"
    library_flags = [
        f"-Wl,--version-script={exports}",
        f"-Wl,-soname,{LIBRARY}",
        "-Wl,-z,defs",
        *link_flags,
        "-ldl",
    ]
    edges.append(_edge(result.library, "link", objects, implicit=[exports], flags=library_flags))
    python_flags = [f"-isystem{interpreter.include}", f"-isystem{pybind11_include}"]
    module_objects = [compile_source(source, python_flags) for source in _sources("python")]
    module_flags = [f"-L{result.library.parent}", "-ltbe_aot", "-Wl,-rpath,$ORIGIN/lib"]
    edges.append(
        _edge(result.module, "link", module_objects, implicit=[result.library], flags=module_flags)
    )
    edges += [
        _edge(result.library.parent / artifact.name, "copy", [artifact])
        for artifact in [*packs, manifest]
    ]
    return "\n".join([_rules(os.environ.get("CXX", "g++")), *edges])
