"""What the workflows promise of a release: who may write what, what is pinned, what is attested, what it is compared with."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.wheel.conftest import ROOT

FILES = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PINNED = re.compile(r"uses: [\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
TAGGED = "startsWith(github.ref, 'refs/tags/v')"
READ = {"contents": "read"}
# Of the jobs that may do more than read; a job's own permissions replace the workflow's.
PERMISSIONS = {
    "attest": {"id-token": "write", "attestations": "write"},
    "attest-contents": {"id-token": "write", "attestations": "write"},
    "publish": {"id-token": "write"},
    "page": {"contents": "write"},
}


@pytest.fixture(scope="module")
def jobs() -> dict[str, Any]:
    text = (ROOT / ".github" / "workflows" / "wheels.yml").read_text()
    found: dict[str, Any] = yaml.safe_load(text)["jobs"]
    return found


def step(job: dict[str, Any], part: str) -> dict[str, Any]:
    """The one step of a job whose action or name has a word in it."""
    (found,) = (s for s in job["steps"] if part in s.get("uses", s.get("name", "")))
    return dict(found)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_every_action_is_pinned_to_a_commit(file: Path):
    lines = [line for line in file.read_text().splitlines() if "uses:" in line]
    assert lines
    assert [line for line in lines if not PINNED.search(line)] == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_checkout_leaves_no_token_behind(file: Path):
    for job in yaml.safe_load(file.read_text())["jobs"].values():
        for found in job["steps"]:
            if found.get("uses", "").startswith("actions/checkout@"):
                assert found["with"]["persist-credentials"] is False


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_workflow_reads_unless_a_job_says_otherwise(file: Path):
    workflow = yaml.safe_load(file.read_text())
    assert workflow["permissions"] == READ
    own = {name: job["permissions"] for name, job in workflow["jobs"].items() if "permissions" in job}  # fmt: skip
    assert own == (PERMISSIONS if file.name == "wheels.yml" else {})


def test_only_a_tag_is_released(jobs: dict[str, Any]):
    assert {name: jobs[name]["if"] for name in PERMISSIONS} == dict.fromkeys(PERMISSIONS, TAGGED)


def test_what_publishes_does_nothing_else(jobs: dict[str, Any]):
    named = {name: job["environment"] for name, job in jobs.items() if "environment" in job}
    assert named == {"publish": "pypi"}
    actions = [found["uses"].partition("@")[0] for found in jobs["publish"]["steps"] if "uses" in found]  # fmt: skip
    assert actions == ["actions/download-artifact", "pypa/gh-action-pypi-publish"]


def test_nothing_is_published_before_it_is_checked_and_attested(jobs: dict[str, Any]):
    needed = {name: jobs[name].get("needs") for name in ("attest", "attest-contents")}
    assert needed == dict.fromkeys(needed, "audit")
    assert jobs["publish"]["needs"] == ["attest", "attest-contents"]
    assert jobs["page"]["needs"] == "publish"


def test_a_release_takes_nothing_from_a_cache(jobs: dict[str, Any]):
    """A forged cubin in a cache would come with a record that fits."""
    for job in jobs.values():
        for found in job["steps"]:
            assert "cache" not in found.get("uses", "")
            assert "cache" not in found.get("with", {})


def test_every_wheel_is_attested_with_its_own_bill(jobs: dict[str, Any]):
    job = jobs["attest-contents"]
    assert job["strategy"]["matrix"] == jobs["wheels"]["strategy"]["matrix"]
    given = step(job, "actions/attest@")["with"]
    assert given == {
        "subject-path": "release/tbe_aot-*-${{ matrix.python }}-*.whl",
        "sbom-path": "release/tbe-aot-${{ matrix.python }}.cdx.json",
    }


class Release:
    """A folder in which steps of the job ``audit`` run, with stand-ins for gh and tbe-aot on the path that log what they are asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "bin").mkdir()
        (folder / "release").mkdir()
        for python in ("cp311", "cp312"):
            name = f"tbe_aot-1.1.0-{python}-{python}-manylinux_2_28_x86_64.whl"
            (folder / "release" / name).touch()
        (folder / "release" / "tbe_aot_audit-1.1.0-py3-none-any.whl").touch()

    def command(self, name: str, script: str) -> None:
        """A stand-in."""
        path = self.folder / "bin" / name
        path.write_text(f'#!/bin/bash\necho {name} "$@" >> asked\n{script}\n')
        path.chmod(0o755)

    def run(self, script: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a step's script as the runner does."""
        environment = {
            "PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "GITHUB_REPOSITORY": "somebody/tbe-aot",
            "GITHUB_REF_NAME": "v1.1.0",
            "GITHUB_OUTPUT": str(self.folder / "output"),
            **variables,
        }
        return subprocess.run(
            ["bash", "-e", "-c", script],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def asked(self) -> list[str]:
        """What the stand-ins were asked."""
        return (self.folder / "asked").read_text().splitlines()


@pytest.fixture
def release(tmp_path: Path) -> Release:
    return Release(tmp_path)


def test_bills_are_written_wheel_by_wheel(jobs: dict[str, Any], release: Release):
    release.command("tbe-aot", 'echo "$2"')
    done = release.run(step(jobs["audit"], "bill of materials")["run"])
    assert done.returncode == 0, done.stderr
    written = {file.name: file.read_text() for file in (release.folder / "release").glob("*.json")}
    assert sorted(written) == ["tbe-aot-cp311.cdx.json", "tbe-aot-cp312.cdx.json"]
    for name, text in written.items():
        assert f"-{name[8:13]}-" in text


OLDER = "tbe_aot-1.0.0-cp312-cp312-manylinux_2_28_x86_64.whl"
DOWNLOAD = f'[ "$2" = list ] && printf "v1.1.0\\nv1.0.0\\nv0.9.0\\n" || {{ mkdir last; touch last/{OLDER}; }}'


def test_the_first_release_has_nothing_to_compare_with_and_says_so(
    jobs: dict[str, Any], release: Release
):
    release.command("gh", 'printf "v1.1.0\\n"')
    release.command("tbe-aot", "exit 1")
    done = release.run(step(jobs["audit"], "last release")["run"])
    assert done.returncode == 0, done.stderr
    assert "No release precedes this one" in done.stdout
    assert [line for line in release.asked() if line.startswith("tbe-aot")] == []


@pytest.mark.parametrize(
    ("verdict", "accept", "status", "said"),
    [
        (0, "", 0, "::notice::Not worse than v1.0.0"),
        (1, "", 1, "-f accept_worse=true"),
        (1, "false", 1, "-f accept_worse=true"),
        (2, "", 1, "::error::"),
        (1, "true", 0, "::warning::"),
    ],
)
def test_a_release_is_compared_with_the_last_one(
    jobs: dict[str, Any], release: Release, verdict: int, accept: str, status: int, said: str
):
    release.command("gh", DOWNLOAD)
    release.command("tbe-aot", f"exit {verdict}")
    script = step(jobs["audit"], "last release")["run"]
    done = release.run(script, ACCEPT_WORSE=accept)
    assert done.returncode == status, done.stderr
    assert said in done.stdout
    new = OLDER.replace("1.0.0", "1.1.0")
    assert release.asked()[-1] == f"tbe-aot diff --check last/{OLDER} release/{new}"
    assert (release.folder / "output").read_text() == f"wheel=last/{OLDER}\n"


def test_releases_that_cannot_be_listed_are_no_first_release(
    jobs: dict[str, Any], release: Release
):
    release.command("gh", "exit 4")
    done = release.run(step(jobs["audit"], "last release")["run"])
    assert done.returncode == 4


@pytest.mark.parametrize("last", ["", f"last/{OLDER}"])
def test_the_report_shows_what_changed(jobs: dict[str, Any], release: Release, last: str):
    release.command("tbe-aot", "touch release/report.html")
    done = release.run(step(jobs["audit"], "report")["run"], LAST=last)
    assert done.returncode == 0, done.stderr
    assert (f"--against {last}" in release.asked()[0]) == bool(last)
    sums = (release.folder / "release" / "SHA256SUMS").read_text().splitlines()
    assert len(sums) == len(list((release.folder / "release").iterdir())) - 1
