"""Every built page, opened in a real browser."""

import pytest
from notebook_cells import ROOT
from page_checks import PHONES, accessibility, overflow, sliders, visiting, without_javascript
from site_server import serving

SITE = ROOT / "_build" / "html"
PAGES = sorted(str(path.relative_to(SITE)) for path in SITE.glob("book/**/*.html"))


@pytest.fixture(scope="module")
def site():
    with serving(SITE) as address:
        yield address


@pytest.fixture(scope="module", params=PAGES)
def visit(request, browser, site):
    with visiting(browser, f"{site}/{request.param}") as opened:
        yield opened


def test_there_are_pages():
    assert PAGES, "make book builds them"


def test_nothing_from_another_site(visit):
    assert visit.external_requests() == []


def test_nothing_missing_and_no_complaint(visit):
    assert visit.missing() + visit.complaints == []


def test_weight(visit):
    assert visit.too_heavy() == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_accessible(visit, scheme):
    assert accessibility(visit.page, scheme) == []


@pytest.mark.parametrize("width", PHONES)
def test_fits_a_phone(visit, width):
    assert overflow(visit.page, width) == []


def test_sliders_move_their_figures(visit):
    assert sliders(visit.page) == []
    assert visit.complaints == []


def test_readable_without_javascript(visit, browser):
    assert without_javascript(browser, visit.page.url) == []
