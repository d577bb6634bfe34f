"""Figures on sliders: a live widget in Jupyter, plain HTML with native sliders in the book.

Every state is drawn beforehand, so moving a slider needs neither a kernel nor a network.
Used from chapter 01 on.
"""

import base64
import hashlib
import inspect
import itertools
import json
import math
from collections.abc import Callable, Iterable
from html import escape

import ipywidgets as widgets

from helpers.figures.style import Drawing, to_svg

MAX_BYTES = 400_000  # of all frames together; a page with its text stays light

_CARD = (
    "background:#fff;color:#262626;color-scheme:light;padding:.75rem;border-radius:.25rem;"
    "max-width:min(100%,42rem);box-sizing:border-box;overflow-wrap:anywhere"
)
_ROW = "display:flex;flex-wrap:wrap;align-items:center;gap:.25rem .75rem;margin:0 0 .5rem"
_SLIDER = "flex:1 1 6rem;min-width:0;max-width:24rem;height:1.75rem;margin:0;accent-color:#0072b2"

# Runs once beside its own root. Keys stay inside, or JupyterLab takes the arrows for itself.
_SCRIPT = (
    "(r=>{const d=JSON.parse(r.querySelector('[type=\"application/json\"]').textContent),"
    "s=[...r.querySelectorAll('input')],v=r.querySelector('.explore-view'),"
    "u=()=>{let k=0;s.forEach((e,j)=>{const t=d.labels[j];k=k*t.length+ +e.value;"
    "e.setAttribute('aria-valuetext',t[e.value]);"
    "r.querySelector(`output[for=${e.id}]`).textContent=t[e.value]});v.innerHTML=d.frames[k]};"
    "s.forEach(e=>{e.disabled=false;e.addEventListener('input',u)});"
    "r.addEventListener('keydown',e=>{if(!e.ctrlKey&&!e.metaKey)e.stopPropagation()});"
    "r.querySelector('.explore-note').remove();"
    "const c=r.querySelector('.explore-controls');c.hidden=false;c.style.display='';"
    "u()})(document.getElementById('%s'))"
)


class Explore(widgets.VBox):
    """What `explore` returns: sliders over drawn frames. Local.

    labels: option -> the text of each of its values; frames: one SVG a state, last option
    fastest; alts: what each shows; at: the value of each slider that is shown first; words:
    option -> what its slider is called.
    """

    def __init__(
        self, labels: dict[str, list[str]], frames: list[str], alts: list[str], at: list[int],
        words: dict[str, str],
    ):  # fmt: skip
        self.labels, self.frames, self.alts, self.at, self.words = labels, frames, alts, at, words
        self.sliders = [
            widgets.SelectionSlider(
                options=[(text, index) for index, text in enumerate(texts)],
                index=first,
                description=words[name],
                style={"description_width": "initial"},
                continuous_update=True,
            )
            for (name, texts), first in zip(labels.items(), at, strict=True)
        ]
        super().__init__([*self.sliders, self._stack(iter(frames), self.sliders)])

    def _stack(self, frames, sliders):
        """Nested stacks, one level a slider; linked in the browser, so a busy kernel is no bar."""
        if not sliders:
            return widgets.HTML(next(frames))
        slider, *inner = sliders
        stack = widgets.Stack([self._stack(frames, inner) for _ in slider.options])
        stack.selected_index = slider.index
        widgets.jslink((slider, "index"), (stack, "selected_index"))
        return stack

    def __repr__(self) -> str:
        sizes = " x ".join(str(len(texts)) for texts in self.labels.values())
        return f"explore({', '.join(self.labels)}): {sizes} states"

    def _repr_mimebundle_(self, **kwargs) -> dict:
        bundle = super()._repr_mimebundle_(**kwargs)
        return {**(bundle or {}), "text/html": self.html(), "text/plain": repr(self)}

    def html(self) -> str:
        """The whole exploration as HTML: readable without JavaScript, nothing loaded. Local."""
        data = json.dumps({"labels": list(self.labels.values()), "frames": self.frames})
        name = "explore-" + hashlib.sha256(data.encode()).hexdigest()[:10]
        rows = "".join(
            self._row(f"{name}-{index}", self.words[option], texts, self.at[index])
            for index, (option, texts) in enumerate(self.labels.items())
        )
        place = 0
        for texts, index in zip(self.labels.values(), self.at, strict=True):
            place = place * len(texts) + index
        alt = escape(self.alts[place])
        # An image, since a notebook that is not trusted shows no inline SVG.
        image = base64.b64encode(self.frames[place].encode()).decode()
        # "<\/" is "</" to JSON, and no end of the script to HTML.
        data = data.replace("</", "<\\/").replace("<!--", "\\u003c!--")
        return (
            f'<div id="{name}" class="explore" style="{_CARD}">'
            f'<div class="explore-controls" hidden style="display:none">{rows}</div>'
            f'<div class="explore-view"><img alt="{alt}" style="max-width:100%"'
            f' src="data:image/svg+xml;base64,{image}"></div>'
            f'<p class="explore-note" style="margin:.25rem 0 0"><small>{alt}.'
            f" Sliders that change it need JavaScript.</small></p>"
            f'<script type="application/json">{data}</script>'
            f"<script>{_SCRIPT % name}</script></div>"
        )

    @staticmethod
    def _row(name: str, words: str, texts: list[str], at: int) -> str:
        return (
            f'<div style="{_ROW}"><label for="{name}">{escape(words)}</label>'
            f'<input id="{name}" type="range" min="0" max="{len(texts) - 1}" value="{at}"'
            f' autocomplete="off" disabled aria-valuetext="{escape(texts[at])}" style="{_SLIDER}">'
            f'<output for="{name}" aria-live="off" style="min-width:4ch">{escape(texts[at])}'
            f"</output></div>"
        )


def explore(
    draw: Callable[..., Drawing], /, start: dict | None = None, labels: dict | None = None,
    **options: Iterable,
) -> Explore:  # fmt: skip
    """`draw` on one slider an option: every state is drawn now, and shown by moving sliders. Local.

    draw(**{option: value}) returns a finished figure; options name draw's arguments, each with the
    values of its slider, in their order. start: {option: value} shown at first, otherwise each
    option's first value; choose one that is worth seeing alone, as on paper. labels: {option:
    what its slider is called}, such as a unit ("latency in µs"), otherwise the option's own words.
    The frames weigh at most 400 kB together. Deterministic: equal frames give equal HTML.
    TypeError: an option that draw does not take, or that is not a list of values; a draw that
    returns no figure. ValueError: no option, an empty one, equal labels, a start or a label
    that no slider has, frames too heavy.
    """
    values = {name: _values(name, option) for name, option in options.items()}
    if not values:
        raise ValueError("explore: found no option, expected at least one, such as k=[1, 2, 4]")
    try:
        inspect.signature(draw).bind(**{name: each[0] for name, each in values.items()})
    except TypeError as error:
        raise TypeError(f"explore: the options do not fit draw: {error}") from None
    texts = {name: _labels(name, each) for name, each in values.items()}
    words = _called(labels or {}, values)
    at = _places(start or {}, values)
    states = math.prod(len(each) for each in values.values())
    frames, alts, size = [], [], 0
    for state in itertools.product(*values.values()):
        frame, alt = _frame(draw, dict(zip(values, state, strict=True)), words)
        frames.append(frame)
        alts.append(alt)
        size += len(frame.encode())
        if size > MAX_BYTES:
            raise ValueError(
                f"explore: found {size} bytes in {len(frames)} of {states} states, expected at "
                f"most {MAX_BYTES} in all; draw less in a frame or offer fewer values"
            )
    return Explore(texts, frames, alts, at, words)


def _called(labels: dict[str, str], values: dict[str, list]) -> dict[str, str]:
    if set(labels) - set(values):
        raise ValueError(f"explore: labels found {list(labels)}, expected some of {list(values)}")
    return {name: labels.get(name, name.replace("_", " ")) for name in values}


def _values(name: str, option: Iterable) -> list:
    if isinstance(option, str | bytes) or not isinstance(option, Iterable):
        raise TypeError(
            f"explore: option {name!r} found {option!r}, expected the values of a slider, in a list"
        )
    values = list(option)
    if not values:
        raise ValueError(f"explore: option {name!r} found no value, expected at least one")
    return values


def _labels(name: str, values: list) -> list[str]:
    labels = [f"{value:g}" if isinstance(value, float) else str(value) for value in values]
    if len(set(labels)) < len(labels):
        raise ValueError(f"explore: option {name!r} found equal labels {labels}, expected distinct")
    return labels


def _places(start: dict, values: dict[str, list]) -> list[int]:
    for name, value in start.items():
        if value not in values.get(name, []):
            raise ValueError(f"explore: start found {name}={value!r}, expected one of {values}")
    return [each.index(start[name]) if name in start else 0 for name, each in values.items()]


def _frame(draw: Callable[..., Drawing], state: dict, words: dict[str, str]) -> tuple[str, str]:
    figure = draw(**state)
    shows = getattr(figure, "shows", "") or getattr(draw, "__name__", "figure")
    alt = f"{shows} ({', '.join(f'{words[name]} {value}' for name, value in state.items())})"
    return to_svg(figure, alt), alt
