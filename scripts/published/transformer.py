"""The train step of a row: a transformer in plain JAX, scanned over its layers, abstract throughout.

Parameters and the optimizer's state are float32; the weights are rounded to the compute type in use, or kept
in it beside the float32 ones (`Shape.master`). Shapes: B batch, T
time, D width, F hidden width, H heads, K key heads, E width of a head, X experts, C tokens at an expert,
V vocabulary.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax._src.cudnn import fused_attention_stablehlo as cudnn
from jax.ad_checkpoint import checkpoint_name

from models.layers import causal_bias
from models.train import cross_entropy

NAMES = ("q", "k", "v", "context", "out_proj", "gate", "up", "mlpwo")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shape:
    """What the step computes.

    batch: sequences in one run of it. gated: three MLP matrices instead of two. fused: attention is one
    kernel; window: keys a query then sees, 0 for all before it. saved: which of NAMES the backward pass
    finds in memory, None for all that it needs; `dots` saves the results of all matmuls with weights,
    `core` all but attention's scores. experts: 0 for a dense MLP; chosen: experts a token goes to; room: at
    an expert, over its even share; masks: tokens go there by matmuls with a mask; every: layers of which
    one has experts; shared: experts all tokens go to; dense_ff: width of the MLPs of the other layers, 0
    for d_ff. apart: norms, activations, softmax and dropout are kernels of their own, fused with nothing.
    dropout: of attention's weights. master: the weights in use are kept in dtype, with a float32 copy for the
    optimizer, and gradients are of dtype. optimizer: one of OPTIMIZERS.
    """

    layers: int
    d_model: int
    heads: int
    kv_heads: int
    d_head: int
    d_ff: int
    vocab: int
    seq: int
    batch: int
    dtype: str
    gated: bool = False
    fused: bool = False
    window: int = 0
    saved: frozenset[str] | None = None
    experts: int = 0
    chosen: int = 0
    room: float = 1.0
    masks: bool = True
    every: int = 1
    shared: int = 0
    dense_ff: int = 0
    apart: bool = False
    dropout: bool = False
    master: bool = False
    optimizer: str = "clipped_adamw"


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def fused_attention(q_BTHE: jax.Array, k_BTKE: jax.Array, v_BTKE: jax.Array, window: int) -> jax.Array:
    """Causal attention by the kernel of `jax.nn.dot_product_attention(implementation="cudnn")`, which jax
    offers only where a GPU is."""
    return _forward(q_BTHE, k_BTKE, v_BTKE, window)[0]


def _parameters(q_BTHE: jax.Array, window: int) -> dict[str, Any]:
    return {
        "scale": q_BTHE.shape[-1] ** -0.5, "seed": 0, "dropout_rate": 0.0, "variadic_args": (False, False),
        "mask_type": cudnn.MaskType.CAUSAL, "layout": cudnn.AttentionLayout.BTNH.value,
        "sliding_window_length": window or None,
    }  # fmt: skip


def _forward(q_BTHE: jax.Array, k_BTKE: jax.Array, v_BTKE: jax.Array, window: int) -> tuple[jax.Array, Any]:
    none = jnp.zeros(0, q_BTHE.dtype)
    inputs = (q_BTHE, k_BTKE, v_BTKE, *(none,) * 7)
    out, rows = cudnn._dot_product_attention_fwd_p_wrapper.bind(
        *inputs, is_training=True, **_parameters(q_BTHE, window)
    )
    return out, (q_BTHE, k_BTKE, v_BTKE, rows, out)


def _backward(window: int, saved: Any, grad: jax.Array) -> tuple[jax.Array, ...]:
    q, k, v, rows, out = saved
    none = jnp.zeros(0, q.dtype)
    return tuple(
        cudnn._dot_product_attention_bwd_p_wrapper.bind(
            q, k, v, *(none,) * 7, rows, out, grad, **_parameters(q, window)
        )
    )


fused_attention.defvjp(_forward, _backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def softmax(scores_BHTS: jax.Array, scale: float) -> jax.Array:
    """Causal softmax in float32; the backward pass needs the weights only, in the type of the scores."""
    bias_TS = causal_bias(*scores_BHTS.shape[2:])
    return jax.nn.softmax(scores_BHTS.astype(jnp.float32) * scale + bias_TS).astype(scores_BHTS.dtype)


def _softmax_back(scale: float, weights_BHTS: jax.Array, grad_BHTS: jax.Array) -> tuple[jax.Array]:
    weights, grad = weights_BHTS.astype(jnp.float32), grad_BHTS.astype(jnp.float32)
    found = weights * (grad - (weights * grad).sum(-1, keepdims=True)) * scale
    return (found.astype(grad_BHTS.dtype),)


softmax.defvjp(lambda scores, scale: (softmax(scores, scale),) * 2, _softmax_back)


def _kernel(apart: bool, run: Callable[..., jax.Array], x: jax.Array, *others: Any) -> jax.Array:
    """run(x, *others), of the type and shape of x. apart: as a loop of one iteration, with which nothing
    around it is fused: what Python starts as a kernel of its own."""
    if not apart:
        return run(x, *others)
    return jax.lax.scan(lambda carry, _: (run(carry, *others), None), x, None, length=1)[0]


def _dropped(x: jax.Array) -> jax.Array:
    """x with some numbers zero. Which ones a kernel finds out by itself: it reads no random numbers."""
    mask = jax.lax.broadcasted_iota(jnp.uint8, x.shape, x.ndim - 1) % 10 > 0
    return jnp.where(mask, x / 0.9, 0)


def parameters(shape: Shape) -> Any:
    """ShapeDtypeStructs of all weights: those of the layers have a leading dim of layers."""
    d, f, e = shape.d_model, shape.d_ff, shape.d_head

    def weight(*dims: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(dims, jnp.float32)

    def mlp(count: int, *dims: int, width: int = f) -> dict[str, Any]:
        made = {"up": weight(count, *dims, d, width), "down": weight(count, *dims, width, d)}
        return made | ({"gate": weight(count, *dims, d, width)} if shape.gated else {})

    def layer(count: int) -> dict[str, Any]:
        return {
            "norm1": weight(count, d),
            "norm2": weight(count, d),
            "q": weight(count, d, shape.heads * e),
            "k": weight(count, d, shape.kv_heads * e),
            "v": weight(count, d, shape.kv_heads * e),
            "o": weight(count, shape.heads * e, d),
        }

    groups = shape.layers // shape.every if shape.experts else shape.layers
    found: dict[str, Any] = {
        "tokens": weight(shape.vocab, d),
        "norm": weight(d),
        "output": weight(d, shape.vocab),
    }
    if not shape.experts:
        return found | {"layers": layer(groups) | {"mlp": mlp(groups)}}
    experts = {"router": weight(groups, d, shape.experts), "experts": mlp(groups, shape.experts)}
    if shape.shared:
        experts["mlp"] = mlp(groups, width=shape.shared * f)
    found["layers"] = {"sparse": layer(groups) | experts}
    for index in range(shape.every - 1):
        width = shape.dense_ff or f
        found["layers"][f"dense{index}"] = layer(groups) | {"mlp": mlp(groups, width=width)}
    return found


def _norm(x_BTD: jax.Array, scale_D: jax.Array) -> jax.Array:
    x = x_BTD.astype(jnp.float32)
    return (x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * scale_D).astype(x_BTD.dtype)


def _mlp(shape: Shape, weights: Any, h_BTD: jax.Array) -> jax.Array:
    up = checkpoint_name(h_BTD @ weights["up"].astype(h_BTD.dtype), "up")
    if shape.gated:
        gate = checkpoint_name(h_BTD @ weights["gate"].astype(h_BTD.dtype), "gate")
        hidden = jax.nn.silu(gate) * up
    else:
        hidden = _kernel(shape.apart, jax.nn.gelu, up)
    return checkpoint_name(hidden @ weights["down"].astype(h_BTD.dtype), "mlpwo")


def _experts(shape: Shape, weights: Any, h_BTD: jax.Array) -> jax.Array:
    """Every token's experts, each with the tokens of a sequence that fall to it: as many to each. Tokens come
    and go by matmuls with a mask (GShard), or are looked up."""
    time = h_BTD.shape[1]
    logits_BTX = (h_BTD @ weights["router"].astype(h_BTD.dtype)).astype(jnp.float32)
    capacity = max(1, round(shape.room * time * shape.chosen / shape.experts))
    probs_BTX = jax.nn.softmax(logits_BTX).astype(h_BTD.dtype)
    if shape.masks:
        mask_BTXC = probs_BTX[..., None] * jnp.ones((capacity,), h_BTD.dtype)
        in_BXCD = jnp.einsum("btd,btxc->bxcd", h_BTD, mask_BTXC)
    else:
        in_BXCD = h_BTD[:, jnp.arange(shape.experts * capacity).reshape(shape.experts, capacity) % time]
    of = {name: matrix.astype(h_BTD.dtype) for name, matrix in weights["experts"].items()}
    up = checkpoint_name(jnp.einsum("bxcd,xdf->bxcf", in_BXCD, of["up"]), "up")
    if shape.gated:
        hidden = jax.nn.silu(checkpoint_name(jnp.einsum("bxcd,xdf->bxcf", in_BXCD, of["gate"]), "gate")) * up
    else:
        hidden = jax.nn.gelu(up)
    out_BXCD = checkpoint_name(jnp.einsum("bxcf,xfd->bxcd", hidden, of["down"]), "mlpwo")
    if shape.masks:
        return jnp.einsum("bxcd,btxc->btd", out_BXCD, mask_BTXC)
    place_TK = jnp.arange(time)[:, None] + time * jnp.arange(shape.chosen)
    out_BTKD = out_BXCD[:, place_TK // capacity % shape.experts, place_TK % capacity]
    return (out_BTKD * probs_BTX[..., : shape.chosen, None]).sum(2)


def _core(shape: Shape, q_BTHE: jax.Array, k_BTKE: jax.Array, v_BTKE: jax.Array) -> jax.Array:
    """Attention itself, -> [B, T, H, E]."""
    if shape.fused:
        return fused_attention(q_BTHE, k_BTKE, v_BTKE, shape.window)
    share = shape.heads // shape.kv_heads
    k_BTHE, v_BTHE = (jnp.repeat(x, share, axis=2) if share > 1 else x for x in (k_BTKE, v_BTKE))
    scores_BHTS = jnp.einsum("bthe,bshe->bhts", q_BTHE, k_BTHE)
    weights_BHTS = _kernel(shape.apart, lambda scores: softmax(scores, shape.d_head**-0.5), scores_BHTS)
    if shape.dropout:
        weights_BHTS = _kernel(shape.apart, _dropped, weights_BHTS)
    return jnp.einsum("bhts,bshe->bthe", weights_BHTS, v_BTHE)


def _layer(shape: Shape, weights: Any, x_BTD: jax.Array) -> jax.Array:
    h_BTD, dtype = _kernel(shape.apart, _norm, x_BTD, weights["norm1"]), x_BTD.dtype

    def heads(name: str, count: int) -> jax.Array:
        made = checkpoint_name(h_BTD @ weights[name].astype(dtype), name)
        return made.reshape(*made.shape[:2], count, shape.d_head)

    core = functools.partial(_core, shape)
    if shape.saved is not None and "core" in shape.saved:
        core = jax.checkpoint(core, prevent_cse=False)
    context = core(heads("q", shape.heads), heads("k", shape.kv_heads), heads("v", shape.kv_heads))
    context = checkpoint_name(context.reshape(*h_BTD.shape[:2], -1), "context")
    x_BTD = x_BTD + checkpoint_name(context @ weights["o"].astype(dtype), "out_proj")
    h_BTD = _kernel(shape.apart, _norm, x_BTD, weights["norm2"])
    if "experts" in weights:
        x_BTD = x_BTD + _experts(shape, weights, h_BTD)
    return x_BTD + _mlp(shape, weights["mlp"], h_BTD) if "mlp" in weights else x_BTD


def _remat(shape: Shape, layer: Any) -> Any:
    if shape.saved is None or "core" in shape.saved:
        return layer
    policy = None
    if "dots" in shape.saved:
        policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
    names = shape.saved.intersection(NAMES)
    if names:
        by_name = jax.checkpoint_policies.save_only_these_names(*sorted(names))
        policy = (
            by_name if policy is None else jax.checkpoint_policies.save_from_both_policies(policy, by_name)
        )
    return jax.checkpoint(layer, policy=policy, prevent_cse=False)


def loss(shape: Shape, params: Any, tokens_BT: jax.Array, targets_BT: jax.Array) -> jax.Array:
    """Mean cross-entropy of the next tokens."""
    dtype = jnp.dtype(shape.dtype)
    x_BTD = params["tokens"].astype(dtype)[tokens_BT]
    layer = _remat(shape, functools.partial(_layer, shape))

    def body(x: jax.Array, weights: Any) -> tuple[jax.Array, None]:
        for part in weights.values() if shape.experts else [weights]:
            x = layer(part, x)
        return x, None

    x_BTD, _ = jax.lax.scan(body, x_BTD, params["layers"])
    return cross_entropy(_norm(x_BTD, params["norm"]) @ params["output"].astype(dtype), targets_BT)


def _adamw() -> optax.GradientTransformation:
    return optax.adamw(1e-4, b2=0.95, weight_decay=0.1)


OPTIMIZERS: Mapping[str, Callable[[], optax.GradientTransformation]] = {
    "adafactor": lambda: optax.adafactor(1e-2),
    "adamw": _adamw,
    "clipped_adamw": lambda: optax.chain(optax.clip_by_global_norm(1.0), _adamw()),
}


def train_step(shape: Shape) -> tuple[Any, tuple[Any, Any]]:
    """(the step, its abstract arguments): state and batch -> new state and loss."""
    optimizer = OPTIMIZERS[shape.optimizer]()
    params = parameters(shape)
    state = {"params": params, "opt": jax.eval_shape(optimizer.init, params)}
    if shape.master:
        state["used"] = jax.tree.map(lambda leaf: leaf.update(dtype=jnp.dtype(shape.dtype)), params)
    tokens = jax.ShapeDtypeStruct((shape.batch, shape.seq), jnp.int32)

    def step(state: Any, batch: Any) -> tuple[Any, jax.Array]:
        used = state.get("used", state["params"])
        value, grads = jax.value_and_grad(functools.partial(loss, shape))(
            used, batch["tokens"], batch["targets"]
        )
        updates, opt = optimizer.update(grads, state["opt"], state["params"])
        new = {"params": optax.apply_updates(state["params"], updates), "opt": opt}
        if shape.master:
            new["used"] = jax.tree.map(lambda w, old: w.astype(old.dtype), new["params"], used)
        return new, value

    return step, (state, {"tokens": tokens, "targets": tokens})
