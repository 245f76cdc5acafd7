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


def test_links_lead_somewhere():
    for page in ("tutorial.md", "operators.md"):
        text = (ROOT / "docs" / page).read_text()
        for target in re.findall(r"\]\(([^)#]+)\)", text):
            assert (ROOT / "docs" / target).exists(), f"{page} links to {target}"
