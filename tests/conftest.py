"""Eight CPU devices for every test, and the meshes made of them.

The flag must be in the environment before jax starts its backend, so it is set where pytest comes first.
"""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = (
    f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8".strip()
)

import jax
import numpy as np
import pytest
from jax.sharding import Mesh


def make_mesh(**sizes: int) -> Mesh:
    """A mesh with Auto axes over the first devices, in their own order."""
    count = int(np.prod(list(sizes.values())))
    return Mesh(np.array(jax.devices()[:count]).reshape(tuple(sizes.values())), tuple(sizes))


@pytest.fixture(scope="session")
def line() -> Mesh:
    """Eight devices on one axis."""
    return make_mesh(x=8)


@pytest.fixture(scope="session")
def grid() -> Mesh:
    """Four times two devices."""
    return make_mesh(x=4, y=2)


@pytest.fixture(scope="session")
def cube() -> Mesh:
    """Two times two times two devices."""
    return make_mesh(x=2, y=2, z=2)
