"""Figures of the book: each function returns one finished `Drawing`; chapters import the modules.

`style` is the one look; the other modules are named for their subject, as in
`from helpers.figures import normalisation`.
"""

from helpers.figures.style import Drawing, drawing, styled, to_svg

__all__ = ["Drawing", "drawing", "styled", "to_svg"]
