"""The pseudo-ops at the borders of loops and branches (see `planner.graph.graph`)."""

from planner.graph.rule import Rule
from planner.rules.elementwise import pointwise
from planner.rules.entry import Avals, Entry, Params, build, letters


def scan_slice(_params: Params, operands: Avals, results: Avals) -> Rule:
    """`loop! a b -> a b`: every device runs every iteration, so the scanned dim stays whole."""
    names = letters(len(results[0].shape))
    return build([("loop", *names)], [names], operands, results, whole=["loop"])


def scan_stack(_params: Params, operands: Avals, results: Avals) -> Rule:
    """`a b -> loop! a b`."""
    names = letters(len(operands[0].shape))
    return build([names], [("loop", *names)], operands, results, whole=["loop"])


TABLE = {
    "cond_join": Entry(pointwise, light=True),
    "loop_carry": Entry(pointwise, light=True),
    "scan_slice": Entry(scan_slice, light=True),
    "scan_stack": Entry(scan_stack, light=True),
}
