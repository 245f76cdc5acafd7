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
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import BuildError
from .files import write_if_changed

SOURCE_DIR = Path(__file__).resolve().parent.parent / "csrc_launcher"
LIBRARY = "libtbe_aot.so"
MODULE = "_launcher"
# Which functions of LibTorch's stable ABI exist is decided by this: 2.10, the least torch that the wheel accepts.
TORCH_TARGET_VERSION = 0x020A_0000_0000_0000

COMPILE_FLAGS = (
    "-std=c++17",
    "-O2",
    "-g0",
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


def _escape(text: str) -> str:
    return text.replace("$", "$$").replace(" ", "$ ").replace(":", "$:")


def _paths(paths: Iterable[Path]) -> str:
    return " ".join(_escape(str(path)) for path in paths)


def _shell(arguments: Iterable[str]) -> str:
    """Arguments for a ninja variable that a shell reads."""
    return " ".join("'" + argument.replace("$", "$$") + "'" for argument in arguments)


class _NinjaFile:
    """The lines of a build.ninja."""

    def __init__(self) -> None:
        self.lines = ["ninja_required_version = 1.8"]

    def rule(self, name: str, **values: str) -> None:
        self.lines += ["", f"rule {name}"]
        self.lines += [f"  {key} = {value}" for key, value in values.items()]

    def edge(
        self,
        output: Path,
        rule: str,
        inputs: Iterable[Path],
        *,
        implicit: Sequence[Path] = (),
        **values: str,
    ) -> Path:
        waits = f" | {_paths(implicit)}" if implicit else ""
        self.lines += ["", f"build {_paths([output])}: {rule} {_paths(inputs)}{waits}"]
        self.lines += [f"  {key} = {value}" for key, value in values.items()]
        return output

    def data(self) -> bytes:
        return ("\n".join(self.lines) + "\n").encode()


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
    from ninja import BIN_DIR

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
    write_if_changed(build_dir / "build.ninja", text)
    command = [str(Path(BIN_DIR, "ninja")), "-C", str(build_dir), "--quiet"]
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
) -> bytes:
    import pybind11

    generated = artifacts / "generated"
    manifest = artifacts / "manifest.json"
    packs = sorted(artifacts.glob("*.pack"))
    if not packs or not manifest.exists() or not generated.is_dir():
        raise BuildError(
            f"{artifacts}: not a finished artifact folder; it needs packs, manifest.json and generated/"
        )
    # __FILE__ and debug information must not tell where the build took place.
    roots = {SOURCE_DIR: "csrc_launcher", generated: "generated", build_dir: "build"}
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
        folders += ["ops", "cpu"]
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

    ninja = _NinjaFile()
    compiler = os.environ.get("CXX", "g++")
    ninja.rule(
        "compile",
        command=f"{compiler} $flags -MMD -MF $out.d -c $in -o $out",
        depfile="$out.d",
        deps="gcc",
        description="compile $in",
    )
    ninja.rule(
        "link",
        command=f"{compiler} -shared $in $flags -o $out",
        description="link $out",
    )
    ninja.rule("copy", command="cp $in $out", description="copy $in")

    objects = []
    for source in [*_sources(*folders), *sorted(generated.glob("*.cpp"))]:
        needs_torch = source.parent.name in {"ops", "cpu"}
        flags = [*common, *torch_flags] if needs_torch else common
        target = build_dir / "obj" / source.parent.name / f"{source.stem}.o"
        objects.append(ninja.edge(target, "compile", [source], flags=_shell(flags)))
    exports = build_dir / "exports.map"
    ninja.edge(
        result.library,
        "link",
        objects,
        implicit=[exports],
        flags=_shell(
            [
                f"-Wl,--version-script={exports}",
                f"-Wl,-soname,{LIBRARY}",
                "-Wl,-z,defs",
                *link_flags,
                "-ldl",
            ]
        ),
    )
    for source in _sources("python"):
        target = build_dir / "obj" / "python" / f"{source.stem}.o"
        flags = [*common, f"-isystem{interpreter.include}", f"-isystem{pybind11.get_include()}"]
        ninja.edge(target, "compile", [source], flags=_shell(flags))
        ninja.edge(
            result.module,
            "link",
            [target],
            implicit=[result.library],
            flags=_shell([f"-L{result.library.parent}", "-ltbe_aot", "-Wl,-rpath,$ORIGIN/lib"]),
        )
    for artifact in [*packs, manifest]:
        ninja.edge(result.library.parent / artifact.name, "copy", [artifact])
    return ninja.data()
