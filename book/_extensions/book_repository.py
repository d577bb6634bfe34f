"""Buttons that lead to the repository, Binder and Colab, where BOOK_REPOSITORY names one.

    make book BOOK_REPOSITORY=https://github.com/owner/name

Without it no page shows or contains an address of a repository.
"""

import os
import re

from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.errors import ConfigError

LAUNCH_BUTTONS = {
    "notebook_interface": "jupyterlab",
    "binderhub_url": "https://mybinder.org",
    "colab_url": "https://colab.research.google.com",
}
BUTTONS = ("use_repository_button", "use_edit_page_button", "use_issues_button")


def theme_options(repository: str) -> dict[str, object]:
    """The theme's options for a repository's address; for "" the options that show no button."""
    if not repository:
        return dict.fromkeys(BUTTONS, False) | {"repository_url": "", "launch_buttons": {}}
    if not re.fullmatch(r"https://[^/\s]+/[^/\s]+/[^/\s]+", repository):
        raise ConfigError(
            f"BOOK_REPOSITORY is {repository!r}, expected https://github.com/owner/name"
        )
    addresses = {"repository_url": repository, "repository_branch": "main", "path_to_docs": ""}
    return dict.fromkeys(BUTTONS, True) | addresses | {"launch_buttons": LAUNCH_BUTTONS}


def configure(app: Sphinx, config: Config) -> None:
    repository = os.environ.get("BOOK_REPOSITORY", "").strip().rstrip("/")
    config.html_theme_options = {**config.html_theme_options, **theme_options(repository)}


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("config-inited", configure)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
