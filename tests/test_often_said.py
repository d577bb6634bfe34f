"""The page of sentences that are often said: each leads to a place where something is proved."""

import functools
import re

import notebook_cells
import pytest
from notebook_cells import BOOK

PAGE = (BOOK / "often_said.md").read_text()
LINK = re.compile(r"\]\((?P<notebook>\w+)\.ipynb#(?P<anchor>[\w-]+)\)")
ASKED_FOR = (
    "the same as a large batch",
    "No duplicates, and full coverage",
    "N GPUs, N times faster",
    "Scale the learning rate linearly",
    "numerical error is negligible",
    "large batches generalise better",
    "Exactly the result of one GPU",
)
NOT_RUN = {"what-nccl-does-beyond"}  # the page says so


def answers(text: str) -> dict[str, str]:
    """What is said of each sentence."""
    _, *parts = re.split(r"^### (.+)$", text, flags=re.M)
    return dict(zip(parts[::2], (part.split("\n## ")[0] for part in parts[1::2]), strict=True))


def slug(heading: str) -> str:
    return re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", heading.strip().lower()))


@functools.cache
def sections(notebook: str) -> dict[str, list]:
    """The code cells below each heading, by its anchor.

    The cell after a measurement asserts what is said of it, also from the section behind.
    """
    found, anchor, measured = {}, "", None
    for cell in notebook_cells.read(BOOK / f"{notebook}.ipynb").cells:
        if cell.cell_type == "code":
            for name in {anchor, measured or anchor}:
                found.setdefault(name, []).append(cell)
            measured = anchor if is_measurement(cell) else None
            continue
        for heading in re.findall(r"^##+ (.+)$", cell.source, re.M):
            found[anchor := slug(heading)] = []
    return found


def is_measurement(cell) -> bool:
    return "nbval-ignore-output" in notebook_cells.tags(cell)


def proves(cell) -> bool:
    """Whether a cell turns red when what it shows is no longer so."""
    is_compared = bool(cell.outputs) and not is_measurement(cell)
    return is_compared or "assert " in cell.source


def unproved(answer: str) -> list[str]:
    """The places an answer leads to where nothing is proved, and the lack of any place."""
    links = [(x["notebook"], x["anchor"]) for x in LINK.finditer(answer)]
    found = [
        f"{notebook}#{anchor}"
        for notebook, anchor in links
        if anchor not in NOT_RUN and not any(map(proves, sections(notebook).get(anchor, ())))
    ]
    return found + ["no link"] * (not links and "{ref}`ex-" not in answer)


@pytest.mark.parametrize("sentence", answers(PAGE))
def test_each_answer_leads_to_cells_that_prove_it(sentence):
    assert unproved(answers(PAGE)[sentence]) == []


def test_what_is_missing_is_found():
    nowhere = "[chapter 05](05_data_parallel_by_hand.ipynb#nowhere)"
    only_told = "[chapter 12](12_accumulation_meets_ddp.ipynb#sources)"
    assert len(unproved(nowhere)) == len(unproved(only_told)) == len(unproved("see above")) == 1


def test_the_sentences_that_must_be_there_are_there():
    assert [each for each in ASKED_FOR if not any(each in x for x in answers(PAGE))] == []
    assert len(answers(PAGE)) >= 25
