"""Plan files: what is saved is read back equal; anything else is refused in one sentence."""

import dataclasses
import json

import pytest
from handmade import make_plan
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import InputError, PlanFileError
from planner.graph.graph import Site
from planner.plans import as_json, load
from planner.storage import parse_site, show_site


def test_saved_plan_is_read_back_equal(tmp_path):
    plan = make_plan()
    plan.save(tmp_path / "plan.json")
    assert load(tmp_path / "plan.json") == plan
    assert [file.name for file in tmp_path.iterdir()] == ["plan.json"]


def test_the_same_plan_gives_the_same_bytes(tmp_path):
    plan = make_plan()
    plan.save(tmp_path / "a.json")
    turned = dict(reversed(plan.sites.items()))
    dataclasses.replace(plan, sites=turned).save(tmp_path / "b.json")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


def test_json_holds_the_promised_entries():
    data = json.loads(json.dumps(as_json(make_plan()), allow_nan=False))
    assert data["mesh"] == {"data": 4, "model": 2}
    assert data["limit_bytes"] == "inf"
    assert data["in_specs"]["state.params.layers.0.w1"] == "P(-, model)"
    assert data["out_specs"]["metrics.loss"] == "P()"
    assert set(data["seconds"]) == {"trace", "space", "cost", "solve", "total"}
    assert list(data["schemes"]) == ["chosen", "data"]  # tensor_3d does not apply
    assert data["collectives"][0]["wire_bytes"] == 7077888.0
    assert "sites" not in data


steps = st.tuples(
    st.integers(0, 99), st.sampled_from(["jaxpr", "branches"]), st.one_of(st.none(), st.integers(0, 9))
)


@given(
    st.builds(
        Site,
        st.sampled_from(["in", "out", "use", "ret"]),
        st.lists(steps, max_size=3).map(tuple),
        st.integers(-1, 999),
        st.integers(0, 99),
    )
)
def test_sites_print_and_parse(site):
    assert parse_site(show_site(site)) == site


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["plan"].pop("mesh"), "is damaged: plan lacks ['mesh']. Make it anew"),
        (
            lambda d: d["plan"].update(more=1),
            "is damaged: plan has the foreign entries ['more']. Make it anew",
        ),
        (
            lambda d: d["plan"].update(step_seconds="fast"),
            "is damaged: plan.step_seconds is str, not float.",
        ),
        (lambda d: d["plan"]["mesh"].update(data=True), "is damaged: plan.mesh.data is bool, not int. Make"),
        (lambda d: d["plan"]["mesh"].update(data=4.5), "is damaged: plan.mesh.data is float, not int. Make"),
        (lambda d: d["plan"]["arguments"][0].update(spec="x"), "is damaged: 'x' is not a spec; write it as"),
        (lambda d: d["plan"]["sites"].update({"up 1 2": "P()"}), "is damaged: 'up 1 2' is not a site; write"),
        (lambda d: d["plan"].update(sites=[]), "is damaged: plan.sites is list, not dict. Make it anew"),
        (lambda d: d.update(plan=None), "is damaged: plan is NoneType, not dict. Make it anew"),
        (lambda d: d.update(version=1), "has format version 1 and this Meshwright reads 2. Read it with the"),
        (lambda d: d.update(format="other"), "is JSON but no plan of Meshwright's. Make it anew"),
    ],
)
def test_damaged_files_are_refused(tmp_path, change, message):
    path = tmp_path / "plan.json"
    make_plan().save(path)
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    with pytest.raises(PlanFileError) as caught:
        load(path)
    assert str(caught.value).startswith(f"{str(path)!r} {message}")


def test_unreadable_files_are_refused(tmp_path):
    path = tmp_path / "plan.json"
    with pytest.raises(PlanFileError, match=r"cannot be read \(No such file or directory\)\. Check the path"):
        load(path)
    make_plan().save(path)
    path.write_text(path.read_text()[:500])
    with pytest.raises(PlanFileError, match=r"is not JSON, or was cut short .* Make it anew"):
        load(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PlanFileError, match=r"is not JSON"):
        load(path)
    path.write_text("[1, 2]")
    with pytest.raises(PlanFileError, match=r"is JSON but no plan of Meshwright's"):
        load(path)


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "plan.json"
    make_plan().save(path)
    before = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(InputError, match=r"cannot be written \(No space left on device\)\. Name a file in"):
        make_plan(5).save(path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["plan.json"]


def test_explain_says_where_a_value_is_kept_and_what_moves_it():
    text = make_plan().explain("state.params.layers.*.w1")
    assert text.splitlines() == [
        "state.params.layers.*.w1  f32[768,3072]  x3",
        "  argument, kept as P(-, model): split 2 ways over model (2), 4.50 MiB per device",
        "  all_reduce over data: 6 in a step, 42.5 MB sent per device, 2.40 ms (train.py:12)",
        "state.params.layers.*.w1  f32[768,3072]  x3",
        "  result, kept as P(-, model): split 2 ways over model (2), 4.50 MiB per device",
    ]
    assert (
        make_plan().explain("batch.*").splitlines()[-1]
        == "  no collective moves it: it is used where it is kept"
    )
    assert make_plan().explain("metrics.loss").splitlines() == [
        "metrics.loss  f32[]",
        "  result, kept as P(): a whole copy on every device, 4 B per device",
    ]


def test_explain_names_what_is_near():
    with pytest.raises(InputError) as caught:
        make_plan().explain("state.params.out.c")
    assert str(caught.value).startswith(
        "The plan has no value 'state.params.out.c'. Near it are state.params.out.b"
    )


def test_diff_says_what_changes():
    old, new = make_plan(), make_plan(4)
    assert old.diff(old) == ""
    moved = dataclasses.replace(new.arguments[0], spec=(("data",), ("model",)))
    new = dataclasses.replace(new, step_seconds=0.011, arguments=(moved, *new.arguments[1:]))
    assert old.diff(new).splitlines() == [
        "step: 12.4 ms -> 11.0 ms",
        "argument state.params.layers.3.w1: new, P(-, model), x1",
        "argument state.params.layers.0.w1: P(-, model) -> P(data, model), x1",
        "result state.params.layers.3.w1: new, P(-, model), x1",
    ]
