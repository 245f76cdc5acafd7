"""The pages about the operators: their code runs, and their tables are those of operators.toml."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import tbe_aot
from aot_build.operators import load_operators

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(tbe_aot.__file__).resolve().parent


def python_blocks(page: str) -> str:
    """The Python of a page as one program; line numbers are the page's."""
    lines = (ROOT / "docs" / page).read_text().splitlines()
    kept, inside = [], False
    for line in lines:
        fence = line.startswith("```")
        kept.append(line if inside and not fence else "")
        if fence:
            inside = line == "```python"
    return "\n".join(kept) + "\n"


@pytest.mark.slow
@pytest.mark.parametrize("page", ["tutorial.md", "operators.md"])
def test_code_runs(page, tmp_path):
    program = python_blocks(page)
    assert program.strip()
    (tmp_path / page).write_text(program)
    path = f"import sys; sys.path.insert(0, {str(PACKAGE.parent)!r})\n"
    run = f"{path}exec(compile(open({page!r}).read(), {page!r}, 'exec'))"
    ran = subprocess.run(
        [sys.executable, "-c", run], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr


def test_the_tables_of_arguments_are_those_of_the_description():
    text = (ROOT / "docs" / "operators.md").read_text()
    for checked in load_operators(ROOT / "kernel_specs").operators:
        table = checked.operator.table()
        assert table in text, f"docs/operators.md lacks this table:\n{table}"


PAGES = [
    *sorted((ROOT / "docs").glob("*.md")),
    *(ROOT / page for page in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "wheels/README.md")),
]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target, anchor in re.findall(
        r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)", page.read_text()
    ):
        linked = (page.parent / target).resolve() if target else page
        assert linked.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor in anchors(linked), f"{page.name} links to {target}#{anchor}"


def test_every_page_is_listed():
    index = (ROOT / "docs" / "README.md").read_text()
    for page in (ROOT / "docs").glob("*.md"):
        assert page.name == "README.md" or f"({page.name})" in index
