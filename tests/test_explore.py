"""An exploration is deterministic, small, and refuses bad options by name.

That its sliders move the figure is tested in a real browser, over the built book.
"""

import base64
import json
import re

import ipywidgets
import pytest

from helpers import explore as module
from helpers.explore import explore
from helpers.figures import Drawing, drawing, styled

WIDGET = "application/vnd.jupyter.widget-view+json"


@styled()
def bars(k: int, batch_size: int = 1) -> Drawing:
    figure = drawing(2, 1.5, "Bars </script> <!-- & more")
    figure.axes[0].bar([0, 1], [k, batch_size])
    return figure


def bundle(exploration) -> dict:
    return exploration._repr_mimebundle_()


def test_it_shows_a_widget_html_and_one_line_of_text():
    shown = bundle(explore(bars, k=[1, 2, 4], batch_size=range(1, 3)))
    assert set(shown) == {WIDGET, "text/html", "text/plain"}
    assert shown["text/plain"] == "explore(k, batch_size): 3 x 2 states"


def test_html_is_the_same_on_every_run():
    assert explore(bars, k=[1, 2]).html() == explore(bars, k=(k for k in (1, 2))).html()
    assert explore(bars, k=[1, 2]).html() != explore(bars, k=[1, 3]).html()


def data_of(html: str) -> dict:
    (text,) = re.findall(r'<script type="application/json">(.*?)</script>', html, re.S)
    return json.loads(text)


def test_every_state_is_in_the_page_last_option_fastest():
    data = data_of(explore(bars, k=[1, 2], batch_size=[8, 16, 32]).html())
    assert data["labels"] == [["1", "2"], ["8", "16", "32"]]
    assert len(data["frames"]) == 6
    names = [re.search(r'aria-label="([^"]*)"', frame)[1] for frame in data["frames"]]
    assert names[1].endswith("(k 1, batch size 16)")
    assert names[3].endswith("(k 2, batch size 8)")


def test_page_reads_without_javascript_and_loads_nothing():
    html = explore(bars, k=[1, 2]).html()
    assert '<div class="explore-controls" hidden style="display:none">' in html
    assert html.count(" disabled ") == 1  # a notebook that is not trusted shows what is hidden
    assert "(k 1). Sliders that change it need JavaScript." in html
    (image,) = re.findall(r"base64,([^\"]+)", html)
    assert base64.b64decode(image).decode() == data_of(html)["frames"][0]
    assert not re.findall(r"(?:src|href)=.?https?:", html)


def test_a_state_may_be_chosen_to_be_shown_first():
    exploration = explore(bars, k=[1, 2], batch_size=[8, 16, 32], start={"batch_size": 32})
    html = exploration.html()
    (image,) = re.findall(r"base64,([^\"]+)", html)
    assert base64.b64decode(image).decode() == exploration.frames[2]
    assert "(k 1, batch size 32). Sliders" in html
    assert re.findall(r' value="(\d+)"', html) == ["0", "2"]
    assert exploration.sliders[1].value == 2
    assert [stack.selected_index for stack in exploration.children[-1].children] == [2, 2]


def test_each_slider_has_a_label_a_value_in_words_and_an_output():
    html = explore(bars, k=[1, 2], batch_size=[8]).html()
    for name in re.findall(r'<input id="([^"]+)" type="range"', html):
        assert f'<label for="{name}">' in html
        assert f'<output for="{name}"' in html
    assert html.count("aria-valuetext=") == 2
    assert ">batch size</label>" in html


def test_a_slider_may_be_called_by_a_label_with_a_unit():
    exploration = explore(bars, k=[1, 2], batch_size=[8], labels={"batch_size": "batch in samples"})
    html = exploration.html()
    assert ">batch in samples</label>" in html
    assert ">k</label>" in html
    assert "batch size" not in html
    assert "(k 1, batch in samples 8). Sliders" in html
    assert [slider.description for slider in exploration.sliders] == ["k", "batch in samples"]


def test_script_cannot_be_ended_by_a_frame():
    html = explore(bars, k=[1]).html()
    assert html.count("</script>") == 2
    assert "<!--" not in html


def test_live_widget_links_each_slider_to_its_stack():
    exploration = explore(bars, k=[1, 2], batch_size=[1, 2, 3])
    *sliders, outer = exploration.children
    assert [len(slider.options) for slider in sliders] == [2, 3]
    assert [len(inner.children) for inner in outer.children] == [3, 3]
    values = [html.value for inner in outer.children for html in inner.children]
    assert values == exploration.frames
    assert all(isinstance(html, ipywidgets.HTML) for html in outer.children[0].children)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, ValueError, "no option"),
        ({"k": []}, ValueError, "'k' found no value"),
        ({"k": 4}, TypeError, "'k' found 4"),
        ({"k": "124"}, TypeError, "'k' found '124'"),
        ({"k": [1, 1.0]}, ValueError, "equal labels"),
        ({"size": [1]}, TypeError, "do not fit draw"),
        ({"k": [1], "start": {"k": 2}}, ValueError, "start found k=2"),
        ({"k": [1], "labels": {"n": "k"}}, ValueError, r"labels found \['n'\], expected some of"),
        ({"batch_size": [1]}, TypeError, "do not fit draw: missing.*'k'"),
    ],
)
def test_bad_options_are_refused_by_name(options, error, message):
    with pytest.raises(error, match=message):
        explore(bars, **options)


def test_a_draw_that_returns_no_figure_is_refused():
    with pytest.raises(TypeError, match="found int, expected a matplotlib Figure"):
        explore(lambda k: k, k=[1])


def test_frames_that_weigh_too_much_are_refused(monkeypatch):
    monkeypatch.setattr(module, "MAX_BYTES", 10_000)
    with pytest.raises(ValueError, match=r"of 50 states, expected at most 10000"):
        explore(bars, k=range(50))
