"""Real text that is on every machine: the sources of the Python standard library, as bytes."""

import functools
import pathlib
import sysconfig
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

VOCABULARY = 256  # bytes


@functools.cache
def corpus() -> NDArray[np.uint8]:
    """The modules at the top of the standard library, one after another in order of their names."""
    library = pathlib.Path(sysconfig.get_path("stdlib"))
    sources = sorted(library.glob("*.py"))
    return np.frombuffer(b"".join(source.read_bytes() for source in sources), np.uint8)


def sample(rng: np.random.Generator, batch: int, length: int) -> dict[str, NDArray[np.int32]]:
    """`batch` windows of the corpus: {'inputs', 'targets'}, int32 [batch, length], targets one byte ahead."""
    text = corpus()
    starts = rng.integers(0, len(text) - length, size=batch)
    windows = text[starts[:, None] + np.arange(length + 1)].astype(np.int32)
    return {"inputs": windows[:, :-1].copy(), "targets": windows[:, 1:].copy()}


def batches(batch: int, length: int, seed: int) -> Iterator[dict[str, NDArray[np.int32]]]:
    """Endless batches as `sample` draws them; the same seed gives the same batches."""
    rng = np.random.default_rng(seed)
    while True:
        yield sample(rng, batch, length)
