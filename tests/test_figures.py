"""Every figure is a finished Drawing whose SVG is the same on every run, and readable anywhere."""

import inspect
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import matplotlib
import pytest
from matplotlib.figure import Figure

from helpers.figures import Drawing, drawing, style, styled, to_svg


@styled()
def everything(bars: int = 3) -> Drawing:
    """A figure with each of the things that give matplotlib's SVG its identifiers and dates."""
    figure = drawing(5, 2.5, f"{bars} bars & a <line>", columns=2)
    left, right = figure.axes
    left.plot([0, 1, 2], [0, bars, 0.123456], marker="o", label="0.987654")
    left.text(1, 1, "0.123456", weight="bold")
    left.set(xlabel="micro-batches", ylabel="loss (nats)")
    left.legend()
    right.bar(range(bars), range(1, bars + 1), hatch="//", color=style.rank_colour(1))
    right.set_yscale("log")
    return figure


def test_svg_is_the_same_on_every_drawing_and_on_every_look():
    figure = everything()
    assert figure._repr_svg_() == figure._repr_svg_() == everything()._repr_svg_()
    assert everything(4)._repr_svg_() != figure._repr_svg_()


def test_svg_is_the_same_in_a_fresh_process():
    code = f"{inspect.getsource(sys.modules[__name__])}\nprint(everything()._repr_svg_(), end='')"
    fresh = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert fresh.stdout == everything()._repr_svg_()


def test_svg_is_the_same_whatever_the_readers_settings():
    with matplotlib.rc_context({"font.size": 30, "svg.fonttype": "path", "axes.grid": False}):
        changed = everything()._repr_svg_()
        assert matplotlib.rcParams["font.size"] == 30
    assert changed == everything()._repr_svg_()


def test_svg_is_well_formed_scales_and_carries_its_own_name():
    svg = everything()._repr_svg_()
    root = ElementTree.fromstring(svg)
    assert root.get("viewBox") == "0 0 360 180"
    assert root.get("role") == "img"
    assert root.get("aria-label") == "3 bars & a <line>"
    assert "max-width:100%" in root.get("style")
    assert "<metadata" not in svg
    assert "<style" not in svg  # it would reach every other drawing of the page
    assert "DejaVu" not in svg
    assert root.get("font-family") == "sans-serif"


def test_numbers_of_the_drawing_are_rounded_and_those_of_the_text_are_not():
    svg = everything()._repr_svg_()
    assert not re.search(r"<[^>]*\d\.\d{3,}[^>]*>", svg)
    assert ">0.123456<" in svg
    assert ">0.987654<" in svg


def test_every_reference_inside_the_svg_has_its_target_and_no_other_drawing_has_it():
    svg, other = everything()._repr_svg_(), everything(4)._repr_svg_()
    targets = set(re.findall(r' id="([^"]+)"', svg))
    assert set(re.findall(r'(?:href="|url\()#([^")]+)', svg)) == targets
    assert targets
    assert not targets & set(re.findall(r' id="([^"]+)"', other))


def test_text_plain_says_what_is_shown():
    assert repr(everything()) == "<Drawing: 3 bars & a <line>>"


def test_misuse_is_refused_by_name():
    with pytest.raises(RuntimeError, match="styled"):
        drawing(5, 3, "nothing")
    with styled():
        with pytest.raises(ValueError, match="found 50 x 3 inches"):
            drawing(50, 3, "nothing")
        with pytest.raises(ValueError, match="empty `shows`"):
            drawing(5, 3, " ")
    with pytest.raises(TypeError, match="found str"):
        to_svg("figure", "nothing")
    assert to_svg(Figure(figsize=(2, 1)), "any figure of matplotlib").startswith("<svg")


def contrast(colour: str) -> float:
    """Of a colour on white paper, as WCAG 2 defines it."""
    parts = [
        value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4
        for value in matplotlib.colors.to_rgb(colour)
    ]
    return 1.05 / (0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2] + 0.05)


def test_colours_are_legible_and_distinct():
    assert contrast(style.INK) >= 7
    for colour in (*style.SERIES_COLOURS, style.PREDICTION, style.MEASUREMENT):
        assert contrast(colour) >= 3, colour
    for rank in range(8):
        assert contrast(style.rank_colour(rank)) >= 3, rank
    assert len({style.rank_colour(rank) for rank in range(8)}) == 8
    assert len({style.rank_marker(rank) for rank in range(8)}) == 8
    assert style.rank_colour(8) == style.rank_colour(0)


def test_pyplot_is_never_imported():
    code = "import sys, helpers.explore; sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
