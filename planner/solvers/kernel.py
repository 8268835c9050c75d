"""How the compiled functions are compiled: once per machine, and without Python's lock while they run."""

from typing import Any

from numba import njit

_ONCE: dict[str, Any] = {"cache": True, "nogil": True}
_INNER: dict[str, Any] = {**_ONCE, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}

kernel = njit(**_ONCE)
inner = njit(**_INNER)  # called by other kernels only, which saves half of the compiling
