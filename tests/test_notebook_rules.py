"""Each rule finds what it is there for: a sound notebook is spoilt in one place at a time."""

import re

import chapter_rules
import notebook_rules
import pytest
from nbformat import v4
from sample_notebook import code, failed, printed, sample, shown, text

RULES = {rule.__name__: rule for rule in notebook_rules.RULES + chapter_rules.RULES}
MEASURE, ASSERT, PICTURE, EXPLORE = 5, 6, 10, 12

SPOILT = {
    "too few cells": ("size", lambda cells: cells[:10], "10 cells"),
    "too many cells": ("size", lambda cells: cells * 2, "60 cells"),
    "too heavy": ("size", lambda cells: [*cells, text("x" * 1_500_000)], "bytes, expected"),
    "long cell": ("cell_size", lambda cells: [code("x = 1\n" * 16)], "16 lines"),
    "long script": ("cell_size", lambda cells: [code("%%writefile x\n" + "1\n" * 41)], "42 lines"),
    "wide line": ("cell_size", lambda cells: [code("x = " + "1" * 72)], "76 characters"),
    "unrun": ("executed", lambda cells: [v4.new_code_cell("x")], "unrun"),
    "nothing asserted": ("measurements_asserted", lambda cells: cells[:ASSERT], "no assertion"),
    "asserted too late": (
        "measurements_asserted",
        lambda cells: [cells[MEASURE], cells[MEASURE], cells[ASSERT]],
        "before the next measurement",
    ),
    "asserts nothing": (
        "measurements_asserted",
        lambda cells: [cells[MEASURE], code("assert True")],
        "no assertion after it",
    ),
    "asserted where nothing is compared": (
        "measurements_asserted",
        lambda cells: [cells[MEASURE], code("assert seconds", "raises-exception")],
        "no assertion after it",
    ),
    "untagged error": ("failures_tagged", lambda cells: [code("x", output=failed())], "no"),
    "warning": (
        "failures_tagged",
        lambda cells: [code("x", output=printed("UserWarning: x", "stderr"))],
        "UserWarning",
    ),
    "failure that is none": (
        "failures_tagged",
        lambda cells: [code("x", "raises-exception")],
        "raises nothing",
    ),
    "shell launch": ("shell_lines", lambda cells: [code("!torchrun x.py")], "!torchrun"),
    "shell in a loop": ("shell_lines", lambda cells: [code("if x:\n    !python x")], "!python"),
    "assigned shell": ("shell_lines", lambda cells: [code("out = !python x.py")], "out ="),
    "bash cell": ("shell_lines", lambda cells: [code("%%bash\ntorchrun x.py")], "%%bash"),
    "own folder": ("local_things", lambda cells: [code("open('/home/me/x')")], "/home/me"),
    "own folder shown": ("local_things", lambda cells: [code("x", output=printed("/tmp/x"))], "/t"),
    "installs": ("local_things", lambda cells: [code("%pip install x")], "installs"),
    "address": (
        "stable_outputs",
        lambda cells: [code("x", output=printed("<object at 0x7f3a5c0d1e20>"))],
        "address",
    ),
    "progress bar": (
        "stable_outputs",
        lambda cells: [code("x", output=printed("1%\r2%"))],
        "carriage",
    ),
    "no alternative text": (
        "images_described",
        lambda cells: [code("x", output=cells[PICTURE].outputs[0])],
        "without alternative text",
    ),
    "no caption": (
        "images_described",
        lambda cells: [
            code("x", output=shown({"image/png": "AA"}), mystnb={"image": {"alt": "a"}})
        ],
        "without caption",
    ),
    "nameless image": ("images_described", lambda cells: [text("![](x.svg)")], "image without"),
    "embedded image": ("images_described", lambda cells: [text("![a](data:image/png,)")], "image"),
    "no text between": ("text_between", lambda cells: [code("x"), code("y")], "no text before"),
    "pyplot": ("plotting", lambda cells: [code("import matplotlib.pyplot as plt")], "pyplot"),
    "semicolon": ("plotting", lambda cells: [code("draw();")], "semicolon"),
    "no title": ("anatomy", lambda cells: cells[1:], "# Title"),
    "no table of needs": ("anatomy", lambda cells: [text("# T"), *cells[1:]], "no table"),
    "no folder for scripts": (
        "anatomy",
        lambda cells: [cells[0], code("import torch"), *cells[2:]],
        "_run/",
    ),
    "no exploration": (
        "anatomy",
        lambda cells: cells[:EXPLORE] + cells[EXPLORE + 1 :],
        "no exploration",
    ),
    "no takeaway": ("anatomy", lambda cells: cells[: EXPLORE + 1], "no takeaway"),
    "too few exercises": ("exercises", lambda cells: cells[:19], "1 exercises"),
    "unsolved exercise": (
        "exercises",
        lambda cells: [c for c in cells if "ex-01-two\n:class" not in c.source],
        "do not match",
    ),
    "exercise without minutes": (
        "exercises",
        lambda cells: [text(re.sub(r" \(.*\)", "", cells[14].source))],
        "without minutes",
    ),
    "stub filled in": (
        "exercises",
        lambda cells: [code("exercises.check('01-x', f)", "stub", output=printed("passed"))],
        "not written yet",
    ),
    "solution that fails": (
        "exercises",
        lambda cells: [code("exercises.check('01-x', f)", "solution", output=printed("wrong"))],
        "passed",
    ),
}


@pytest.mark.parametrize("name", RULES)
def test_a_sound_notebook_keeps_the_rule(name):
    assert list(RULES[name](sample())) == []


@pytest.mark.parametrize("name", SPOILT)
def test_a_spoilt_notebook_is_found(name):
    rule, spoil, finding = SPOILT[name]
    notebook = sample()
    notebook.cells = spoil(notebook.cells)
    assert finding in "\n".join(RULES[rule](notebook))


def test_every_rule_is_spoilt_at_least_once():
    assert {rule for rule, _, _ in SPOILT.values()} == set(RULES)
