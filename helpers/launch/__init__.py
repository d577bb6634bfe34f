"""Run a script or a function on several ranks: warm, loud when it fails, leaving nothing behind.

`%load_ext helpers.launch` brings `%torchrun`, which takes the words of a terminal's torchrun.
"""

from helpers.launch.launcher import run, run_function
from helpers.launch.magic import load_ipython_extension
from helpers.launch.outcome import RankFailed, Run
from helpers.launch.report import report

__all__ = ["RankFailed", "Run", "load_ipython_extension", "report", "run", "run_function"]
