"""Several hosts on one machine: network namespaces, joined by links of a chosen rate. Needs root.

sudo .venv/bin/python -m helpers.two_hosts --rate 100mbit -- script.py --option value
"""

from helpers.two_hosts.network import CannotMakeHosts, Host, virtual_hosts, why_not
from helpers.two_hosts.run import HostFailed, run_on_hosts, torchrun_words

__all__ = [
    "CannotMakeHosts",
    "Host",
    "HostFailed",
    "run_on_hosts",
    "torchrun_words",
    "virtual_hosts",
    "why_not",
]
