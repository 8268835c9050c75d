"""Seconds of a step from a published rate of FLOPs, by the convention that the rate was counted with.

model FLOPs        6 a matmul weight and token, and attention's 12 s h e a layer and token: all s keys,
                   or half of them where the row says that causal attention counts half
with recomputing   96 B s L d^2 (1 + s / 6d + V / 16 L d), the coefficient of Megatron-LM's tables
                   (Narayanan et al. 2021, arXiv 2104.04473), where the row says that it counts so
"""

from scripts.published.rows import Row
from scripts.published.transformer import Shape


def weights_in_matmuls(shape: Shape) -> float:
    """Weights that every token is multiplied with: those of the experts it goes to, the output matrix, and
    not the table of tokens."""
    d, heads = shape.d_model, shape.d_head * (2 * shape.heads + 2 * shape.kv_heads)
    mats = 3 if shape.gated else 2
    dense, sparse = shape.layers, 0
    if shape.experts:
        sparse = shape.layers // shape.every
        dense -= sparse
    mlp = dense * mats * d * (shape.dense_ff or shape.d_ff)
    mlp += sparse * (mats * d * shape.d_ff * (shape.chosen + shape.shared) + d * shape.experts)
    return shape.layers * d * heads + mlp + d * shape.vocab


def model_flops(shape: Shape, causal_half: bool) -> float:
    """FLOPs of a step, forward and backward, nothing computed twice."""
    tokens = shape.batch * shape.seq
    keys = shape.seq / 2 if causal_half else shape.seq
    attention = 12.0 * shape.layers * keys * shape.heads * shape.d_head
    return tokens * (6.0 * weights_in_matmuls(shape) + attention)


def flops_with_recomputing(shape: Shape) -> float:
    """FLOPs of a step as Megatron-LM's tables count them."""
    b, s, n, d, v = shape.batch, shape.seq, shape.layers, shape.d_model, shape.vocab
    return 96.0 * b * s * n * d * d * (1 + s / (6 * d) + v / (16 * n * d))


def measured_seconds(row: Row, shape: Shape) -> float | None:
    """Seconds of a step as published, or by the published rate; None where neither is given."""
    if row.step_time_s is not None:
        return row.step_time_s
    if row.tflops_per_chip is None or row.n_chips is None:
        return None
    words = row.notes.lower()
    if "96-coefficient" in words or "96*b*s*l*h^2" in words:
        flops = flops_with_recomputing(shape)
    else:
        flops = model_flops(shape, causal_half="causal attention at half" in words)
    return flops / (row.tflops_per_chip * 1e12 * row.n_chips)
