"""An emulated interconnect: real collectives, which complete when the chosen link would have."""

from helpers.link.backend import link_of, opened
from helpers.link.model import Link
from helpers.link.presets import LINKS, SOURCES
from helpers.link.record import Completion, completions, late

__all__ = ["LINKS", "SOURCES", "Completion", "Link", "completions", "late", "link_of", "opened"]
