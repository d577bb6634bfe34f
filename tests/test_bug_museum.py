"""The museum's gallery leads to every exhibit."""

import re

from notebook_cells import BOOK, chapters, read

MUSEUM = BOOK / "bug_museum"
LABEL = re.compile(r"^\((exhibit-\w+)\)=\n## Exhibit: ", re.M)


def exhibits() -> list[str]:
    rooms = [read(path) for path in chapters() if path.parent == MUSEUM]
    texts = ["".join(cell.source) + "\n" for room in rooms for cell in room.cells]
    return [label for text in texts for label in LABEL.findall(text)]


def test_the_gallery_leads_to_every_exhibit_and_to_no_other():
    linked = set(re.findall(r"\{ref\}`(exhibit-\w+)`", (MUSEUM / "index.md").read_text()))
    assert sorted(linked) == sorted(exhibits())
    assert len(exhibits()) >= 12
