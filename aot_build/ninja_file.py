"""The build as a ninja file: which command makes which file from which."""

from __future__ import annotations

import io
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ninja.ninja_syntax import Writer

from .archs import ARCHS
from .checksums import CHECKSUMS_FILE, WORK_FOLDER
from .emit import HEADER_FILE, SOURCE_FILE
from .jobs import Batch
from .plan import Plan


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


def _command(stage: str, *arguments: str | Path) -> str:
    """A stage's command line; ``$in`` and ``$out`` are ninja's."""
    words = [
        word if word in {"$in", "$out", "$arch"} else shlex.quote(word).replace("$", "$$")
        for word in map(str, [sys.executable, "-m", "aot_build.stages", stage, *arguments])
    ]
    return " ".join(words)


def ninja_file(plan: Plan, batches: Sequence[Batch], places: Places, *, operators: bool) -> str:
    """The text of the ninja file; every rule may leave its outputs untouched (``restat``)."""
    text = io.StringIO()
    writer = Writer(text, width=1000)

    def edge(
        stage: str,
        command: str,
        outputs: Sequence[Path],
        inputs: Sequence[Path],
        implicit: Sequence[Path] = (),
        description: str = "",
        **variables: str,
    ) -> None:
        rule = f"{stage}_{len(rules)}" if stage in rules else stage
        rules.add(rule)
        writer.rule(rule, command, description=description or stage, restat=True)
        writer.build(
            list(map(str, outputs)),
            rule,
            list(map(str, inputs)),
            implicit=list(map(str, implicit)),
            variables=variables,
        )

    rules: set[str] = set()
    tool = [places.tool_hashes]
    writer.variable("builddir", str(places.work))
    compile_command = _command(
        "compile", "--batch", "$in", "--specs", places.specs, "--cache", places.cache, "--results", "$out"
    )
    writer.rule("compile", compile_command, description="compile $batch", restat=True)
    rules.add("compile")
    for batch in batches:
        writer.build(
            str(places.results(batch)),
            "compile",
            str(places.batch(batch)),
            variables={"batch": batch.name},
        )
    reports = [places.pack_report(arch) for arch in plan.archs]
    for arch in plan.archs:
        out, report = places.pack(arch), places.pack_report(arch)
        edge(
            "pack",
            _command(
                "pack", "--plan", places.plan, "--arch", arch, "--cache", places.cache,
                "--out", out, "--report", report, "--results", "$in",
            ),
            [out, report],
            [places.results(batch) for batch in batches if batch.arch == arch],
            [places.plan, *tool],
            f"pack {arch}",
        )  # fmt: skip
    edge(
        "manifest",
        _command("manifest", "--plan", places.plan, "--out", "$out", "--reports", "$in"),
        [places.manifest],
        reports,
        [places.plan, *tool],
    )
    sources = [places.generated / HEADER_FILE, places.generated / SOURCE_FILE]
    edge(
        "emit",
        _command(
            "emit", "--plan", places.plan, "--manifest", places.manifest,
            "--out", places.generated, "--reports", "$in",
        ),
        sources,
        reports,
        [places.plan, places.manifest, *tool],
    )  # fmt: skip
    finished = [places.plan, places.manifest, *map(places.pack, plan.archs), *sources]
    if operators:
        edge(
            "operators",
            _command(
                "operators", "--specs", places.specs, "--out", places.generated, "--stamp", "$out"
            ),
            [places.operators_stamp],
            [places.specs_hashes],
            tool,
        )
        finished.append(places.operators_stamp)
    edge(
        "seal",
        _command("seal", "--folder", places.out),
        [places.checksums],
        finished,
        tool,
    )
    return text.getvalue()
