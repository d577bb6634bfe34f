"""Without a browser these tests are skipped and say so; where one is required they are red."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("required", "code", "said"), [({}, 0, "skipped"), ({"REQUIRE_CHROMIUM": "1"}, 1, "error")]
)
def test_no_browser(tmp_path, required, code, said):
    tests = Path(__file__).parent / "test_page_checks.py"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", tests, "-k", "sound"]
    command += ["--confcutdir", tests.parent]  # what the other tests load is not needed
    environment = {"PATH": str(tmp_path), **required}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == code, done.stdout
    assert "NO BROWSER: none of chromium" in done.stdout
    assert f"1 {said}" in done.stdout
