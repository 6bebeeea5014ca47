"""A tree for the gangs of a cycle leaves out the queues that change nothing for them."""

from hypothesis import given
from hypothesis import strategies as st

from gangline.scheduler.queueing.queue_tree import QueueTree
from gangline.scheduler.types import PodGroupInfo, PodInfo, QueueInfo
from unit.scheduler.builders import cluster, group, node, pod, request

NAMES = ("a", "a/1", "a/2", "b", "b/1", "c")


@st.composite
def queues(draw: st.DrawFn) -> list[QueueInfo]:
    cpu = st.sampled_from([0, 0, 2, 5])

    def drawn(name: str) -> QueueInfo:
        amounts = {
            key: request(cpu=amount, pods=0)
            for key in ("capability", "deserved", "guarantee")
            if (amount := draw(cpu))
        }
        return QueueInfo(name, parent=name.rpartition("/")[0], weight=draw(st.integers(1, 3)),
                         **amounts)  # fmt: skip

    return [drawn(name) for name in NAMES]


@given(queues(), st.data())
def test_queues_without_use_change_nothing_for_others(
    drawn: list[QueueInfo], data: st.DataObject
) -> None:
    facts: list[PodGroupInfo | PodInfo] = []
    asking = set()
    for name in ("a/1", "a/2", "b/1", "c"):
        for number in range(data.draw(st.integers(0, 2))):
            on = data.draw(st.sampled_from([None, "n1"]))
            key = f"{name.replace('/', '-')}-{number}"
            facts += [group(key, 1, queue=name), pod(f"{key}-0", group=key, cpu=2, on=on)]
            asking.update([name] if not on else [])
    state = cluster(node("n1", cpu=16), *drawn, *facts)
    complete, cut = QueueTree.of(state), QueueTree.of(state, asking)
    assert cut.queues.keys() >= asking | {"root", "default"}
    for name, attributes in cut.queues.items():
        other = complete.queues[name]
        assert attributes.limit.tolist() == other.limit.tolist()
        assert attributes.fair_share.tolist() == other.fair_share.tolist()
        assert attributes.used.tolist() == other.used.tolist()
        assert attributes.has_limit == other.has_limit
    left_out = [complete.queues[name] for name in complete.queues.keys() - cut.queues.keys()]
    assert not any(queue.requested.any() or queue.info.guarantee for queue in left_out)


def test_tree_of_a_cycle_has_no_idle_queue() -> None:
    idle = [QueueInfo(f"idle-{number}") for number in range(5)]
    state = cluster(
        node("n1"), QueueInfo("q"), *idle, group("g", 1, queue="q"), pod("p", group="g")
    )
    assert QueueTree.of(state, ["q"]).queues.keys() == {"root", "default", "q"}
    assert len(QueueTree.of(state).queues) == 8
