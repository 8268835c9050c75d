"""LSTM layers (Hochreiter and Schmidhuber 1997), a loop over time each.

What goes in is multiplied for all times at once, before the loop; within it is only what depends on the step
before. Arrays are time-major, as the loop reads them.

Shapes: T time, B batch, D inputs, F width, G the four gates: input, forget, candidate, output.
"""

import jax
import jax.numpy as jnp
from flax import nnx

Carry = tuple[jax.Array, jax.Array]  # hidden [B, F] and cell [B, F]


class Lstm(nnx.Module):
    """[T, B, D] -> [T, B, F], and the carry after the last step."""

    def __init__(self, inputs: int, width: int, dtype: str, *, rngs: nnx.Rngs):
        self.width = width
        self.input = nnx.LinearGeneral(inputs, (4, width), dtype=dtype, rngs=rngs)
        self.recurrent = nnx.LinearGeneral(width, (4, width), use_bias=False, dtype=dtype, rngs=rngs)

    def __call__(self, x_TBD: jax.Array, carry: Carry | None = None) -> tuple[jax.Array, Carry]:
        in_TBGF = self.input(x_TBD)
        if carry is None:
            nothing_BF = jnp.zeros((x_TBD.shape[1], self.width), in_TBGF.dtype)
            carry = nothing_BF, nothing_BF
        graphdef, weights = nnx.split(self.recurrent)

        def step(carry: Carry, in_BGF: jax.Array) -> tuple[Carry, jax.Array]:
            carry = lstm_step(in_BGF + nnx.merge(graphdef, weights)(carry[0]), carry[1])
            return carry, carry[0]

        carry, y_TBF = jax.lax.scan(step, carry, in_TBGF)
        return y_TBF, carry


def lstm_step(gates_BGF: jax.Array, cell_BF: jax.Array) -> Carry:
    """The next hidden and cell from the four gates before their nonlinearities."""
    i_BF, f_BF, g_BF, o_BF = (gates_BGF[:, gate] for gate in range(4))
    cell_BF = nnx.sigmoid(f_BF) * cell_BF + nnx.sigmoid(i_BF) * nnx.tanh(g_BF)
    return nnx.sigmoid(o_BF) * nnx.tanh(cell_BF), cell_BF
