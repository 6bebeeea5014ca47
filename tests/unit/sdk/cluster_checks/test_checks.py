"""Checks of ``doctor`` for given facts of a cluster."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from gangline.api.core.core import Lease
from gangline.api.core.node import Node
from gangline.api.core.pod import Pod
from gangline.api.core.storage import StorageClass
from gangline.cli.commands.diagnose import format_checks
from gangline.sdk.cluster_checks import (
    CheckStatus,
    ClusterCheckResult,
    ClusterFacts,
    run_checks,
)
from gangline.sdk.events import EventRecord
from gangline.sdk.jobs import Job, JobState
from gangline.sdk.kinds import JOB_KINDS

NOW = datetime(2026, 1, 2, 12, tzinfo=UTC)
OLD = NOW - timedelta(minutes=5)


def made(kind: Any, **fields: Any) -> Any:
    return msgspec.convert(fields, kind, strict=False)


def a_node(name: str = "n1", ready: str = "True", gpus: str = "0", **labels: str) -> Node:
    status = {
        "conditions": [{"type": "Ready", "status": ready}],
        "allocatable": {"nvidia.com/gpu": gpus},
    }
    return made(Node, metadata={"name": name, "labels": labels}, status=status)  # type: ignore[no-any-return]


def a_lease(name: str, seconds: float, namespace: str = "kube-node-lease") -> Lease:
    renewed = (NOW + timedelta(seconds=seconds)).isoformat()
    metadata = {"name": name, "namespace": namespace}
    return made(Lease, metadata=metadata, spec={"renewTime": renewed})  # type: ignore[no-any-return]


def a_class(name: str, default: str = "true") -> StorageClass:
    notes = {"storageclass.kubernetes.io/is-default-class": default}
    return made(StorageClass, metadata={"name": name, "annotations": notes})  # type: ignore[no-any-return]


def a_pod(node: str = "") -> Pod:
    metadata = {"name": "p", "creationTimestamp": OLD.isoformat()}
    status = {"phase": "Pending"}
    return made(Pod, metadata=metadata, spec={"nodeName": node}, status=status)  # type: ignore[no-any-return]


def a_component(ready: str, **status: Any) -> Pod:
    metadata = {"name": "gangline-operator-x", "namespace": "gangline-system"}
    conditions = [{"type": "Ready", "status": ready}, *status.pop("conditions", [])]
    return made(Pod, metadata=metadata, status={"conditions": conditions, **status})  # type: ignore[no-any-return]


UNSCHEDULABLE = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/1 nodes",
}


def a_job(*, observed: bool) -> Job:
    return Job(JOB_KINDS[0], "j", "d", "u", JobState.PENDING, "", (), 1, 0, OLD, observed=observed)


def healthy() -> ClusterFacts:
    return ClusterFacts(
        now=NOW,
        version="v1.31.0",
        missing_kinds=[],
        denied=[],
        nodes=[a_node(gpus="8")],
        pods=[a_pod("n1")],
        components=[a_component("True")],
        jobs=[a_job(observed=True)],
        storage_classes=[a_class("fast")],
        leases=[a_lease("n1", -3)],
        events=[],
        services=["kube-dns"],
        metrics=True,
    )


def outcome(name: str, **changed: Any) -> ClusterCheckResult:
    facts = healthy()
    for field, value in changed.items():
        setattr(facts, field, value)
    return next(check for check in run_checks(facts) if check.name == name)


def test_nothing_is_wrong_with_a_healthy_cluster() -> None:
    assert {check.status for check in run_checks(healthy())} == {CheckStatus.OK}


PULL = EventRecord(OLD, "Warning", "pod/p", "Failed", "Failed to pull image x: not found", 1)


@pytest.mark.parametrize(
    ("name", "changed", "verdict", "fragment"),
    [
        ("Job kinds", {"missing_kinds": ["TFJob"]}, "failed", "TFJob"),
        ("Rights", {"denied": ["create secrets"]}, "failed", "create secrets"),
        ("Nodes", {"nodes": []}, "failed", "no node"),
        ("Nodes", {"nodes": [a_node(), a_node("n2", "Unknown")]}, "warning", "n2"),
        ("GPUs", {"nodes": [a_node()]}, "warning", "no node offers"),
        (
            "GPUs",
            {"nodes": [a_node(**{"nvidia.com/gpu.present": "true"})]},
            "failed",
            "1 nodes have GPU labels",
        ),
        (
            "Components",
            {"components": [a_component("False", conditions=[UNSCHEDULABLE])] * 2},
            "failed",
            "gangline-system/gangline-operator-x, gangline-system/gangline-operator-x: "
            "Unschedulable: 0/1 nodes",
        ),
        ("Operator", {"jobs": [a_job(observed=False)]}, "failed", "j"),
        ("Scheduler", {"pods": [a_pod()]}, "failed", "p pending without a decision"),
        ("Storage", {"storage_classes": []}, "warning", "no volume"),
        ("Storage", {"storage_classes": [a_class("a"), a_class("b")]}, "warning", "a, b"),
        ("DNS", {"services": ["metrics"]}, "failed", "no DNS"),
        ("Clocks", {"leases": [a_lease("n1", 60)]}, "warning", "60 s ahead"),
        ("Clocks", {"leases": [a_lease("n1", -600)]}, "warning", "600 s old"),
        ("Images", {"events": [PULL]}, "warning", "pod/p: Failed to pull"),
        ("Metrics", {"metrics": False}, "warning", "no metrics API"),
    ],
)
def test_each_fault_is_found_and_has_a_remedy(
    name: str, changed: dict[str, Any], verdict: str, fragment: str
) -> None:
    found = outcome(name, **changed)
    assert (found.status, fragment in found.finding) == (verdict, True)
    assert found.remedy or name == "GPUs"


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("Job kinds", "missing_kinds"), ("Rights", "denied"), ("Nodes", "nodes"),
        ("GPUs", "nodes"), ("Scheduler", "pods"), ("Components", "components"),
        ("Storage", "storage_classes"),
        ("DNS", "services"), ("Clocks", "leases"), ("Images", "events"),
    ],
)  # fmt: skip
def test_unreadable_facts_are_unknown(name: str, field: str) -> None:
    assert outcome(name, **{field: None}).status is CheckStatus.UNKNOWN


def test_own_services_beside_those_of_the_cluster_tell_nothing_about_dns() -> None:
    assert outcome("DNS", services=["gangline-operator"]).status is CheckStatus.UNKNOWN


def test_the_report_puts_the_remedy_below_the_fault(strip: Callable[[str], str]) -> None:
    lines = strip(
        format_checks([*run_checks(healthy()), outcome("Metrics", metrics=False)])
    ).splitlines()
    assert lines[0].split() == ["ok", "API", "server", "v1.31.0"]
    assert "-> install metrics-server" in lines[-1]


@pytest.fixture
def strip() -> Callable[[str], str]:
    import click

    return click.unstyle


def test_damaged_history_is_a_line_with_a_remedy() -> None:
    assert "History" not in {check.name for check in run_checks(ClusterFacts(now=NOW))}
    damage = "database sqlite:///brain.db is damaged: it was renamed"
    (check,) = [
        check
        for check in run_checks(ClusterFacts(now=NOW, history_problem=damage))
        if check.name == "History"
    ]
    assert (check.status, check.finding) == (CheckStatus.WARNING, damage)
    assert "backup" in check.remedy
