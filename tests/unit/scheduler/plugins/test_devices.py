"""Devices as amounts of nodes, which of them count, and what claims require."""

import dataclasses

import pytest
from msgspec.structs import replace

from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.forecast import Forecaster, RunTime
from gangline.scheduler.plugins.devices import IMPLICIT_RESOURCE, DeviceTaintRuleInfo
from gangline.scheduler.reporting.explain import explain_pod
from gangline.scheduler.types import (
    CycleResult,
    GangId,
    LabelExpression,
    NodeName,
    NodeTerm,
    PlacementConstraints,
    PodInfo,
    PodKey,
    QueueInfo,
    TaintInfo,
    shape_of,
)
from unit.scheduler.builders import checked_cycle, cluster, gang, group, node, placed, pod
from unit.scheduler.device_builders import (
    CLASS,
    DRIVER,
    GPUS,
    Json,
    add_claim,
    add_class,
    add_slice,
    device,
    request,
    user,
)

NOW = 10_000.0
TWO = [device("gpu-0", numa=0), device("gpu-1", numa=1)]


def state_with(*nodes: str, queue: QueueInfo | None = None) -> SchedulerCache:
    """Two devices on each node."""
    state = cluster(*map(node, nodes), *([queue] if queue is not None else []))
    add_class(state)
    for name in nodes:
        add_slice(state, name, TWO)
    return state


def amount(state: SchedulerCache, name: str) -> int:
    info = state.nodes.infos[state.nodes.rows[NodeName(name)]]
    return dict(info.allocatable).get(GPUS, 0)


def add_user(state: SchedulerCache, name: str, *requests: Json, **facts: object) -> None:
    """Add a pod with a claim of its own."""
    add_claim(state, f"of-{name}", *requests, owner=name)
    state.set_pod(user(name, f"of-{name}", **facts))


def message(result: CycleResult, name: str) -> str:
    return next(t for r in result.pending_reasons for key, t in r.pods if key == f"d/{name}")


def test_devices_of_a_class_are_amounts_of_nodes_that_slices_and_classes_change() -> None:
    state = state_with("n1", "n2")
    assert (amount(state, "n1"), amount(state, "n2")) == (2, 2)
    add_slice(state, "n1", [device("gpu-0")], generation=2)
    assert (amount(state, "n1"), amount(state, "n2")) == (1, 2)
    add_class(state, CLASS, f'device.attributes["{DRIVER}"].numa == 1')
    assert (amount(state, "n1"), amount(state, "n2")) == (0, 1)
    state.set_node(node("n3"))
    add_slice(state, "fabric", TWO, nodeSelector={"nodeSelectorTerms": [
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n3"]}]}
    ]})  # fmt: skip
    assert [amount(state, name) for name in ("n1", "n2", "n3")] == [0, 1, 1]


@pytest.mark.parametrize(
    ("generation", "count", "devices", "starts"),
    [
        pytest.param(1, 1, ["gpu-0"], True, id="complete pool"),
        pytest.param(1, 2, ["gpu-0"], False, id="a slice is missing"),
        pytest.param(2, 2, ["gpu-0"], False, id="new generation is not complete yet"),
        pytest.param(1, 1, ["gpu-0", "gpu-0"], False, id="two devices of one name"),
    ],
)
def test_only_complete_pools_of_the_newest_generation_count(
    generation: int, count: int, devices: list[str], starts: bool
) -> None:
    state = cluster(node("n1"))
    add_class(state)
    if generation > 1:
        add_slice(state, "n1", [device("gpu-0")])
    add_slice(state, "n1", [device(name) for name in devices], generation, count)
    add_user(state, "p")
    assert bool(checked_cycle(state).bindings) == starts


def test_devices_count_in_queues_once_for_pods_that_share_a_claim() -> None:
    queue = QueueInfo("q", capability=((GPUS, 1),))
    state = state_with("n1", queue=queue)
    add_claim(state, "shared")
    state.set_group(group("both", 2, queue="q"))
    for name in ("a", "b"):
        state.set_pod(user(name, "shared", group="both"))
    state.set_group(group("more", 1, age=1, queue="q"))
    add_user(state, "c", group="more", age=1)
    result = checked_cycle(state)
    assert placed(result) == {"a": "n1", "b": "n1"}
    assert f"1 of 1 {GPUS} in use, 1 requested" in message(result, "c")
    state.devices.assume(result.devices)
    for binding in result.bindings:
        state.assume(binding.pod, binding.node)
    assert state.usage.by_queue["q"][GPUS] == 1
    state.remove_pod(PodKey("d/a"))
    assert state.usage.by_queue["q"][GPUS] == 1


def test_devices_of_bound_pods_are_assumed_until_their_claims_show_them() -> None:
    state = state_with("n1")
    add_user(state, "first")
    result = checked_cycle(state)
    state.devices.assume(result.devices)
    for binding in result.bindings:
        state.assume(binding.pod, binding.node)
    add_user(state, "second")
    ((_, second),) = checked_cycle(state).devices["d/of-second"].devices
    ((_, first),) = result.devices["d/of-first"].devices
    assert {first[2], second[2]} == {"gpu-0", "gpu-1"}
    state.forget_assumed(PodKey("d/first"), "uid-first")
    assert not state.devices.assumed


def test_what_a_failed_binding_has_left_in_a_claim_does_not_bind_its_pod() -> None:
    state = state_with("n1", "n2")
    state.set_pod(user("p", "left", constraints=node_name_is("n2")))
    add_claim(state, "left", has=[("n1", "gpu-0")], by=["p"])
    result = checked_cycle(state)
    assert placed(result) == {"p": "n2"}
    ((_, chosen),) = result.devices["d/left"].devices
    assert chosen[1] == "n2"


def node_name_is(name: str) -> PlacementConstraints:
    expression = LabelExpression("metadata.name", "In", (name,))
    return PlacementConstraints(required=(NodeTerm(fields=(expression,)),))


def test_alternatives_are_tried_in_order() -> None:
    state = state_with("n1")
    sub = [{"name": "pair", "deviceClassName": CLASS, "count": 3},
           {"name": "one", "deviceClassName": CLASS}]  # fmt: skip
    add_user(state, "p", {"name": "gpu", "firstAvailable": sub})
    result = checked_cycle(state)
    assert [name for name, _ in result.devices["d/of-p"].devices] == ["gpu/one"]


def test_devices_that_differ_in_a_constraint_of_another_claim_are_tried() -> None:
    """Two claims have the first devices before the claim that needs two of one value."""
    state = cluster(node("n1"))
    add_class(state)
    add_slice(state, "n1", [device(f"gpu-{n}", numa=numa) for n, numa in enumerate((0, 1, 1, 2))])
    add_user(state, "a", age=1)
    add_user(state, "b", age=2)
    same = [{"matchAttribute": f"{DRIVER}/numa"}]
    add_claim(state, "of-c", request(count=2), constraints=same, owner="c")
    state.set_pod(user("c", "of-c", age=3))
    assert placed(checked_cycle(state)).keys() == {"a", "b", "c"}


def test_taint_rules_keep_claims_off_devices_that_they_do_not_tolerate() -> None:
    state = state_with("n1")
    taint = TaintInfo("broken", "", "NoExecute")
    state.devices.rules["r"] = DeviceTaintRuleInfo(taint, DRIVER, "n1", "")
    state.devices.invalidate_classes()
    add_user(state, "p")
    result = checked_cycle(state)
    assert "1 cannot allocate all claims" in message(result, "p")
    toleration = {"key": "broken", "operator": "Exists"}
    add_user(state, "tolerant", request(tolerations=[toleration]))
    assert placed(checked_cycle(state)) == {"tolerant": "n1"}


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"capacity": {"requests": {"memory": "1Gi"}}}, "has capacity"),
        ({"allocationMode": "Some"}, "allocationMode 'Some'"),
        (
            {"selectors": [{"cel": {"expression": "device.driver.split('.')"}}]},
            "selector \"device.driver.split('.')\" of request 'gpu': "
            "\"device.driver.split('.')\" is not supported",
        ),
    ],
)
def test_what_is_not_supported_is_refused_by_name(fields: Json, why: str) -> None:
    state = state_with("n1")
    add_user(state, "p", request(**fields))
    reason = checked_cycle(state).pending_reasons[0]
    assert reason.reason == "ResourceClaimsNotSupported"
    assert why in reason.message
    assert "claim 'of-p'" in reason.message


def test_claims_with_admin_access_get_devices_that_others_keep() -> None:
    state = state_with("n1")
    add_claim(state, "running", request(count=2), has=[("n1", "gpu-0"), ("n1", "gpu-1")], by=["r"])
    state.set_pod(user("r", "running", on="n1"))
    add_user(state, "monitor", request(adminAccess=True, allocationMode="All"))
    result = checked_cycle(state)
    assert [own[2] for _, own in result.devices["d/of-monitor"].devices] == ["gpu-0", "gpu-1"]
    (taken,) = {key for key in state.devices.holders().values()}
    assert taken == "d/running"
    assert dict(state.pods[PodKey("d/monitor")].shape.request).get(GPUS) is None
    state.devices.assume(result.devices)
    state.set_pod(user("monitor", "of-monitor", on="n1"))
    state.remove_pod(PodKey("d/r"))
    state.set_device_claim("d/running", None)
    add_user(state, "next", request(count=2))
    assert placed(checked_cycle(state)) == {"next": "n1"}


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"consumesCounters": [{"counterSet": "whole"}]}, "are parts of others"),
        ({"allowMultipleAllocations": True}, "are shared by claims"),
        ({"bindingConditions": ["attached"]}, "need a driver's consent"),
    ],
)
def test_claims_that_only_unsupported_devices_match_are_refused(fields: Json, why: str) -> None:
    state = state_with()
    state.set_node(node("n1"))
    add_slice(state, "n1", [device("part", size=1) | fields, device("full", size=2)])
    size = {"cel": {"expression": f'device.attributes["{DRIVER}"].size == 1'}}
    add_user(state, "small", request(selectors=[size]))
    add_user(state, "any", request(count=1))
    result = checked_cycle(state)
    assert placed(result) == {"any": "n1"}
    (refused,) = result.pending_reasons
    assert refused.reason == "ResourceClaimsNotSupported"
    assert f"claim 'of-small': the devices that request 'gpu' selects {why}" in refused.message
    assert amount(state, "n1") == 1


def test_extended_resources_of_device_classes_are_refused_by_name() -> None:
    state = state_with("n1")
    state.devices.set_class(CLASS, state.devices.classes[CLASS], "example.com/gpu")
    for name, resource in (("named", "example.com/gpu"), ("own", f"{IMPLICIT_RESOURCE}{CLASS}")):
        asks = shape_of((("cpu", 1), ("pods", 1), (resource, 1)), PlacementConstraints())
        state.set_pod(replace(pod(name, group=name), shape=asks))
        state.set_group(group(name, 1))
    texts = [reason.message for reason in checked_cycle(state).pending_reasons]
    assert len(texts) == 2
    assert all("device class 'gpu'" in text and "ResourceClaim" in text for text in texts)
    by_plugin = (*node("n2").allocatable, ("example.com/gpu", 1))
    state.set_node(dataclasses.replace(node("n2"), allocatable=by_plugin))
    assert placed(checked_cycle(state)) == {"named": "n2"}


def test_claims_that_no_pod_can_use_yet_have_their_own_message() -> None:
    state = state_with("n1")
    add_user(state, "classless", request(deviceClassName="none"))
    state.set_pod(user("early", "?gpu"))
    state.set_pod(user("nameless", "none"))
    add_claim(state, "foreign", owner="another")
    state.set_pod(user("thief", "foreign"))
    result = checked_cycle(state)
    assert not result.bindings
    assert "device class none does not exist" in message(result, "classless")
    assert "Claim 'gpu' of pod d/early was not created yet" in message(result, "early")
    assert "ResourceClaim d/none does not exist" in message(result, "nameless")
    assert "was not created for the pod" in message(result, "thief")


def test_urgent_gang_evicts_the_users_of_devices_and_waits_for_their_release() -> None:
    state = state_with("n1")
    for number, thing in enumerate(gang("old", 2)):
        match thing:
            case PodInfo():
                name = f"old-{number}"
                add_claim(
                    state, f"of-{name}", owner=name, has=[("n1", f"gpu-{number - 1}")], by=[name]
                )
                state.set_pod(user(name, f"of-{name}", group="old", on="n1"))
            case _:
                state.set_group(thing)  # type: ignore[arg-type]
    state.set_group(group("urgent", 1, priority=10))
    add_user(state, "new", group="urgent", priority=10)
    result = checked_cycle(state)
    assert {eviction.pod for eviction in result.evictions} == {"d/old-1", "d/old-2"}
    state.reservations = dict(result.reservations)
    for eviction in result.evictions:
        state.evict(eviction.pod, eviction.uid)
        state.remove_pod(eviction.pod)
    # The pods are gone, their claims still have the devices.
    waiting = checked_cycle(state)
    assert not (*waiting.bindings, *waiting.evictions)
    assert waiting.reservations["d/urgent"].preempting
    for number in (1, 2):
        state.set_device_claim(f"d/of-old-{number}", None)
    assert placed(checked_cycle(state)) == {"new": "n1"}


def test_forecast_frees_the_devices_of_gangs_that_end() -> None:
    state = state_with("n1")
    for number in (0, 1):
        name = f"old-{number}"
        add_claim(state, f"of-{name}", owner=name, has=[("n1", f"gpu-{number}")], by=[name])
        facts = {"group": name, "on": "n1", "started_at": NOW - 100.0}
        state.set_group(group(name, 1, max_run_time_s=600.0 + number))
        state.set_pod(user(name, f"of-{name}", **facts))
    state.set_group(group("next", 2))
    for name in ("next-0", "next-1"):
        add_user(state, name, group="next")
    gangs = [GangId(f"d/{name}") for name in ("old-0", "old-1", "next")]
    times = dict.fromkeys(gangs, RunTime(600.0, 600.0))
    forecast = Forecaster(state, NOW, run_times=times).forecast(gangs[2], samples=2)
    assert forecast.chance == 1.0
    assert 0 < forecast.earliest_s <= forecast.latest_s <= 501
    assert len(state.devices.holders()) == 2


def test_nodes_are_explained_with_the_devices_that_a_pod_lacks() -> None:
    state = state_with("n1", "n2")
    add_claim(state, "held", has=[("n1", "gpu-0")], by=["other"])
    matches = {"matchAttribute": f"{DRIVER}/numa"}
    add_claim(state, "of-p", request(count=2), constraints=[matches], owner="p")
    state.set_pod(user("p", "of-p"))
    explained = explain_pod(state, PodKey("d/p"), 0.0)
    assert "2 cannot allocate all claims" in explained.message
    assert [(one.why, one.nodes) for one in explained.needs[0].nodes] == [
        ("cannot allocate all claims", ("n1", "n2"))
    ]
