"""The stages of one segment under a choice: of all of it, or of what a few nodes touch."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from planner.simulate.durations import Durations, Stage, Stages
from planner.simulate.tasks import Segment


class Lookup:
    """The programs of a segment, its items and then its lanes, by what each depends on. touched: of each
    node, the programs whose stages its strategy has a part in."""

    def __init__(self, segment: Segment, durations: Durations) -> None:
        self.segment, self.durations, self.count = segment, durations, len(segment.nodes)
        tables, links = durations.tables, durations.coarse.links
        self.shelves = [durations.shelf(v, segment.repeat) if v >= 0 else {} for v in segment.nodes]
        self.ends = [
            (links[lane.link].maker, links[lane.link].user) if lane.link >= 0 else (-1, -1)
            for lane in segment.lanes
        ]
        alike: dict[int, list[int]] = defaultdict(list)
        for i, lane in enumerate(segment.lanes):
            if lane.link >= 0 and tables.problem.edge_costs[lane.link].any():
                alike[id(tables.problem.edge_costs[lane.link])].append(i)
        self.groups = [
            (
                tables.problem.edge_costs[segment.lanes[lanes[0]].link],
                np.array(lanes),
                *np.array([self.ends[i] for i in lanes]).T,
            )
            for lanes in alike.values()
        ]
        self.touched: dict[int, list[int]] = defaultdict(list)
        for item, v in enumerate(segment.nodes):
            for node in durations.depends(v) if v >= 0 else ():
                self.touched[node].append(item)
        for i, ends in enumerate(self.ends):
            for node in ends:
                self.touched[node].append(self.count + i)

    def all(self, choice: Sequence[int], loops: Mapping[int, Stage]) -> list[Stages]:
        """Of every program. loops: of the items that are loops."""
        found = [shelf.get(choice[v]) for shelf, v in zip(self.shelves, self.segment.nodes, strict=True)]
        for item in [item for item, stages in enumerate(found) if stages is None]:
            found[item] = (loops[item],) if item in loops else self.one(item, choice)
        lanes: list[Stages] = [()] * len(self.segment.lanes)
        picked = np.array(choice)
        for costs, members, makers, users in self.groups:
            for i in members[costs[picked[makers], picked[users]] != 0].tolist():
                lanes[i] = self.one(self.count + i, choice)
        return [*(stages or () for stages in found), *lanes]

    def one(self, program: int, choice: Sequence[int]) -> Stages:
        """Of one program that is no loop."""
        if program < self.count:
            return self.durations.node(self.segment.nodes[program], choice, self.segment.repeat)
        maker, user = self.ends[program - self.count]
        if maker < 0:
            return ()
        link = self.segment.lanes[program - self.count].link
        return self.durations.link(link, choice[maker], choice[user], self.segment.repeat)

    def of(self, nodes: Iterable[int]) -> list[int]:
        """The programs that depend on the strategies of some nodes."""
        return sorted({program for v in nodes for program in self.touched.get(v, ())})
