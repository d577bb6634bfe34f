"""What a built page must be like; each rule yields what it finds wrong, in one line each."""

import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

from bs4 import BeautifulSoup, Tag

Findings = Iterator[str]
Rule = Callable[["Page"], Findings]
LOADING_LINKS = {"stylesheet", "icon", "preload", "prefetch", "modulepreload", "preconnect"}
LOADING_LINKS |= {"dns-prefetch", "manifest", "apple-touch-icon"}
ANYWHERE_ELSE = re.compile(r"\s*(?:https?:)?//", re.I)


class Page:
    """A page of the site: where it lies, and what it holds."""

    def __init__(self, path: Path):
        self.path = path
        self.soup = BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")

    @property
    def content(self) -> Tag:
        """Our own part of the page, without the theme's frame."""
        return self.soup.select_one("article.bd-article") or self.soup

    def target(self, link: str) -> tuple[Path, str]:
        """The file and the anchor that a link within the site leads to."""
        parts = urlsplit(link)
        path = self.path.parent / unquote(parts.path) if parts.path else self.path
        path = path / "index.html" if path.is_dir() else path
        return path.resolve(), unquote(parts.fragment)


@cache
def anchors(path: Path) -> frozenset[str]:
    soup = BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")
    found = {tag["id"] for tag in soup.find_all(id=True)}
    return frozenset(found | {tag["name"] for tag in soup.find_all("a", attrs={"name": True})})


def loaded(page: Page) -> Iterator[tuple[Tag, str]]:
    """Everything that a browser fetches for the page by itself, as (tag, address)."""
    for tag in page.soup.find_all(["script", "img", "iframe", "source", "video", "audio", "embed"]):
        if tag.get("src"):
            yield tag, tag["src"]
    for tag in page.soup.find_all("object", attrs={"data": True}):
        yield tag, tag["data"]
    for tag in page.soup.find_all(srcset=True):
        yield from ((tag, part.split()[0]) for part in tag["srcset"].split(",") if part.strip())
    for tag in page.soup.find_all("link", href=True):
        if LOADING_LINKS.intersection(tag.get("rel", ())):
            yield tag, tag["href"]


def external_requests(page: Page) -> Findings:
    for tag, address in loaded(page):
        if ANYWHERE_ELSE.match(address):
            yield f"<{tag.name}> loads {address}"
    for tag in page.soup.find_all(["style", "script"]):
        for address in re.findall(
            r"""(?:url\(|@import|import\(|from|fetch\()\s*["']?((?:https?:)?//[^"')\s]+)""",
            tag.get_text(),
        ):
            yield f"<{tag.name}> loads {address}"
    for tag in page.soup.find_all(style=re.compile(r"url\(\s*['\"]?(?:https?:)?//")):
        yield f"<{tag.name} style> loads from another site"


def missing_files(page: Page) -> Findings:
    for tag, address in loaded(page):
        is_ours = not ANYWHERE_ELSE.match(address) and not address.startswith("data:")
        if is_ours and not page.target(address)[0].is_file():
            yield f"<{tag.name}> loads {address}, which is not there"


def dead_links(page: Page) -> Findings:
    for tag in page.soup.find_all("a", href=True):
        link = tag["href"]
        if link in ("#", "") or urlsplit(link).scheme or link.startswith("//"):
            continue
        path, anchor = page.target(link)
        if not path.is_file():
            yield f"link to {link}: no such page"
        elif anchor and path.suffix == ".html" and anchor not in anchors(path):
            yield f"link to {link}: no such anchor"


def unrendered_mathematics(page: Page) -> Findings:
    for text in page.content.find_all(string=re.compile(r"\$")):
        if not text.find_parent(["pre", "code", "script", "style", "title"]):
            yield f"literal $ in: {text.strip()[:80]}"
    for tag in page.content.select("pre .math, a.problematic, .system-message"):
        yield f"not rendered: {tag.get_text()[:80]}"


def stray_failures(page: Page) -> Findings:
    """Errors and warnings show only in cells that are tagged for one."""
    for tag in page.content.select(".output.traceback, .output.stderr"):
        if not tag.find_parent(class_="tag_raises-exception"):
            yield f"{tag.get_text().strip()[:80]!r} in a cell that is not tagged raises-exception"
    for text in page.content.find_all(string=re.compile(r"Traceback \(most recent call last\)")):
        if not text.find_parent(class_="tag_raises-exception"):
            yield "a Traceback in a cell that is not tagged raises-exception"


def undescribed_images(page: Page) -> Findings:
    for image in page.content.find_all("img"):
        alt = image.get("alt", "").strip()
        if not alt or re.search(r"\.(svg|png|jpe?g)$", alt):
            yield f"image {image.get('src', '')[:60]} has the alternative text {alt!r}"


RULES: list[Rule] = [
    external_requests, missing_files, dead_links, unrendered_mathematics, stray_failures,
    undescribed_images,
]  # fmt: skip
