"""The optimiser, the loss, and the train step of an NNX model."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from models.example import Batch, Metrics, State, TrainConfig

Init = Callable[[jax.Array], State]
Step = Callable[[State, Batch], tuple[State, Metrics]]


def optimizer_of(config: TrainConfig) -> optax.GradientTransformation:
    """AdamW with clipping, warm-up and cosine decay; or plain SGD, whose update is linear in the gradient."""
    if config.optimizer == "sgd":
        return optax.sgd(config.learning_rate)
    schedule = optax.warmup_cosine_decay_schedule(
        init_value=0.0,
        peak_value=config.learning_rate,
        warmup_steps=config.warmup,
        decay_steps=config.warmup + config.decay,
        end_value=0.1 * config.learning_rate,
    )
    return optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.adamw(schedule, b1=0.9, b2=0.95, weight_decay=0.1),
    )


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Mean of -log softmax(logits)[label], in float32. logits: [..., V], V classes; labels: int [...].

    The label's logit is picked by a mask, not by an index, so that logits split over the vocabulary need no
    more than sums of shape [...].
    """
    logits = logits.astype(jnp.float32)
    picked = labels[..., None] == jnp.arange(logits.shape[-1])
    label_logit = jnp.where(picked, logits, 0.0).sum(-1)
    return (jax.nn.logsumexp(logits, axis=-1) - label_logit).mean()


def new_state(optimizer: optax.GradientTransformation, params: Any, **others: Any) -> State:
    """The state before the first step."""
    return {
        "params": params,
        **others,
        "opt_state": optimizer.init(params),
        "step": jnp.zeros((), jnp.int32),
    }


def updated(optimizer: optax.GradientTransformation, state: State, grads: Any, **others: Any) -> State:
    """The state after a step with gradients `grads`."""
    updates, opt_state = optimizer.update(grads, state["opt_state"], state["params"])
    return {
        "params": optax.apply_updates(state["params"], updates),
        **others,
        "opt_state": opt_state,
        "step": state["step"] + 1,
    }


def nnx_train(
    config: TrainConfig,
    model_of: Callable[[nnx.Rngs], nnx.Module],
    loss_of: Callable[[Any, Batch], jax.Array],
) -> tuple[Init, Step]:
    """The init and the step of an NNX model all of whose state is parameters, as pure functions of dicts."""
    optimizer = optimizer_of(config)
    # The graph definition is the model without its arrays: made once, abstractly.
    graphdef = nnx.graphdef(nnx.eval_shape(lambda: model_of(nnx.Rngs(0))))

    def init(key: jax.Array) -> State:
        params = nnx.to_pure_dict(nnx.state(model_of(nnx.Rngs(key)), nnx.Param))
        return new_state(optimizer, params)

    def step(state: State, batch: Batch) -> tuple[State, Metrics]:
        def loss_at(params: Any) -> jax.Array:
            return loss_of(nnx.merge(graphdef, params), batch)

        loss, grads = jax.value_and_grad(loss_at)(state["params"])
        return updated(optimizer, state, grads), {"loss": loss}

    return init, step
