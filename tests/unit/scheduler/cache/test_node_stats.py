"""Cached facts about nodes equal freshly computed ones after any change."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gangline.scheduler.cache.node_stats import MODEL_LABELS
from gangline.scheduler.cache.node_table import NodeTable
from gangline.scheduler.types.types import NodeInfo, NodeName, TaintInfo
from unit.scheduler.builders import change_node, node

NAMES = [NodeName(f"n{index}") for index in range(20)]
"""More than a table has rows for at first."""
LAW = settings(
    deadline=None, derandomize=True, max_examples=60, suppress_health_check=[HealthCheck.too_slow]
)


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


@LAW
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
    assert models is not None
    assert models.present == {"A", ""}
    rows = {name: models.masks["A"][row] for name, row in table.rows.items()}
    assert rows == {"a": True, "b": True, "c": True, "d": False}
