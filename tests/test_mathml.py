"""Formulas become MathML when the book is built; what cannot be read stops the build."""

import mathml
import pytest


def test_a_formula_becomes_an_element():
    element = mathml.to_mathml(r"\frac{1}{N} \sum_{i=1}^{N} \ell_i", "block")
    assert element.startswith("<math ")
    assert 'display="block"' in element
    assert "<mfrac>" in element


@pytest.mark.parametrize("latex", [r"\frac{1", r"\nosuchcommand{x}", r"\left( x"])
def test_what_cannot_be_read_is_an_error(latex):
    with pytest.raises(ValueError, match=r"in '"):
        mathml.to_mathml(latex, "inline")
