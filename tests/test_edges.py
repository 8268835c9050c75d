"""Edge tables: the same seconds and bytes as the steps of every pair of specs, one by one."""

import itertools
import math

import numpy as np
import pytest
from pipeline import network_of, stages_of
from small_steps import adam_args, adam_step
from test_reshard import all_specs

from planner.cost.edges import EdgePricer
from planner.sharding.reshard import reshard
from planner.sharding.spec import Spec, pieces

MACHINES = {
    "cube": ("tpu_v5p:2x2x2", {"x": 2, "y": 2, "z": 2}),
    "grid": ("gpu_h100_sxm_80gb:1x8", {"x": 4, "y": 2}),
    "host": ("cpu:8", {"x": 2, "y": 4}),
}


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_tables_price_the_steps_of_every_pair(name, rank):
    machine, sizes = MACHINES[name]
    network = network_of(machine, **sizes)
    specs = tuple(all_specs(rank, sizes)[:: 7 if rank == 3 else 1])
    seconds, copied = EdgePricer(network).tables(specs, specs, 512.0, 3.0)
    for (i, source), (j, target) in itertools.product(enumerate(specs), enumerate(specs)):
        steps = reshard(source, target, sizes)
        one_run = sum(network.seconds(s.kind, s.axes, s.fraction * 512.0) for s in steps)
        assert math.isclose(seconds[i, j], 3 * one_run)
        assert copied[i, j] == (0 if source == target else 512.0 / pieces(target, sizes))


def test_a_pricer_gives_the_same_table_whatever_it_priced_before():
    network = network_of("tpu_v5p:2x2x2", x=2, y=2, z=2)
    specs = tuple(all_specs(2, network.sizes))
    fresh, used = EdgePricer(network), EdgePricer(network)
    used.tables(specs[::3], specs[::2], 64.0, 1.0)
    used.tables(tuple(all_specs(3, network.sizes)[::50]), tuple(all_specs(3, network.sizes)[::70]), 9.0, 1.0)
    for one, other in zip(
        fresh.tables(specs, specs, 512.0, 2.0), used.tables(specs, specs, 512.0, 2.0), strict=True
    ):
        np.testing.assert_array_equal(one, other)


def test_staying_and_slicing_cost_no_time():
    network = network_of("tpu_v5p:2x2x2", x=2, y=2, z=2)
    specs: tuple[Spec, ...] = (((), ()), (("x",), ()), (("x", "y"), ("z",)))
    seconds, copied = EdgePricer(network).tables(specs, specs, 512.0, 1.0)
    assert (np.triu(seconds) == 0).all()
    assert (seconds[np.tril_indices(3, -1)] > 0).all()
    assert copied.tolist() == [[0, 256, 64], [512, 0, 64], [512, 256, 0]]


def test_equal_links_share_one_table():
    stages = stages_of(
        adam_step, *adam_args(inputs=32, hidden=32, outputs=32), network=network_of("cpu:8", x=8)
    )
    tables = {}
    for link, table in zip(stages.coarse.links, stages.tables.problem.edge_costs, strict=True):
        maker, user = stages.tables.nodes[link.maker], stages.tables.nodes[link.user]
        port = stages.coarse.nodes[link.user].inputs[link.into]
        whole = stages.graph.values[port.value].bytes
        key = (id(maker.outputs[link.out]), id(user.inputs[link.into]), whole, port.repeat)
        assert tables.setdefault(key, table) is table
    assert len(tables) < len(stages.coarse.links)
