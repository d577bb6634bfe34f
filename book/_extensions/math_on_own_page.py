"""MathJax on the pages that hold mathematics, and on no other.

Sphinx also loads it where a page's table of contents names such a page: on the first page, then.
"""

from sphinx.application import Sphinx
from sphinx.domains.math import MathDomain


class OwnPageMath(MathDomain):
    def has_equations(self, docname: str | None = None) -> bool:
        known = self.data["has_equations"]
        return any(known.values()) if docname is None else known.get(docname, False)


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_domain(OwnPageMath, override=True)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
