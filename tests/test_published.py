"""Published steps: rows read and typed, the step and the layout they stand for, and their seconds by hand."""

import csv
import dataclasses
import json
import pathlib
import re
import subprocess
import sys

import pytest
from pipeline import graph_of

from planner.errors import InputError
from planner.graph.notation import show
from scripts.published import report
from scripts.published.conventions import (
    flops_with_recomputing,
    measured_seconds,
    model_flops,
    weights_in_matmuls,
)
from scripts.published.layout import CannotPredict, Runtime, layout_of
from scripts.published.model import saved_of, shape_of, stage_of
from scripts.published.outcome import outcome_of
from scripts.published.predict import predict
from scripts.published.rows import NUMBERS, TEXTS, WHOLES, read_rows
from scripts.published.transformer import Shape, train_step

ROOT = pathlib.Path(__file__).parent.parent
FACTS = ROOT / "../shared/facts/measured_steps.csv"
PLAIN, FUSED = Runtime(fused_attention=False), Runtime(fused_attention=True)
SMALL = {
    "source": "somebody", "model": "GPT", "hardware": "A100-80GB", "remat": "full", "dtype": "bf16",
    "notes": "micro batch 2", "layers": "4", "d_model": "1024", "n_heads": "8", "seq_len": "512",
    "global_batch_sequences": "32", "n_chips": "8", "dp": "4", "tp": "2", "step_time_s": "0.1",
    "vocab": "32000",
}  # fmt: skip


def row_of(tmp_path: pathlib.Path, **fields: str):
    path = tmp_path / "rows.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, (*TEXTS, *WHOLES, *NUMBERS))
        writer.writeheader()
        writer.writerow(SMALL | fields)
    return read_rows(path)[0]


def test_an_empty_field_is_none_and_the_others_have_their_type(tmp_path):
    row = row_of(tmp_path, params="1e9")
    assert (row.layers, row.fsdp, row.params, row.line) == (4, None, 1e9, 2)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"layers": "many"},
            "Line 2: layers is 'many'; give a whole number of at least 1, or leave it empty.",
        ),
        ({"tp": "1.5"}, "Line 2: tp is '1.5'; give a whole number of at least 1, or leave it empty."),
        ({"step_time_s": "-1"}, "Line 2: step_time_s is '-1'; give a positive number, or leave it empty."),
    ],
)
def test_a_number_that_is_none_is_told_with_its_line(tmp_path, fields, words):
    with pytest.raises(InputError) as caught:
        row_of(tmp_path, **fields)
    assert str(caught.value) == words


def test_a_missing_column_and_a_missing_file_are_told(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("source,model\nx,y\n")
    with pytest.raises(InputError, match=r"has no column 'hardware'; give it the columns source, model, "):
        read_rows(path)
    with pytest.raises(InputError, match=r"cannot be read \(No such file.*\)\. Name a CSV file with --csv\."):
        read_rows(tmp_path / "nowhere.csv")


def test_the_flops_of_the_step_are_six_a_weight_and_token_and_those_of_attention(tmp_path):
    """4 layers of d 1024, 8 heads of 128, MLP of 4096, 32 sequences of 512 tokens, nothing computed twice."""
    shape = shape_of(row_of(tmp_path, remat="none"), PLAIN)
    weights = 4 * (4 * 1024**2 + 2 * 1024 * 4096) + 1024 * 32000
    assert weights_in_matmuls(shape) == weights
    by_hand = 32 * 512 * (6 * weights + 12 * 4 * 512 * 1024)
    assert model_flops(shape, causal_half=False) == by_hand
    step, args = train_step(shape)
    graph = graph_of(step, *args)
    matmuls = sum(op.flops * op.repeat for op in graph.ops if op.primitive == "dot_general")
    assert matmuls == pytest.approx(by_hand, rel=1e-3)
    assert graph.unknown == {}


def test_recomputing_layers_adds_a_forward_pass_of_them(tmp_path):
    counts = []
    for remat in ("none", "full"):
        step, args = train_step(shape_of(row_of(tmp_path, remat=remat), PLAIN))
        ops = graph_of(step, *args).ops
        counts.append(sum(op.flops * op.repeat for op in ops if op.primitive == "dot_general"))
    # The result of a layer's last matmul is needed by nobody the second time.
    layers = 32 * 512 * 4 * (2 * (4 * 1024**2 + 1024 * 4096) + 4 * 512 * 1024)
    assert counts[1] - counts[0] == pytest.approx(layers, rel=1e-3)


def test_fused_attention_multiplies_half_of_the_pairs_and_makes_the_scores_again():
    shape = Shape(
        layers=1, d_model=256, heads=4, kv_heads=2, d_head=64, d_ff=512, vocab=1024, seq=128, batch=2,
        dtype="bfloat16", fused=True,
    )  # fmt: skip
    step, args = train_step(shape)
    graph = graph_of(step, *args)
    found = {op.primitive: op for op in graph.ops if "attention" in op.primitive}
    pairs = 2 * 4 * 64 * (128 * 128 - 128 * 128 / 2)
    assert found["dot_product_attention_fwd_wrapper"].flops == 4 * pairs
    assert found["dot_product_attention_bwd_wrapper"].flops == 10 * pairs
    forward, backward = (show(found[f"dot_product_attention_{way}_wrapper"].rule) for way in ("fwd", "bwd"))
    unused = ", ".join(["none!", *(f"u{k}v0!" for k in range(4, 10))])
    inputs = f"b t! (m g!) h!, b s! m h!, b s! m w!, {unused}"
    results = "b t! (m g!) w!, b (m g!) t!"
    assert forward == f"{inputs} -> {results}"
    row, result = "b (m g!) t!", "b t! (m g!) w!"
    assert backward == f"{inputs}, {row}, {result}, {result} -> b t! (m g!) h!, b s! m h!, b s! m w!"


def test_a_rate_becomes_seconds_by_the_rows_convention(tmp_path):
    plain = row_of(tmp_path, step_time_s="", tflops_per_chip="100")
    shape = shape_of(plain, FUSED)
    assert measured_seconds(plain, shape) == model_flops(shape, causal_half=False) / 8e14
    half = row_of(tmp_path, step_time_s="", tflops_per_chip="100", notes="counts causal attention at half")
    assert measured_seconds(half, shape) == model_flops(shape, causal_half=True) / 8e14
    twice = row_of(tmp_path, step_time_s="", tflops_per_chip="100", notes="96-coefficient formula")
    assert measured_seconds(twice, shape) == flops_with_recomputing(shape) / 8e14
    assert measured_seconds(row_of(tmp_path, step_time_s=""), shape) is None


def test_seconds_agree_with_those_derived_elsewhere():
    if not FACTS.exists():
        pytest.skip("the published steps are not beside this checkout")
    seen = 0
    for row in read_rows(FACTS):
        derived = re.search(r"derived_step_time_s=([\d.]+)", row.notes)
        if derived:
            seen += 1
            assert measured_seconds(row, shape_of(row, FUSED)) == pytest.approx(float(derived[1]), 1e-3)
    assert seen == 26


def test_a_layout_is_read_from_columns_and_words(tmp_path):
    layout = layout_of(row_of(tmp_path))
    assert dict(layout.axes) == {"dp": 4, "tp": 2}
    assert dict(layout.roles) == {"dp": "data", "tp": "tensor"}
    assert (layout.machine.name, layout.micro, layout.runs) == ("gpu_a100_sxm_80gb:1x8", 8, 4)
    stages = row_of(
        tmp_path, dp="1", tp="2", pp="4", notes="micro batch 1; interleave 3; sequence parallelism on"
    )
    layout = layout_of(stages)
    assert (layout.stages, layout.chunks, layout.runs, layout.roles["tp"]) == (4, 3, 32, "sequence")
    nodes = row_of(tmp_path, n_chips="16", dp="16", tp="1", hardware="A100 (8 per node, 800 Gb/s per node)")
    assert layout_of(nodes).machine.topology.wires[0].bandwidth == 100e9 / 8
    slices = row_of(tmp_path, hardware="TPU v5e 2x(16x16)", n_chips="512", dp="2", fsdp="256", tp="1",
                    global_batch_sequences="512", notes="")  # fmt: skip
    assert layout_of(slices).machine.name == "tpu_v5e:16x16*2"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"dp": "3"}, "the degrees multiply to 6, not to 8 devices"),
        ({"n_chips": ""}, "the number of chips is not given"),
        ({"seq_len": ""}, "the batch or the sequence length is not given"),
        (
            {"dp": "1", "cp": "4"},
            "context parallelism passes keys round in a ring, which the step does not do",
        ),
        (
            {"params": "9e9"},
            "the columns make a model of 0.133 billion parameters, not of 9",
        ),
        ({"step_time_s": ""}, "neither a step time nor a rate of FLOPs was measured"),
    ],
)
def test_what_cannot_be_predicted_is_skipped_with_its_reason(tmp_path, fields, reason):
    assert outcome_of(row_of(tmp_path, **fields)) == {
        "line": 2, "model": "GPT", "hardware": "A100-80GB", "skipped": reason,
    }  # fmt: skip


def test_what_the_backward_pass_finds_is_read_from_the_remat_column(tmp_path):
    def saved(words: str):
        return saved_of(row_of(tmp_path, remat=words))

    assert saved("none") is None
    assert saved("full") == frozenset()
    assert saved("selective (attention core)") == {"core"}
    assert saved("custom: layer input, out_proj, q,k,v offloaded") == {"out_proj", "q", "k", "v"}
    assert saved("minimal_with_context") == {"dots", "context"}


def test_the_largest_stage_counts_and_micro_batches_fill_the_pipeline(tmp_path):
    row = row_of(tmp_path, layers="5", dp="1", tp="2", pp="4")
    shape, layout = shape_of(row, PLAIN), layout_of(row)
    assert stage_of(shape, layout.stages, layout.micro).layers == 2
    fewer = dataclasses.replace(layout, runs=layout.runs // 2)
    bubble = 2 * predict(shape, fewer).seconds - predict(shape, layout).seconds
    update = predict(shape, layout).parts.update
    layers = sum(loop.seconds for loop in predict(shape, layout).parts.loops)
    assert bubble == pytest.approx(3 * layers + update, rel=1e-6)


ALPA = {
    "source": "alpa ablation", "dtype": "fp16", "hardware": "V100-16GB SXM2", "n_chips": "4", "dp": "4",
    "tp": "1", "global_batch_sequences": "8",
}  # fmt: skip


def test_sixteen_bit_weights_with_a_float32_copy_take_the_bytes_of_both(tmp_path):
    """2 bytes of weights everywhere; the float32 copy and AdamW's moments, 12 bytes, whole or split in 4."""
    rows = [row_of(tmp_path, **ALPA, notes=f"method {method}") for method in ("data_parallel", "zero_2")]
    whole, split = (predict(shape_of(row, layout_of(row).runtime), layout_of(row)) for row in rows)
    layers, tables = 4 * 12 * 1024**2, 2 * 1024 * 32000
    assert whole.parts.stacked == pytest.approx(14 * layers, rel=1e-3)
    assert split.parts.stacked == pytest.approx((2 + 12 / 4) * layers, rel=1e-3)
    assert split.parts.synced == pytest.approx(whole.parts.synced / 2, rel=0.1)  # scattered, not all-reduced
    assert 16 * (layers + tables) < whole.peak < 16 * (layers + tables) + 0.5e9  # with gradients of 2 bytes


def test_a_stage_has_one_table_and_its_share_of_layers_cut_evenly(tmp_path):
    ceil, even = (
        predict(shape_of(row, layout_of(row).runtime), layout_of(row))
        for row in (
            row_of(tmp_path, **ALPA | {"dp": "1"}, pp="4", layers=layers, notes="") for layers in ("8", "5")
        )
    )
    layer, table = 12 * 1024**2, 1024 * 32000
    assert ceil.parts.peak - ceil.peak == pytest.approx(14 * table, rel=1e-3)
    assert even.parts.peak - even.peak == pytest.approx(14 * (table + 0.75 * layer), rel=1e-2)


def test_the_network_of_a_node_is_shared_by_the_devices_of_a_stage(tmp_path):
    rates = [
        layout_of(row_of(tmp_path, **ALPA | {"n_chips": "16", "dp": "1", "tp": tp}, pp=pp, notes="")).hop_rate
        for tp, pp in (("1", "16"), ("4", "4"))
    ]
    assert rates == [3.125e9, 3.125e9 / 4]


def test_a_batch_forced_onto_one_axis_is_on_no_other(tmp_path):
    """Tensor parallelism alone sums activations of every layer; a batch split as well does without."""
    both = [
        outcome_of(row_of(tmp_path, **ALPA | {"dp": "1", "tp": "4"}, notes=f"method auto_sharding{words}"))
        for words in ("", "; batch forced onto axis 0")
    ]
    assert both[0]["predicted_s"] < 0.95 * both[1]["predicted_s"]


def test_more_bandwidth_never_takes_longer_and_an_error_is_relative(tmp_path):
    one = outcome_of(row_of(tmp_path))
    faster = outcome_of(row_of(tmp_path, hardware="H100-80GB"))
    assert 0 < faster["predicted_s"] < one["predicted_s"]
    assert one["error"] == pytest.approx(one["predicted_s"] / 0.1 - 1)
    assert one["fits"]
    assert one["layout"] == "dp=4 tp=2"


def test_a_narrow_type_is_faster_and_shares_nothing_with_the_wide_one(tmp_path):
    wide, narrow = (
        outcome_of(row_of(tmp_path, hardware="H100-80GB", d_model="4096", n_heads="32", dtype=dtype))
        for dtype in ("bf16", "fp8")
    )
    assert 0.5 * wide["predicted_s"] < narrow["predicted_s"] < 0.95 * wide["predicted_s"]


def test_tables_count_order_and_skips(tmp_path):
    rows = [row_of(tmp_path, step_time_s=str(seconds)) for seconds in (1, 2, 3, 4, 5)]
    pairs = [(row, {"predicted_s": row.step_time_s * 1.1, "measured_s": row.step_time_s, "error": 0.1})
             for row in rows]  # fmt: skip
    pairs.append((rows[0], {"skipped": "no layers"}))
    assert "| all | 5 | 10.0% | 10.0% | +10.0% |" in report.markdown(
        report.error_table("Errors", pairs, report.chip_of)
    )
    assert "| group | rows | median absolute error | 90th" in report.markdown(
        report.error_table("Errors", pairs, report.chip_of)
    )
    assert "| 5 | 1.00 | number 1 |" in report.markdown(report.order_table(pairs))
    wrong = [*pairs[:2], (rows[2], {"predicted_s": 1.0, "measured_s": 3.0, "error": -0.7})]
    assert "| A100-80GB | 3 | 1 |" in report.markdown(report.pair_table(wrong))
    assert "| no layers | 1 |" in report.markdown(report.skip_table(pairs))


def test_the_script_writes_one_object_a_row(tmp_path):
    row_of(tmp_path)
    out = tmp_path / "out.json"
    command = [sys.executable, str(ROOT / "scripts/validate_steps"), f"--csv={tmp_path / 'rows.csv'}"]
    subprocess.run([*command, f"--json={out}"], check=True, capture_output=True)
    (one,) = json.loads(out.read_text())
    assert set(one) >= {"predicted_s", "measured_s", "error"}
    bad = subprocess.run(
        [*command[:2], "--csv=/nowhere.csv", f"--json={out}"], capture_output=True, text=True
    )
    assert bad.returncode == 2
    assert bad.stderr.startswith("'/nowhere.csv' cannot be read (No such file or directory). Name a CSV file")


def test_a_layout_that_divides_nothing_evenly_cannot_be_predicted(tmp_path):
    with pytest.raises(CannotPredict, match=r"a batch of 32 does not divide into micro-batches of 32 over 7"):
        layout_of(row_of(tmp_path, n_chips="7", dp="7", tp="1", notes=""))
