"""Garbage collection: each rule alone, then random owner graphs until nothing changes."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.api.meta.objects import Object, OwnerReference
from gangline.api.meta.resource import Resource
from gangline.local.controllers.garbage_collector import (
    FOREGROUND,
    ORPHAN,
    CheckObjects,
    DeleteObject,
    GarbageAction,
    GraphObject,
    OrphanDependents,
    OwnerGraph,
    PropagationPolicy,
    RemoveFinalizer,
    RemoveOwnerReferences,
    UnblockOwners,
    plan_collection,
)

THINGS = Resource(Object, "", "v1", "things", "Thing")


def an_item(
    uid: str,
    *owners: str,
    finalizers: tuple[str, ...] = (),
    going: bool = False,
    blocks: bool = True,
) -> GraphObject:
    references = tuple(OwnerReference(uid=o, name=o, block_owner_deletion=blocks) for o in owners)
    return GraphObject(THINGS, "ns", uid, uid, references, frozenset(finalizers), going)


def a_graph(*items: GraphObject) -> OwnerGraph:
    graph = OwnerGraph()
    for one in items:
        graph.put(one)
    return graph


X_ENDS = an_item("x", finalizers=(FOREGROUND,), going=True)
O_ENDS = an_item("o", finalizers=(FOREGROUND,), going=True)
DELETE = {policy.value: DeleteObject(policy) for policy in PropagationPolicy}


@pytest.mark.parametrize(
    ("items", "action"),
    [
        pytest.param([an_item("x")], None, id="without owners it stays"),
        pytest.param([an_item("x", "o"), an_item("o")], None, id="its owner exists"),
        pytest.param([an_item("x", "gone")], DELETE["Background"], id="its owner does not"),
        pytest.param(
            [an_item("x", "gone", finalizers=(ORPHAN,))],
            DELETE["Orphan"],
            id="its finalizer determines the propagation policy",
        ),
        pytest.param(
            [an_item("x", "gone", "o"), an_item("o")],
            RemoveOwnerReferences(frozenset({"gone"})),
            id="one of two owners is deleted: only the reference is removed",
        ),
        pytest.param([an_item("x", "gone", going=True)], None, id="in deletion"),
        pytest.param(
            [an_item("x", "o"), an_item("o", going=True)],
            None,
            id="an owner in background deletion still exists",
        ),
        pytest.param(
            [an_item("x", "o"), O_ENDS],
            DELETE["Background"],
            id="an owner in foreground deletion deletes it too",
        ),
        pytest.param(
            [an_item("x", "o"), O_ENDS, an_item("y", "x")],
            DELETE["Foreground"],
            id="and its own dependents before it",
        ),
        pytest.param([X_ENDS], RemoveFinalizer(FOREGROUND), id="foreground without dependents"),
        pytest.param(
            [X_ENDS, an_item("y", "x", blocks=False)],
            RemoveFinalizer(FOREGROUND),
            id="dependents that do not block are not waited for",
        ),
        pytest.param(
            [X_ENDS, an_item("y", "x"), an_item("z", "x", going=True)],
            CheckObjects(("y",)),
            id="foreground waits for dependents and sees to them",
        ),
        pytest.param(
            [an_item("x", "y"), an_item("y", "x", finalizers=(FOREGROUND,), going=True)],
            UnblockOwners(),
            id="two objects that wait for each other are unblocked",
        ),
        pytest.param(
            [an_item("x", finalizers=(ORPHAN,), going=True)],
            OrphanDependents(()),
            id="orphaning without dependents just ends",
        ),
    ],
)
def test_the_collector_decides(items: list[GraphObject], action: GarbageAction) -> None:
    assert plan_collection(a_graph(*items), "x", lambda owner: False) == action


def test_orphaning_strips_every_dependent_of_its_reference() -> None:
    child, other = an_item("c", "x"), an_item("d", "x", "y")
    graph = a_graph(an_item("x", finalizers=(ORPHAN,), going=True), child, other)
    assert plan_collection(graph, "x", lambda owner: False) == OrphanDependents((child, other))


def test_an_owner_that_only_the_server_knows_counts() -> None:
    graph = a_graph(an_item("x", "o"))
    assert plan_collection(graph, "x", lambda owner: owner.uid == "o") is None


def test_a_change_names_everybody_that_it_may_matter_to() -> None:
    graph = a_graph(an_item("o"), an_item("a", "o"), an_item("b", "o"))
    assert graph.put(an_item("o")) == set()
    assert graph.put(an_item("o", finalizers=(FOREGROUND,), going=True)) == {"o", "a", "b"}
    assert graph.remove("a") == {"o"}
    assert graph.put(an_item("b", "o", blocks=False)) == {"b", "o"}
    assert graph.remove("o") == {"b"}


class World:
    """Objects on a server that obeys the collector."""

    def __init__(self, items: list[GraphObject]) -> None:
        self.items = {one.uid: one for one in items}

    def begin_deletion(self, uid: str, propagation: PropagationPolicy) -> None:
        item = self.items[uid]
        mark = {PropagationPolicy.FOREGROUND: {FOREGROUND}, PropagationPolicy.ORPHAN: {ORPHAN}}
        finalizers = item.finalizers | frozenset(mark.get(propagation, set()))
        self._store(replace(item, finalizers=finalizers, is_deleting=True))

    def _store(self, changed: GraphObject) -> None:
        if changed.is_deleting and not changed.finalizers:
            del self.items[changed.uid]
        else:
            self.items[changed.uid] = changed

    def step(self, uid: str) -> bool:
        """Execute the action for one object; return whether it changed anything."""
        action = plan_collection(a_graph(*self.items.values()), uid, lambda owner: False)
        item = self.items[uid]
        match action:
            case DeleteObject(propagation):
                self.begin_deletion(uid, propagation)
            case RemoveOwnerReferences(uids):
                self._keep(item, lambda owner: owner.uid not in uids)
            case OrphanDependents(dependents):
                for dependent in dependents:
                    self._keep(dependent, lambda owner: owner.uid != uid)
                self._store(replace(item, finalizers=item.finalizers - {ORPHAN}))
            case RemoveFinalizer(finalizer):
                self._store(replace(item, finalizers=item.finalizers - {finalizer}))
            case UnblockOwners():
                owners = tuple(
                    OwnerReference(uid=o.uid, name=o.name, block_owner_deletion=False)
                    for o in item.owners
                )
                self._store(replace(item, owners=owners))
                self.begin_deletion(uid, PropagationPolicy.FOREGROUND)
            case _:
                return False
        return True

    def _keep(self, item: GraphObject, keep: "object") -> None:
        owners = tuple(owner for owner in item.owners if keep(owner))  # type: ignore[operator]
        self._store(replace(self.items[item.uid], owners=owners))

    def settle(self) -> None:
        for _ in range(200):
            if not any([self.step(uid) for uid in sorted(self.items) if uid in self.items]):
                return
        raise AssertionError("the collector does not converge")


@st.composite
def forests(draw: st.DrawFn) -> list[GraphObject]:
    count = draw(st.integers(min_value=1, max_value=7))
    items = []
    for number in range(count):
        parents = draw(st.sets(st.integers(0, max(0, number - 1)), max_size=2)) if number else set()
        blocks = draw(st.booleans())
        items.append(an_item(str(number), *map(str, sorted(parents)), blocks=blocks))
    return items


@given(forests(), st.sampled_from(list(PropagationPolicy)))
def test_collection_converges_for_every_propagation_policy(
    items: list[GraphObject], propagation: PropagationPolicy
) -> None:
    world = World(items)
    world.begin_deletion("0", propagation)
    world.settle()
    assert "0" not in world.items
    for one in world.items.values():
        assert not one.is_deleting
        assert all(owner.uid in world.items for owner in one.owners), "no dangling reference stays"
        original = next(item for item in items if item.uid == one.uid)
        had_owners = bool(original.owners)
        orphaned = propagation is PropagationPolicy.ORPHAN and any(
            o.uid == "0" for o in original.owners
        )
        assert bool(one.owners) or not had_owners or orphaned


@given(forests())
def test_orphaning_deletes_nothing_but_the_root(items: list[GraphObject]) -> None:
    world = World(items)
    world.begin_deletion("0", PropagationPolicy.ORPHAN)
    world.settle()
    assert set(world.items) == {one.uid for one in items} - {"0"}
