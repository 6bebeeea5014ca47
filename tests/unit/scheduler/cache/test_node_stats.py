"""Cached facts about nodes equal freshly computed ones after any change."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gangline.scheduler.cache.node_stats import (
    MODEL_LABELS,
    ResourceDemand,
    ScoringInputs,
    StrandingCache,
    score_row,
    score_rows,
)
from gangline.scheduler.cache.node_table import NodeTable
from gangline.scheduler.placement.scratch import ScratchAllocation
from gangline.scheduler.plugins.scores import ScoreWeights
from gangline.scheduler.plugins.stranded_devices import StrandedDevices, TypicalRequest
from gangline.scheduler.types import NodeInfo, NodeName, PodInfo, TaintInfo
from unit.scheduler.builders import ANYWHERE, change_node, cluster, node, pod

NAMES = [NodeName(f"n{index}") for index in range(20)]
"""More than a table has rows for at first."""


@st.composite
def facts(draw: st.DrawFn) -> NodeInfo:
    label = draw(st.sampled_from(MODEL_LABELS))
    model = draw(st.sampled_from(["", "A", "B"]))
    return node(
        draw(st.sampled_from(NAMES)),
        gpu=draw(st.integers(0, 2)),
        labels={label: model} if model else {},
        taints=draw(st.sampled_from([(), (TaintInfo("k", "", "NoSchedule"),)])),
        unschedulable=draw(st.booleans()),
    )


def traits(table: NodeTable) -> dict[str, tuple[object, ...]]:
    """Return the facts about each node, with label values as numbers."""
    models = table.models()
    found = {}
    for name, row in table.rows.items():
        alike = [
            table.topology_domains_of(label) == table.topology_domains_of(label)[row]
            for label in MODEL_LABELS
        ]
        found[name] = (
            table.usable()[row],
            table.tainted()[row],
            table.has_devices()[row],
            [{n for n, r in table.rows.items() if same[r]} for same in alike],
            [table.topology_domains_of(label)[row] >= 0 for label in MODEL_LABELS],
            models and (models.by_row[row], models.present),
            models and {n for n, r in table.rows.items() if models.masks[models.by_row[row]][r]},
        )
    return found


@given(st.lists(facts() | st.sampled_from(NAMES), max_size=40))
def test_traits_follow_changes_of_nodes(changes: list[NodeInfo | NodeName]) -> None:
    table, left = NodeTable(), {}
    for change in changes:
        change_node(table, left, change)
        table.models(), table.usable(), table.tainted(), table.topology_domains_of(MODEL_LABELS[0])
    new = NodeTable()
    for each in left.values():
        new.set(each)
    assert traits(table) == traits(new)


def test_one_model_is_no_choice() -> None:
    table = NodeTable()
    for name, gpu, model in (("a", 8, "A"), ("b", 8, "A"), ("c", 0, "B"), ("d", 0, "")):
        labels = {MODEL_LABELS[1]: model} if model else {}
        table.set(node(name, gpu=gpu, labels=labels))
    assert table.models() is None
    table.set(node("d", gpu=1))
    models = table.models()
    assert models.present == {"A", ""}
    rows = {name: models.masks["A"][row] for name, row in table.rows.items()}
    assert rows == {"a": True, "b": True, "c": True, "d": False}


RESOURCES, ROWS = 3, 4
AMOUNTS = st.one_of(st.integers(0, 8), st.integers(0, 2**50))
WEIGHT = st.one_of(st.sampled_from((0.0, 1.0, 5.0)), st.floats(0, 100))
COLUMNS = {"cpu": 0, "memory": 1, "x/gpu": 2}
TYPICAL = st.builds(
    lambda cpu, gpu: TypicalRequest((("cpu", cpu), ("x/gpu", gpu)), ANYWHERE), AMOUNTS, AMOUNTS
)
ALL_COLUMNS = ResourceDemand(tuple((column, 1, 0.0) for column in range(RESOURCES)), False)


@st.composite
def weights(draw: st.DrawFn) -> ScoreWeights:
    """Return weights of everything that is scored."""
    return ScoreWeights(
        packing=draw(st.sampled_from((-1.0, 0.0, 1.0, 0.3))),
        spare_devices=draw(WEIGHT),
        affinity=draw(WEIGHT),
        discouraged=draw(WEIGHT),
        balance=draw(st.sampled_from((0.0, 1.0))),
        images=draw(WEIGHT),
    )


@st.composite
def grounds(draw: st.DrawFn) -> ScoringInputs:
    """Return a few nodes, some of them used beyond what they have."""

    def row(each: st.SearchStrategy[float], kind: type) -> np.ndarray:
        return np.array(draw(st.lists(each, min_size=ROWS, max_size=ROWS)), dtype=kind)

    has = np.array([row(AMOUNTS, np.int64) for _ in range(RESOURCES)])
    used = np.array([row(AMOUNTS, np.int64) for _ in range(RESOURCES)])
    some = st.booleans()
    mix = draw(st.dictionaries(TYPICAL, st.integers(1, 1024), max_size=3))
    devices, block = StrandedDevices(mix, COLUMNS, has), draw(st.integers(1, 3))
    stranding = StrandingCache(devices, has, [row(some, np.bool_) for _ in devices.constraints])
    is_scored = draw(some)
    return ScoringInputs(
        has - used,
        has,
        row(some, np.bool_),
        row(some, np.bool_),
        row(st.floats(0, 1), np.float64) if draw(some) else None,
        draw(weights()),
        row(st.integers(0, 3), np.int32) if draw(some) else None,
        extra_score=row(st.floats(0, 1), np.float64) if draw(some) else None,
        images=row(st.floats(0, 1), np.float64) if draw(some) else None,
        stranding=devices if is_scored else None,
        qualities=stranding.qualities((), ALL_COLUMNS, block) if is_scored else None,
        block=block,
    )


@st.composite
def demands(draw: st.DrawFn) -> ResourceDemand:
    """Return what a pod asks for."""
    columns = draw(st.lists(st.integers(0, RESOURCES - 1), unique=True))
    amount = st.one_of(st.integers(1, 8), st.integers(1, 2**50))
    parts = tuple((column, draw(amount), draw(WEIGHT)) for column in columns)
    balanced = tuple((c, amount) for c, amount, _ in parts) if draw(st.booleans()) else ()
    return ResourceDemand(parts, draw(st.booleans()), balanced)


@given(grounds(), demands(), st.floats(0, 10))
def test_one_row_is_scored_as_it_is_among_others(
    ground: ScoringInputs, demand: ResourceDemand, liking: float
) -> None:
    together = score_rows(ground, demand, None, liking)
    for _ in ("computed", "cached"):
        alone = [score_row(ground, demand, row, liking) for row in range(ROWS)]
        assert np.array(alone).tobytes() == together.tobytes()


NODES = st.lists(
    st.builds(
        lambda cpu, memory, gpu: {"cpu": cpu, "memory": memory, "gpu": gpu},
        st.integers(1, 12),
        st.integers(1, 12),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=8,
)
PODS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 1)), min_size=1, max_size=30
)
PACKING = st.sampled_from(
    (
        ScoreWeights(),
        ScoreWeights(cpu=0, memory=0),
        ScoreWeights(seed=7),
        ScoreWeights(packing=0),
        ScoreWeights(packing=-1),
    )
)


def alone(index: int, asks: tuple[int, int, int]) -> PodInfo:
    """Return a waiting pod."""
    cpu, memory, gpu = asks
    return pod(f"p{index}", cpu=cpu, memory=memory, gpu=gpu)


@given(NODES, PODS, PACKING, st.sets(st.integers(0, 29)))
def test_single_placements_equal_placements_with_fresh_scores(
    nodes: list[dict[str, int]], pods: list[tuple[int, int, int]], how: ScoreWeights, back: set[int]
) -> None:
    facts: list[NodeInfo] = [node(f"n{i}", **has) for i, has in enumerate(nodes)]
    waiting = [alone(index, asks) for index, asks in enumerate(pods)]
    table = cluster(*facts, *waiting, weights=how).nodes
    trial = ScratchAllocation(table)
    for index, each in enumerate(waiting):
        anew, mark = ScratchAllocation(table, trial.free.copy()), trial.mark()
        left, expected = trial.place(each.shape, [each]), anew.place(each.shape, [each])
        assert (list(left), trial.since(mark)) == (list(expected), anew.since(0))
        if index in back:
            trial.rollback(mark)


@given(NODES, st.integers(1, 40), st.integers(1, 40))
def test_pods_of_one_shape_are_placed_as_one_by_one(
    nodes: list[dict[str, int]], first: int, then: int
) -> None:
    facts: list[NodeInfo] = [node(f"n{i}", **has) for i, has in enumerate(nodes)]
    waiting = [alone(index, (1, 1, 0)) for index in range(first + then)]
    table = cluster(*facts, *waiting).nodes
    in_parts, at_once = ScratchAllocation(table), ScratchAllocation(table)
    for part in (waiting[:first], waiting[first:]):
        in_parts.place(part[0].shape, part)
    at_once.place(waiting[0].shape, waiting)
    assert in_parts.tentative() == at_once.tentative()
    assert in_parts.free.tobytes() == at_once.free.tobytes()


def test_the_row_that_is_being_filled_counts_only_within_the_same_rows() -> None:
    waiting = [alone(index, (1, 1, 0)) for index in range(2)]
    table = cluster(node("a", cpu=4, memory=4), node("b", cpu=4, memory=4), *waiting).nodes
    trial = ScratchAllocation(table)
    trial.place(waiting[0].shape, waiting[:1])
    trial.within = np.arange(len(table.infos)) == table.rows[NodeName("b")]
    trial.place(waiting[1].shape, waiting[1:])
    assert [table.name_of(row) for _, row in trial.tentative()] == ["a", "b"]


def test_spreading_and_balance_score_each_pod() -> None:
    assert not ScoreWeights().scores_each_pod
    assert ScoreWeights(packing=-1).scores_each_pod
    assert ScoreWeights(balance=1).scores_each_pod
