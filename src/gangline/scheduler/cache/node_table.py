"""The node table: allocatable and used amounts as arrays, and which nodes accept which pods.

Each resource is a column of the table and each node a row index, so that a pod is compared with all
nodes in one array operation. Rows of removed nodes are reused; an empty row accepts no pod. All
data is updated in place as nodes and pods change. A cycle copies only the free amounts.

Equally good nodes are ordered by name. With a seed they are ordered by a hash of seed and name, so
that added or removed nodes do not change the order of the others.

Network domains (HyperNodes) are sets of rows. A domain has a tier, 1 being the closest. Its members
are nodes, or domains of lower tiers.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from gangline.scheduler.cache.node_stats import (
    CountedResource,
    DeviceModels,
    NodeStats,
    ResourceDemand,
    Rows,
    ScoreCache,
    ScoringInputs,
    StrandingCache,
    columns_needed,
    resource_demand,
    score_rows,
)
from gangline.scheduler.cache.volume_limits import AttachmentColumn
from gangline.scheduler.plugins.devices import DeviceState
from gangline.scheduler.plugins.filters import (
    count_prefer_no_schedule,
    filter_message,
    term_matches,
)
from gangline.scheduler.plugins.image_locality import ImageLocality
from gangline.scheduler.plugins.inter_pod import PodSelection, required_anti_affinity
from gangline.scheduler.plugins.scores import (
    Amounts,
    Scores,
    ScoreWeights,
    preference_score,
)
from gangline.scheduler.plugins.stranded_devices import (
    RequestMix,
    StrandedDevices,
    default_requests,
)
from gangline.scheduler.plugins.volumes import StorageState
from gangline.scheduler.types import (
    HOST_PORT_CAPACITY,
    HOST_PORT_PREFIX,
    HyperNodeInfo,
    HyperNodeMemberInfo,
    NetworkTopologyRule,
    NodeInfo,
    NodeName,
    NodeTerm,
    PlacementConstraints,
    PodInfo,
    PodKey,
    PodShape,
    Request,
)

Mask = NDArray[np.bool_]
DEFAULT_WEIGHTS = ScoreWeights()
MAX_CACHED_CONSTRAINTS = 1024
"""Cached evaluations, one for each distinct set of constraints; the oldest is dropped."""


@dataclass(frozen=True, slots=True, eq=False)
class TopologyDomain:
    name: str
    tier: int
    rows: Mask


@dataclass(slots=True)
class NodeEligibility:
    """Which nodes accept one set of constraints, why the others refuse, and which are preferred."""

    accepted: NDArray[np.bool_]
    messages: list[str]
    preference: NDArray[np.float64]
    has_preference: bool
    prefer_no_schedule: NDArray[np.int32]
    """Number of untolerated PreferNoSchedule taints of each node."""
    has_prefer_no_schedule: bool = False
    """True if some node has, or had, such a taint."""
    counts: Counter[str] = field(default_factory=Counter)
    """Number of refusing nodes by message."""

    def set_message(self, row: int, why: str) -> None:
        """Record a row's message; empty: the node accepts the pod, or the row is empty."""
        if former := self.messages[row]:
            self.counts[former] -= 1
        if why:
            self.counts[why] += 1
        self.messages[row] = why


class NodeTable:
    """All nodes. Used amounts include the pods of all schedulers."""

    def __init__(self, weights: ScoreWeights = DEFAULT_WEIGHTS) -> None:
        self.weights = weights
        self.rows: dict[NodeName, int] = {}
        self.columns: dict[str, int] = {}
        self.infos: list[NodeInfo | None] = []
        self.allocatable: Amounts = np.zeros((0, 0), dtype=np.int64)
        self.used: Amounts = np.zeros((0, 0), dtype=np.int64)
        self.lasting: Amounts = np.zeros((0, 0), dtype=np.int64)
        """The part of ``used`` that may never end (``PodInfo.may_run_forever``)."""
        self.lasting_pods: dict[PodKey, PodInfo] = {}
        """The pods of ``lasting``."""
        self.pods_by_node: Mapping[NodeName, Mapping[PodKey, PodInfo]] = {}
        """Pods by node; the owner of the table keeps this mapping."""
        self.anti_affinity_owners: dict[PodSelection, Counter[int]] = {}
        """Anti-affinity terms of running pods, with the number of their owners on each row."""
        self._counts: dict[PodSelection, NDArray[np.int64]] = {}
        self.hypernodes: dict[str, HyperNodeInfo] = {}
        """Network domains as they are described."""
        self._domains: list[TopologyDomain] | None = None
        self._free_rows: list[int] = []
        self._eligible: dict[PlacementConstraints, NodeEligibility] = {}
        self._demands: dict[Request, ResourceDemand] = {}
        self._tie_order = TieOrder(weights.seed)
        self.feasibility: dict[object, bool] = {}
        """Whether gangs would fit if all gangs had ended, by equivalence key. Dropped when nodes
        change, or pods that may never end.
        """
        self._score_cache = ScoreCache()
        self._stats = NodeStats()
        self._images = ImageLocality() if weights.images else None
        """None: image locality has no weight."""
        self.request_mix = RequestMix()
        """What pods with devices request; the owner of the table reports pods to it."""
        self._stranding: StrandingCache | None = None
        self._stranding_is_current = False
        self._port_columns: list[int] = []
        self._supplied: set[int] = set()
        self.attachment_columns: dict[int, AttachmentColumn] = {}
        """Columns of claims whose attachments are counted together."""
        self.storage = StorageState()
        """Claims and volumes; the owner of the table keeps it."""
        self.devices = DeviceState()
        """Claims of devices; the owner of the table keeps it."""
        self._matching_rows: dict[tuple[NodeTerm, ...], frozenset[int]] = {}
        self._rows_by_label: dict[str, dict[str, list[int]]] = {}
        """Rows by label and value, as far as terms of volumes have asked for them."""

    def __len__(self) -> int:
        return len(self.rows)

    def name_of(self, row: int) -> NodeName:
        node = self.infos[row]
        assert node is not None
        return node.name

    def set(self, node: NodeInfo) -> None:
        """Add or change a node. Its used amounts stay."""
        row = self.rows.get(node.name)
        if row is None:
            row = self._new_row(node.name)
        self._replace_node(row, node)
        self._domains = None
        self.feasibility.clear()
        self._score_cache.mark_changed(row)
        self._ensure_columns(node.allocatable)
        self.allocatable[:, row] = 0
        self.used[list(self._supplied), row] = self.lasting[list(self._supplied), row] = 0
        for resource, amount in node.allocatable:
            self.allocatable[self.columns[resource], row] = amount
        self.allocatable[self._port_columns, row] = HOST_PORT_CAPACITY
        for constraints, eligible in self._eligible.items():
            self._evaluate(constraints, eligible, row)

    def remove(self, name: NodeName) -> None:
        row = self.rows.pop(name, None)
        if row is None:
            return
        for key in self.pods_by_node.get(name, ()):
            self.lasting_pods.pop(key, None)
        self._replace_node(row, None)
        self.feasibility.clear()
        self._score_cache.mark_changed(row)
        self._domains = None
        for counts in self._counts.values():
            counts[row] = 0
        for owner in list(self.anti_affinity_owners):
            self.anti_affinity_owners[owner].pop(row, None)
            if not self.anti_affinity_owners[owner]:
                del self.anti_affinity_owners[owner]
        for amounts in (self.allocatable, self.used, self.lasting):
            amounts[:, row] = 0
        for eligible in self._eligible.values():
            eligible.accepted[row] = False
            eligible.set_message(row, "")
        self._free_rows.append(row)
        self._tie_order.invalidate()

    def charge_pod(self, pod: PodInfo, sign: int = 1) -> None:
        """Charge a pod's request to its node (``sign`` -1: release it)."""
        row = self.rows.get(pod.node) if pod.node is not None else None
        if row is None:
            return
        if self._counts or pod.shape.constraints.inter_pod is not None:
            self._count_inter_pod(pod, row, sign)
        self._score_cache.mark_changed(row)
        lasting = pod.may_run_forever
        for column, amount, _ in self.demand(pod.shape.request).terms:
            self.used[column, row] += sign * amount
            if lasting:
                self.lasting[column, row] += sign * amount
        if lasting:
            self.feasibility.clear()
            if sign > 0:
                self.lasting_pods[pod.key] = pod
            else:
                self.lasting_pods.pop(pod.key, None)

    def demand(self, request: Request) -> ResourceDemand:
        """Return a request in columns of the table; resources that no node has get a column of
        zeros.
        """
        demand = self._demands.get(request)
        if demand is None:
            self._ensure_columns(columns_needed(request, self.weights))
            demand = resource_demand(request, self.columns, self.weights)
            if len(self._demands) >= MAX_CACHED_CONSTRAINTS:
                self._demands.pop(next(iter(self._demands)))
            self._demands[request] = demand
        return demand

    def set_counted_resource(
        self, resource: str, stocks: Mapping[NodeName, CountedResource]
    ) -> None:
        """Set amounts of a resource that nodes do not report themselves, until a node changes."""
        self._ensure_columns(((resource, 0),))
        column = self.columns[resource]
        self._supplied.add(column)
        tables = self.allocatable, self.used, self.lasting
        had = np.stack([table[column] for table in tables])
        for table in tables:
            table[column] = 0
        for name, stock in stocks.items():
            if (row := self.rows.get(name)) is not None:
                for table, amount in zip(tables, stock, strict=True):
                    table[column, row] = amount
        now = np.stack([table[column] for table in tables])
        changed = np.flatnonzero((had != now).any(axis=0)).tolist()
        for row in changed:
            self._score_cache.mark_changed(row)
        if changed:
            self.feasibility.clear()

    def eligible(self, constraints: PlacementConstraints) -> NodeEligibility:
        """Return which nodes accept ``constraints``; evaluated once, then kept current."""
        eligible = self._eligible.get(constraints)
        if eligible is None:
            size = len(self.infos)
            eligible = NodeEligibility(
                np.zeros(size, dtype=bool),
                [""] * size,
                np.zeros(size),
                bool(constraints.preferred),
                np.zeros(size, dtype=np.int32),
            )
            for row in self.rows.values():
                self._evaluate(constraints, eligible, row)
            if len(self._eligible) >= MAX_CACHED_CONSTRAINTS:
                self._eligible.pop(next(iter(self._eligible)))
            self._eligible[constraints] = eligible
        return eligible

    def count_filter_messages(self, constraints: PlacementConstraints) -> Counter[str]:
        """Return the number of refusing nodes by message."""
        return +self.eligible(constraints).counts

    def topology_domains_of(self, label: str) -> NDArray[np.intp]:
        """Return the topology domain number of each row by a node label; -1 without the label."""
        return self._stats.topology_domains_of(label, self.rows, self.infos)

    def count_pods(self, selection: PodSelection) -> NDArray[np.int64]:
        """Return the number of selected pods on each row; counted once, then updated."""
        counts = self._counts.get(selection)
        if counts is None:
            counts = np.zeros(len(self.infos), dtype=np.int64)
            for name, row in self.rows.items():
                counts[row] = sum(map(selection.matches, self.pods_by_node.get(name, {}).values()))
            if len(self._counts) >= MAX_CACHED_CONSTRAINTS:
                self._counts.pop(next(iter(self._counts)))
            self._counts[selection] = counts
        return counts

    def _count_inter_pod(self, pod: PodInfo, row: int, sign: int) -> None:
        for selection, counts in self._counts.items():
            if selection.matches(pod):
                counts[row] += sign
        for owner in required_anti_affinity(pod):
            rows = self.anti_affinity_owners.setdefault(owner, Counter())
            rows[row] += sign
            if not rows[row]:
                del rows[row]
            if not rows:
                del self.anti_affinity_owners[owner]

    def rank(self) -> NDArray[np.intp]:
        """Return each row's rank in the order that breaks ties; it does not depend on arrival."""
        return self._tie_order.rank(self.rows, len(self.infos))

    @property
    def in_tie_order(self) -> bool:
        """True if the first of equal rows is also the first in the order that breaks ties."""
        return self._tie_order.is_row_order(self.rows, len(self.infos))

    def set_hypernode(self, hypernode: HyperNodeInfo) -> None:
        self.hypernodes[hypernode.name] = hypernode
        self.feasibility.clear()
        self._domains = None

    def remove_hypernode(self, name: str) -> None:
        self.hypernodes.pop(name, None)
        self.feasibility.clear()
        self._domains = None

    def domains(self) -> list[TopologyDomain]:
        """Return the network domains, the closest tier first."""
        if self._domains is None:
            self._domains = topology_domains(self.hypernodes, self.infos)
        return self._domains

    def usable(self) -> NDArray[np.bool_]:
        """Return a mask of the rows whose nodes are ready and not cordoned."""
        return self._stats.usable(self.infos)

    def tainted(self) -> NDArray[np.bool_]:
        """Return a mask of the rows whose nodes have a NoSchedule or NoExecute taint."""
        return self._stats.tainted(self.infos)

    def has_devices(self) -> NDArray[np.bool_]:
        """Return a mask of the rows whose nodes have an extended resource."""
        return self._stats.has_devices(self.infos)

    def models(self) -> DeviceModels | None:
        """Return the device models of the nodes; None: all devices are of one model."""
        return self._stats.models(self.infos)

    def _current_stranding(self) -> StrandingCache | None:
        """Return what counts stranded devices; None: there are none, or they have no weight."""
        mix, former = self.request_mix, self._stranding
        if self._stranding_is_current and not mix.has_arrivals:
            return former
        has_devices = bool(self.weights.stranded_devices and self.has_devices().any())
        # Without devices the mix is updated as well: else it would keep all pods.
        changed = mix.update(
            default_requests(self.columns, self.allocatable) if has_devices else ()
        )
        if changed or not self._stranding_is_current:
            current = self._stranding = self._new_stranding() if has_devices else None
            if former is not None and current is not None:
                if not current.devices.counts_like(former.devices):
                    self._score_cache.clear()
            elif former is not current:
                self._score_cache.clear()
            self._stranding_is_current = True
        return self._stranding

    def _new_stranding(self) -> StrandingCache:
        devices = StrandedDevices(self.request_mix.typical, self.columns, self.allocatable)
        accepted = (self.eligible(constraints).accepted for constraints in devices.constraints)
        return StrandingCache(devices, self.allocatable, accepted)

    def block_size(self, demand: ResourceDemand, pods: int) -> int:
        """Return how many of these equal pods are placed together."""
        stranding = self._current_stranding() if pods > 1 else None
        return 1 if stranding is None else stranding.devices.block_size(demand.amounts, pods)

    def scoring_inputs(self, shape: PodShape, free: Amounts, block: int = 1) -> ScoringInputs:
        eligible = self.eligible(shape.constraints)
        stranding = self._current_stranding()
        return ScoringInputs(
            free,
            self.allocatable,
            self.has_devices(),
            eligible.accepted,
            eligible.preference if eligible.has_preference else None,
            self.weights,
            eligible.prefer_no_schedule if eligible.has_prefer_no_schedule else None,
            images=self._images.scores(shape.images, len(self.infos))
            if self._images is not None and shape.images
            else None,
            stranding=None if stranding is None else stranding.devices,
            qualities=None
            if stranding is None
            else stranding.qualities(shape.request, self.demand(shape.request), block),
            block=block,
        )

    def scores(self, shape: PodShape, free: Amounts, block: int = 1) -> Scores:
        """Return the score of each row for a shape with the current free amounts; read-only."""
        demand = self.demand(shape.request)
        self._current_stranding()  # first: it may drop cached scores

        def compute(rows: Rows) -> Scores:
            return score_rows(self.scoring_inputs(shape, free, block), demand, rows)

        return self._score_cache.get(shape, block, compute)

    def _evaluate(
        self, constraints: PlacementConstraints, eligible: NodeEligibility, row: int
    ) -> None:
        node = self.infos[row]
        assert node is not None
        why = filter_message(constraints, node)
        eligible.set_message(row, why)
        eligible.accepted[row] = not why
        if eligible.has_preference:
            eligible.preference[row] = preference_score(constraints, node)
        if marks := count_prefer_no_schedule(constraints, node):
            eligible.has_prefer_no_schedule = True
        eligible.prefer_no_schedule[row] = marks

    def rows_matching(self, terms: tuple[NodeTerm, ...]) -> Set[int]:
        """Return the rows whose nodes match one of these terms; cached until a node changes."""
        rows = self._matching_rows.get(terms)
        if rows is None:
            rows = self._matching_rows[terms] = frozenset(
                row
                for term in terms
                for row in self._candidate_rows(term)
                if (node := self.infos[row]) is not None
                and term_matches(term, dict(node.labels), node.name)
            )
        return rows

    def _candidate_rows(self, term: NodeTerm) -> Iterable[int]:
        """Return rows among which a term matches: a local volume matches one node of thousands."""
        for expression in term.labels:
            if expression.operator == "In":
                by_value = self._rows_by_label.get(expression.key)
                if by_value is None:
                    by_value = self._rows_by_label[expression.key] = {}
                    for row in self.rows.values():
                        node = self.infos[row]
                        value = dict(node.labels).get(expression.key) if node is not None else None
                        if value is not None:
                            by_value.setdefault(value, []).append(row)
                return [row for value in expression.values for row in by_value.get(value, ())]
        return self.rows.values()

    def _replace_node(self, row: int, node: NodeInfo | None) -> None:
        if node != self.infos[row]:
            self._stranding_is_current = False
        self._matching_rows.clear()
        self._rows_by_label.clear()
        self._stats.update_row(row, self.infos[row], node)
        if self._images is not None and (
            moved := self._images.update_node(row, self.infos[row], node)
        ):
            self._score_cache.drop_images(moved)
        self.infos[row] = node

    def _new_row(self, name: NodeName) -> int:
        if not self._free_rows:
            self._grow_rows()
        row = self._free_rows.pop()
        self.rows[name] = row
        self._tie_order.invalidate()
        return row

    def _grow_rows(self) -> None:
        """Add an eighth to the rows, so that adding nodes one by one has a small amortised cost.

        A larger reserve would slow down every cycle, since array operations cover empty rows too.
        """
        size = len(self.infos)
        added = max(16, size // 8)
        self.infos += [None] * added
        # numpy.pad takes many times as long for arrays of this shape.
        more = np.zeros((len(self.columns), added), dtype=np.int64)
        self.allocatable = np.hstack((self.allocatable, more))
        self.used = np.hstack((self.used, more))
        self.lasting = np.hstack((self.lasting, more))
        for eligible in self._eligible.values():
            none = np.zeros(added, dtype=bool)
            eligible.accepted = np.concatenate([eligible.accepted, none])
            eligible.preference = np.append(eligible.preference, np.zeros(added))
            eligible.prefer_no_schedule = np.append(
                eligible.prefer_no_schedule, none.astype(np.int32)
            )
            eligible.messages += [""] * added
        for selection, counts in self._counts.items():
            self._counts[selection] = np.append(counts, np.zeros(added, dtype=np.int64))
        self._stats.invalidate()
        self._score_cache.clear()
        self._free_rows += range(size + added - 1, size - 1, -1)

    def _ensure_columns(self, request: Request) -> None:
        new = [resource for resource, _ in request if resource not in self.columns]
        if not new:
            return
        for resource in new:
            self.columns[resource] = len(self.columns)
        more = np.zeros((len(new), len(self.infos)), dtype=np.int64)
        self.allocatable = np.vstack((self.allocatable, more))
        self.used = np.vstack((self.used, more))
        self.lasting = np.vstack((self.lasting, more))
        ports = [
            self.columns[resource] for resource in new if resource.startswith(HOST_PORT_PREFIX)
        ]
        if ports:
            self._port_columns += ports
            self.allocatable[np.ix_(ports, list(self.rows.values()))] = HOST_PORT_CAPACITY


class TieOrder:
    """Computed on demand and cached until nodes are added or removed.

    Args:
        seed: which order; 0: by name.
    """

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self._rank: NDArray[np.intp] | None = None
        self._is_row_order = False

    def invalidate(self) -> None:
        self._rank = None

    def rank(self, rows: Mapping[NodeName, int], size: int) -> NDArray[np.intp]:
        """Return the rank of each row; undefined for empty rows."""
        if self._rank is None:
            self._rank = np.zeros(size, dtype=np.intp)
            names = sorted(rows, key=self._seeded_key) if self._seed else sorted(rows)
            ordered = [rows[name] for name in names]
            self._rank[ordered] = np.arange(len(ordered))
            self._is_row_order = ordered == sorted(ordered)
        return self._rank

    def is_row_order(self, rows: Mapping[NodeName, int], size: int) -> bool:
        """Return whether the first of several rows is also the first in this order."""
        self.rank(rows, size)
        return self._is_row_order

    def _seeded_key(self, name: NodeName) -> tuple[bytes, NodeName]:
        return blake2b(f"{self._seed}/{name}".encode(), digest_size=8).digest(), name


def topology_domains(
    hypernodes: Mapping[str, HyperNodeInfo], nodes: Iterable[NodeInfo | None]
) -> list[TopologyDomain]:
    """Return all domains, the closest tier first. A cycle of domains ends where it closes."""
    listed = list(nodes)
    masks: dict[str, Mask] = {}

    def rows(name: str, above: frozenset[str]) -> Mask:
        if name in masks:
            return masks[name]
        mask = np.zeros(len(listed), dtype=bool)
        for member in hypernodes[name].members:
            if member.hypernode:
                for other in hypernodes:
                    if other not in above and _matches_name(member, other):
                        mask |= rows(other, above | {other})
            else:
                mask |= np.array([node is not None and _selects(member, node) for node in listed])
        masks[name] = mask
        return mask

    domains = [
        TopologyDomain(n, hypernode.tier, rows(n, frozenset({n})))
        for n, hypernode in hypernodes.items()
    ]
    return sorted(domains, key=lambda domain: (domain.tier, domain.name))


def _matches_name(member: HyperNodeMemberInfo, name: str) -> bool:
    if member.exact:
        return name == member.exact
    try:
        return bool(member.pattern) and re.search(member.pattern, name) is not None
    except re.error:
        return False


def _selects(member: HyperNodeMemberInfo, node: NodeInfo) -> bool:
    if member.labels:
        return set(member.labels) <= set(node.labels)
    return _matches_name(member, node.name)


def highest_tier(rule: NetworkTopologyRule, hypernodes: Mapping[str, HyperNodeInfo]) -> int:
    """Return the highest tier of a domain that may hold the gang."""
    tiers = [hypernode.tier for hypernode in hypernodes.values()]
    if rule.tier_name:
        named = [
            hypernode.tier
            for hypernode in hypernodes.values()
            if hypernode.tier_name == rule.tier_name
        ]
        return max(named, default=0)
    return rule.tier if rule.tier is not None else max(tiers, default=0)
