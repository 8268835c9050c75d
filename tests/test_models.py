"""The example models: they train, their state is stable, and they are the models they are named after."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import plain_transformer
import pytest

import models
from models import text
from models.layers import causal_attention
from models.llama import blocked_attention, rotated
from models.moe import route

TINY = [
    ("alexnet", {}),
    ("densenet", {}),
    ("graphnet", {}),
    ("inception_v3", {"middle": (128,), "last": (320,)}),
    ("mlp", {}),
    ("mlp", {"scan": True, "remat": True}),
    ("gpt", {}),
    ("gpt", {"scan": True, "remat": True}),
    ("llama", {}),
    ("llama", {"remat": True}),
    ("llama", {"scan": True, "query_block": 16}),
    ("moe", {}),
    ("moe", {"scan": True, "remat": True}),
    ("nmt_lstm", {}),
    ("resnet", {}),
    ("rnnlm", {}),
    ("rnntc", {}),
    ("transformer_nmt", {}),
    ("transformer_nmt", {"scan": True, "remat": True}),
    ("unet", {}),
    ("unet", {"attend": 8}),
    ("vit", {}),
    ("vit", {"scan": True, "remat": True, "class_token": True}),
]
BIG = [(name, config) for name in models.names() for config in models.configs(name) if config != "tiny"]
SCANNED = [("mlp", {}), ("gpt", {}), ("llama", {"query_block": 16})]


def shapes(tree):
    return jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), tree)


# The programs here are tiny: compiling them well takes longer than running them badly.
quick_jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


@functools.cache
def first_state(name):
    """The unrolled tiny model's state, which no test may change."""
    return quick_jit(models.load(name).init)(jax.random.key(0))


def losses_of(step, state, batch, count):
    """The state after `count` steps on one batch, and the losses."""
    jitted, losses = quick_jit(step), []
    for _ in range(count):
        state, metrics = jitted(state, batch)
        losses.append(float(metrics["loss"]))
    return state, losses


def stacked(blocks):
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *blocks.values())


def parameter_count(name, config):
    state = jax.eval_shape(models.load(name, config).init, jax.random.key(0))
    return sum(leaf.size for leaf in jax.tree.leaves(state["params"]))


_HEAVY = ("densenet", "inception_v3", "transformer_nmt", "unet")  # to compile


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow) if name in _HEAVY else name for name in models.names()],
)
def test_loss_falls_on_one_batch(name):
    example = models.load(name)
    batch = example.make_batch(np.random.default_rng(1))
    _, losses = losses_of(example.step, first_state(name), batch, 20)
    assert losses[-1] < 0.9 * losses[0], losses


@pytest.mark.parametrize(("name", "overrides"), TINY)
def test_state_and_batch_keep_their_tree_shapes_and_dtypes(name, overrides):
    for optimizer in ("adamw", "sgd"):
        example = models.load(name, "tiny", optimizer=optimizer, **overrides)
        state = jax.eval_shape(example.init, jax.random.key(0))
        after, metrics = jax.eval_shape(example.step, state, example.batch)
        assert shapes(after) == shapes(state)
        assert all(leaf.shape == () for leaf in jax.tree.leaves(metrics))
        assert shapes(example.make_batch(np.random.default_rng(0))) == shapes(example.batch)


@pytest.mark.parametrize(("name", "overrides"), SCANNED)
def test_scanned_equals_unrolled(name, overrides):
    """From the same weights, stacked, three steps of SGD give the same weights and losses."""
    settings = {"optimizer": "sgd", "learning_rate": 0.1}
    unrolled = models.load(name, **settings)
    scanned = models.load(name, scan=True, remat=True, **settings, **overrides)
    params = first_state(name)["params"]
    state = {"params": params, "opt_state": (optax.EmptyState(),) * 2, "step": jnp.zeros((), jnp.int32)}
    state_stacked = {**state, "params": {**params, "blocks": stacked(params["blocks"])}}
    batch = unrolled.make_batch(np.random.default_rng(0))
    after, losses = losses_of(unrolled.step, state, batch, 3)
    after_stacked, losses_stacked = losses_of(scanned.step, state_stacked, batch, 3)
    after["params"]["blocks"] = stacked(after["params"]["blocks"])
    close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)
    jax.tree.map(close, after, after_stacked)
    close(losses, losses_stacked)


def test_scanned_and_unrolled_begin_alike():
    scanned = quick_jit(models.load("mlp", scan=True).init)(jax.random.key(0))["params"]
    jax.tree.map(
        np.testing.assert_array_equal, stacked(first_state("mlp")["params"]["blocks"]), scanned["blocks"]
    )


@pytest.mark.parametrize("name", ["gpt", "llama", "mlp"])
def test_a_scanned_model_is_one_scan_each_way(name):
    example = models.load(name, "tiny", layers=4, scan=True, remat=True)
    state = jax.eval_shape(example.init, jax.random.key(0))
    eqns = jax.jit(example.step).trace(state, example.batch).jaxpr.eqns
    assert [eqn.params["reverse"] for eqn in eqns if eqn.primitive.name == "scan"] == [False, True]


@pytest.mark.parametrize(("name", "config"), BIG)
def test_big_configs_trace_without_memory(name, config):
    deep = hasattr(models.load(name).config, "layers")
    example = models.load(name, config, **({"layers": 2} if deep else {}))
    state = jax.eval_shape(example.init, jax.random.key(0))
    after, _ = jax.eval_shape(example.step, state, example.batch)
    assert shapes(after) == shapes(state)


@pytest.mark.parametrize(
    ("name", "config", "published"),
    [
        ("alexnet", "imagenet", 62_378_344),
        # As torchvision has it.
        ("densenet", "densenet121", 7_978_856),
        # GPT-2's own 124,439,808 and 1,557,611,200, the 47 rows that pad its vocabulary, no bias of the keys.
        ("gpt", "gpt2_small", 124_439_808 + 47 * 768 - 12 * 768),
        ("gpt", "gpt2_xl", 1_557_611_200 + 47 * 1600 - 48 * 1600),
        # As torchvision has it, without the auxiliary head.
        ("inception_v3", "imagenet", 23_834_568),
        # The weights as released: 8.03, 70.6 and 405.9 billion.
        ("llama", "llama3_8b", 8_030_261_248),
        ("llama", "llama3_70b", 70_553_706_496),
        ("llama", "llama3_405b", 405_853_388_800),
        ("moe", "mixtral_8x7b", 46_702_792_704),
        ("moe", "mixtral_8x22b", 140_630_071_296),
        ("resnet", "resnet50", 25_557_032),
        ("resnet", "resnet101", 44_549_160),
        ("rnnlm", "zaremba_large", 66_022_000),
        # The paper's 35.7 million, exactly those of Hugging Face's model, but for the bias of the keys.
        ("unet", "cifar10", 35_746_307 - 6 * 256),
        # The paper's 86 million, exactly those of torchvision's ViT-B/16, but for the bias of the keys.
        ("vit", "vit_b16", 86_567_656 - 12 * 768),
    ],
)
def test_parameter_counts_are_the_published_ones(name, config, published):
    assert parameter_count(name, config) == published


def test_attention_is_causal_softmax():
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, 2, 8, 4, 16)).astype(np.float32)
    out = causal_attention(q, k, v)
    scores = np.einsum("bthe,bshe->bhts", q, k) / 4
    weights = np.exp(np.where(np.tril(np.ones((8, 8), bool)), scores, -np.inf))
    weights /= weights.sum(-1, keepdims=True)
    np.testing.assert_allclose(out, np.einsum("bhts,bshe->bthe", weights, v), 1e-5, 1e-5)


def test_grouped_attention_is_attention_with_repeated_keys_whatever_the_block():
    rng = np.random.default_rng(0)
    q = rng.standard_normal((2, 8, 2, 3, 16)).astype(np.float32)
    k, v = rng.standard_normal((2, 2, 8, 2, 16)).astype(np.float32)
    repeated = causal_attention(q.reshape(2, 8, 6, 16), np.repeat(k, 3, 2), np.repeat(v, 3, 2))
    for block in (2, 4, 8, 64):
        np.testing.assert_allclose(
            blocked_attention(q, k, v, block).reshape(repeated.shape), repeated, 1e-5, 1e-5
        )


def test_rotary_scores_depend_on_the_distance_only():
    rng = np.random.default_rng(0)
    q, k = rng.standard_normal((2, 1, 1, 1, 16)).astype(np.float32)
    turned_q, turned_k = (rotated(np.repeat(x, 8, axis=1), 10_000.0) for x in (q, k))
    scores = jnp.einsum("btke,bske->ts", turned_q, turned_k)
    for distance in range(8):
        along = np.diagonal(scores, distance)
        np.testing.assert_allclose(along, along[0], 1e-4, 1e-4)
    np.testing.assert_allclose(scores[0, 0], (q * k).sum(), 1e-5)


def test_a_token_goes_to_its_two_best_experts_while_they_have_room():
    logits = np.random.default_rng(0).standard_normal((2, 12, 4)).astype(np.float32)
    combine, balance = map(np.asarray, route(jnp.asarray(logits), 5))
    probs = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    want = np.zeros((2, 12, 4, 5))
    for b in range(2):
        best = np.argsort(-probs[b], -1)[:, :2]
        taken = [0] * 4
        for choice in (0, 1):
            for t in range(12):
                expert = best[t, choice]
                if taken[expert] < 5:
                    want[b, t, expert, taken[expert]] = probs[b, t, expert] / probs[b, t, best[t]].sum()
                taken[expert] += 1
    np.testing.assert_allclose(combine, want, 1e-5, 1e-6)
    first = np.eye(4)[probs.argmax(-1)].mean(1)
    np.testing.assert_allclose(balance, 4 * (first * probs.mean(1)).sum(-1).mean(), 1e-5)


def test_text_is_real_and_deterministic():
    one, two = text.batches(4, 32, seed=3), text.batches(4, 32, seed=3)
    for a, b in itertools.islice(zip(one, two, strict=True), 3):
        np.testing.assert_array_equal(a["inputs"], b["inputs"])
        np.testing.assert_array_equal(a["inputs"][:, 1:], a["targets"][:, :-1])
    assert b"def __init__(self" in text.corpus().tobytes()


@pytest.mark.parametrize(
    ("step", "count"), [(plain_transformer.adamw_step, 20), (plain_transformer.sgd_step, 5)]
)
def test_plain_transformer_learns_to_count(step, count):
    state = jax.jit(plain_transformer.init)(jax.random.key(0))
    batch = plain_transformer.make_batch(np.random.default_rng(0))
    after, losses = losses_of(step, state, batch, count)
    assert losses[-1] < losses[0] - 0.005 * count, losses
    assert shapes(after) == shapes(state)


@pytest.mark.parametrize(
    ("name", "config", "overrides", "message"),
    [
        ("gtp", None, {}, f"There is no model 'gtp'; choose one of {', '.join(models.names())}."),
        (
            "gpt",
            "huge",
            {},
            "Model 'gpt' has no config 'huge'; choose one of tiny, gpt2_small, gpt2_xl.",
        ),
        (
            "mlp",
            "tiny",
            {"depth": 3},
            "Model 'mlp' has no setting 'depth'; choose among batch, classes, d_ff, d_model, decay, dtype, "
            "inputs, layers, learning_rate, optimizer, remat, scan, warmup.",
        ),
        (
            "gpt",
            "tiny",
            {"layers": "four"},
            "Setting 'layers' of model 'gpt' is 'four', but it must be of type int; give a value like 2.",
        ),
        ("gpt", "tiny", {"layers": 0}, "Setting 'layers' is 0, but it counts something; give 1 or more."),
        (
            "gpt",
            "tiny",
            {"heads": 7},
            "Setting 'heads' is 7, which does not divide 'd_model' = 64; choose a divisor of 64.",
        ),
        (
            "llama",
            "tiny",
            {"optimizer": "adam"},
            "Setting 'optimizer' is 'adam'; choose one of adamw, sgd.",
        ),
        (
            "moe",
            "tiny",
            {"experts": 1},
            "Setting 'experts' is 1, but a token goes to two of them; give 2 or more.",
        ),
        (
            "alexnet",
            "tiny",
            {"image": 32},
            "Setting 'image' is 32, of which the poolings leave nothing; give 67 or more.",
        ),
        ("gpt", "tiny", {"vocab": 128}, "Setting 'vocab' is 128, but the text is bytes; give 256 or more."),
    ],
)
def test_bad_settings_say_what_to_do(name, config, overrides, message):
    with pytest.raises(ValueError) as error:
        models.load(name, config, **overrides)
    assert str(error.value) == message
