"""Random small clusters, and what this scheduler decides on them, to compare with kube-scheduler.

A scene has nodes, and pods that are scheduled one after the other: each stays on the node that
kube-scheduler has chosen, so that the next one meets it. Kube-scheduler 1.20 is compared, so scenes
use only what it knows. For topology spread it counts pods also on nodes that selectors, or labels
that they lack, exclude; later releases do not, so scenes have no domain with such nodes and others.
Nodes and pods are written in a short form (``node_manifest``, ``pod_manifest``).
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

import msgspec
import numpy as np

from gangline.api.core.node import Node
from gangline.scheduler.cache import inter_pod
from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.cache.convert import node_info, pod_info
from gangline.scheduler.placement.scratch import ScratchAllocation
from gangline.scheduler.types import PodInfo
from gangline.scheduler.wire import LeanPod, slim_pod
from unit.scheduler.builders import checked_cycle, cluster

Json: TypeAlias = dict[str, Any]

RECORDED = Path(__file__).with_suffix(".json")
"""Decisions of the real kube-scheduler.

``cd tests && python -m integration.scheduler.kube_scheduler`` records them again.
"""
NAMESPACES = ("near", "far")
PRIORITIES = {"low": 10, "middle": 50, "high": 100}
HOST = "kubernetes.io/hostname"
KEYS = ("zone", "rack", HOST)
GPU = "example.com/gpu"
_Makers: TypeAlias = Sequence[Callable[[Random], Json]]
"""Makers of constraints of pods."""
_APP_A = {"matchLabels": {"app": "a"}}
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_OURS = frozenset({"default-scheduler"})


@dataclass(frozen=True, slots=True)
class KubeDecision:
    """What kube-scheduler decides for a pod."""

    feasible: list[str]
    """Nodes that all filters accept."""
    node: str = ""
    """The node that it is bound to; empty: none."""
    nominated: str = ""
    """The node for which pods were evicted."""
    victims: list[str] = field(default_factory=list)


def node_manifest(node: Json) -> Json:
    name = node["name"]
    amounts = {"cpu": "4", "memory": "8Gi", "pods": "10"} | node.get("amounts", {})
    return {
        "metadata": {"name": name, "labels": {HOST: name} | node.get("labels", {})},
        "spec": {
            "taints": [
                dict(zip(("key", "value", "effect"), taint, strict=True))
                for taint in node.get("taints", ())
            ],
            "unschedulable": node.get("unschedulable", False),
        },
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def pod_manifest(pod: Json) -> Json:
    ports = [{"containerPort": port["hostPort"], **port} for port in pod.get("ports", ())]
    requests = pod.get("requests", {})
    limits = {name: amount for name, amount in requests.items() if name == GPU}
    resources = {"requests": requests, "limits": limits}
    container = {"name": "c", "image": "i", "ports": ports, "resources": resources}
    spec: Json = {"schedulerName": "default-scheduler", "containers": [container]}
    if "init" in pod:
        spec["initContainers"] = [
            {"name": "i", "image": "i", "resources": {"requests": pod["init"]}}
        ]
    for key in ("tolerations", "nodeSelector", "topologySpreadConstraints"):
        if key in pod:
            spec[key] = pod[key]
    if "priority" in pod:
        spec["priorityClassName"] = pod["priority"]
    affinity = {
        kind: {_REQUIRED: pod[kind]} for kind in ("podAffinity", "podAntiAffinity") if kind in pod
    }
    if "nodeTerms" in pod:
        affinity["nodeAffinity"] = {_REQUIRED: {"nodeSelectorTerms": pod["nodeTerms"]}}
    if affinity:
        spec["affinity"] = affinity
    metadata = {"name": pod["name"], "namespace": pod.get("namespace", NAMESPACES[0])}
    return {"metadata": metadata | {"labels": pod.get("labels", {})}, "spec": spec}


class OurScheduler:
    """The same cluster in the cache of this scheduler."""

    def __init__(self, nodes: Iterable[Json]) -> None:
        self.state: SchedulerCache = cluster(
            *(node_info(msgspec.convert(node_manifest(node), Node)) for node in nodes)
        )

    def set_pod(self, pod: Json, node: str = "", *, terminating: bool = False) -> PodInfo:
        made = pod_manifest(pod)
        made["metadata"]["uid"] = made["metadata"]["name"]
        if terminating:
            made["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        if node:
            made["spec"]["nodeName"] = node
        facts = pod_info(slim_pod(msgspec.convert(made, LeanPod)), PRIORITIES, _OURS)
        self.state.set_pod(facts)
        return facts

    def feasible(self, pod: PodInfo) -> list[str]:
        """Return the nodes that may take the pod now."""
        nodes = self.state.nodes
        rows = ScratchAllocation(nodes).rows_for(pod.shape)
        mask = np.zeros(len(nodes.infos), dtype=bool)
        mask[rows] = True
        if inter_pod.has_inter_pod_rules(nodes, pod):
            mask &= inter_pod.inter_pod_mask(nodes, pod, ())
        return sorted(str(nodes.name_of(row)) for row in np.flatnonzero(mask).tolist())


@dataclass(frozen=True, slots=True)
class OurPreemption:
    """The pods that this scheduler evicts, and the node that it reserves; empty: none."""

    victims: list[str]
    node: str = ""


def filter_differences(recorded: Json) -> Iterator[str]:
    """Yield the pods of a recorded scene for which this scheduler decides otherwise."""
    ours = OurScheduler(recorded["nodes"])
    bound: dict[str, tuple[Json, str]] = {}
    for number, step in enumerate(recorded["steps"]):
        if isinstance(step, str):
            ours.set_pod(*bound[step], terminating=True)
            continue
        index, feasible, node = step
        pod = {"name": f"p{number}"} | recorded["pods"][index]
        facts = ours.set_pod(pod)
        if (allowed := ours.feasible(facts)) != feasible:
            yield f"{pod} fits on {allowed}, with kube-scheduler on {feasible}"
        chosen = [str(binding.node) for binding in checked_cycle(ours.state).bindings]
        if len(chosen) != bool(feasible) or not set(chosen) <= set(feasible):
            yield f"{pod} is bound to {chosen}, with kube-scheduler to one of {feasible}"
        ours.state.remove_pod(facts.key)
        if node:
            bound[pod["name"]] = pod, node
            ours.set_pod(pod, node)


def our_preemption(recorded: Json) -> OurPreemption:
    """Return which pods of a recorded scene this scheduler evicts for the claimant."""
    ours = OurScheduler(recorded["nodes"])
    for pod, node in recorded["steps"]:
        ours.set_pod(pod, node)
    ours.set_pod(recorded["claimant"])
    decision = checked_cycle(ours.state)
    if not decision.evictions:
        return OurPreemption([])
    ((_, node),) = [pair for held in decision.reservations.values() for pair in held.nodes]
    victims = [str(eviction.pod).partition("/")[2] for eviction in decision.evictions]
    return OurPreemption(sorted(victims), str(node))


def read_scenes() -> Mapping[str, list[Json]]:
    """Return the recorded scenes: those of filters, and those of preemption."""
    recorded: dict[str, list[Json]] = json.loads(RECORDED.read_text())
    return recorded


def filter_scene(seed: int) -> Json:
    """Make nodes, pods without names, and steps: the number of the next pod in the list, which is
    named after the step, or the name of a pod that begins to end.
    """
    random = Random(seed)
    nodes = _nodes(random, random.choice((3, 4, 4, 5)))
    makers = random.choice((_ALL, _NODES, _PORTS, _AFFINITY, _SPREAD, _SPREAD))
    pods = [_pod(random, makers) for _ in range(random.choice((3, 4, 5)))]
    steps: list[Any] = []
    for number in range(random.choice((10, 12, 14))):
        ends = number > 2 and _chance(random, 0.2)
        steps.append(f"p{random.randrange(number)}" if ends else random.randrange(len(pods)))
    return {"nodes": nodes, "pods": pods, "steps": steps}


def preemption_scene(seed: int) -> Json:
    """Make nodes, pods that fill them, and a pod that is more important than most of them."""
    random = Random(seed)
    nodes = _nodes(random, random.choice((2, 3, 4)))
    fillers = []
    for number in range(random.choice((4, 6, 8))):
        filler = {"name": f"p{number}"} | _pod(random, _ALL, plain=0.6)
        filler["requests"] = {"cpu": random.choice(("1", "2", "2", "3"))}
        filler["priority"] = random.choice(("low", "low", "middle", "high"))
        fillers.append(filler)
    claimant = {"name": "claimant"} | _pod(random, _ALL, plain=0.5)
    claimant["requests"] = {"cpu": random.choice(("2", "3", "4"))}
    claimant["priority"] = random.choice(("middle", "high", "high"))
    return {"nodes": nodes, "steps": fillers, "claimant": claimant}


def _chance(random: Random, share: float) -> bool:
    return random.random() < share


def _nodes(random: Random, count: int) -> list[Json]:
    nodes: list[Json] = []
    for number in range(count):
        labels = {
            key: random.choice(values)
            for key, values in (
                ("zone", "ab"),
                ("rack", "rst"),
                ("size", ("3", "12", "x", "1_000")),
            )
            if _chance(random, 0.9)
        }
        node: Json = {"name": f"n{number}", "labels": labels}
        if _chance(random, 0.2):
            effect = random.choice(("NoSchedule", "NoExecute", "PreferNoSchedule"))
            node["taints"] = [[random.choice("kl"), random.choice(("v", "w", "")), effect]]
        if _chance(random, 0.1):
            node["unschedulable"] = True
        if _chance(random, 0.4):
            node["amounts"] = random.choice(
                ({"cpu": "2"}, {"pods": "2"}, {GPU: "2"}, {"memory": "2Gi"}, {"cpu": "2500m"})
            )
        nodes.append(node)
    return nodes


def _pod(random: Random, makers: _Makers, plain: float = 0.2) -> Json:
    """Make a pod without a name; ``plain`` is the share of pods without constraints."""
    pod: Json = {"labels": _labels(random)}
    if _chance(random, 0.15):
        pod["namespace"] = NAMESPACES[1]
    pod["requests"] = random.choice(
        ({}, {}, {"cpu": "500m"}, {"cpu": "1"}, {"cpu": "2"}, {"memory": "3Gi"}, {GPU: "1"})
    )
    if _chance(random, 0.1):
        pod["init"] = {"cpu": random.choice(("1", "3"))}
    if _chance(random, 0.4):
        pod["tolerations"] = [_toleration(random)]
    if _chance(random, plain):
        return pod
    for make in random.sample(makers, min(len(makers), random.choice((1, 1, 2, 3)))):
        pod.update(make(random))
    if "topologySpreadConstraints" in pod and _chance(random, 0.4):
        pod.setdefault("nodeSelector", {"zone": random.choice("ab")})
    if pod.keys() & {"nodeSelector", "nodeTerms"}:
        for constraint in (spread := pod.get("topologySpreadConstraints", []))[:1]:
            spread[:] = [constraint | {"topologyKey": HOST}]
    return pod


def _labels(random: Random) -> Json:
    return {
        key: value
        for key, values in (("app", ("a", "a", "b", "")), ("tier", ("x", "")))
        if (value := random.choice(values))
    }


def _toleration(random: Random) -> Json:
    made = random.choice(
        (
            {"operator": "Exists"},
            {"key": random.choice("kl"), "operator": "Exists"},
            {"key": random.choice("kl"), "value": random.choice("vw")},
            {"key": "k", "operator": "Equal"},
            {"key": "node.kubernetes.io/unschedulable", "operator": "Exists"},
        )
    )
    return made | (
        {"effect": random.choice(("NoSchedule", "NoExecute"))} if _chance(random, 0.3) else {}
    )


def _selector(random: Random) -> Json:
    """Make a label selector for pods."""
    return random.choice(
        (
            _APP_A,
            _APP_A,
            {"matchLabels": {"app": "b"}},
            {"matchLabels": {"tier": "x"}},
            {"matchLabels": {"app": "a", "tier": "x"}},
            {"matchExpressions": [{"key": "app", "operator": "In", "values": ["a", "b"]}]},
            {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["a"]}]},
            {"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]},
            {},
        )
    )


def _pod_terms(random: Random) -> list[Json]:
    terms = []
    for _ in range(random.choice((1, 1, 2))):
        term: Json = {"topologyKey": random.choice(KEYS)}
        if _chance(random, 0.95):
            term["labelSelector"] = _selector(random)
        if _chance(random, 0.3):
            term["namespaces"] = random.choice((["near"], ["far"], ["far", "near"]))
        terms.append(term)
    return terms


def _spread(random: Random) -> list[Json]:
    constraints = []
    keys = random.choice((["zone"], ["rack"], [HOST], ["zone", HOST], ["rack", HOST]))
    for key in keys:
        constraint: Json = {
            "topologyKey": key,
            "maxSkew": random.choice((1, 1, 1, 2)),
            "whenUnsatisfiable": random.choice(
                ("DoNotSchedule", "DoNotSchedule", "ScheduleAnyway")
            ),
        }
        if _chance(random, 0.95):
            constraint["labelSelector"] = random.choice((_APP_A, _selector(random)))
        constraints.append(constraint)
    return constraints


def _node_terms(random: Random) -> list[Json]:
    return [
        {"matchFields": [_field(random)]}
        if _chance(random, 0.15)
        else {"matchExpressions": list(_expressions(random))}
        for _ in range(random.choice((1, 1, 2)))
    ]


def _field(random: Random) -> Json:
    operator = random.choice(("In", "NotIn"))
    return {"key": "metadata.name", "operator": operator, "values": [f"n{random.randrange(3)}"]}


def _expressions(random: Random) -> Iterator[Json]:
    for _ in range(random.choice((1, 1, 2))):
        match random.choice(("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")):
            case "In" | "NotIn" as operator:
                values = random.sample(("r", "s", "t"), random.choice((1, 2)))
                yield {"key": "rack", "operator": operator, "values": values}
            case "Exists" | "DoesNotExist" as operator:
                yield {"key": random.choice(("zone", "rack")), "operator": operator}
            case operator:
                bound = random.choice(("2", "10", "100"))
                yield {"key": "size", "operator": operator, "values": [bound]}


def _ports(random: Random) -> list[Json]:
    port: Json = {"hostPort": random.choice((80, 80, 80, 81))}
    if _chance(random, 0.7):
        port["hostIP"] = random.choice(("0.0.0.0", "10.0.0.1", "10.0.0.2", "127.0.0.1"))
    if _chance(random, 0.2):
        port["protocol"] = "UDP"
    return [port]


_NODES: _Makers = (
    lambda random: {"nodeTerms": _node_terms(random)},
    lambda random: {"nodeSelector": {"zone": random.choice("ab")}},
    lambda random: {"tolerations": [_toleration(random)]},
)
_PORTS: _Makers = (lambda random: {"ports": _ports(random)},)
_AFFINITY: _Makers = (
    lambda random: {"podAffinity": _pod_terms(random)},
    lambda random: {"podAntiAffinity": _pod_terms(random)},
)
_SPREAD: _Makers = (lambda random: {"topologySpreadConstraints": _spread(random)},)
_ALL: _Makers = (*_NODES, *_PORTS, *_AFFINITY, *_AFFINITY, *_SPREAD, *_SPREAD)
