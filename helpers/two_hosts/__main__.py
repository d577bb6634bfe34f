"""python -m helpers.two_hosts [--hosts 2] [--rate 100mbit] -- script.py --option value"""

import argparse
import contextlib
import signal
import sys

from helpers.two_hosts.network import MAX_HOSTS, CannotMakeHosts, Host, virtual_hosts
from helpers.two_hosts.run import HostFailed, run_on_hosts, torchrun_words


def _arguments(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m helpers.two_hosts",
        description="Runs a script with torchrun on several virtual hosts of this machine, joined"
        " by links of a chosen rate. Needs Linux, root and iproute2; leaves nothing behind.",
    )
    parser.add_argument("--hosts", type=int, default=2, help=f"2 to {MAX_HOSTS} (default: 2)")
    parser.add_argument(
        "--rate", default="100mbit", help="of each link, in each direction (default: 100mbit)"
    )
    parser.add_argument(
        "--nproc-per-node", type=int, default=1, help="ranks on each host (default: 1)"
    )
    parser.add_argument(
        "--timeout-s", type=float, default=120.0, help="stop all after so long (default: 120)"
    )
    parser.add_argument(
        "--plain",
        action="store_true",
        help="run the words after -- themselves on each host, without torchrun",
    )
    parser.add_argument(
        "--keep", action="store_true", help="leave the hosts, and say how to use and remove them"
    )
    parser.add_argument("words", nargs="+", metavar="script.py ...", help="after --")
    return parser.parse_args(words)


def _say(line: str) -> None:
    # In one piece, since hosts speak at once; whoever read them may have gone.
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


def _say_how_to_remove(hosts: list[Host]) -> None:
    names = [host.namespace for host in hosts]
    _say(f"kept: {', '.join(f'{host.namespace} ({host.address})' for host in hosts)}")
    _say(f"a shell on host 0: ip netns exec {names[0]} bash")
    switch = names[0].replace("host0", "switch")
    _say(f"to remove them: for n in {' '.join([*names, switch])}; do ip netns delete $n; done")


def main(words: list[str] | None = None) -> int:
    """The command; its exit code is that of the first host that failed, 0 where none did. Local."""
    found = _arguments(words)

    def command(host: Host) -> list[str]:
        if found.plain:
            return found.words
        return torchrun_words(host, hosts, found.nproc_per_node, found.words)

    try:
        with virtual_hosts(found.hosts, found.rate, keep=found.keep) as hosts:
            try:
                run_on_hosts(hosts, command, timeout_s=found.timeout_s, write=_say)
            finally:
                if found.keep:
                    _say_how_to_remove(hosts)
    except (CannotMakeHosts, ValueError) as error:
        print(f"two_hosts: {error}", file=sys.stderr)
        return 2
    except HostFailed as failed:
        print(f"two_hosts: {failed}", file=sys.stderr)
        return failed.code
    except KeyboardInterrupt:
        print("two_hosts: stopped", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    # A polite kill goes the way of Ctrl-C; after an impolite one the cleaner sees to the hosts.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
