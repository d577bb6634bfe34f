"""PyTorch's own tests of DistributedDataParallel, with ours or torch's class, on the CPU.

    python tests/run_peer_ddp.py                    # ours, world 2, the tests that must pass
    python tests/run_peer_ddp.py --world-size 3
    python tests/run_peer_ddp.py --stock --all      # torch's class, every test of it there is
    python tests/run_peer_ddp.py -k join -v         # some of them, with the tracebacks
    python tests/run_peer_ddp.py --record           # all, into book/measured/peer_ddp.json

Exits with 1 if a test failed, or none passed.
"""

import argparse
import json
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from peer_ddp import lists, settings

OURS = "helpers.data_parallel:DistributedDataParallel"


def parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--world-size", type=int, default=2)
    parser.add_argument("--stock", action="store_true", help="torch's class rather than ours")
    parser.add_argument("--class", dest="path", help="another class, as MODULE:NAME")
    parser.add_argument("--all", action="store_true", help="also those that need not pass")
    parser.add_argument("-k", metavar="REGEX", default="", help="only names that it is found in")
    parser.add_argument("-v", action="store_true", help="print the tracebacks of failures")
    parser.add_argument("--timeout", type=float, default=300, help="seconds a test, default 300")
    parser.add_argument("--json", type=Path, help="write the outcomes there")
    parser.add_argument("--record", action="store_true", help="measure again what is stored")
    return parser.parse_args(words)


def run(options: argparse.Namespace) -> list[dict]:
    """Run the tests and print a line for each; return the outcomes."""
    import re

    from peer_ddp import driver, substitute

    names = driver.candidates() if options.all else lists.accepted(options.world_size)
    names = [name for name in names if re.search(options.k, name)]
    model_class = substitute.load(options.path or (None if options.stock else OURS))
    outcomes = []
    for outcome in driver.run(model_class, names, options.timeout):
        print(f"{outcome.status:7} {outcome.seconds:6.2f} s  {outcome.name}  {outcome.reason}")
        if options.v and outcome.traceback:
            print(outcome.traceback[-6000:])
        sys.stdout.flush()
        outcomes.append(asdict(outcome))
    return outcomes


def main(words: list[str]) -> int:
    options = parse(words)
    if options.record:
        from peer_ddp import record

        record.write(record.measure())
        return 0
    with settings.settings(options.world_size, options.timeout):
        outcomes = run(options)
    counts = Counter(outcome["status"] for outcome in outcomes)
    print(", ".join(f"{counts[status]} {status}" for status in ("passed", "failed", "skipped")))
    if options.json:
        options.json.write_text(json.dumps(outcomes, indent=1) + "\n")
    return 0 if counts["passed"] and not counts["failed"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
