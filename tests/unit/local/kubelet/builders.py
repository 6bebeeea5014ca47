"""Builders for pods and records."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from gangline.api.core.pod import Pod
from gangline.local.kubelet.records import ContainerInstance, ContainerRecord, ExitRecord, PodRecord
from gangline.local.kubelet.runtime.interface import ContainerPlan

PATH = "/usr/local/bin:/usr/bin:/bin"
NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)


def later(seconds: float) -> datetime:
    """`NOW` plus a number of seconds."""
    return NOW + timedelta(seconds=seconds)


def a_pod(
    *mains: str, inits: tuple[str, ...] = (), sidecars: tuple[str, ...] = (), **spec: Any
) -> Pod:
    """A pod with containers of these names; sidecars come before the other init containers."""
    containers = [{"name": name, "command": ["run"]} for name in mains or ("c",)]
    first = [{"name": name, "restartPolicy": "Always"} for name in sidecars]
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
        "spec": {
            "containers": containers,
            "initContainers": [*first, *({"name": name} for name in inits)],
            **spec,
        },
    }
    return msgspec.convert(body, Pod)


def running(number: int = 0, **more: Any) -> ContainerRecord:
    """A container that is running."""
    record = ContainerRecord(
        instance=ContainerInstance(number, "id", NOW), started=True, ready=True
    )
    return replace(record, **more)


def ended(code: int = 0, number: int = 0, at: datetime = NOW, **more: Any) -> ContainerRecord:
    """A container that has exited."""
    end = ExitRecord(code, "Completed" if code == 0 else "Error", at)
    return ContainerRecord(instance=ContainerInstance(number, "id", NOW, end), **more)


def a_record(containers: Mapping[str, ContainerRecord] | None = None, **more: Any) -> PodRecord:
    """The record of a prepared pod."""
    values: dict[str, Any] = {"prepared": True, "ip": "10.0.0.1", **more}
    return PodRecord(started_at=NOW, containers=containers or {}, **values)


def a_plan(state: Path, *argv: str, **changes: Any) -> ContainerPlan:
    """The plan of a container with an empty environment but for PATH; its folder is made."""
    values: dict[str, Any] = {
        "pod_uid": "uid",
        "namespace": "default",
        "pod": "p",
        "container": "c",
        "instance": 0,
        "argv": argv,
        "env": {"PATH": PATH},
        "state_dir": state,
    }
    state.mkdir(parents=True, exist_ok=True)
    return ContainerPlan(**(values | changes))
