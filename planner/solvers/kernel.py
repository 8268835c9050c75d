"""How the compiled functions are compiled: once per machine, and without Python's lock while they run."""

from numba import njit

kernel = njit(cache=True, nogil=True)
inner = njit(cache=True, nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)  # for other kernels only
