"""What an all-reduce costs on a link, predicted; and a link, fitted from what was measured."""

from .bandwidth import algorithm_bandwidth_gb_per_s, bus_bandwidth_gb_per_s
from .fit import fit_link
from .overlap import best_cuts, overlap_lower_bound_s, step_s, transfers_s
from .predict import CriticalPath, all_reduce_s, choose, critical_path, traffic_per_rank
from .schedule import ALGORITHMS, Message, schedule

__all__ = [
    "ALGORITHMS",
    "CriticalPath",
    "Message",
    "algorithm_bandwidth_gb_per_s",
    "all_reduce_s",
    "best_cuts",
    "bus_bandwidth_gb_per_s",
    "choose",
    "critical_path",
    "fit_link",
    "overlap_lower_bound_s",
    "schedule",
    "step_s",
    "traffic_per_rank",
    "transfers_s",
]
