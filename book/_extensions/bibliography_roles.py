"""A bibliography that screen readers announce as a list of sources.

docutils marks each source with a role that ARIA has withdrawn and that a list must not contain.
"""

from sphinx.application import Sphinx


def configure(app: Sphinx, page: str, template: str, context: dict, doctree: object) -> None:
    if "body" in context:
        context["body"] = context["body"].replace('role="doc-biblioentry"', 'role="listitem"')


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("html-page-context", configure)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
