"""Real data without a download: handwritten digits, and the source text of Python's own library."""

import functools
import gzip
import importlib.util
import sysconfig
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

Batch = tuple[Tensor, Tensor]

IGNORE_INDEX = -100  # torch.nn.functional.cross_entropy's own default
VOCABULARY_SIZE = 96  # the 95 printable characters of ASCII, and the newline
NEWLINE = 95
NUM_TRAIN = 1536  # of 1797 digits; 6 x 256, so that it divides by every batch size of the book

# Modules that every Python from 3.11 on has as plain files; their order fixes the text.
# fmt: off
_MODULES = [
    "argparse", "ast", "bdb", "calendar", "cmd", "code", "codeop", "configparser", "contextlib",
    "copy", "csv", "dataclasses", "datetime", "difflib", "dis", "doctest", "enum", "filecmp",
    "fileinput", "fractions", "ftplib", "functools", "getopt", "gettext", "glob", "gzip", "heapq",
    "hmac", "inspect", "ipaddress", "locale", "mailbox", "mimetypes", "netrc", "ntpath", "numbers",
    "optparse", "os", "pdb", "pickle", "pickletools", "platform", "plistlib", "poplib",
    "posixpath", "pprint", "pydoc", "queue", "random", "reprlib", "sched", "selectors",
    "shelve", "shlex", "shutil", "smtplib", "socket", "socketserver", "ssl", "statistics",
    "subprocess", "symtable", "tabnanny", "tarfile", "tempfile", "textwrap", "threading",
    "timeit", "token", "tokenize", "trace", "traceback", "turtle", "types", "typing", "uuid",
    "warnings", "wave", "weakref", "webbrowser", "zipapp",
]
# fmt: on


class Data(NamedTuple):
    """Two pairs of (inputs, targets) that share no sample."""

    train: Batch
    validation: Batch


def digits(dtype: torch.dtype = torch.float32) -> Data:
    """Return scikit-learn's 1797 handwritten digits, split into 1536 and 261 samples. Local.

    Images [N, 64] of the given dtype on the CPU, pixels divided by 16 so that they lie between
    0 and 1; labels [N] int64, 0 to 9. The split is drawn once from a fixed seed, so that every
    rank and every run has the same.

    Source: UCI Optical Recognition of Handwritten Digits, as in `sklearn.datasets.load_digits`.
    Chapter 03 trains on it first.
    """
    rows = _digits_table()
    rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))]
    images, labels = rows[:, :-1].to(dtype) / 16, rows[:, -1].clone()
    return Data((images[:NUM_TRAIN], labels[:NUM_TRAIN]), (images[NUM_TRAIN:], labels[NUM_TRAIN:]))


@functools.cache  # callers index it, which copies
def _digits_table() -> Tensor:
    """Return [1797, 65] int64, 64 pixels and the label, from the file that scikit-learn brings.

    Importing scikit-learn takes over a second, which every rank of every launch would pay.
    """
    package = importlib.util.find_spec("sklearn")
    if package is None:
        raise ModuleNotFoundError("digits() reads scikit-learn's data: pip install scikit-learn")
    with gzip.open(Path(package.origin).parent / "datasets/data/digits.csv.gz", "rt") as file:
        return torch.from_numpy(np.loadtxt(file, delimiter=",")).long()


def library_text(num_characters: int) -> str:
    """Return the first characters of the running Python's standard library. Local.

    The source files of a fixed list of modules, one after the other, printable ASCII and newlines
    only. The text differs between Python versions: print nothing that depends on it.

    Raises ValueError where the library has fewer characters than asked for (it has about
    two million).
    """
    folder, pieces, length = Path(sysconfig.get_path("stdlib")), [], 0
    for name in _MODULES:
        if length >= num_characters:
            break
        text = (folder / f"{name}.py").read_text(encoding="utf-8").expandtabs(4)
        pieces.append("".join(c for c in text if " " <= c <= "~" or c == "\n"))
        length += len(pieces[-1])
    if length < num_characters:
        raise ValueError(f"asked for {num_characters} characters, the library has {length}")
    return "".join(pieces)[:num_characters]


def encode(text: str) -> Tensor:
    """Return one int64 token per character, [len(text)]: space is 0, `~` 94, newline 95. Local.

    Raises ValueError, naming the first character that is neither printable ASCII nor a newline.
    """
    for position, character in enumerate(text):
        if not (" " <= character <= "~" or character == "\n"):
            raise ValueError(
                f"character {character!r} at position {position}: expected printable ASCII"
            )
    codes = torch.tensor(list(text.encode("ascii")), dtype=torch.int64)
    return torch.where(codes == ord("\n"), NEWLINE, codes - ord(" "))


def token_batch(
    text_tokens: Tensor, batch_size: int, context: int, generator: torch.Generator
) -> Batch:
    """Return (inputs, targets), both [batch_size, context] int64, from random places. Local.

    Targets are the inputs' next tokens, so every row has the same number of them.
    Raises ValueError where the text has no context + 1 tokens.
    """
    if len(text_tokens) <= context:
        raise ValueError(f"a text of {len(text_tokens)} tokens, expected at least {context + 1}")
    starts = torch.randint(len(text_tokens) - context, (batch_size, 1), generator=generator)
    windows = text_tokens[starts + torch.arange(context + 1)]
    return windows[:, :-1], windows[:, 1:]


def next_characters(num_train: int, num_validation: int, *, context: int = 4) -> Data:
    """Return samples of `context` characters of Python's library and the one that follows. Local.

    Inputs [N, context * 96] float32, each character one-hot; targets [N] int64. Training samples
    are from random places of the first 360 000 characters, validation samples of the next 40 000;
    the places are drawn from a fixed seed. Chapter 13 trains MLPs on it.
    """

    def samples(tokens: Tensor, times: int) -> Batch:
        x, y = token_batch(tokens, times, context, torch.Generator().manual_seed(0))
        return F.one_hot(x, VOCABULARY_SIZE).flatten(1).float(), y[:, -1]

    train, validation = encode(library_text(400_000)).split(360_000)
    return Data(samples(train, num_train), samples(validation, num_validation))


def lines_batch(
    text_tokens: Tensor, batch_size: int, context: int, generator: torch.Generator
) -> Batch:
    """Return (inputs, targets), both [batch_size, longest] int64, random lines of unequal length.

    Local. A row is one line of the text that is not empty, cut after `context` characters; its
    last target is the newline. Rows are padded on the right to the longest: inputs with spaces,
    targets with IGNORE_INDEX, so that padding counts for nothing in the loss.
    Raises ValueError where the text has no whole line. Chapter 04 trains on it.
    """
    ends = (text_tokens == NEWLINE).nonzero().flatten()
    starts = torch.cat([torch.zeros(1, dtype=ends.dtype), ends + 1])[:-1]
    starts, ends = starts[ends > starts], ends[ends > starts]
    if len(starts) == 0:
        raise ValueError("a text of no line that is not empty and ends in a newline, expected one")
    chosen = torch.randint(len(starts), (batch_size,), generator=generator)
    lengths = (ends[chosen] - starts[chosen]).clamp(max=context)
    offsets = torch.arange(int(lengths.max()))
    padding = offsets >= lengths[:, None]
    places = (starts[chosen][:, None] + offsets).clamp(max=len(text_tokens) - 2)
    inputs = text_tokens[places].masked_fill(padding, 0)
    targets = text_tokens[places + 1].masked_fill(padding, IGNORE_INDEX)
    return inputs, targets


def split(batch: Tensor | Batch, rank: int, world_size: int) -> Tensor | Batch:
    """Return this rank's contiguous, equal shard of a global batch; views, nothing copied. Local.

    Raises ValueError where the batch does not divide by world_size or has no such rank.
    """
    if isinstance(batch, tuple):
        return tuple(split(part, rank, world_size) for part in batch)
    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank}, expected 0 to {world_size - 1}")
    if len(batch) % world_size:
        raise ValueError(f"a batch of {len(batch)} samples does not divide by {world_size} ranks")
    local_batch_size = len(batch) // world_size
    return batch[rank * local_batch_size : (rank + 1) * local_batch_size]
