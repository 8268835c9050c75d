"""The model of a row: what its columns and words say, and the usual where they say nothing."""

import dataclasses
import itertools
import math
import re

import jax

from scripts.published.layout import CannotPredict, Runtime
from scripts.published.rows import Row
from scripts.published.transformer import Shape, parameters

_ROOM = 1.3  # params may be nominal
VOCABULARY = 51_200  # of GPT-2, padded for tensor parallelism (Megatron-LM)

SAVED = (  # words of the remat column -> what the backward pass finds in memory
    (r"qkv|q, ?k, ?v", ("q", "k", "v")),
    (r"k, ?v", ("k", "v")),
    (r"out_proj|attention projections", ("out_proj",)),
    (r"context", ("context",)),
    (r"mlpwo", ("mlpwo",)),
)


def shape_of(row: Row, runtime: Runtime) -> Shape:
    """The step of a row's whole batch, as a runtime runs it. Raises CannotPredict for what is no plain
    transformer, or not given."""
    if not (row.layers and row.d_model and row.n_heads and row.seq_len and row.global_batch_sequences):
        raise CannotPredict("the sizes of the model are not all given")
    if "mla" in row.notes.lower():
        raise CannotPredict("latent attention (MLA) is not among the layers that are built")
    sparse = _experts(row)
    kv_heads = row.n_kv_heads or row.n_heads
    head = row.d_head or row.d_model // row.n_heads
    gated, width = _mlp(row, head, kv_heads, sparse)
    shape = Shape(
        layers=row.layers,
        d_model=row.d_model,
        heads=row.n_heads,
        kv_heads=kv_heads,
        d_head=head,
        d_ff=width,
        vocab=row.vocab or VOCABULARY,
        seq=row.seq_len,
        batch=row.global_batch_sequences,
        dtype=dtype_of(row),
        gated=gated,
        fused=runtime.fused_attention,
        apart=runtime.eager,
        dropout=runtime.dropout and not runtime.fused_attention,
        saved=saved_of(row),
        master=runtime.master,
        optimizer=runtime.sparse_optimizer if sparse else runtime.optimizer,
        **sparse,
    )
    _check(row, shape)
    return shape


def _check(row: Row, shape: Shape) -> None:
    """Whether the sizes that were read make about as many parameters as the row says."""
    built = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(parameters(shape)))
    counts = (built, built - shape.vocab * shape.d_model)  # the second, if tokens and output share a matrix
    if row.params and not any(1 / _ROOM < count / row.params < _ROOM for count in counts):
        raise CannotPredict(
            f"the columns make a model of {built / 1e9:.3g} billion parameters, not of {row.params / 1e9:.3g}"
        )


def dtype_of(row: Row) -> str:
    """The type that activations are computed in."""
    return "float16" if "fp16" in row.dtype else "float32" if "fp32" in row.dtype else "bfloat16"


def saved_of(row: Row) -> frozenset[str] | None:
    """What the backward pass finds in memory (`Shape.saved`). Offloaded counts as saved: it comes back while
    other things are computed."""
    words = row.remat.lower()
    if words in ("none", ""):
        return None
    if words.startswith(("full", "per-layer")):
        return frozenset()
    if "selective" in words:
        return frozenset(("core",))
    if "recomputed" in words:
        return frozenset()
    names: set[str] = set()
    if re.search(r"dots|minimal", words):
        names.add("dots")
    left = words
    for pattern, several in SAVED:
        if re.search(pattern, left):
            names.update(several)
            left = re.sub(pattern, "", left)
    return frozenset(names)


def _experts(row: Row) -> dict[str, float | int]:
    words = row.notes.lower()
    count = re.search(r"(\d+) (?:routed|experts)", words)
    if count is None:
        return {}
    chosen = re.search(r"top-(\d+)", words)
    room = re.search(r"capacity factor (\d+(?:\.\d+)?)", words)
    dense = re.search(r"dense ff (\d+)", words)
    return {
        "experts": int(count[1]),
        "chosen": int(chosen[1]) if chosen else 2,
        "room": float(room[1]) if room else 1.0,
        "masks": "dropping" in words or "alpa" in row.source.lower(),
        "every": 2 if re.search(r"every second layer|alternate layers", words) else 1,
        "shared": 1 if "shared" in words else 0,
        "dense_ff": int(dense[1]) if dense else 0,
    }


def _mlp(row: Row, head: int, kv_heads: int, sparse: dict[str, float | int]) -> tuple[bool, int]:
    """(whether the MLP has a gate, its hidden width): of the usual ones, what comes nearest to the row's
    number of parameters."""
    assert row.d_model
    assert row.n_heads
    assert row.layers
    words = row.notes.lower()
    if row.d_ff and ("gated" in words or kv_heads < row.n_heads or sparse):
        gated = not sparse or kv_heads < row.n_heads
        return gated, row.d_ff
    if not row.d_ff and "swiglu" in words:
        return True, -(-8 * row.d_model // 3 // 256) * 256
    widths = [row.d_ff] if row.d_ff else [4 * row.d_model]
    if row.params is None:
        return False, widths[0]
    vocab = row.vocab or VOCABULARY

    def off(choice: tuple[bool, int, int]) -> float:
        gated, width, tables = choice
        layer = row.d_model * (2 * row.n_heads * head + 2 * kv_heads * head + (2 + gated) * width)
        return abs(row.layers * layer + tables * vocab * row.d_model - row.params)

    gated, width, _ = min(itertools.product((False, True), widths, (1, 2)), key=off)
    return gated, width


def stage_of(shape: Shape, stages: int, batch: int) -> Shape:
    """The largest pipeline stage of a step, for `batch` sequences."""
    groups = -(-shape.layers // (stages * shape.every))
    return dataclasses.replace(shape, layers=groups * shape.every, batch=batch)
