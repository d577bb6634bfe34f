"""Mathematics as MathML, written when the book is built: no script, no font, no waiting.

Every browser of today draws it, with JavaScript off as well. A formula that the converter does
not know, or unbalanced braces, is a warning, and so stops the build.
"""

import re

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.writers.html5 import HTML5Translator

logger = logging.getLogger(__name__)


def to_mathml(latex: str, display: str) -> str:
    """The `<math>` element of a formula; display is "inline" or "block". ValueError: not LaTeX."""
    braces = re.sub(r"\\.", "", latex)
    if braces.count("{") != braces.count("}"):
        raise ValueError(f"braces without a partner in {latex!r}")
    try:
        element = convert(latex, display=display)
    except Exception as error:  # the converter has no common class of its own
        raise ValueError(f"{type(error).__name__} in {latex!r}") from error
    unknown = element.partition("<mi>\\")[2]
    if unknown:
        raise ValueError(f"unknown command \\{unknown.partition('<')[0]} in {latex!r}")
    return element


def _formula(node: nodes.Node, display: str) -> str:
    try:
        return to_mathml(node.astext(), display)
    except ValueError as error:
        logger.warning("mathematics: %s", error, location=node)
        return ""


def visit_inline(writer: HTML5Translator, node: nodes.math) -> None:
    writer.body.append(f'<span class="math notranslate">{_formula(node, "inline")}</span>')
    raise nodes.SkipNode


def visit_display(writer: HTML5Translator, node: nodes.math_block) -> None:
    writer.body.append(writer.starttag(node, "div", CLASS="math notranslate", tabindex="0"))
    if node["number"]:
        writer.body.append(f'<span class="eqno">({node["number"]})')
        writer.add_permalink_ref(node, "Link to this equation")
        writer.body.append("</span>")
    writer.body.append(f"{_formula(node, 'block')}</div>\n")
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_display, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
