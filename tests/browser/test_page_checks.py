"""Each check finds what it is there for, on pages that are spoilt in one place."""

import pytest
from page_checks import (
    MAX_BYTES,
    accessibility,
    overflow,
    sliders,
    visiting,
    without_javascript,
)
from site_server import serving

PIXEL = "data:image/svg+xml;base64,PHN2ZyB4bWxucz0iaHR0cDovL3d3dy53My5vcmcvMjAwMC9zdmciLz4="
MOVES = """const r = document.querySelector('.explore'), s = r.querySelector('input');
s.oninput = () => { r.querySelector('.explore-view').textContent = s.value;
  s.setAttribute('aria-valuetext', s.value) }"""
SOUND = f"""<!doctype html><html lang="en"><head><title>x</title>
<meta name="viewport" content="width=device-width"><link rel="icon" href="data:,"><script>
const scheme = matchMedia('(prefers-color-scheme: dark)'),
  set = () => document.documentElement.dataset.theme = scheme.matches ? 'dark' : 'light';
scheme.onchange = set; set();</script></head><body><article class="bd-article"><h1>Title</h1>
<div class="explore" id="e"><label for="s">k</label>
<input id="s" type="range" min="0" max="3" value="0" aria-valuetext="0">
<div class="explore-view"><img alt="a" width="9" height="9" src="{PIXEL}"></div></div>
<script>{MOVES}</script></article></body></html>"""


@pytest.fixture
def opened(browser, tmp_path):
    """Opens a page of the given text, beside a large file; closes it at the end."""
    (tmp_path / "large.bin").write_bytes(bytes(MAX_BYTES + 1))
    with serving(tmp_path) as site:
        visits = []

        def open_page(text: str):
            (tmp_path / "a.html").write_text(text)
            visits.append(visiting(browser, f"{site}/a.html"))
            return visits[-1].__enter__()

        yield open_page
        for visit in visits:
            visit.__exit__(None, None, None)


def spoilt(what: str) -> str:
    return SOUND.replace("</article>", what + "</article>")


def test_a_sound_page_passes(opened, browser):
    visit = opened(SOUND)
    page = visit.page
    assert visit.external_requests() + visit.missing() + visit.complaints + visit.too_heavy() == []
    assert accessibility(page, "light") + accessibility(page, "dark") == []
    assert overflow(page, 390) + overflow(page, 360) + sliders(page) == []
    assert without_javascript(browser, page.url) == []


@pytest.mark.parametrize(
    "what",
    [
        '<script src="https://cdn.example.org/x.js"></script>',
        "<style>h1 { background: url(https://example.org/x.png) }</style>",
        "<script>fetch('https://example.org/x.json').catch(() => 0)</script>",
    ],
)
def test_an_external_request_is_found(opened, what):
    assert "example.org" in "".join(opened(spoilt(what)).external_requests())


@pytest.mark.parametrize(
    ("what", "finding"),
    [
        ("<script>console.error('no')</script>", "console error: no"),
        ("<script>nothing.there</script>", "nothing is not defined"),
        ('<img alt="a" src="none.png">', "404"),
    ],
)
def test_complaints_are_found(opened, what, finding):
    visit = opened(spoilt(what))
    assert finding in "".join(visit.complaints + visit.missing())


def test_a_heavy_page_is_found(opened):
    heavy = opened(spoilt("<script>fetch('large.bin').then(r => r.blob())</script>"))
    assert "KiB compressed, expected at most 400" in "".join(heavy.too_heavy())


def test_barriers_are_found(opened):
    page = opened(spoilt('<p style="color:#bbb;background:#fff">pale</p>')).page
    assert "color-contrast" in accessibility(page, "light")[0]
    page = opened(SOUND.replace('for="s"', "")).page
    assert "label" in accessibility(page, "light")[0]
    dark_only = "<style>[data-theme=dark] h1 {color:#444;background:#222}</style>"
    page = opened(spoilt(dark_only)).page
    assert accessibility(page, "light") == []
    assert "color-contrast" in accessibility(page, "dark")[0]


def test_words_of_code_that_look_alike_are_examined_once_and_others_all(opened):
    def code(word: str) -> str:
        return f'<pre style="background:#fff"><span style="color:#333">x</span> {word}</pre>'

    page = opened(spoilt(code('<span style="color:#333">y</span>'))).page
    before = page.content()
    assert accessibility(page, "light") == []
    assert page.evaluate("unwrapped.length") == 1
    assert page.content() == before
    for word in (
        '<span style="color:#bbb">pale</span>',
        '<span style="background:#444"><span style="color:#333">dark</span></span>',
        '<span style="color:#333;opacity:0.3">faint</span>',
    ):
        found = accessibility(opened(spoilt(code(word))).page, "light")
        assert [line.split(":")[0] for line in found] == ["color-contrast"], word


def test_overflow_is_found_and_named(opened):
    page = opened(spoilt('<p id="wide" style="width:380px">x</p>')).page
    assert overflow(page, 400) == []
    assert 'id="wide"' in overflow(page, 360)[1]
    scrolls = '<div style="overflow-x:auto"><p style="width:900px">x</p></div>'
    assert overflow(opened(spoilt(scrolls)).page, 360) == []


def test_a_dead_slider_is_found(opened):
    assert len(sliders(opened(SOUND.replace(MOVES, "")).page)) == 2
    keyboard_only = spoilt("<style>input { pointer-events: none }</style>")
    assert ["by_mouse" in line for line in sliders(opened(keyboard_only).page)] == [True]
    mouse_only = spoilt("<script>onkeydown = e => e.preventDefault()</script>")
    assert ["by_keyboard" in line for line in sliders(opened(mouse_only).page)] == [True]


def test_what_needs_javascript_is_found(opened, browser):
    page = opened(SOUND.replace('class="explore-view"', 'class="explore-view" hidden')).page
    assert without_javascript(browser, page.url) == ["first frame of e"]
    page = opened(SOUND.replace("<h1>", "<h1 hidden>")).page
    assert without_javascript(browser, page.url) == ["title"]
