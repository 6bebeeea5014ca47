"""Reads the scenarios of the YAML files in this folder, and runs them.

A scenario describes a cluster (nodes, queues, gangs, single pods) and the expected result of the
next cycle: which pods get which nodes, which are evicted, which are pending and why. Later steps
change something first. Each result is checked by the oracle and applied immediately; evicted pods
are recreated, as their operators would do.

An id such as ``P4`` is that of the row in the specification of Volcano's behaviour which the
scenario plays. A letter after it (``P4b``) marks a variant of the row, ``differs`` says where
another result than Volcano's is expected. Scenarios that are not Volcano's have ids with D, E, V or
W.
"""

from collections.abc import Iterator
from itertools import permutations, product, starmap
from pathlib import Path
from random import Random

import msgspec
import yaml
from msgspec.structs import replace

from gangline.api.meta.selectors import Requirement, Selector
from gangline.api.volcano.scheduling import PodGroupStatus
from gangline.scheduler.plugins.volumes import ClaimInfo, VolumeInfo
from gangline.scheduler.preemption.reservations import LOST_MEMBER_RESERVATION_S
from gangline.scheduler.reporting.reporter import phase_of
from gangline.scheduler.types import (
    CycleResult,
    DisruptionBudgetInfo,
    GroupKey,
    HyperNodeInfo,
    HyperNodeMemberInfo,
    InterPodRules,
    NetworkTopologyRule,
    NodeInfo,
    NodeName,
    PlacementConstraints,
    PodInfo,
    PodKey,
    PodTerm,
    PreviousNodes,
    QueueInfo,
    QuotaInfo,
    Reservation,
    SubgroupRule,
)
from unit.scheduler.builders import cluster, decide, group, node, pod, request
from unit.scheduler.oracle.check import check_result

BEGIN = 1000.0
"""Time of the first cycle."""
RESTART_S = 180.0
"""How long previous nodes are kept."""
LONGEST = 100
"""Number of cycles after which a scenario must be stable."""
DRIVER = "disk.example.com"
"""Storage driver of all volumes."""
MAX_ARRANGED = 24
"""Maximal number of arrangements in which a scenario is played."""


class Strict(msgspec.Struct, forbid_unknown_fields=True):
    """A part of a scenario; unknown fields are errors."""


class Node(Strict):
    """What a node has."""

    cpu: float = 0
    memory: float = 0
    gpu: int = 0
    pods: int = 110
    labels: dict[str, str] = {}
    ready: bool = True
    cordoned: bool = False
    attachable: int | None = None
    """Number of volumes that can be attached; None: unlimited."""


class Pods(Strict):
    """Equivalent pods."""

    count: int = 1
    cpu: float = 0
    memory: float = 0
    gpu: int = 0
    port: int = 0
    role: str = ""
    on: str | list[str] | None = None
    select: dict[str, str] = {}
    priority: int | None = None
    protected: bool = False
    gated: bool = False
    terminating: bool = False
    slow: int = 0
    """Number of cycles that the pods take to end after they were evicted."""
    labels: dict[str, str] = {}
    avoids: dict[str, str] = {}
    """Labels of pods that they do not share a node with."""
    apart: str = "kubernetes.io/hostname"
    """Node label of the domains that ``avoids`` refers to."""
    volumes: int = 0
    """Number of volumes of each pod."""
    phase: str = ""
    limit: float = 0
    """Seconds after which the pods end at the latest; 0: unknown."""
    lost: float | None = None
    """Seconds of work that would be lost; None: since the first cycle of all."""
    never_preempts: bool = False
    foreign: bool = False
    job: bool = False
    """Whether a Job of Kubernetes controls them."""


class Subgroups(Strict):
    """Subgroups of a gang: pods with equal values of a label."""

    size: int
    min: int = 0
    key: str = "part"
    tier: int | None = None


class Gang(Strict):
    """A pod group and its pods, which are named GANG-0, GANG-1 and so on."""

    pods: list[Pods]
    min: int = 0
    roles: dict[str, int] = {}
    queue: str = "default"
    priority: int = 0
    at: int = 0
    protected: bool = False
    tier: int | None = None
    soft_tier: int | None = None
    subgroups: Subgroups | None = None
    min_resources: dict[str, float] = {}
    reserved: list[str] = []
    """Nodes that are reserved for its pods, in their order, after evictions."""
    previous: dict[str, str] = {}
    """Nodes to which its pods go back after a restart."""


class Queue(Strict):
    """A queue."""

    weight: int = 1
    deserved: dict[str, float] = {}
    guarantee: dict[str, float] = {}
    capability: dict[str, float] = {}
    reclaimable: bool = True
    priority: int = 0
    parent: str = ""
    open: bool = True
    fifo: bool = False


class Budget(Strict):
    """A disruption budget."""

    labels: dict[str, str]
    allowed: int = 0


class Domain(Strict):
    """A network domain: nodes, or other domains."""

    tier: int
    nodes: list[str] = []
    domains: list[str] = []


class Expected(Strict):
    """The expected result. A missing field is not checked, except that missing binds and evicts are
    empty unless an end state is given.
    """

    binds: dict[str, str | None] | None = None
    """Pods that get nodes, all of them; without a node: any."""
    order: list[str] = []
    """Pods in the order in which they are served."""
    evicts: list[str] | None = None
    evicted: int | None = None
    """Number of evicted pods."""
    reasons: dict[str, str | list[str]] = {}
    """Texts in the reasons of pending gangs."""
    codes: dict[str, str] = {}
    """CamelCase reasons of pending gangs."""
    phases: dict[str, str] = {}
    runs: dict[str, int] = {}
    """How many pods of each gang hold a node, once nothing changes any more."""
    together: dict[str, list[str]] = {}
    """Domains, one of which has all pods of a gang in the end."""


class Step(Strict):
    """A change, and the expected result of the next cycle."""

    delete: list[str] = []
    """Pods, or gangs with all of their pods."""
    finish: list[str] = []
    lose: list[str] = []
    """Pods that are deleted, and whose places are kept for their gangs."""
    recreate: list[str] = []
    """Pods that were deleted."""
    after: float = 60
    """Seconds since the last cycle."""
    nodes: dict[str, Node] = {}
    """Nodes that are added or changed."""
    gangs: dict[str, Gang] = {}
    expect: Expected = msgspec.field(default_factory=Expected)


class Scenario(Strict):
    """One scenario."""

    id: str
    says: str
    differs: str = ""
    """How the result differs from that of the row, and why."""
    nodes: dict[str, Node] = {}
    queues: dict[str, Queue] = {}
    gangs: dict[str, Gang] = {}
    pods: dict[str, Pods] = {}
    domains: dict[str, Domain] = {}
    budgets: dict[str, Budget] = {}
    arranged: list[str] = []
    """Gangs whose names are exchanged in every way, and with them the names of all nodes."""
    quota: dict[str, int] = {}
    """What the namespace may have at most, by the quota's own names; nothing of it is used."""
    expect: Expected = msgspec.field(default_factory=Expected)
    then: list[Step] = []


def scenarios() -> Iterator[Scenario]:
    """Read all scenarios."""
    for path in sorted(Path(__file__).parent.glob("*.yaml")):
        parsed = yaml.load(path.read_text("utf-8"), yaml.CSafeLoader)
        yield from msgspec.convert(parsed, list[Scenario])


def arrangements(scenario: Scenario) -> Iterator[Scenario]:
    """Yield a scenario with the names of its nodes, and of its arranged gangs, exchanged: in all
    ways, or in some of them if there are many.
    """
    ways = list(product(permutations(scenario.nodes), permutations(scenario.arranged)))
    for nodes, gangs in Random(0).sample(ways, min(len(ways), MAX_ARRANGED)):
        places = dict(zip(scenario.nodes, nodes, strict=True))
        names = dict(zip(scenario.arranged, gangs, strict=True))
        made = msgspec.json.decode(msgspec.json.encode(scenario), type=Scenario)
        made.nodes = {places[name]: each for name, each in made.nodes.items()}
        made.gangs = {names.get(name, name): each for name, each in made.gangs.items()}
        made.arranged = []
        for gang in made.gangs.values():
            for kind in gang.pods:
                if isinstance(kind.on, list):
                    kind.on = [places[each] for each in kind.on]
                elif kind.on is not None:
                    kind.on = places[kind.on]
        yield made


class Play:
    """A scenario that is played.

    Args:
        scenario: the scenario.
        slow: number of cycles that evicted pods take to end, unless the scenario says more.
    """

    def __init__(self, scenario: Scenario, slow: int = 0) -> None:
        self.domains = scenario.domains
        self.now = BEGIN
        self.slow = slow
        self._slow_pods: dict[PodKey, int] = {}
        """Cycles that pods take to end."""
        self._ending: dict[PodKey, int] = {}
        """Cycles after which evicted pods will have ended."""
        self._deleted: dict[str, PodInfo] = {}
        self.state = cluster(
            *starmap(_node, scenario.nodes.items()),
            *(_queue(name, each) for name, each in scenario.queues.items()),
        )
        for name, domain in scenario.domains.items():
            members = [HyperNodeMemberInfo(False, exact=each) for each in domain.nodes]
            members += [HyperNodeMemberInfo(True, exact=each) for each in domain.domains]
            described = HyperNodeInfo(name, domain.tier, members=tuple(members))
            self.state.nodes.set_hypernode(described)
        for name, budget in scenario.budgets.items():
            selector = Selector(
                tuple(Requirement(key, "=", (value,)) for key, value in budget.labels.items())
            )
            known = DisruptionBudgetInfo(f"d/{name}", "d", selector, budget.allowed)
            self.state.budgets[known.key] = known
        self._set_attachable(scenario)
        for name, alone in scenario.pods.items():
            for each in _pods(name, None, [alone], 0):
                self.state.set_pod(each)
        if scenario.quota:
            facts = QuotaInfo("d/quota", tuple(sorted(scenario.quota.items())))
            self.state.quotas["d"] = {"quota": facts}
        self.add(scenario.gangs)

    def _set_attachable(self, scenario: Scenario) -> None:
        limits = {
            NodeName(name): {DRIVER: each.attachable}
            for name, each in scenario.nodes.items()
            if each.attachable is not None
        }
        if limits:
            self.state.storage.synced = True
            self.state.storage.limits.update(limits)

    def add(self, gangs: dict[str, Gang]) -> None:
        """Bring gangs in."""
        for name, each in gangs.items():
            slow = [kind.slow for kind in each.pods for _ in range(kind.count)]
            self._slow_pods |= {PodKey(f"d/{name}-{i}"): cycles for i, cycles in enumerate(slow)}
            tier = each.tier if each.tier is not None else each.soft_tier
            rule = NetworkTopologyRule(each.tier is not None, tier) if tier is not None else None
            self.state.set_group(
                group(
                    name,
                    each.min,
                    age=each.at,
                    min_task_member=tuple(sorted(each.roles.items())),
                    queue=each.queue,
                    priority=each.priority,
                    preemptable=not each.protected,
                    network=rule,
                    subgroups=_subgroups(each.subgroups),
                    min_resources=_amounts(each.min_resources),
                    previous_nodes=self._previous(each),
                )
            )
            if each.reserved:
                nodes = [
                    (PodKey(f"d/{name}-{n}"), NodeName(on)) for n, on in enumerate(each.reserved)
                ]
                reservation = Reservation(tuple(nodes), preempting=True, created_at=self.now - 1)
                self.state.reservations[f"d/{name}"] = reservation
            for made in _pods(name, name, each.pods, each.priority):
                for claim in made.claims:
                    volume = claim.replace("/", "-")
                    self.state.storage.claims[claim] = ClaimInfo(claim, volume=volume)
                    self.state.storage.volumes[volume] = VolumeInfo(volume, driver=DRIVER)
                self.state.set_pod(made)

    def _previous(self, gang: Gang) -> PreviousNodes | None:
        nodes = tuple((PodKey(f"d/{name}"), NodeName(on)) for name, on in gang.previous.items())
        return PreviousNodes(self.now + RESTART_S, nodes) if nodes else None

    def happen(self, step: Step) -> None:
        """Let happen what a step says."""
        self.now += step.after
        for name, described in step.nodes.items():
            self.state.set_node(_node(name, described))
        for name in step.lose:
            self._deleted[name] = lost = self.state.pods[PodKey(f"d/{name}")]
            self.state.remove_pod(lost.key)
            self.state.record_lost_member(lost, self.now, LOST_MEMBER_RESERVATION_S)
        for name in step.finish:
            self.state.set_pod(replace(self.state.pods[PodKey(f"d/{name}")], phase="Succeeded"))
        for name in step.delete:
            for key in list(
                self.state.members.get(GroupKey(f"d/{name}"), {PodKey(f"d/{name}"): 0})
            ):
                if key in self.state.pods:
                    self._deleted[key.removeprefix("d/")] = self.state.pods[key]
                self.state.remove_pod(key)
            self.state.remove_group(GroupKey(f"d/{name}"))
        for name in step.recreate:
            self.state.set_pod(_anew(self._deleted.pop(name)))
        self.add(step.gangs)

    def decide(self) -> CycleResult:
        """Run one cycle; the oracle checks its result."""
        decision = decide(self.state, self.now)
        check_result(self.state, decision, self.now)
        return decision

    def carry_out(self, decision: CycleResult) -> None:
        """Bind, and end and recreate evicted pods: of a broken gang all."""
        state = self.state
        state.reservations = dict(decision.reservations)
        for binding in decision.bindings:
            state.assume(binding.pod, binding.node)
            state.set_pod(replace(state.pods[binding.pod], phase="Running"))
        for eviction in decision.evictions:
            state.evict(eviction.pod, eviction.uid)
            self._ending[eviction.pod] = self._slow_pods.get(eviction.pod, 0) or self.slow
        for key in {eviction.group for eviction in decision.evictions if eviction.group}:
            members = state.members[key].values()
            stay = [each for each in members if each.holds_resources and not each.is_terminating]
            if len(stay) < state.groups[key].min_member:
                for member in stay:
                    state.evict(member.key, member.uid)
                    self._ending[member.key] = self._slow_pods.get(member.key, 0) or self.slow
        for key, cycles in list(self._ending.items()):
            if cycles:
                self._ending[key] = cycles - 1
                continue
            del self._ending[key]
            gone = state.pods[key]
            state.remove_pod(key)
            state.set_pod(_anew(gone))
            if gone.group is not None:
                state.former_members.pop(gone.group, None)

    def rest(self) -> None:
        """Run cycles until nothing changes."""
        for _ in range(LONGEST):
            decision, ending = self.decide(), bool(self._ending)
            self.carry_out(decision)
            if not (decision.bindings or decision.evictions or ending):
                return
        raise AssertionError("it never comes to rest")

    def running(self, gang: str) -> list[PodInfo]:
        """Return the members of a gang that hold resources."""
        members = self.state.members.get(GroupKey(f"d/{gang}"), {}).values()
        return [each for each in members if each.holds_resources]

    def phase(self, gang: str, decision: CycleResult) -> str:
        """Return the phase of a gang's group after a decision."""
        key = GroupKey(f"d/{gang}")
        verdicts = [verdict for verdict in decision.pending_reasons if verdict.group == key]
        members = self.state.members.get(key, {}).values()
        return phase_of(
            PodGroupStatus().phase,
            self.state.groups[key],
            list(members),
            verdicts[0] if verdicts else None,
        )


def _anew(gone: PodInfo) -> PodInfo:
    return replace(gone, uid=f"{gone.uid}+", node=None, phase="Pending", is_terminating=False)


def _node(name: str, described: Node) -> NodeInfo:
    return node(
        name,
        cpu=described.cpu,
        memory=described.memory,
        gpu=described.gpu,
        pods=described.pods,
        labels={"kubernetes.io/hostname": name, **described.labels},
        ready=described.ready,
        unschedulable=described.cordoned,
    )


def _queue(name: str, each: Queue) -> QueueInfo:
    facts = msgspec.structs.asdict(each)
    amounts = {kind: _amounts(facts[kind]) for kind in ("capability", "deserved", "guarantee")}
    return QueueInfo(name, **facts | amounts)


def _subgroups(written: Subgroups | None) -> tuple[SubgroupRule, ...]:
    if written is None:
        return ()
    rule = NetworkTopologyRule(True, written.tier) if written.tier is not None else None
    labelled = Selector((Requirement(written.key, "exists", ()),))
    return (SubgroupRule("parts", labelled, written.size, written.min, (written.key,), rule),)


def _amounts(written: dict[str, float]) -> tuple[tuple[str, int], ...]:
    return request(
        cpu=written.get("cpu", 0),
        memory=written.get("memory", 0),
        gpu=int(written.get("gpu", 0)),
        pods=0,
    )


def _pods(name: str, gang: str | None, kinds: list[Pods], priority: int) -> Iterator[PodInfo]:
    listed = [(kind, number) for kind in kinds for number in range(kind.count)]
    for index, (kind, number) in enumerate(listed):
        on = kind.on[number % len(kind.on)] if isinstance(kind.on, list) else kind.on
        where = PlacementConstraints(
            selector=tuple(sorted(kind.select.items())), inter_pod=_avoidance(kind)
        )
        facts: dict[str, object] = {
            "role": kind.role,
            "priority": priority if kind.priority is None else kind.priority,
            "preemptable": not kind.protected,
            "may_preempt": not kind.never_preempts,
            "is_gated": kind.gated,
            "is_terminating": kind.terminating,
            "is_ours": not kind.foreign,
            "labels": tuple(sorted(kind.labels.items())),
            "claims": tuple(f"d/{name}-{index}-{n}" for n in range(kind.volumes)),
            "belongs_to_job": kind.job,
            "max_run_time_s": kind.limit,
        }
        if kind.phase:
            facts["phase"] = kind.phase
        if kind.lost is not None:
            facts["started_at"] = BEGIN - kind.lost
        yield pod(
            f"{name}-{index}" if gang else name,
            cpu=kind.cpu,
            memory=kind.memory,
            gpu=kind.gpu,
            port=kind.port,
            group=gang,
            on=on,
            constraints=where,
            **facts,  # type: ignore[arg-type]
        )


def _avoidance(kind: Pods) -> InterPodRules | None:
    if not kind.avoids:
        return None
    selector = Selector(tuple(Requirement(k, "=", (v,)) for k, v in kind.avoids.items()))
    return InterPodRules(anti_affinity=(PodTerm(selector, kind.apart),))
