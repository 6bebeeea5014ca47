"""Scoped quotas: a gang is blocked only by quotas that its pods are in scope of."""

import msgspec
import pytest

from gangline.api.volcano.scheduling import PodGroup
from gangline.scheduler.cache.convert import group_info
from gangline.scheduler.cache.convert_placement import pod_quota_attributes, quota_info
from gangline.scheduler.cache.quota import QuotaInfo
from gangline.scheduler.queueing.gangs import check_admission
from gangline.scheduler.types.quota_scopes import QuotaAttributes, QuotaScopeRule, all_in_scopes
from gangline.scheduler.types.types import PodInfo, Request
from gangline.scheduler.types.wire import LeanPodSpec, ResourceQuota
from unit.scheduler.builders import checked_cycle as decide
from unit.scheduler.builders import cluster, group, node, pod, request

HIGH: dict[str, object] = {
    "scopeName": "PriorityClass",
    "operator": "In",
    "values": ["high", "top"],
}
NOT_HIGH: dict[str, object] = {**HIGH, "operator": "NotIn"}
SOME_CLASS: dict[str, object] = {"scopeName": "PriorityClass", "operator": "Exists"}
NO_CLASS: dict[str, object] = {"scopeName": "PriorityClass", "operator": "DoesNotExist"}


def quota(*scopes: str, selector: tuple[dict[str, object], ...] = ()) -> QuotaInfo:
    """A quota for pods in these scopes that is used up."""
    spec = {
        "hard": {"pods": "2"},
        "scopes": scopes,
        "scopeSelector": {"matchExpressions": selector} if selector else None,
    }
    written = {
        "metadata": {"name": "q", "namespace": "d"},
        "spec": spec,
        "status": {"used": {"pods": "2"}},
    }
    return quota_info(msgspec.convert(written, ResourceQuota))


def traits(**spec: object) -> QuotaAttributes:
    return pod_quota_attributes(msgspec.convert({"containers": [{}], **spec}, LeanPodSpec))


def container(kind: str, **amounts: str) -> dict[str, object]:
    return {"resources": {kind: amounts}}


def affinity(kind: str, **term: object) -> dict[str, object]:
    needed = "requiredDuringSchedulingIgnoredDuringExecution"
    return {kind: {needed: [{"topologyKey": "zone", **term}]}}


@pytest.mark.parametrize(
    ("spec", "scope", "meant"),
    [
        ({"activeDeadlineSeconds": 9}, "Terminating", True),
        ({}, "Terminating", False),
        ({"activeDeadlineSeconds": 9}, "NotTerminating", False),
        ({}, "NotTerminating", True),
        ({}, "BestEffort", True),
        ({"containers": [container("requests", **{"nvidia.com/gpu": "1"})]}, "BestEffort", True),
        ({"containers": [container("requests", cpu="0")]}, "BestEffort", True),
        ({"containers": [{}, container("limits", memory="1Gi")]}, "BestEffort", False),
        ({"initContainers": [container("requests", cpu="1m")]}, "NotBestEffort", True),
        ({"resources": {"requests": {"cpu": "1"}}}, "NotBestEffort", True),
        ({"overhead": {"cpu": "1"}}, "NotBestEffort", False),
        ({"affinity": affinity("podAffinity")}, "CrossNamespacePodAffinity", False),
        (
            {"affinity": affinity("podAffinity", namespaces=["x"])},
            "CrossNamespacePodAffinity",
            True,
        ),
        (
            {"affinity": affinity("podAntiAffinity", namespaceSelector={})},
            "CrossNamespacePodAffinity",
            True,
        ),
        ({}, "VolumeAttributesClass", False),
    ],
)
def test_pods_are_in_scope_as_in_kubernetes(
    spec: dict[str, object], scope: str, meant: bool
) -> None:
    assert all_in_scopes(quota(scope).scopes, [traits(**spec)]) is meant


@pytest.mark.parametrize(
    ("condition", "named", "meant"),
    [
        (HIGH, "top", True),
        (HIGH, "low", False),
        (HIGH, "", False),
        (NOT_HIGH, "high", False),
        (NOT_HIGH, "low", True),
        (NOT_HIGH, "", True),
        (SOME_CLASS, "low", True),
        (SOME_CLASS, "", False),
        (NO_CLASS, "low", False),
        (NO_CLASS, "", True),
        ({**HIGH, "operator": "Like"}, "high", False),
    ],
)
def test_priority_classes_are_chosen_as_in_kubernetes(
    condition: dict[str, object], named: str, meant: bool
) -> None:
    scopes = quota(selector=(condition,)).scopes
    assert all_in_scopes(scopes, [traits(priorityClassName=named)]) is meant


def test_all_scopes_of_a_quota_must_hold() -> None:
    scopes = quota("Terminating", selector=(HIGH,)).scopes
    both = traits(activeDeadlineSeconds=1, priorityClassName="high")
    assert all_in_scopes(scopes, [both])
    assert not all_in_scopes(scopes, [traits(priorityClassName="high")])
    assert not all_in_scopes(scopes, [both, traits(activeDeadlineSeconds=1)])


def member(name: str, priority_class: str) -> PodInfo:
    return pod(name, group="job", quota_attributes=QuotaAttributes(priority_class=priority_class))


def reason(limits: QuotaInfo, *members: PodInfo) -> tuple[str, str]:
    state = cluster(node("n", cpu=9), group("job", 4), *members)
    state.quotas["d"] = {"q": limits}
    verdict = decide(state).pending_reasons[0]
    return verdict.reason, verdict.message


def test_gang_in_scope_is_not_admitted_and_the_scope_is_named() -> None:
    limits = quota("NotBestEffort", selector=(HIGH,))
    why, message = reason(limits, member("a", "high"), member("b", "top"))
    assert why == "QuotaExceeded"
    assert (
        "quota 'd/q' (for pods in scope NotBestEffort, PriorityClass in (high,top)) "
        "has pods 0 left of pods 2, and pods 2 more is needed"
    ) in message


def test_a_gang_with_pods_out_of_scope_is_left_to_the_api_server() -> None:
    assert reason(quota(selector=(HIGH,)), member("a", "low"))[0] == "NotEnoughTasks"
    mixed = member("a", "high"), member("b", "low")
    assert reason(quota(selector=(HIGH,)), *mixed)[0] == "NotEnoughTasks"


@pytest.mark.parametrize(
    ("limits", "asked", "priority_class", "held"),
    [
        (quota(selector=(HIGH,)), (), "high", True),
        (quota(selector=(HIGH,)), (), "low", False),
        (quota(selector=(NO_CLASS,)), (), "", False),
        (quota("NotBestEffort"), request(cpu=1), "", True),
        (quota("NotBestEffort"), request(gpu=1), "", False),
        (quota("BestEffort"), request(gpu=1), "", False),
        (quota("Terminating"), request(cpu=1), "", False),
        (quota("NotTerminating"), request(cpu=1), "", False),
        (quota(), (), "", True),
    ],
)
def test_gang_without_pods_is_described_by_its_group(
    limits: QuotaInfo, asked: Request, priority_class: str, held: bool
) -> None:
    facts = group("job", 2, min_resources=asked, priority_class=priority_class)
    state = cluster(node("n"), facts)
    state.quotas["d"] = {"q": limits}
    assert (check_admission(state, facts) is not None) is held


def test_the_priority_class_of_a_group_is_read() -> None:
    written = {"metadata": {"name": "g"}, "spec": {"priorityClassName": "high"}}
    assert group_info(msgspec.convert(written, PodGroup), {}).priority_class == "high"


def test_scope_is_formatted_as_written() -> None:
    assert str(QuotaScopeRule("BestEffort")) == "BestEffort"
