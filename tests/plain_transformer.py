"""A transformer as one would write it with nothing but JAX: dicts of arrays, a scan over stacked layers, each
computed again for the backward pass, and AdamW by hand.

Shapes: L layers, B batch, T time, S time of the keys, D width, F hidden width, H heads, E width of a head,
V vocabulary.
"""

import jax
import jax.numpy as jnp
import numpy as np

LAYERS, BATCH, TIME, WIDTH, HIDDEN, HEADS, VOCAB = 2, 16, 32, 64, 256, 8, 256


def init(key):
    """Parameters, first and second moments, and the number of the step."""
    keys = jax.random.split(key, 6)

    def weight(key, *shape):
        return 0.05 * jax.random.normal(key, shape)

    params = {
        "embed": weight(keys[0], VOCAB, WIDTH),
        "layers": {
            "norm1": jnp.ones((LAYERS, WIDTH)),
            "norm2": jnp.ones((LAYERS, WIDTH)),
            "qkv": weight(keys[1], LAYERS, 3, WIDTH, WIDTH),
            "out": weight(keys[2], LAYERS, WIDTH, WIDTH),
            "up": weight(keys[3], LAYERS, WIDTH, HIDDEN),
            "down": weight(keys[4], LAYERS, HIDDEN, WIDTH),
        },
        "unembed": weight(keys[5], WIDTH, VOCAB),
    }
    zeros = jax.tree.map(jnp.zeros_like, params)
    return {"params": params, "m": zeros, "v": zeros, "count": jnp.zeros((), jnp.int32)}


def _norm(x, scale):
    return x * scale * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)


def _layer(x_BTD, layer):
    h_BTD = _norm(x_BTD, layer["norm1"])
    q, k, v = ((h_BTD @ layer["qkv"][i]).reshape(*h_BTD.shape[:2], HEADS, -1) for i in range(3))
    scores_BHTS = jnp.einsum("bthe,bshe->bhts", q, k) / jnp.sqrt(q.shape[-1])
    mask_TS = jnp.tril(jnp.ones(scores_BHTS.shape[-2:], bool))
    probs_BHTS = jax.nn.softmax(jnp.where(mask_TS, scores_BHTS, -1e30))
    x_BTD = x_BTD + jnp.einsum("bhts,bshe->bthe", probs_BHTS, v).reshape(x_BTD.shape) @ layer["out"]
    h_BTF = jax.nn.gelu(_norm(x_BTD, layer["norm2"]) @ layer["up"])
    return x_BTD + h_BTF @ layer["down"], None


def loss_of(params, tokens_BT):
    """Mean cross entropy of every token but the first, given those before it. tokens: [B, T + 1]."""
    x_BTD = params["embed"][tokens_BT[:, :-1]]
    x_BTD, _ = jax.lax.scan(jax.checkpoint(_layer), x_BTD, params["layers"])
    logp_BTV = jax.nn.log_softmax(x_BTD @ params["unembed"])
    return -jnp.mean(jnp.take_along_axis(logp_BTV, tokens_BT[:, 1:, None], axis=-1))


def sgd_step(state, batch):
    """Plain gradient descent: linear in the gradient, so that rounding stays rounding."""
    loss, grads = jax.value_and_grad(loss_of)(state["params"], batch["tokens"])
    params = jax.tree.map(lambda p, g: p - 0.1 * g, state["params"], grads)
    return {**state, "params": params, "count": state["count"] + 1}, {"loss": loss}


def adamw_step(state, batch):
    """AdamW (Loshchilov and Hutter 2019), written out."""
    loss, grads = jax.value_and_grad(loss_of)(state["params"], batch["tokens"])
    count = state["count"] + 1
    m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["m"], grads)
    v = jax.tree.map(lambda v, g: 0.95 * v + 0.05 * g * g, state["v"], grads)

    def moved(p, m, v):
        m, v = m / (1 - 0.9**count), v / (1 - 0.95**count)
        return p - 3e-3 * (m / (jnp.sqrt(v) + 1e-8) + 0.01 * p)

    params = jax.tree.map(moved, state["params"], m, v)
    return {"params": params, "m": m, "v": v, "count": count}, {"loss": loss}


def make_batch(rng: np.random.Generator):
    """Sequences that count up from a random token: {'tokens': int32 [B, T + 1]}."""
    first = rng.integers(0, VOCAB, size=(BATCH, 1))
    return {"tokens": ((first + np.arange(TIME + 1)) % VOCAB).astype(np.int32)}
