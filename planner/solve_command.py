"""The command `solve`: a problem of the contest's format, in a wall time that includes reading its file.

The solver is asked to stop early enough for the answer to be checked and written. Should it not, it is
interrupted, as by Ctrl-C, and gives the best that it has.
"""

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.progress_bar import ProgressBar

from planner.clock import alarm
from planner.cost.contest import Contest, exact_cost, read
from planner.cost.problem import Choice, Problem, cost_of, peak_of
from planner.errors import InfeasibleError, InputError
from planner.report.tables import columns
from planner.report.units import duration
from planner.search import SOLVERS as PLANNING
from planner.solvers import mcmc
from planner.solvers.conflict import Conflict, conflict
from planner.solvers.minplus import INTERRUPTED
from planner.solvers.quick import suits
from planner.solvers.record import Record, answer


def by_search(problem: Problem, *, seconds: float, seed: int) -> Choice:
    """The search for large problems within memory, whatever the size. Raises InputError for one it cannot
    take."""
    from planner.solvers.search import search  # numba takes a while to load

    if not suits(problem):
        raise InputError(
            "The solver 'search' takes a problem with a usage_limit and no usages on edges; this is none. "
            "Use --solver=auto."
        )
    record, deadline = Record(problem), time.monotonic() + seconds
    try:
        cut = search(record, (), seed, deadline)
    except KeyboardInterrupt:
        cut = INTERRUPTED
    return answer(record, cut)


SOLVERS: dict[str, Callable[..., Choice]] = {**PLANNING, "mcmc": mcmc.solve, "search": by_search}
_NAMED = 8  # of a conflict; what is left out is counted
_SPARED, _MOST_SPARED = (1.5, 0.01), 0.2  # seconds, and of all seconds, for what comes before and after


@dataclasses.dataclass(frozen=True)
class Solved:
    """The answer for one file. cost: in the file's numbers, an int if they are whole. lower_bound: proven,
    in the same unit. seconds: of the whole command. in_the_way: a smallest conflict, if it is proven that
    nothing fits."""

    contest: Contest
    found: Choice
    solver: str
    cost: int | float
    lower_bound: int | float
    feasible: bool
    seconds: float
    in_the_way: Conflict | None = None

    def as_json(self) -> dict[str, Any]:
        """What `--json` writes."""
        return {
            "choice": list(self.found.choice),
            "cost": self.cost,
            "lower_bound": self.lower_bound,
            "feasible": self.feasible,
            "seconds": self.seconds,
        }


def solve_file(path: str, *, solver: str, seconds: float, seed: int, began: float | None = None) -> Solved:
    """Reads a problem and solves it, in `seconds` of wall time in all, from `began` on (time.monotonic(), now
    if None). Raises InputError for a file that is not a problem, and for an unknown solver or no time."""
    began = time.monotonic() if began is None else began
    if solver not in SOLVERS:
        raise InputError(f"There is no solver {solver!r}; choose one of {', '.join(SOLVERS)}.")
    if not seconds > 0:
        raise InputError(f"--seconds is {seconds:g}; give the time limit in seconds, like 60.")
    spared = min(_SPARED[0] + _SPARED[1] * seconds, _MOST_SPARED * seconds)
    with _bar(seconds) as say:
        say("reading")
        contest = read(path)
        say("solving")
        found = _within(contest, solver, seed, began + seconds - spared, spared / 2)
    return _checked(contest, found, solver, began, began + seconds)


def _within(contest: Contest, solver: str, seed: int, deadline: float, grace: float) -> Choice:
    """The solver's choice, for which it is interrupted if it is not there by the deadline and some grace."""
    left = max(0.0, deadline - time.monotonic())
    with alarm(left + grace) as rang:
        try:
            found = SOLVERS[solver](contest.problem, seconds=left, seed=seed)
        except KeyboardInterrupt:  # of a solver that has nothing to give
            greedy = tuple(int(costs.argmin()) for costs in contest.problem.node_costs)
            cost, peak = cost_of(contest.problem, greedy), peak_of(contest.problem, greedy)
            found = Choice(greedy, cost, -math.inf, peak, f"nothing found, {INTERRUPTED}")
    if rang and found.stopped.endswith(INTERRUPTED):
        found = dataclasses.replace(
            found, stopped=found.stopped.removesuffix(INTERRUPTED) + "the time was up"
        )
    return found


def _checked(contest: Contest, found: Choice, solver: str, began: float, end: float) -> Solved:
    """The answer, with all that is said of it worked out anew from the choice."""
    problem = contest.problem
    cost, peak = exact_cost(contest, found.choice), peak_of(problem, found.choice)
    feasible = peak <= problem.usage_limit and math.isfinite(cost_of(problem, found.choice))
    if math.isfinite(found.lower_bound):
        bound = cost if feasible and found.lower_bound >= found.cost else min(found.lower_bound, cost)
    else:
        bound = sum(table.min().tolist() for table in (*contest.node_costs, *contest.edge_costs))
    in_the_way = None if feasible else _conflict(problem, (end - time.monotonic()) / 2)
    return Solved(contest, found, solver, cost, bound, feasible, time.monotonic() - began, in_the_way)


def _conflict(problem: Problem, seconds: float) -> Conflict | None:
    """What is in the way, if that is found in so many seconds."""
    try:
        with alarm(seconds):
            return conflict(problem, seconds=seconds)
    except KeyboardInterrupt:
        return None


def infeasible(solved: Solved) -> InfeasibleError:
    """What to say of a problem for which nothing was found that fits."""
    problem, found = solved.contest.problem, solved.in_the_way
    if not math.isfinite(cost_of(problem, solved.found.choice)):
        return InfeasibleError(
            "No choice without a forbidden strategy or pair was found. Allow more of them, or give it more "
            "time (--seconds)."
        )
    if found is None:
        return InfeasibleError(
            f"No choice was found that fits: the least peak met is {solved.found.peak:,.0f} bytes, the limit "
            f"is {problem.usage_limit:,.0f}, and it is not proven that none exists. Give it more time "
            "(--seconds)."
        )
    parts = [f"node {v} at least {size:,.0f}" for v, size in found.nodes]
    parts += [
        f"edge {e} ({problem.edges[e][0]} to {problem.edges[e][1]}) at least {size:,.0f}"
        for e, size in found.edges
    ]
    left_out = f", and {len(parts) - _NAMED} more" if len(parts) > _NAMED else ""
    return InfeasibleError(
        f"No choice fits: at time {found.at} these need {found.bytes:,.0f} bytes together, "
        f"{found.bytes - found.limit:,.0f} more than the limit of {found.limit:,.0f}: "
        f"{', '.join(parts[:_NAMED])}{left_out}. Raise usage_limit to {math.ceil(found.bytes):,} or more, "
        "or give one of them a strategy that uses less."
    )


def solved_table(solved: Solved) -> RenderableType:
    """The answer in a few rows."""
    problem, cost, bound = solved.contest.problem, solved.cost, solved.lower_bound
    table = columns("solved", what="left", value="right")
    sizes = f"{len(problem.node_costs):,} nodes, {len(problem.edges):,} edges"
    table.add_row("problem", sizes)
    table.add_row("solver", solved.solver)
    table.add_row("cost", f"{cost:,}")
    table.add_row("lower bound", f"{bound:,}")
    table.add_row("gap", f"{100 * (cost - bound) / cost:.3g}%" if cost else "0%")
    table.add_row("peak", f"{solved.found.peak:,.0f}")
    table.add_row("limit", f"{problem.usage_limit:,.0f}" if math.isfinite(problem.usage_limit) else "none")
    table.add_row("fits", "yes" if solved.feasible else "no")
    table.add_row("stopped", solved.found.stopped)
    table.add_row("time", duration(solved.seconds))
    return table


class _TimeLeft(ProgressColumn):
    """A bar that fills with the time itself; nobody has to move it."""

    def render(self, task: Task) -> RenderableType:
        return ProgressBar(total=task.total, completed=min(task.elapsed or 0.0, task.total or 0.0), width=40)


@contextlib.contextmanager
def _bar(seconds: float) -> Iterator[Callable[[str], None]]:
    """What is being done, and how much of the time is gone; only on a terminal, on standard error."""
    screen = Console(stderr=True)
    shown = (
        TextColumn("{task.description}"),
        _TimeLeft(),
        TimeElapsedColumn(),
        TextColumn(f"of {seconds:g} s"),
    )
    with Progress(
        *shown, console=screen, transient=True, refresh_per_second=4, disable=not screen.is_terminal
    ) as bar:
        task = bar.add_task("", total=seconds)
        yield lambda text: bar.update(task, description=text)
