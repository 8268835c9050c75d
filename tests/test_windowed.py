"""Loops of permutes around a matmul, as a TPU writes large gathers and scattered sums, are one collective.

The text is what libtpu 0.0.42 printed for a ZeRO-1 step on tpu_v5e:4x4 (the weight gradient of a linear
layer, bf16[768,3072] scattered over 16 devices), without what plays no part here.
"""

from planner.hlo import Found, collectives
from planner.matching import AS_PLANNED, Moved, Row, compiled_moves, match
from planner.program import Program
from planner.windowed import rings, without_windows

UP = ",".join(f"{{{i},{(i + 1) % 16}}}" for i in range(16))
DOWN = ",".join(f"{{{i},{(i - 1) % 16}}}" for i in range(16))
META = 'metadata={op_name="jit(step)/transpose(jvp())/dot_general" source_file="gpt.py" source_line=71}'
STATE = "(bf16[4,1024,768], bf16[4,1024,3072], bf16[48,3072], bf16[48,3072], u32[])"
PART = "(bf16[48,3072], bf16[48,3072], u32[], u32[])"


def permute(operand: str, number: int, pairs: str) -> str:
    return f"{PART} collective-permute-start(%{operand}.{number}), source_target_pairs={{{pairs}}}, {META}"


def loop(kind: str, number: int) -> str:
    """One loop with its test: the counter grows by 2 up to 8, so it runs four times."""
    return f"""
%wide.windowed_dot_general_body_{kind}.{number}.clone (p.{number}: {STATE}) -> {STATE} {{
  %p.{number} = {STATE} parameter(0)
  %i.{number} = u32[] get-tuple-element(%p.{number}), index=4
  %two.{number} = u32[] constant(2)
  %next.{number} = u32[] add(%i.{number}, %two.{number})
  %a.{number} = {permute("x", number, UP)}
  %b.{number} = {permute("y", number, DOWN)}
  %c.{number} = {permute("z", number, UP)}
  %d.{number} = {permute("w", number, DOWN)}
  ROOT %t.{number} = {STATE} tuple(%l, %r, %m, %n, %next.{number})
}}

%wide.windowed_dot_general_cond_{kind}.{number}.clone (q.{number}: {STATE}) -> pred[] {{
  %eight.{number} = u32[] constant(8)
  %q.{number} = {STATE} parameter(0)
  %j.{number} = u32[] get-tuple-element(%q.{number}), index=4
  ROOT %lt.{number} = pred[] compare(%j.{number}, %eight.{number}), direction=LT
}}
"""


def call(kind: str, number: int) -> str:
    parts = (f"windowed_dot_general_{part}_{kind}.{number}.clone" for part in ("cond", "body"))
    condition, body = (f"%wide.{part}" for part in parts)
    return f"  %while.{number} = {STATE} while(%s), condition={condition}, body={body}\n"


def last(number: int) -> str:
    return f"  %last.{number} = {permute('g', number, UP)}\n"


def module(*lines: str, loops: str) -> str:
    head = "HloModule jit_step, is_scheduled=true, num_partitions=16\n"
    entry = "".join(lines)
    return f"{head}{loops}\nENTRY %main (x: bf16[48,3072]) -> bf16[48,3072] {{\n{entry}}}\n"


SHARD = 48 * 3072 * 2.0
TWO = module(call("rs", 0), last(0), call("rs", 1), last(1), loops=loop("rs", 0) + loop("rs", 1))


def read(text: str) -> tuple[Found, ...]:
    return without_windows(collectives(text), text)


def test_a_loop_and_what_is_left_of_it_are_one_scattered_sum():
    assert len(collectives(TWO)) == 2 * (4 + 1)
    for one in read(TWO):
        assert (one.kind, one.times, one.permutes) == ("reduce-scatter", 1.0, 5)
        assert one.bytes == 16 * SHARD == 768 * 3072 * 2
        assert one.wire_bytes == (4 * 4 + 1) * SHARD
        assert one.groups == (tuple(range(16)),)
        assert one.source == "gpt.py:71"


def test_a_gather_needs_nothing_beside_its_loop():
    (one,) = read(module(call("ag", 0), loops=loop("ag", 0)))
    assert (one.kind, one.bytes, one.wire_bytes) == ("all-gather", 16 * SHARD, 16 * SHARD)


def test_other_permutes_stay_permutes():
    halo = last(0).replace("gpt.py", "unet.py").replace("last", "halo")
    kinds = [one.kind for one in read(module(call("rs", 0), last(0), halo, loops=loop("rs", 0)))]
    assert kinds == ["collective-permute", "reduce-scatter"]
    (alone,) = read(module(halo, loops=""))
    assert alone.kind == "collective-permute"


def test_a_loop_in_a_loop_of_layers_counts_as_often_as_there_are_layers():
    layers = f"""
%layers (s: (s32[])) -> (s32[]) {{
{call("rs", 0)}{last(0)}}}
"""
    trips = 'backend_config={"known_trip_count":{"n":"12"}}'
    outer = f"  %o = (s32[]) while(%s0), condition=%c, body=%layers, {trips}\n"
    (one,) = read(module(outer, loops=loop("rs", 0) + layers))
    assert (one.times, one.wire_bytes) == (12.0, 17 * SHARD)


def test_it_is_matched_with_the_sum_that_was_planned():
    empty = dict.fromkeys(("argument_bytes", "output_bytes", "alias_bytes", "temporary_bytes"), 0.0)
    program = Program(compiler="", text=TWO, donated=(), partners={}, seconds=0.0, **empty)
    compiled = compiled_moves(program.collectives, {"x": 16})
    ring = 16 * SHARD * 15 / 16
    first = Moved("reduce_scatter", ("x",), 16 * SHARD, ring, 1.0, "dot_general (gpt.py:70)", "gpt.py:70")
    second = Moved("reduce_scatter", ("x",), 16 * SHARD, ring, 1.0, "dot_general (gpt.py:71)", "gpt.py:71")
    rows = match([first, second], compiled)
    assert rows == (Row("as permutes", first, compiled[1]), Row("as permutes", second, compiled[0]))
    assert all(row.compiled and row.compiled.sent == 17 * SHARD for row in rows)
    assert AS_PLANNED not in {row.status for row in rows}


def part(
    name: str, operand: str, source: str, pairs: str, shape: str = "bf16[2048,512]{1,0:T(8,128)}"
) -> str:
    of = f'metadata={{op_name="jit(step)/dot_general" source_file="{source}" source_line=59}}'
    started = f"({shape}, {shape}, u32[], u32[])"
    return (
        f"  %{name} = {started} collective-permute-start(%{operand}), source_target_pairs={{{pairs}}}, {of}\n"
    )


RIGHT, LEFT = "{0,1},{1,2},{2,3},{3,0}", "{0,3},{1,0},{2,1},{3,2}"
ZEROS = "  %zeros = bf16[2048,512]{1,0} broadcast(%nought), dimensions={}\n"
UNROLLED = (  # as libtpu 0.0.42 writes two sums that are scattered over 4 devices, one after the other
    ZEROS
    + part("a", "zeros", "mlp.py", RIGHT)
    + part("b", "zeros", "mlp.py", LEFT)
    + "".join(part(f"{n}.{op}", f"{n}.sum", "mlp.py", RIGHT) for n in (0, 1) for op in "cde")
)


def test_an_unrolled_loop_is_one_scattered_sum_and_the_first_passes_the_zeros():
    found = read(module(UNROLLED, loops=""))
    size = 2048 * 512 * 2.0
    assert [(one.kind, one.bytes, one.wire_bytes, one.permutes) for one in found] == [
        ("reduce-scatter", 4 * size, 5 * size, 5),
        ("reduce-scatter", 4 * size, 3 * size, 3),
    ]
    assert {one.groups for one in found} == {((0, 1, 2, 3),)}


def test_permutes_that_pass_no_zeros_or_are_too_few_stay_permutes():
    for text in (
        UNROLLED.replace("broadcast", "copy"),
        UNROLLED.replace(part("0.c", "0.sum", "mlp.py", RIGHT), ""),
    ):
        assert {one.kind for one in read(module(text, loops=""))} == {"collective-permute"}
    halo = part("halo", "rows", "mlp.py", RIGHT, "bf16[16,512]{1,0}")
    kinds = [one.kind for one in read(module(UNROLLED + halo, loops=""))]
    assert kinds == ["collective-permute", "reduce-scatter", "reduce-scatter"]


def test_rings_of_pairs():
    assert rings(((0, 2), (1, 3), (2, 0), (3, 1))) == ((0, 2), (1, 3))
    assert rings(((0, 1), (1, 2))) == ((0, 1, 2),)
