"""Number a chapter as its file is named: 10_buckets_and_overlap is chapter 10, come what may.

Sphinx counts chapters in the order of the contents; a chapter that is still to come would shift
the numbers of those after it, and the text calls chapters by the numbers of their files.
"""

import re

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx_external_toc.collectors import TocTreeCollectorWithStyles as TocTreeCollector

FILE_NUMBER = re.compile(r"(?:.*/)?(\d\d)_")


def setup(app: Sphinx) -> dict:
    app.connect("builder-inited", _renumber_after_counting)  # once all extensions are set up
    return {"version": "1", "parallel_read_safe": True}


def _renumber_after_counting(_: Sphinx) -> None:
    count = TocTreeCollector.assign_section_numbers  # as Jupyter Book counts: over all parts

    def assign(self: TocTreeCollector, env: BuildEnvironment) -> list[str]:
        before = {name: dict(numbers) for name, numbers in env.toc_secnumbers.items()}
        count(self, env)
        for name, numbers in env.toc_secnumbers.items():
            if found := FILE_NUMBER.match(name):
                _renumber(env, name, numbers, int(found[1]))
        return [name for name, now in env.toc_secnumbers.items() if now != before.get(name)]

    TocTreeCollector.assign_section_numbers = assign


def _renumber(env: BuildEnvironment, name: str, numbers: dict, chapter: int) -> None:
    """Put `chapter` first in the numbers of each section, of its entry and of the title."""
    for anchor, number in numbers.items():
        if number:
            numbers[anchor] = (chapter, *number[1:])
    for node in (*env.tocs[name].findall(nodes.reference), env.titles[name]):
        if node.get("secnumber"):
            node["secnumber"] = [chapter, *node["secnumber"][1:]]
