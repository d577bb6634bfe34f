"""A kernel as text: how one of a notebook's cell gets to another process, to be run or compiled."""

import importlib.util
import inspect
import tempfile
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_HEADER = "import triton\nimport triton.language as tl\n\n\n"
_folder: tempfile.TemporaryDirectory | None = None


@dataclass(frozen=True)
class KernelText:
    """The source of one kernel, which calls nothing but triton and triton.language (as `tl`)."""

    name: str
    text: str

    @classmethod
    def of(cls, kernel: Any) -> "KernelText":
        """Return the text of a function with @triton.jit, or one that lacks only that. Local.

        Raises TypeError for anything else.
        """
        function = getattr(kernel, "fn", kernel)
        if not inspect.isfunction(function):
            raise TypeError(
                f"found {type(kernel).__name__}, expected a kernel: a function with @triton.jit"
            )
        text = textwrap.dedent(inspect.getsource(function))
        return cls(function.__name__, text if text.startswith("@") else f"@triton.jit\n{text}")

    def load(self) -> Any:
        """Return the kernel, made anew in this process: as TRITON_INTERPRET has it here. Local."""
        global _folder
        _folder = _folder or tempfile.TemporaryDirectory()
        # A file, and one of its own: Triton reads a kernel's source, at the first launch.
        path = Path(tempfile.mkdtemp(dir=_folder.name)) / f"{self.name}.py"
        path.write_text(_HEADER + self.text)
        spec = importlib.util.spec_from_file_location(self.name, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return getattr(module, self.name)
