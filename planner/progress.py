"""What the planner is doing, on a terminal; nothing at all when the output is piped."""

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn


@contextlib.contextmanager
def planning_bar() -> Iterator[Callable[[str, float], None]]:
    """A bar on standard error that goes away when planning is done.

    Yields what `planner.plan` takes as progress: a function of the stage and the part of it that is done.
    """
    screen = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as bar:
        task = bar.add_task("planning", total=1.0)
        yield lambda stage, part: bar.update(task, description=stage, completed=part)
