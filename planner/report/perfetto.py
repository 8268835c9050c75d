"""The timeline of a plan as a Chrome trace, which https://ui.perfetto.dev and chrome://tracing open.

One track for compute, one for each wire, one for the communication that nothing hides, whose slices add up to
the plan's `exposed_seconds`, and a counter of the memory in use. Of a loop the first iterations are shown,
and the rest as one slice. Format: "Trace Event Format", JSON object form, times in microseconds.
"""

from collections.abc import Iterator
from typing import Any

from planner.errors import InputError
from planner.plans import Plan
from planner.simulate.spans import COMPUTE
from planner.simulate.timeline import Timeline

EXPOSED = "exposed communication"
_MICRO = 1e6
_DEVICE = 1  # the process of all tracks: every device does the same at the same time


def trace(plan: Plan) -> dict[str, Any]:
    """What `--trace` writes. Raises InputError for a plan read from a file, which has no timeline."""
    if plan.timeline is None:
        raise InputError(
            "A plan read from a file has no timeline. Plan again, with `python -m planner plan --trace=FILE`."
        )
    return {"traceEvents": list(_events(plan, plan.timeline)), "displayTimeUnit": "ns"}


def _events(plan: Plan, timeline: Timeline) -> Iterator[dict[str, Any]]:
    tracks = {name: number for number, name in enumerate((COMPUTE, *_wires(timeline), EXPOSED))}
    yield _named("process_name", f"one device of {plan.machine}: {plan.words}", 0)
    for name, number in tracks.items():
        yield _named("thread_name", name, number)
        yield _meta("thread_sort_index", {"sort_index": number}, number)
    for span in timeline.spans:
        about = {key: text for key, text in (("value", span.value), ("line", span.source)) if text}
        for stream in span.streams:
            yield _slice(span.what, tracks[stream], span.start, span.seconds, about)
    for start, seconds in timeline.exposed:
        yield _slice("exposed", tracks[EXPOSED], start, seconds, {})
    for start, held in timeline.memory:
        yield {
            "ph": "C",
            "name": "memory in use",
            "pid": _DEVICE,
            "ts": start * _MICRO,
            "args": {"bytes": held},
        }


def _wires(timeline: Timeline) -> list[str]:
    return sorted({stream for span in timeline.spans for stream in span.streams} - {COMPUTE})


def _named(what: str, name: str, track: int) -> dict[str, Any]:
    return _meta(what, {"name": name}, track)


def _meta(what: str, about: dict[str, Any], track: int) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": _DEVICE, "tid": track, "args": about}


def _slice(name: str, track: int, start: float, seconds: float, about: dict[str, str]) -> dict[str, Any]:
    times = {"ts": start * _MICRO, "dur": seconds * _MICRO}
    return {"ph": "X", "name": name, "pid": _DEVICE, "tid": track, **times, "args": about}
