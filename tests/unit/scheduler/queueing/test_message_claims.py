"""What the messages of pending gangs claim is checked by doing it."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest
from msgspec.structs import replace as changed

from gangline.api.meta.selectors import parse_label_selector
from gangline.scheduler.types import (
    GroupKey,
    InterPodRules,
    NetworkTopologyRule,
    NodeInfo,
    PlacementConstraints,
    PodGroupInfo,
    PodInfo,
    PodTerm,
    SpreadTerm,
    shape_of,
)
from unit.scheduler.builders import GPU, cluster, decide, group, node, on_label, pod

Facts = Sequence[NodeInfo | PodInfo | PodGroupInfo]
HOST = "kubernetes.io/hostname"
UNITS = {"": 1, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
STARTS_WITH = (
    r"a pod requests (.*?)(?:, the most .*?)?\. It starts when (\d+) more of its pods "
    r"finds? a node with that much free\."
)
PARTS, SEEDS = 4, range(80)


def random_facts(random: Random) -> list[NodeInfo | PodInfo | PodGroupInfo]:
    """Draw nodes, running and waiting gangs, and single pods; no node is overcommitted."""
    nodes = [
        node(
            f"n{i}",
            cpu=random.randint(1, 8),
            memory=random.choice((2, 4, 8)),
            gpu=random.choice((0, 0, 2, 4)),
            pods=random.choice((1, 2, 6, 20)),
            labels={"zone": random.choice("ab"), HOST: f"n{i}"},
            unschedulable=random.random() < 0.1,
        )
        for i in range(random.randint(1, 4))
    ]
    facts: list[NodeInfo | PodInfo | PodGroupInfo] = [*nodes]
    free = {one.name: Counter(dict(one.allocatable)) for one in nodes}
    for index in range(random.randint(1, 4)):
        name, size, is_running = f"g{index}", random.randint(1, 4), random.random() < 0.5
        near = NetworkTopologyRule(label="zone") if random.random() < 0.1 else None
        facts.append(group(name, random.randint(1, size), age=index, network=near))
        constraints = _constraints(random)
        for number in range(size):
            on = random.choice(nodes).name if is_running else None
            made = pod(
                f"{name}-{number}",
                cpu=random.randint(0, 4),
                memory=random.choice((0, 0, 1, 3)),
                gpu=random.choice((0, 0, 1, 2)),
                group=name,
                age=index,
                on=on,
                labels=(("app", random.choice("ab")),),
                constraints=constraints,
            )
            _add(facts, made, free)
    for index in range(random.randint(0, 2)):
        on = random.choice(nodes).name
        _add(facts, pod(f"s{index}", cpu=random.randint(0, 3), on=on), free)
    return facts


def _add(facts: list[NodeInfo | PodInfo | PodGroupInfo], made: PodInfo, free: object) -> None:
    assert isinstance(free, dict)
    if made.node is not None:
        left = free[made.node]
        if any(left[name] < amount for name, amount in made.shape.request):
            return
        left.subtract(dict(made.shape.request))
    facts.append(made)


def _constraints(random: Random) -> PlacementConstraints:
    zone = random.choice((None, None, "a", "b"))
    term = PodTerm(
        parse_label_selector(f"app={random.choice('ab')}"), random.choice(("zone", HOST))
    )
    rules = random.choice(
        (
            None,
            None,
            InterPodRules(affinity=(term,)),
            InterPodRules(anti_affinity=(term,)),
            InterPodRules(spread=(SpreadTerm(term),)),
        )
    )
    return replace(on_label(zone=zone) if zone else PlacementConstraints(), inter_pod=rules)


def starts(facts: Facts, key: GroupKey) -> bool:
    return any(binding.group == key for binding in decide(cluster(*facts)).bindings)


def amounts(text: str) -> dict[str, int]:
    listed = {}
    for name, value, unit in re.findall(r"(\S+) ([\d.]+)(Gi|Mi|Ki)?(?:, |$)", text):
        listed[name] = round(float(value) * (1000 if name == "cpu" else UNITS[unit]))
    return listed


def extra_node(name: str, zone: str, asked: dict[str, int]) -> NodeInfo:
    return node(
        name,
        cpu=asked.get("cpu", 0) / 1000,
        memory=asked.get("memory", 0) / 2**30,
        gpu=asked.get(GPU, 0),
        labels={"zone": zone, HOST: name},
    )


def untrue_claims(facts: Facts) -> list[str]:
    decision = decide(cluster(*facts))
    on = {binding.pod: binding.node for binding in decision.bindings}
    facts = [
        changed(one, node=on[one.key]) if isinstance(one, PodInfo) and one.key in on else one
        for one in facts
    ]
    untrue = []
    for verdict in decision.pending_reasons:
        key, message = verdict.group, verdict.message
        if verdict.reason != "NotEnoughResources" or key is None:
            continue
        alone = [f for f in facts if not isinstance(f, PodInfo) or f.group == key or f.node]
        waiting = [f for f in alone if isinstance(f, PodInfo) and f.group == key and not f.node]
        zone = dict(waiting[0].shape.constraints.selector).get("zone", "a")
        if "even if all running gangs had ended" in message:
            ended = [f for f in alone if not isinstance(f, PodInfo) or f.group in (None, key)]
            if starts(ended, key):
                untrue.append(message)
        if claim := re.search(STARTS_WITH, message):
            more = [extra_node(f"x{i}", zone, amounts(claim[1])) for i in range(int(claim[2]))]
            if not starts([*alone, *more], key):
                untrue.append(message)
        if claim := re.search(r"It needs at least (.*?) more, freed or added", message):
            for name, amount in amounts(claim[1]).items():
                plenty = {"cpu": 100_000, "memory": 2**40, GPU: 100}
                if starts([*alone, extra_node("x", zone, plenty | {name: amount - 1})], key):
                    untrue.append(message)
        if "Nodes with that much free are excluded" in message and len(waiting) == 1:
            lifted = [_without_limits(f) for f in alone]
            if not starts(lifted, key):
                untrue.append(message)
    return untrue


def _without_limits(fact: NodeInfo | PodInfo | PodGroupInfo) -> NodeInfo | PodInfo | PodGroupInfo:
    if isinstance(fact, NodeInfo):
        return replace(
            fact, allocatable=tuple((n, 200 if n == "pods" else a) for n, a in fact.allocatable)
        )
    if isinstance(fact, PodInfo):
        shape = fact.shape
        free = replace(shape.constraints, inter_pod=None)
        return changed(fact, shape=shape_of(shape.request, free))
    return fact


@pytest.mark.parametrize("part", range(PARTS))
def test_claims_of_messages_are_true(part: int) -> None:
    for seed in SEEDS[part::PARTS]:
        assert not (untrue := untrue_claims(random_facts(Random(seed)))), (seed, untrue)
