"""Buttons lead to a repository where one is configured, and are not there before."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from book_repository import theme_options
from normal_form import normal_form
from notebook_cells import ROOT, write
from sample_notebook import sample
from sphinx.errors import ConfigError

BUTTONS = {
    "repository": 'href="https://github.com/owner/name"',
    "issues": "https://github.com/owner/name/issues/new",
    "edit": "https://github.com/owner/name/edit/main/book/01_a.ipynb",
    "Binder": "https://mybinder.org/v2/gh/owner/name/main?urlpath=lab/tree/book/01_a.ipynb",
    "Colab": "https://colab.research.google.com/github/owner/name/blob/main/book/01_a.ipynb",
}
ANY_ADDRESS = re.compile(r"github\.com|executablebooks|mybinder|colab\.research|thebe", re.I)


@pytest.fixture
def build(tmp_path):
    """Builds a book of two pages with our settings; returns its pages as text."""
    (tmp_path / "book").mkdir()
    shutil.copy(ROOT / "_config.yml", tmp_path)
    for name in ("_extensions", "_static"):
        shutil.copytree(ROOT / "book" / name, tmp_path / "book" / name)
    shutil.copy(ROOT / "book" / "references.bib", tmp_path / "book")
    (tmp_path / "_toc.yml").write_text(
        "format: jb-book\nroot: book/index\nchapters: [{file: book/01_a}]\n"
    )
    (tmp_path / "book" / "index.md").write_text("# A book\n\nText.\n")
    write(normal_form(sample()), tmp_path / "book" / "01_a.ipynb")

    def run(repository: str | None) -> list[str]:
        environment = {k: v for k, v in os.environ.items() if k != "BOOK_REPOSITORY"}
        environment |= {"BOOK_REPOSITORY": repository} if repository else {}
        command = [Path(sys.executable).parent / "jupyter-book", "build", ".", "-n", "-W", "--all"]
        subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=True)
        return [path.read_text() for path in sorted((tmp_path / "_build/html/book").glob("*.html"))]

    return run


def test_no_address_where_none_is_configured(build):
    for page in build(None):
        assert ANY_ADDRESS.findall(page) == []


def test_every_button_where_one_is(build):
    chapter, _ = build("https://github.com/owner/name/")
    assert {name for name, link in BUTTONS.items() if link not in chapter} == set()
    assert "executablebooks" not in chapter


@pytest.mark.parametrize("address", ["owner/name", "https://github.com/owner", "http://a.b/c/d"])
def test_what_is_no_repository_is_refused(address):
    with pytest.raises(ConfigError, match=r"expected https://github\.com/owner/name"):
        theme_options(address)
