"""A real Chromium for the tests of this folder: where there is none they are skipped, or red."""

import os
import shutil

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")


def find_chromium() -> str | None:
    return next(filter(None, map(shutil.which, NAMES)), None)


@pytest.fixture(scope="session")
def browser():
    path = find_chromium()
    if path is None:
        missing = f"NO BROWSER: none of {', '.join(NAMES)} is installed, pages were not opened"
        if os.environ.get("REQUIRE_CHROMIUM"):
            pytest.fail(missing)
        pytest.skip(missing)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
