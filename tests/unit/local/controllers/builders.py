"""Pods for the tests of controllers."""

from datetime import UTC, datetime, timedelta

from gangline.api.core.pod import Pod, PodSpec
from gangline.api.core.pod_status import PodStatus
from gangline.api.meta.objects import Condition, ObjectMeta, OwnerReference

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
BOUND = PodSpec(node_name="n")


def a_pod(
    name: str = "p",
    *,
    ip: str = "10.1.0.2",
    phase: str = "Running",
    ready: bool = True,
    going: bool = False,
    owner: str = "",
    spec: PodSpec = BOUND,
    ready_for: float = 60,
) -> Pod:
    since = NOW - timedelta(seconds=ready_for)
    status = "True" if ready else "False"
    owners = [OwnerReference(uid=owner, kind="ReplicaSet", controller=True)] if owner else []
    return Pod(
        metadata=ObjectMeta(
            name=name,
            namespace="ns",
            uid=f"uid-{name}",
            deletion_timestamp=NOW if going else None,
            creation_timestamp=since,
            owner_references=owners,
        ),
        spec=spec,
        status=PodStatus(
            phase=phase,
            pod_ip=ip,
            conditions=[Condition(type="Ready", status=status, last_transition_time=since)],
        ),
    )
