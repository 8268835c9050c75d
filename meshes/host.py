"""The host as a machine: constants of this computer's cores and memory, measured with numpy and cached.

Measured once in a second or two: float32 matmul rate of all cores, copy bandwidth, the time to wake another
thread, and that of a call with next to no work. The cache is `$XDG_CACHE_HOME/meshwright/host.json`, under
`~/.cache` without it. A cache that cannot be written is done without, and one that cannot be read or belongs
to other hardware is measured again.
"""

import dataclasses
import json
import os
import platform
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

_MATMUL_SIDE = 1024
_COPY_BYTES = 1 << 27
_HANDOVERS = 200
_CALLS = 1000


@dataclasses.dataclass(frozen=True)
class Host:
    """flops_per_s: float32 matmul, all cores. copy_bytes_per_s: bytes copied, read and write counted once.
    handover_s: until a waiting thread runs. call_s: an operation on a few numbers.
    cores: usable by this process."""

    flops_per_s: float
    copy_bytes_per_s: float
    handover_s: float
    call_s: float
    cores: int
    processor: str


def host() -> Host:
    """This host's constants, from the cache if it holds them."""
    cached = _read()
    if cached is not None:
        return cached
    measured = measure()
    _write(measured)
    return measured


def measure() -> Host:
    """Time a matmul, a copy and a thread hand-over, the best or median of a few runs each."""
    side = _MATMUL_SIDE
    left = np.ones((side, side), np.float32)
    out = np.empty_like(left)
    matmul = _best(lambda: np.matmul(left, left, out=out), runs=15)
    source = np.ones(_COPY_BYTES, np.uint8)
    target = np.empty_like(source)
    copy = _best(lambda: np.copyto(target, source), runs=15)
    tiny = np.ones((8, 8), np.float32)
    few = np.empty_like(tiny)
    calls = _best(lambda: [np.matmul(tiny, tiny, out=few) for _ in range(_CALLS)], runs=15)
    flops_per_s = 2 * side**3 / matmul
    return Host(flops_per_s, _COPY_BYTES / copy, _handover(), calls / _CALLS, _cores(), _processor())


def available_bytes() -> int:
    """Memory that can be used now: what the kernel calls available, or all of it where it does not say."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def cache_path() -> Path:
    """Where the constants are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "meshwright" / "host.json"


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _processor() -> str:
    """The processor's name, so that a cache carried to another machine is not believed."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _best(run: Callable[[], object], runs: int) -> float:
    """Seconds of the fastest run: the one least disturbed by other work on the host."""
    seconds = []
    for _ in range(runs):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def _handover() -> float:
    """Median seconds from setting an event to the waiting thread running, half of a round trip."""
    ping, pong, trips = threading.Event(), threading.Event(), []

    def answer() -> None:
        for _ in range(_HANDOVERS):
            ping.wait()
            ping.clear()
            pong.set()

    other = threading.Thread(target=answer)
    other.start()
    for _ in range(_HANDOVERS):
        start = time.perf_counter()
        ping.set()
        pong.wait()
        pong.clear()
        trips.append(time.perf_counter() - start)
    other.join()
    return float(np.median(trips)) / 2


def _read() -> Host | None:
    try:
        known = Host(**json.loads(cache_path().read_text()))
    except (OSError, ValueError, TypeError):
        return None
    rates = (known.flops_per_s, known.copy_bytes_per_s, known.handover_s, known.call_s)
    if not all(isinstance(rate, float) and 0 < rate < float("inf") for rate in rates):
        return None
    return known if (known.cores, known.processor) == (_cores(), _processor()) else None


def _write(known: Host) -> None:
    path = cache_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(dataclasses.asdict(known), indent=1))
        partial.replace(path)
    except OSError:
        pass
