"""Nodes and jobs of the end-to-end benchmark, as requests."""

import json
from typing import NamedTuple

from benchmarks.scheduler import bind

NAMESPACE = "jobs"


def node(index: int, processors: int) -> bytes:
    """A node with this number of processors."""
    body = json.loads(bind.node(index))
    for part in ("capacity", "allocatable"):
        body["status"][part] |= {"cpu": str(processors)}
    return json.dumps(body).encode()


def node_name(index: int) -> str:
    return json.loads(bind.node(index))["metadata"]["name"]


def pod(
    name: str, group: str, scheduler: str, priority_class: str = "", on_node: str = ""
) -> bytes:
    """A pod of one processor; with ``on_node`` it is not scheduled."""
    body = json.loads(bind.pod(0, scheduler, gangs=False))
    body["metadata"] = {"name": name, "labels": {"job": group}}
    if group:
        body["metadata"]["annotations"] = {"scheduling.k8s.io/group-name": group}
    if priority_class:
        body["spec"]["priorityClassName"] = priority_class
    if on_node:
        body["spec"]["nodeName"] = on_node
    return json.dumps(body).encode()


class Job(NamedTuple):
    """One gang."""

    namespace: str
    name: str
    pods: int
    priority_class: str = ""

    @property
    def keys(self) -> list[str]:
        """Namespaces and names of its pods."""
        return [f"{self.namespace}/{self.name}-{index}" for index in range(self.pods)]

    def group(self) -> bytes:
        """The request for its PodGroup."""
        body = json.loads(bind.group(0))
        body["metadata"] = {"name": self.name}
        body["spec"] = {"minMember": self.pods}
        if self.priority_class:
            body["spec"]["priorityClassName"] = self.priority_class
        return json.dumps(body).encode()


def numbered_job(number: int, pods: int, namespace: str = NAMESPACE) -> Job:
    return Job(namespace, f"g-{number:06d}", pods)
