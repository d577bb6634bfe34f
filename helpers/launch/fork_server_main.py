"""Imported by the fork server only: ties its life to the process that started it."""

from helpers.launch.fork_server import die_with_parent

die_with_parent()
