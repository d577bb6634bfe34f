"""Links by name, in one direction, with the sources of their numbers."""

from helpers.link.model import Link

# Bandwidth: what the standard or the maker states for one direction, payload overhead not taken
# off. Latency: what NCCL's own cost model assumes for one step of a ring (protocol "Simple").
LINKS = {
    "nvlink4": Link(3.4e-6, 450.0),
    "pcie4_x16": Link(5.7e-6, 31.5),
    "infiniband_ndr": Link(14e-6, 50.0),
    "ethernet_100g": Link(14e-6, 12.5),
    "ethernet_25g": Link(30e-6, 3.125),
    "ethernet_10g": Link(30e-6, 1.25),
    "ethernet_1g": Link(50e-6, 0.125),
    "internet": Link(20e-3, 0.0125),
}

_NCCL = "latency: NCCL, src/graph/tuning.cc, table hwLat, ring, Simple"
_TCP = "latency: assumed, of the order of one way through a kernel's TCP and a switch"
SOURCES = {
    "nvlink4": f"NVIDIA H100 data sheet: 900 GB/s, both directions together; {_NCCL}",
    "pcie4_x16": f"PCI Express 4.0: 16 GT/s, 16 lanes, 128b/130b coding; {_NCCL}",
    "infiniband_ndr": f"InfiniBand NDR: 400 Gbit/s; {_NCCL}",
    "ethernet_100g": f"IEEE 802.3: 100 Gbit/s; {_NCCL} (network)",
    "ethernet_25g": f"IEEE 802.3: 25 Gbit/s; {_TCP}",
    "ethernet_10g": f"IEEE 802.3: 10 Gbit/s; {_TCP}",
    "ethernet_1g": f"IEEE 802.3: 1 Gbit/s; {_TCP}",
    "internet": "assumed: 100 Mbit/s, 20 ms one way",
}
