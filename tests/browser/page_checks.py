"""What an opened page must be like; each check returns what it finds wrong, in one line each."""

import contextlib
from collections.abc import Iterator

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Locator, Page, Response

DESKTOP = {"width": 1280, "height": 900}
PHONES = (390, 360)
KIB = 1024
OWN_CONTENT = "article.bd-article"
AXE_OPTIONS = {"resultTypes": ["violations"], "preload": False}  # a preload asks for files anew
#: All that the scheme decides are colours.
OF_COLOURS = {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}
AXE_BY_SCHEME = {"light": AXE_OPTIONS, "dark": {**AXE_OPTIONS, "runOnly": OF_COLOURS}}
MAX_BYTES, MAX_BYTES_WITH_MATHEMATICS = 400 * KIB, 750 * KIB

WIDE = """width => [...document.querySelectorAll('body *')].filter(e => {
  if (e.getBoundingClientRect().right <= width + 1 || !e.checkVisibility()) return false;
  for (let p = e.parentElement; p; p = p.parentElement)
    if (p.getBoundingClientRect().right <= width + 1 && getComputedStyle(p).overflowX !== 'visible')
      return false;
  return true;
}).slice(0, 3).map(e => e.outerHTML.slice(0, 100))"""

#: Takes the words of code that look like an earlier one (of same colours, size and weight) out of
#: their spans, and puts them back: axe takes long for each, and a page has thousands.
UNWRAP_ALIKE = """root => {
  const seen = new Set(), ground = e => {
    for (; e; e = e.parentElement) {
      const {backgroundImage, backgroundColor} = getComputedStyle(e);
      if (backgroundImage !== 'none' || !/^rgba\\(.*, 0\\)$/.test(backgroundColor))
        return backgroundImage + backgroundColor;
    }
  };
  const words = [...document.querySelectorAll(root + ' pre span:not(:has(*))')];
  const alike = words.filter(word => {
    const {color, fontSize, fontWeight, opacity, visibility, display} = getComputedStyle(word);
    const look = [color, fontSize, fontWeight, opacity, visibility, display, ground(word)].join();
    return seen.size === seen.add(look).size;
  });
  window.unwrapped = alike.map(word => [word, document.createTextNode(word.textContent)]);
  for (const [word, text] of unwrapped) word.replaceWith(text);
}"""
WRAP_AGAIN = "() => { for (const [word, text] of unwrapped) text.replaceWith(word); }"


class Visit:
    """One page, opened once: what it asked for, what it complained of, what it weighed."""

    def __init__(self, page: Page, address: str):
        self.page = page
        self.site = "/".join(address.split("/")[:3])
        self.requests: list[str] = []
        self.responses: list[Response] = []
        self.complaints: list[str] = []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("response", lambda response: self.responses.append(response))
        page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        page.on("console", self._console)
        page.route(lambda url: not url.startswith(self.site), lambda route: route.abort())
        page.goto(address, wait_until="load")
        page.wait_for_load_state("networkidle")

    def _console(self, message) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"console {message.type}: {message.text}")

    def external_requests(self) -> list[str]:
        inside = (self.site, "data:", "blob:")
        return [address for address in self.requests if not address.startswith(inside)]

    def missing(self) -> list[str]:
        return [f"{r.status} {r.url}" for r in self.responses if r.status >= 400]

    def too_heavy(self) -> list[str]:
        """Bytes over the network, compressed, of everything the page has loaded."""
        weight = sum(r.request.sizes()["responseBodySize"] for r in self.responses)
        mathematics = self.page.locator("math").count() > 0
        limit = MAX_BYTES_WITH_MATHEMATICS if mathematics else MAX_BYTES
        if weight <= limit:
            return []
        return [f"{weight / KIB:.0f} KiB compressed, expected at most {limit / KIB:.0f}"]


@contextlib.contextmanager
def visiting(browser: Browser, address: str) -> Iterator[Visit]:
    context = browser.new_context(viewport=DESKTOP, color_scheme="light")
    try:
        yield Visit(context.new_page(), address)
    finally:
        context.close()


def accessibility(page: Page, scheme: str) -> list[str]:
    """axe-core over our own content, in the light or (colours only) the dark theme."""
    page.emulate_media(color_scheme=scheme)
    page.wait_for_function("s => document.documentElement.dataset.theme === s", arg=scheme)
    page.wait_for_timeout(200)  # the theme fades colours
    page.evaluate(UNWRAP_ALIKE, OWN_CONTENT)
    found = Axe().run(page, OWN_CONTENT, AXE_BY_SCHEME[scheme]).response["violations"]
    page.evaluate(WRAP_AGAIN)
    return [f"{v['id']}: {node['html'][:120]}" for v in found for node in v["nodes"]]


def overflow(page: Page, width: int) -> list[str]:
    """What makes the page scroll sideways on a screen of this width."""
    page.set_viewport_size({"width": width, "height": 800})
    wide = page.evaluate("document.documentElement.scrollWidth")
    page_scrolls = [f"the page is {wide} wide on a screen of {width}"] if wide > width else []
    found = page_scrolls + (page.evaluate(WIDE, width) if page_scrolls else [])
    page.set_viewport_size(DESKTOP)
    return found


def sliders(page: Page) -> list[str]:
    """Each slider changes its figure and its label, by keyboard and by mouse."""
    found = []
    for explore in page.locator(".explore").all():
        for slider in explore.locator("input[type=range]").all():
            for way in (by_keyboard, by_mouse):
                slider.scroll_into_view_if_needed()
                slider.press("Home")  # it may start anywhere
                before = state(explore, slider)
                way(page, slider)
                after = state(explore, slider)
                same = [what for what in before if before[what] == after[what]]
                if same:
                    found.append(f"{slider.get_attribute('id')} {way.__name__}: {same} stayed")
    return found


def state(explore: Locator, slider: Locator) -> dict[str, str | None]:
    return {
        "figure": explore.locator(".explore-view").inner_html(),
        "label": slider.get_attribute("aria-valuetext"),
    }


def by_keyboard(page: Page, slider: Locator) -> None:
    slider.focus()
    page.keyboard.press("End")


def by_mouse(page: Page, slider: Locator) -> None:
    box = slider.bounding_box()
    page.mouse.click(box["x"] + box["width"] - 4, box["y"] + box["height"] / 2)


def without_javascript(browser: Browser, address: str) -> list[str]:
    """What a reader whose browser runs no scripts does not see."""
    context = browser.new_context(viewport=DESKTOP, java_script_enabled=False)
    try:
        page = context.new_page()
        page.goto(address, wait_until="load")
        unseen = [] if page.locator("article h1").first.is_visible() else ["title"]
        frames = page.locator(".explore").all()
        return unseen + [
            f"first frame of {frame.get_attribute('id')}"
            for frame in frames
            if not frame.locator(".explore-view img").is_visible()
        ]
    finally:
        context.close()
