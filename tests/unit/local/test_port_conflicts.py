"""Port conflicts: a failed pod gets an event about a port that another process listens on."""

from gangline.api.core.container import Container, ContainerPort
from gangline.api.core.pod import Pod, PodSpec
from gangline.api.core.pod_status import (
    ContainerState,
    ContainerStateTerminated,
    ContainerStatus,
    PodStatus,
)
from gangline.api.meta.objects import ObjectMeta
from gangline.local.ports import count_failed_runs, explain_conflict


def a_pod(name: str, port: int, *, phase: str = "Running", exits: int | None = None) -> Pod:
    ended = ContainerStateTerminated(exit_code=exits) if exits is not None else None
    status = ContainerStatus(name="c", state=ContainerState(terminated=ended))
    ports = [ContainerPort(container_port=port)]
    return Pod(
        metadata=ObjectMeta(name=name, namespace="ns", uid=name),
        spec=PodSpec(containers=[Container(name="c", ports=ports)]),
        status=PodStatus(phase=phase, container_statuses=[status]),
    )


def test_the_port_and_the_pod_that_has_it_are_named() -> None:
    failed, holder = a_pod("a", 23456, exits=1), a_pod("b", 23456)
    message = explain_conflict(failed, [failed, holder], lambda port: port == 23456)
    assert "port 23456" in message
    assert "ns/b" in message
    assert "another port" in message


def test_a_port_held_by_no_pod_is_named_alone() -> None:
    failed, ended = a_pod("a", 80, exits=1), a_pod("b", 80, phase="Succeeded")
    message = explain_conflict(failed, [failed, ended], lambda port: True)
    assert message.startswith("port 80 is in use")


def test_no_conflict_is_reported_when_the_ports_are_free() -> None:
    failed = a_pod("a", 80, exits=1)
    assert explain_conflict(failed, [failed], lambda port: False) == ""


def test_only_failed_runs_count() -> None:
    assert count_failed_runs(None) == 0
    assert count_failed_runs(a_pod("a", 80)) == 0
    assert count_failed_runs(a_pod("a", 80, exits=0)) == 0
    assert count_failed_runs(a_pod("a", 80, exits=1)) == 1
