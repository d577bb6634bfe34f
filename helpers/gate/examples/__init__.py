"""Three training scripts to start from, and faults to practise on: `--help` of this package.

`plain_loop` averages by hand, `torch_ddp` accumulates under PyTorch's class, `language_model`
has padding. Each runs by itself under torchrun, and shows its functions to the gate.
"""

from .faults import FAULTS, SCRIPTS, Fault, path_of

__all__ = ["FAULTS", "SCRIPTS", "Fault", "path_of"]
