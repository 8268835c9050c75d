"""From a jaxpr to the Graph: one flat list of ops, whatever the nesting.

    walk(jaxpr, inputs) -> outputs
        for each equation: read the operands, look its primitive up, write the results

jit, remat and custom-derivative calls are walked through as if they were not there. The body of a scan, while
or cond is inlined once; what crosses its border goes through the pseudo-ops of `planner.graph.graph`. An
equation without a rule becomes one op that cannot be split. Ops that no result needs are dropped at the end.
"""

import dataclasses
import functools
import itertools
import os
import sysconfig
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from planner import rules
from planner.graph.graph import Graph, Leaf, Op, Path, Site, Value
from planner.graph.rule import Dims, Rule
from planner.jax_compat import (
    BODIES,
    Traced,
    changes_nothing,
    is_backward,
    is_literal,
    leaf_paths,
    open_jaxpr,
    scan_counts,
    state_partners,
    sub_jaxprs,
)
from planner.opaque import check_rules, known

# Walked through as if they were not there.
_INLINED = BODIES.keys() - {"scan", "while", "cond", "custom_linear_solve"}


def build_graph(traced: Traced) -> Graph:
    """The Graph of a traced step. Its arguments and results are in flattened order; their sites are those of
    `traced.closed_jaxpr`, so that a plan for the Graph can be written back into the jaxpr."""
    check_rules(traced.rules, traced.closed_jaxpr)
    walk = _Walk(traced.rules)
    jaxpr = open_jaxpr(traced.closed_jaxpr)
    argument_paths, result_paths = leaf_paths(traced)
    partners = state_partners(traced)
    arguments = [
        walk.value(var.aval, name, (Site("in", (), 0, i),))
        for i, (var, name) in enumerate(zip(jaxpr.invars, argument_paths, strict=True))
    ]
    results = walk.jaxpr(traced.closed_jaxpr, arguments, _Place((), (), 1.0))
    donated = set(traced.donated)
    replaced = {out: arg for arg, out in partners.items()}
    return Graph(
        values=tuple(dataclasses.replace(v, made=tuple(walk.sites[v.id])) for v in walk.values),
        ops=_needed(walk.finished_ops(), [*results, *walk.tests]),
        arguments=tuple(
            Leaf(value, name, i, partners.get(i), i in donated)
            for i, (value, name) in enumerate(zip(arguments, argument_paths, strict=True))
        ),
        results=tuple(
            Leaf(-1 if value is None else value, name, i, replaced.get(i))
            for i, (value, name) in enumerate(zip(results, result_paths, strict=True))
        ),
        unknown=dict(sorted(walk.unknown.items())),
        notes=tuple(dict.fromkeys(walk.notes)),
    )


def _needed(ops: Sequence[Op], results: Iterable[int | None]) -> tuple[Op, ...]:
    """The ops that some result depends on; what they pass through loops counts in every direction."""
    maker = {value: op for op in ops for value in op.results}
    wanted: set[int] = set()
    stack = [value for value in results if value is not None]
    while stack:
        op = maker.get(stack.pop())
        if op is not None and op.id not in wanted:
            wanted.add(op.id)
            stack.extend(value for value in op.operands if value is not None)
    return tuple(op for op in ops if op.id in wanted)


@dataclasses.dataclass(frozen=True)
class _Place:
    """Where a jaxpr stands: its path, the innermost loop body or branch around it, its runs in a step, and
    whether all of it belongs to the backward pass."""

    path: Path
    region: Path
    repeat: float
    backward: bool = False

    def inlined(self, step: tuple[int, str, int | None]) -> "_Place":
        """A jaxpr inside that runs as a part of this one."""
        return dataclasses.replace(self, path=(*self.path, step))

    def body(self, step: tuple[int, str, int | None], times: float = 1.0) -> "_Place":
        """A loop body or branch inside, run `times` for each run of this one."""
        path = (*self.path, step)
        return _Place(path, path, self.repeat * times, self.backward)


class _Walk:
    """The state of one walk: values and ops made so far."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self.given = given
        self.values: list[Value] = []
        self.sites: list[list[Site]] = []
        self.ops: list[dict[str, Any]] = []
        self.unknown: Counter[str] = Counter()
        self.notes: list[str] = []
        self.tests: list[int | None] = []  # what decides whether a loop goes on

    def value(self, aval: Any, name: str, sites: Sequence[Site], line: str = "", mark: str = "") -> int:
        """A new value; sites: where it can be constrained."""
        shape, dtype = tuple(getattr(aval, "shape", ())), getattr(aval, "dtype", None)
        dtype_and_size = _name_and_size(dtype)
        self.values.append(Value(len(self.values), shape, *dtype_and_size, name, line=line, mark=mark))
        self.sites.append(list(sites))
        return len(self.values) - 1

    def jaxpr(self, closed: Any, inputs: Sequence[int | None], at: _Place) -> list[int | None]:
        """Walk a jaxpr whose inputs are these values; returns the values of its outputs (None for a
        literal)."""
        inner = open_jaxpr(closed)
        env: dict[Any, int | None] = dict(zip(inner.invars, inputs, strict=True))
        for var in inner.constvars:
            env[var] = self.value(var.aval, "constant", ())

        def read(atom: Any) -> int | None:
            return None if is_literal(atom) else env[atom]

        for i, eqn in enumerate(inner.eqns):
            operands = [read(atom) for atom in eqn.invars]
            results = self.equation(eqn, i, operands, at)
            env.update(zip(eqn.outvars, results, strict=True))
        return [read(atom) for atom in inner.outvars]

    def equation(self, eqn: Any, i: int, operands: list[int | None], at: _Place) -> list[int | None]:
        name = eqn.primitive.name
        backward = is_backward(eqn, at.backward)
        if backward != at.backward:
            at = dataclasses.replace(at, backward=backward)
        if name in _INLINED:
            ((parameter, index, inner),) = sub_jaxprs(eqn)
            return self.jaxpr(inner, operands, at.inlined((i, parameter, index)))
        if changes_nothing(eqn):  # the rewriting drops it
            return operands
        if name == "custom_linear_solve":
            return self.solve(eqn, i, operands, at)
        if name == "scan":
            return self.scan(eqn, i, operands, at)
        if name == "while":
            return self.loop(eqn, i, operands, at)
        if name == "cond":
            return self.branches(eqn, i, operands, at)
        return self.plain(eqn, i, operands, at)

    def solve(self, eqn: Any, i: int, operands: list[int | None], at: _Place) -> list[int | None]:
        """A linear solve runs one of its bodies; the others were there to be differentiated."""
        lengths = eqn.params["const_lengths"]  # of the constants of each body, which come first
        which = lengths._fields.index("solve")
        first, last = sum(lengths[:which]), sum(lengths)
        (inner,) = [body for _, index, body in sub_jaxprs(eqn) if index == which]
        inputs = [*operands[first : first + lengths.solve], *operands[last:]]
        return self.jaxpr(inner, inputs, at.inlined((i, "jaxprs", which)))

    def plain(self, eqn: Any, i: int, operands: list[int | None], at: _Place) -> list[int | None]:
        name = eqn.primitive.name
        ins = [atom.aval for atom in eqn.invars]
        outs = [var.aval for var in eqn.outvars]
        said = known(eqn, self.given)
        rule = said.rule if said else rules.rule_of(name, eqn.params, ins, outs)
        flops, light = said.flops if said else 0.0, False
        if rule is None:
            self.unknown[name] += 1
            rule = _whole_rule(ins, outs)
        elif said is None:
            flops, light = rules.flops_of(name, eqn.params, ins, outs), rules.is_light(name, ins, outs)
        source = _source_line(eqn)
        title = f"{name} ({source})" if source else name
        line = f"{source} backward" if source and at.backward else source
        mark = eqn.params["name"] if name == "name" else ""
        results: list[int | None] = [
            self.value(aval, title, (Site("out", at.path, i, k),), line, mark) for k, aval in enumerate(outs)
        ]
        uses = [(Site("use", at.path, i, k),) for k in range(len(ins))]
        record = self.op(name, operands, results, uses, rule, at, source, flops=flops, light=light)
        record["inside"] = said.region if said else None
        return results

    def op(
        self,
        primitive: str,
        operands: Sequence[int | None],
        results: Sequence[int | None],
        uses: Sequence[tuple[Site, ...]],
        rule: Rule,
        at: _Place,
        source: str,
        *,
        flops: float,
        light: bool,
    ) -> dict[str, Any]:
        record = {
            "id": len(self.ops),
            "primitive": primitive,
            "operands": list(operands),
            "results": tuple(results),
            "uses": tuple(uses),
            "rule": rule,
            "flops": flops,
            "light": light,
            "repeat": at.repeat,
            "region": at.region,
            "source": source,
        }
        self.ops.append(record)
        return record

    def finished_ops(self) -> list[Op]:
        return [Op(**{**record, "operands": tuple(record["operands"])}) for record in self.ops]

    def pseudo(
        self,
        primitive: str,
        operands: Sequence[int | None],
        results: Sequence[int],
        uses: Sequence[tuple[Site, ...]],
        at: _Place,
        source: str,
    ) -> dict[str, Any]:
        """A pseudo-op: it moves no data of its own, its rule only ties specs together."""
        ins = [self.values[results[0] if v is None else v] for v in operands]
        outs = [self.values[v] for v in results]
        rule = rules.rule_of(primitive, {}, ins, outs)
        assert rule is not None, f"the rule table lost the pseudo-op {primitive}"
        light = rules.is_light(primitive, ins, outs)
        return self.op(primitive, operands, results, uses, rule, at, source, flops=0.0, light=light)

    def carry(
        self,
        inside_aval: Any,
        initial: int | None,
        inside_sites: Sequence[Site],
        final_site: Site,
        uses: Sequence[tuple[Site, ...]],
        at: _Place,
        source: str,
    ) -> tuple[int, int, dict[str, Any]]:
        """A loop_carry whose next value is not known yet: (inside, final, the op to complete)."""
        inside = self.value(inside_aval, f"carry ({source})", inside_sites)
        final = self.value(inside_aval, f"carry ({source})", (final_site,))
        stand_in = inside if initial is None else initial
        op = self.pseudo("loop_carry", (stand_in, inside), (inside, final), uses, at, source)
        op["operands"][0] = initial
        return inside, final, op

    def scan(self, eqn: Any, i: int, operands: list[int | None], at: _Place) -> list[int | None]:
        consts, carries = scan_counts(eqn)
        ((parameter, index, inner),) = sub_jaxprs(eqn)
        body = at.body((i, parameter, index), eqn.params["length"])
        source = _source_line(eqn)
        invars = open_jaxpr(inner).invars
        inputs: list[int | None] = list(operands[:consts])
        for k, value in enumerate(inputs):
            if value is not None:
                self.sites[value].append(Site("in", body.path, 0, k))
        loops = []
        for k in range(consts, consts + carries):
            inside, final, op = self.carry(
                invars[k].aval,
                operands[k],
                (Site("in", body.path, 0, k),),
                Site("out", at.path, i, k - consts),
                ((Site("use", at.path, i, k),), (Site("ret", body.path, 0, k - consts),)),
                body,
                source,
            )
            loops.append((final, op))
            inputs.append(inside)
        for k in range(consts + carries, len(operands)):
            whole = operands[k]
            inside = self.value(invars[k].aval, self.name_of(whole), (Site("in", body.path, 0, k),))
            if whole is not None:
                self.pseudo("scan_slice", (whole,), (inside,), ((Site("use", at.path, i, k),),), body, source)
            inputs.append(inside)
        outputs = self.jaxpr(inner, inputs, body)
        for (_, op), value in zip(loops, outputs, strict=False):
            op["operands"][1] = value
        results: list[int | None] = [final for final, _ in loops]
        for k in range(carries, len(outputs)):
            stacked = self.value(eqn.outvars[k].aval, self.name_of(outputs[k]), (Site("out", at.path, i, k),))
            if outputs[k] is not None:
                uses = ((Site("ret", body.path, 0, k),),)
                self.pseudo("scan_stack", (outputs[k],), (stacked,), uses, body, source)
            results.append(stacked)
        return results

    def loop(self, eqn: Any, i: int, operands: list[int | None], at: _Place) -> list[int | None]:
        subs = {parameter: (parameter, index, inner) for parameter, index, inner in sub_jaxprs(eqn)}
        test_consts, body_consts = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
        (p_test, k_test, test), (p_body, k_body, inner) = subs["cond_jaxpr"], subs["body_jaxpr"]
        body = at.body((i, p_body, k_body))
        asking = dataclasses.replace(body, path=(*at.path, (i, p_test, k_test)))
        source = _source_line(eqn)
        self.notes.append(f"The while loop at {source or 'an unknown line'} is priced as one iteration.")
        first = test_consts + body_consts
        carries = []
        for k in range(first, len(operands)):
            inside, final, op = self.carry(
                eqn.outvars[k - first].aval,
                operands[k],
                (
                    Site("in", body.path, 0, body_consts + k - first),
                    Site("in", asking.path, 0, test_consts + k - first),
                ),
                Site("out", at.path, i, k - first),
                ((Site("use", at.path, i, k),), (Site("ret", body.path, 0, k - first),)),
                body,
                source,
            )
            carries.append((inside, final, op))
        insides = [inside for inside, _, _ in carries]
        self.tests += self.jaxpr(test, [*operands[:test_consts], *insides], asking)
        outputs = self.jaxpr(inner, [*operands[test_consts:first], *insides], body)
        for (_, _, op), value in zip(carries, outputs, strict=True):
            op["operands"][1] = value
        return [final for _, final, _ in carries]

    def branches(self, eqn: Any, i: int, operands: list[int | None], at: _Place) -> list[int | None]:
        source = _source_line(eqn)
        bodies = [(at.body((i, parameter, index)), inner) for parameter, index, inner in sub_jaxprs(eqn)]
        outputs = [self.jaxpr(inner, operands[1:], body) for body, inner in bodies]
        results: list[int | None] = []
        for k, var in enumerate(eqn.outvars):
            value = self.value(var.aval, f"cond ({source})", (Site("out", at.path, i, k),))
            uses = [(Site("ret", body.path, 0, k),) for body, _ in bodies]
            joined = [branch[k] for branch in outputs]
            if any(v is not None for v in joined):
                self.pseudo("cond_join", joined, (value,), uses, at, source)
            results.append(value)
        return results

    def name_of(self, value: int | None) -> str:
        return "literal" if value is None else self.values[value].name


@functools.cache
def _name_and_size(dtype: Any) -> tuple[str, int]:
    if dtype is None:
        return "", 0
    try:
        return str(dtype), np.dtype(dtype).itemsize
    except TypeError:  # an extended dtype, such as a typed PRNG key
        return str(dtype), int(getattr(dtype, "itemsize", 8))


def _whole_rule(ins: Sequence[Any], outs: Sequence[Any]) -> Rule:
    """The rule of an op that cannot be split: every dim has a factor of its own, all of them whole."""
    names = (f"u{i}" for i in itertools.count())
    sizes: dict[str, int] = {}

    def dims(aval: Any) -> Dims:
        made = []
        for extent in getattr(aval, "shape", ()):
            factor = next(names)
            sizes[factor] = extent
            made.append((factor,))
        return tuple(made)

    operands, results = tuple(dims(a) for a in ins), tuple(dims(a) for a in outs)
    return Rule(operands, results, sizes, frozenset(sizes))


def _source_line(eqn: Any) -> str:
    """'file.py:12' of the user's line behind an equation, '' if there is none."""
    traceback = getattr(eqn.source_info, "traceback", None)
    if traceback is None:
        return ""
    codes, offsets = traceback.raw_frames()
    for code, offset in zip(codes, offsets, strict=True):
        if _is_users(code.co_filename):
            line = traceback.code_addr2line(code, offset)
            return f"{os.path.basename(code.co_filename)}:{line}"
    return ""


@functools.cache
def _is_users(filename: str) -> bool:
    return "site-packages" not in filename and not filename.startswith(("<", sysconfig.get_paths()["stdlib"]))
