"""The built pages: nothing dead, missing, unrendered or fetched from elsewhere."""

import re
from pathlib import Path

import pytest
from notebook_cells import ROOT, toc_files
from page_rules import RULES, Page, Rule

SITE = ROOT / "_build" / "html"
PAGES = sorted(SITE.glob("*.html")) + sorted(SITE.glob("book/**/*.html"))

SPOILT = {
    "external_requests": [
        '<script src="https://cdn.example.org/x.js"></script>',
        '<link rel="stylesheet" href="//cdn.example.org/x.css">',
        '<img alt="a" src="http://example.org/x.png">',
        '<img alt="a" srcset="a.png 1x, https://example.org/x.png 2x">',
        '<iframe src="https://example.org"></iframe>',
        "<style>@import 'https://example.org/x.css';</style>",
        "<style>p { background: url(https://example.org/x.png) }</style>",
        '<p style="background: url(//example.org/x.png)">x</p>',
        '<script type="module">import x from "https://example.org/x.js"</script>',
    ],
    "missing_files": ['<img alt="a" src="none.svg">', '<script src="../none.js?v=1"></script>'],
    "dead_links": [
        '<a href="none.html">x</a>',
        '<a href="#none">x</a>',
        '<a href="b.html#c">x</a>',
    ],
    "unrendered_mathematics": ["<p>where $x$ is</p>", "<table><td>$\\frac</td></table>"],
    "stray_failures": [
        '<div class="cell"><div class="output stderr">UserWarning</div></div>',
        '<div class="cell"><div class="output traceback">no</div></div>',
        "<pre>Traceback (most recent call last)</pre>",
    ],
    "undescribed_images": [
        '<img src="a.svg">',
        '<img src="a.svg" alt="">',
        '<img src="a.svg" alt="../_images/ab12.svg">',
    ],
}
SOUND = """<head><link rel="canonical" href="https://example.org/a.html"></head>
<article class="bd-article" id="top"><a href="https://example.org">out</a> <a href="#top">up</a>
<a href="b.html#there">b</a> <img src="a.svg?v=1" alt="A line."> <code>$HOME</code>
<script type="application/json">["$"]</script> <span class="math">\\(x\\)</span>
<div class="cell tag_raises-exception"><div class="output traceback">
<pre>Traceback (most recent call last)</pre></div></div></article>"""


def by_rule(rule: Rule) -> str:
    return rule.__name__


def test_every_page_of_the_contents_is_built():
    built = {str(path.relative_to(SITE).with_suffix("")) for path in PAGES}
    assert set(toc_files()) <= built, "make book builds the pages first"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_pages_keep_the_rules(path):
    page = Page(path)
    assert {rule.__name__: found for rule in RULES if (found := list(rule(page)))} == {}


@pytest.fixture
def sound(tmp_path) -> Path:
    (tmp_path / "a.html").write_text(SOUND)
    (tmp_path / "b.html").write_text('<p id="there">b</p>')
    (tmp_path / "a.svg").touch()
    return tmp_path / "a.html"


@pytest.mark.parametrize("rule", RULES, ids=by_rule)
def test_a_sound_page_keeps_the_rule(sound, rule):
    assert list(rule(Page(sound))) == []


@pytest.mark.parametrize("rule", RULES, ids=by_rule)
def test_a_spoilt_page_is_found(sound, rule):
    for spoilt in SPOILT[rule.__name__]:
        sound.write_text(SOUND.replace("</article>", spoilt + "</article>"))
        assert len(list(rule(Page(sound)))) >= 1, spoilt


def test_mathematics_needs_no_script():
    for path in PAGES:
        for tag in Page(path).soup.select(".math"):
            assert tag.find("math"), f"{path.name}: {tag.get_text()[:80]}"


def test_chapters_are_numbered_as_their_files():
    chapters = [path for path in PAGES if path.stem[:2].isdecimal()]
    assert chapters
    for path in chapters:
        found = re.search(r'<h1><span class="section-number">(\d+)\.', path.read_text())
        assert found, path.stem
        assert int(found[1]) == int(path.stem[:2])
