"""How long this process has been there, and an alarm: for commands that keep to a wall time."""

import contextlib
import os
import pathlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


def age_of_process() -> float:
    """Seconds since this process began, with the start of Python; 0 where the system does not tell."""
    try:
        stat = pathlib.Path("/proc/self/stat").read_text()
        up = float(pathlib.Path("/proc/uptime").read_text().split()[0])
        began = int(stat.rpartition(")")[2].split()[19])  # ticks after boot: field 22 of proc(5)
        return max(0.0, up - began / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError):
        return 0.0


@contextlib.contextmanager
def alarm(seconds: float) -> Iterator[list[int]]:
    """Raises KeyboardInterrupt in the main thread after so many seconds, as Ctrl-C does, once; yields a list
    that is not empty when it has. Does nothing in another thread, or where there are no such timers."""
    rang: list[int] = []
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield rang
        return

    def ring(number: int, frame: FrameType | None) -> None:
        del frame
        rang.append(number)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-3))
    try:
        yield rang
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
