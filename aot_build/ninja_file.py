"""The build as a ninja file: which command makes which file from which."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ninja.ninja_syntax import escape

from .archs import ARCHS
from .checksums import CHECKSUMS_FILE, WORK_FOLDER
from .emit import HEADER_FILE, SOURCE_FILE
from .jobs import Batch
from .plan import Plan

# Every stage leaves a file whose content stays untouched; restat then spares what depends on it.
RULE = """\
rule stage
  command = $command
  description = $stage
  restat = 1
"""


def escape_path(path: str) -> str:
    """A path as ninja reads it; the package's own function forgets dollar signs."""
    return escape(path).replace(" ", "$ ").replace(":", "$:")


@dataclass(frozen=True)
class Places:
    """Where the files of one build lie."""

    specs: Path
    cache: Path
    out: Path

    @property
    def work(self) -> Path:
        """What the stages hand to each other."""
        return self.out / WORK_FOLDER

    @property
    def generated(self) -> Path:
        """Generated sources."""
        return self.out / "generated"

    @property
    def plan(self) -> Path:
        """plan.json."""
        return self.out / "plan.json"

    @property
    def manifest(self) -> Path:
        """manifest.json."""
        return self.out / "manifest.json"

    @property
    def checksums(self) -> Path:
        """The last file of a build."""
        return self.out / CHECKSUMS_FILE

    @property
    def ninja_file(self) -> Path:
        """The ninja file."""
        return self.work / "build.ninja"

    @property
    def tool_hashes(self) -> Path:
        """Hashes of the build's own sources."""
        return self.work / "tool.json"

    @property
    def specs_hashes(self) -> Path:
        """Hashes of the files that describe operators and kernels."""
        return self.work / "specs.json"

    @property
    def operators_stamp(self) -> Path:
        """Hashes of the generated operator rules."""
        return self.work / "operators.json"

    def batch(self, batch: Batch) -> Path:
        """The jobs of a batch."""
        return self.work / "batches" / f"{batch.name}.json"

    def results(self, batch: Batch) -> Path:
        """The records of a batch."""
        return self.work / "results" / f"{batch.name}.json"

    def pack(self, arch: str) -> Path:
        """The pack of an arch."""
        return self.out / ARCHS[arch].pack_file

    def pack_report(self, arch: str) -> Path:
        """What the pack of an arch holds."""
        return self.work / f"{arch}.json"


@dataclass(frozen=True)
class Edge:
    """One step: a stage with its options, the files it makes, and those it is made from."""

    stage: str
    label: str
    options: dict[str, Path | str]
    outputs: Sequence[Path]
    inputs: Sequence[Path]
    implicit: Sequence[Path] = ()

    def text(self) -> str:
        """The step as ninja reads it; the inputs follow the options on the command line."""
        words = [sys.executable, "-m", "aot_build.stages", self.stage]
        for name, value in self.options.items():
            words += [f"--{name}", str(value)]
        command = escape(shlex.join([*words, *map(str, self.inputs)]))
        outputs, inputs, implicit = (
            " ".join(escape_path(str(path)) for path in paths)
            for paths in (self.outputs, self.inputs, self.implicit)
        )
        return (
            f"build {outputs}: stage {inputs} | {implicit}\n"
            f"  command = {command}\n"
            f"  stage = {self.label}\n"
        )


def make_edges(
    plan: Plan, batches: Sequence[Batch], places: Places, *, operators: bool
) -> Iterator[Edge]:
    """All steps of a build."""
    tool = places.tool_hashes
    for batch in batches:
        yield Edge(
            "compile",
            f"compile {batch.name}",
            {"specs": places.specs, "cache": places.cache, "out": places.results(batch)},
            outputs=[places.results(batch)],
            inputs=[places.batch(batch)],
        )
    reports = [places.pack_report(arch) for arch in plan.archs]
    for arch, report in zip(plan.archs, reports, strict=True):
        pack = places.pack(arch)
        yield Edge(
            "pack",
            f"pack {arch}",
            {
                "plan": places.plan,
                "arch": arch,
                "cache": places.cache,
                "out": pack,
                "report": report,
            },
            outputs=[pack, report],
            inputs=[places.results(batch) for batch in batches if batch.arch == arch],
            implicit=[places.plan, tool],
        )
    yield Edge(
        "manifest",
        "manifest",
        {"plan": places.plan, "out": places.manifest},
        outputs=[places.manifest],
        inputs=reports,
        implicit=[places.plan, tool],
    )
    sources = [places.generated / HEADER_FILE, places.generated / SOURCE_FILE]
    yield Edge(
        "emit",
        "emit",
        {"plan": places.plan, "manifest": places.manifest, "out": places.generated},
        outputs=sources,
        inputs=reports,
        implicit=[places.plan, places.manifest, tool],
    )
    finished = [places.plan, places.manifest, *map(places.pack, plan.archs), *sources]
    if operators:
        yield Edge(
            "operators",
            "operators",
            {"specs": places.specs, "out": places.generated, "stamp": places.operators_stamp},
            outputs=[places.operators_stamp],
            inputs=[],
            implicit=[places.specs_hashes, tool],
        )
        finished.append(places.operators_stamp)
    yield Edge(
        "seal",
        "seal",
        {"folder": places.out},
        outputs=[places.checksums],
        inputs=[],
        implicit=[*finished, tool],
    )


def ninja_file(edges: Iterator[Edge], work: Path) -> str:
    """The text of the ninja file; ninja keeps its log in ``work``."""
    return "\n".join([f"builddir = {escape(str(work))}", RULE, *(edge.text() for edge in edges)])
