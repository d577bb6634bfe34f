"""What a command does when it is told to end: as with Ctrl-C, so that nothing is left behind."""

import signal


def end_as_interrupted() -> None:
    """Have SIGTERM and SIGHUP raise KeyboardInterrupt in this process. Local; main thread only.

    A signal that is ignored, as nohup does with SIGHUP, or has a handler stays as it is.
    """
    for name in ("SIGTERM", "SIGHUP"):  # Windows has no SIGHUP
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)
