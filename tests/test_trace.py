"""From a jaxpr to the Graph: every container is walked through, and every site is where it says."""

import functools
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Primitive
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from pipeline import graph_of
from small_steps import adam_args, adam_step, f32, sgd_args, sgd_step

import planner
from planner.graph.graph import Graph, Op, Path, Site
from planner.graph.notation import show
from planner.jax_compat import open_jaxpr, sub_jaxprs, trace_step
from planner.trace import build_graph


def names(graph: Graph) -> list[str]:
    return [op.primitive for op in graph.ops]


def ops_of(graph: Graph, primitive: str) -> list[Op]:
    return [op for op in graph.ops if op.primitive == primitive]


def scanned(carry, xs, weight):
    def body(c, x):
        c = jnp.tanh(c @ weight + x)
        return c, c * 2

    return jax.lax.scan(body, carry, xs)


SCANNED = (f32(8, 4), f32(5, 8, 4), f32(4, 4))


def looped(x):
    return jax.lax.while_loop(lambda c: c.sum() < 10, lambda c: c * 2, x)


def branched(x, y):
    return jax.lax.cond(x.sum() > 0, lambda a, b: a * 2, lambda a, b: jnp.sin(b), x, y)


@jax.custom_vjp
def clipped(x):
    return jnp.minimum(x, 1.0)


clipped.defvjp(lambda x: (clipped(x), x < 1.0), lambda kept, g: (jnp.where(kept, g, 0.0),))


def nested(params, batch):
    """A step in a jit, with a remat, a custom derivative and a scan inside."""

    @jax.checkpoint
    def layer(x, weight):
        return clipped(jax.jit(jnp.tanh)(x @ weight)), None

    def loss(p):
        return (jax.lax.scan(layer, batch, p)[0] ** 2).sum()

    value, grads = jax.value_and_grad(loss)(params)
    return params - grads, value


NESTED = (f32(3, 4, 4), f32(8, 4))

STEPS = {
    "sgd": (sgd_step, sgd_args()),
    "adam": (adam_step, adam_args()),
    "scan": (scanned, SCANNED),
    "while": (looped, (f32(8, 4),)),
    "cond": (branched, (f32(8, 4), f32(8, 4))),
    "nested": (nested, NESTED),
    "jitted": (jax.jit(nested, donate_argnums=0), NESTED),
}


def body_at(jaxpr, path: Path):
    """The jaxpr inside the equations that a path names."""
    for number, name, index in path:
        subs = {(n, i): body for n, i, body in sub_jaxprs(open_jaxpr(jaxpr).eqns[number])}
        jaxpr = subs[name, index]
    return open_jaxpr(jaxpr)


def shape_at(jaxpr, site: Site) -> tuple[int, ...]:
    body = body_at(jaxpr, site.path)
    var = {
        "in": lambda: body.invars[site.index],
        "out": lambda: body.eqns[site.eqn].outvars[site.index],
        "use": lambda: body.eqns[site.eqn].invars[site.index],
        "ret": lambda: body.outvars[site.index],
    }[site.kind]()
    return tuple(var.aval.shape)


@pytest.mark.parametrize("name", STEPS)
def test_every_site_is_a_place_in_the_jaxpr_with_a_value_of_that_shape(name):
    step, args = STEPS[name]
    traced = trace_step(step, args)
    graph = build_graph(traced)
    made = [site for value in graph.values for site in value.made]
    assert len(set(made)) == len(made), "two values are made at one site"
    for value in graph.values:
        for site in value.made:
            assert site.kind in ("in", "out")
            assert shape_at(traced.closed_jaxpr, site) == value.shape
    for op in graph.ops:
        assert len(op.uses) == len(op.operands)
        for operand, sites in zip(op.operands, op.uses, strict=True):
            for site in sites if operand is not None else ():
                assert site.kind in ("use", "ret")
                assert shape_at(traced.closed_jaxpr, site) == graph.values[operand].shape


@pytest.mark.parametrize("name", STEPS)
def test_rules_fit_their_values(name):
    step, args = STEPS[name]
    graph = graph_of(step, *args)
    for op in graph.ops:
        values, dims_of_values = (*op.operands, *op.results), (*op.rule.operands, *op.rule.results)
        for value, dims in zip(values, dims_of_values, strict=True):
            if value is not None:
                extents = tuple(np.prod([op.rule.sizes[f] for f in dim], dtype=int) for dim in dims)
                assert extents == graph.values[value].shape, (op.primitive, show(op.rule))


def test_ops_are_in_program_order_and_made_before_they_are_read():
    for step, args in STEPS.values():
        graph = graph_of(step, *args)
        known = {leaf.value for leaf in graph.arguments}
        made_somewhere = {value for op in graph.ops for value in op.results}
        for op in graph.ops:
            for k, value in enumerate(op.operands):
                next_value = op.primitive == "loop_carry" and k == 1  # made by the body that follows
                assert next_value or value is None or value in known or value not in made_somewhere
            known.update(op.results)


def test_a_scan_goes_through_pseudo_ops_and_repeats_its_body():
    graph = graph_of(scanned, *SCANNED)
    told = [(op.primitive, show(op.rule), op.repeat) for op in graph.ops]
    assert told == [
        ("loop_carry", "a b, a b -> a b, a b", 5.0),
        ("scan_slice", "loop! a b -> a b", 5.0),
        ("dot_general", "i k, k j -> i j", 5.0),
        ("add", "a b, a b -> a b", 5.0),
        ("tanh", "a b -> a b", 5.0),
        ("mul", "a b, -> a b", 5.0),
        ("scan_stack", "a b -> loop! a b", 5.0),
    ]
    carry, *_, stack = graph.ops
    tanh = ops_of(graph, "tanh")[0]
    assert carry.operands == (graph.arguments[0].value, tanh.results[0])
    assert [leaf.value for leaf in graph.results] == [carry.results[1], stack.results[0]]
    weight = graph.values[graph.arguments[2].value]
    assert weight.made == (Site("in", (), 0, 2), Site("in", ((0, "jaxpr", None),), 0, 0))


def test_scans_inside_scans_multiply():
    def inner(c, x):
        return c + x, None

    def outer(c, xs):
        return jax.lax.scan(inner, c, xs)[0], None

    graph = graph_of(lambda c, xss: jax.lax.scan(outer, c, xss)[0], f32(8), f32(3, 5, 8))
    assert [op.repeat for op in ops_of(graph, "add")] == [15.0]
    assert sorted(op.repeat for op in ops_of(graph, "loop_carry")) == [3.0, 15.0]


def test_a_while_loop_is_priced_once_and_says_so():
    graph = graph_of(looped, f32(8, 4))
    assert names(graph) == ["loop_carry", "reduce_sum", "lt", "mul"]
    (note,) = graph.notes
    assert note.startswith("The while loop at test_trace.py:")
    assert note.endswith(" is priced as one iteration.")


def test_branches_join():
    graph = graph_of(branched, f32(8, 4), f32(8, 4))
    (join,) = ops_of(graph, "cond_join")
    made = {op.results[0]: op.primitive for op in graph.ops}
    assert [made[value] for value in join.operands] == ["sin", "mul"]
    assert graph.results[0].value == join.results[0]
    assert [sites[0].kind for sites in join.uses] == ["ret", "ret"]


def test_nested_calls_are_walked_through():
    plain = graph_of(nested, *NESTED)
    jitted = graph_of(jax.jit(nested), *NESTED)
    assert names(plain) == names(jitted)
    assert not set(names(plain)) & {"jit", "pjit", "remat2", "checkpoint", "custom_vjp_call", "scan"}
    heavy = Counter((op.primitive, op.repeat) for op in plain.ops if not op.light)
    assert heavy == {("dot_general", 3.0): 4}  # forward, again for the backward pass, and two gradients


def test_what_jit_donates_is_kept():
    donated = graph_of(jax.jit(nested, donate_argnums=0), *NESTED).arguments
    assert [leaf.donated for leaf in donated] == [True, False]
    assert [leaf.donated for leaf in graph_of(jax.jit(nested), *NESTED).arguments] == [False, False]


def test_state_is_donated_and_replaced_by_the_result_of_its_place():
    graph = graph_of(adam_step, *adam_args())
    assert [leaf.path for leaf in graph.arguments][:3] == [
        "state.mean.w1",
        "state.mean.w2",
        "state.params.w1",
    ]
    assert [leaf.partner for leaf in graph.arguments] == [0, 1, 2, 3, 4, 5, None, None]
    assert [leaf.donated for leaf in graph.arguments] == [True] * 6 + [False] * 2
    assert [leaf.path for leaf in graph.results][-2:] == ["result.0.square.w2", "result.1"]


def test_a_sharding_constraint_of_the_users_is_seen_through(grid):
    def constrained(x):
        x = jax.lax.with_sharding_constraint(x * 2, NamedSharding(grid, P("x")))
        return jnp.sin(x)

    graph = graph_of(constrained, f32(8, 4))
    assert names(graph) == ["mul", "sin"]
    assert graph.ops[1].operands == graph.ops[0].results


@pytest.mark.parametrize(("size", "turned"), [(1, []), (3, ["rev"])])
def test_a_reversal_of_dims_of_length_one_is_seen_through(size, turned):
    """The gradient of a convolution reads its kernel reversed: one of 1 x 1 as it is."""

    def fn(x, kernel):
        layout = jax.lax.conv_dimension_numbers(x.shape, kernel.shape, ("NHWC", "HWIO", "NHWC"))
        return jnp.sum(jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=layout) ** 2)

    graph = graph_of(jax.grad(fn), f32(2, 4, 4, 8), f32(size, size, 8, 8))
    assert [name for name in names(graph) if name == "rev"] == turned


def test_what_no_result_needs_is_dropped():
    def wasteful(x, y):
        jnp.exp(x @ y)
        return x + 1.0, jnp.zeros(())

    graph = graph_of(wasteful, f32(4, 4), f32(4, 4))
    assert names(graph) == ["add"]
    assert len(graph.arguments) == 2


def test_a_result_that_is_an_argument_or_a_literal_is_taken():
    graph = graph_of(lambda x: (x, 3.0), f32(8))
    assert graph.ops == ()
    assert [leaf.value for leaf in graph.results] == [graph.arguments[0].value, -1]


@functools.cache
def unheard_of() -> Primitive:
    primitive = Primitive("unheard_of")
    primitive.def_abstract_eval(lambda x: x)
    return primitive


def strange_step(weight, batch):
    y = unheard_of().bind(unheard_of().bind(batch @ weight))
    return weight - 0.1 * (batch.T @ y), y.sum()


def test_an_unknown_primitive_stays_whole_and_is_counted():
    graph = graph_of(strange_step, f32(8, 8), f32(16, 8))
    assert graph.unknown == {"unheard_of": 2}
    first = ops_of(graph, "unheard_of")[0]
    assert show(first.rule) == "u0! u1! -> u2! u3!"
    assert (first.light, first.rule.splittable, first.flops) == (False, (), 0.0)


def test_an_unknown_primitive_is_planned_and_listed():
    plan = planner.plan(strange_step, f32(8, 8), f32(16, 8), machine="tpu_v5e:2x4", mesh={"x": 8})
    assert plan.unknown == {"unheard_of": 2}
    assert plan.step_seconds > 0


def test_ops_name_the_users_line():
    graph = graph_of(looped, f32(8, 4))
    (mul,) = ops_of(graph, "mul")
    assert mul.source == f"test_trace.py:{looped.__code__.co_firstlineno + 1}"
    assert graph.values[mul.results[0]].name == f"mul ({mul.source})"


def test_typed_keys_and_constants_have_values():
    table = np.arange(8.0, dtype=np.float32)

    def noisy(x, key):
        return x + jax.random.normal(key, (8,)) * table

    graph = graph_of(noisy, f32(8), jax.eval_shape(lambda: jax.random.key(0)))
    assert graph.values[graph.arguments[1].value].dtype == "key<fry>"
    assert graph.unknown == {}


def test_the_graph_computes_what_the_jaxpr_computes():
    """FLOPs of the whole step against XLA's own count, for a step that is nearly all matmuls."""
    args = sgd_args(batch=64, inputs=32, hidden=64, outputs=16)
    counted = sum(op.flops * op.repeat for op in graph_of(sgd_step, *args).ops if not op.light)
    analysed = jax.jit(sgd_step).lower(*args).compile().cost_analysis()
    assert counted == 2 * 64 * (2 * 32 * 64 + 3 * 64 * 16)
    assert counted == pytest.approx(analysed["flops"], rel=0.1)
