"""One look for every figure of the book, drawn as SVG that is the same on every machine.

A figure function is decorated with `@styled()`, starts with `drawing(...)`, plots on
`figure.axes` and returns the figure. Nothing here touches pyplot or the reader's settings.
"""

import contextlib
import hashlib
import io
import re
from html import escape

import matplotlib.style
from matplotlib import cycler
from matplotlib.figure import Figure

INK = "#262626"
GRID = "#d9d9d9"
PAPER = "#ffffff"
PREDICTION = "#6b6b6b"  # drawn as a line
MEASUREMENT = "#1a1a1a"  # drawn as points

# Every colour has at least 3:1 contrast on white; the markers carry the same meaning without it.
RANK_COLOURS = (
    "#0072b2",
    "#d55e00",
    "#00795a",
    "#b0508a",
    "#8c6d00",
    "#5f4bb6",
    "#4d4d4d",
    "#a50f37",
)
RANK_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
SERIES_COLOURS = ("#332288", "#b3476b", "#117733", "#857500", "#2a8576", "#882255")
SERIES_MARKERS = ("o", "s", "^", "D", "v", "P")

_STYLE = {
    "figure.facecolor": PAPER,
    "figure.constrained_layout.use": True,
    "savefig.facecolor": PAPER,
    "axes.facecolor": PAPER,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.titlesize": "medium",
    "axes.prop_cycle": cycler(color=SERIES_COLOURS),
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "font.size": 10.5,
    "lines.linewidth": 1.8,
    "lines.markersize": 5.5,
    "legend.frameon": False,
    "svg.fonttype": "none",  # text stays text: small, searchable, readable aloud
    "svg.hashsalt": "many-gpus",
    "path.simplify_threshold": 0.2,
}
_open = 0


@contextlib.contextmanager
def styled():
    """The book's figure style, as a decorator `@styled()` or in a `with`; the reader's comes back.

    Local. Starts from matplotlib's defaults, so that a matplotlibrc changes nothing.
    """
    global _open
    with matplotlib.style.context(["default", _STYLE]):
        _open += 1
        try:
            yield
        finally:
            _open -= 1


class Drawing(Figure):
    """A finished figure that shows itself as SVG, byte for byte the same on every run. Local."""

    shows = ""

    def _repr_svg_(self) -> str:
        return to_svg(self, self.shows)

    def __repr__(self) -> str:
        return f"<Drawing: {self.shows}>"


def drawing(
    width: float, height: float, shows: str, rows: int = 1, columns: int = 1, **subplots
) -> Drawing:
    """A new `Drawing` with rows x columns axes in `figure.axes` (rows=0: none). Local.

    width, height in inches (96 pixels each); at most 6 wide, or a phone shrinks the text too much.
    shows: one line that says what is drawn; it becomes the alternative text and text/plain.
    Remaining arguments go to `Figure.subplots`. RuntimeError outside `@styled()`: the axes would
    take the reader's settings. ValueError: size or `shows` unusable.
    """
    if not _open:
        raise RuntimeError("drawing() found no style, expected a function decorated @styled()")
    if not (0 < width <= 8 and 0 < height <= 12):
        raise ValueError(f"drawing: found {width} x {height} inches, expected up to 8 x 12")
    if not shows.strip():
        raise ValueError("drawing: found an empty `shows`, expected one line of what is drawn")
    figure = Drawing(figsize=(width, height), layout="constrained")
    figure.shows = " ".join(shows.split())
    if rows:
        figure.subplots(rows, columns, **subplots)
    return figure


def rank_colour(rank: int) -> str:
    """The colour of a rank, the same in every figure; repeats after 8. Local."""
    return RANK_COLOURS[rank % len(RANK_COLOURS)]


def rank_marker(rank: int) -> str:
    """The marker of a rank, the same in every figure; repeats after 8. Local."""
    return RANK_MARKERS[rank % len(RANK_MARKERS)]


def series_colour(index: int) -> str:
    """A colour for the index-th thing compared, where it is not a rank; repeats after 6. Local."""
    return SERIES_COLOURS[index % len(SERIES_COLOURS)]


def series_marker(index: int) -> str:
    """A marker for the index-th thing compared, where it is not a rank. Local."""
    return SERIES_MARKERS[index % len(SERIES_MARKERS)]


def label_line(axes, x: float, y: float, text: str, colour: str = INK, **how) -> None:
    """Writes a line's name beside its point (x, y), in the line's colour. Local."""
    how = {"xytext": (6, 0), "va": "center", **how}
    axes.annotate(text, (x, y), textcoords="offset points", color=colour, **how)


def to_svg(figure: Figure, alt: str) -> str:
    """The figure as one `<svg>` element: deterministic, scaling, named by `alt`. Local.

    Text stays text in the reader's own sans-serif; numbers carry two decimals; no dates, no
    metadata; identifiers are unique to the content, so that many figures share a page.
    The layout is settled by the first call. TypeError: not a matplotlib figure.
    """
    if not isinstance(figure, Figure):
        raise TypeError(f"to_svg: found {type(figure).__name__}, expected a matplotlib Figure")
    buffer = io.StringIO()
    with styled():
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    figure.set_layout_engine("none")  # a second pass would start from the first one's result
    width, height = figure.get_size_inches()
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
        f' viewBox="0 0 {72 * width:g} {72 * height:g}"'
        f' width="{96 * width:.0f}" height="{96 * height:.0f}"'
        f' style="max-width:100%;height:auto" font-family="sans-serif"'
        f' stroke-linejoin="round" role="img" aria-label="{escape(alt)}">'
        f"{_body(buffer.getvalue())}"
    )


def _body(text: str) -> str:
    """What stands inside matplotlib's `<svg>`, with its end tag, in a plain and short form."""
    text = text[text.index("<svg") :]
    text = text[text.index(">") + 1 :]
    # matplotlib's style element would reach every other drawing of the page
    text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", text, flags=re.S)
    text = re.sub(r"<[^>]+>", lambda tag: _plain_tag(tag[0]), text)
    text = re.sub(r">\s+<", "><", text).replace("<defs></defs>", "").strip()
    return _own_ids(text)


def _plain_tag(tag: str) -> str:
    tag = re.sub(r"\s+", " ", tag)
    tag = re.sub(r"-?\d+\.\d{3,}(e-?\d+)?", lambda number: _rounded(number[0]), tag)
    # The font's name goes: the root asks for a generic sans-serif, present everywhere.
    tag = re.sub(r"font-family: [^;\"]*(; )?", "", tag)
    tag = re.sub(r" transform=\"rotate\(-?0 [^\"]*\"", "", tag)
    return tag.replace("; ", ";").replace(": ", ":").replace(' "', '"')


def _rounded(number: str) -> str:
    text = f"{float(number):.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def _own_ids(body: str) -> str:
    """Drops identifiers that nothing refers to and makes the others unique to this content."""
    used = set(re.findall(r'(?:href="|url\()#([^")]+)', body))
    body = re.sub(r' id="([^"]+)"', lambda at: at[0] if at[1] in used else "", body)
    prefix = "f" + hashlib.sha256(body.encode()).hexdigest()[:8]
    names = re.findall(r' id="([^"]+)"', body)
    own = {name: f"{prefix}-{index}" for index, name in enumerate(names)}
    return re.sub(r'( id="|href="#|url\(#)([^")]+)', lambda at: at[1] + own.get(at[2], at[2]), body)
