"""The node table: allocatable and used amounts as arrays, and which nodes accept which pods.

Each resource is a column of the table and each node a row index, so that a pod is compared with all
nodes in one array operation. Rows of removed nodes are reused; an empty row accepts no pod. All
data is updated in place as nodes and pods change. A cycle copies only the free amounts.
"""

from collections import Counter
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from gangline.scheduler.demand import Demand, Stock, columns_for, demand_of
from gangline.scheduler.domains import Domain, domains
from gangline.scheduler.eligibility import Eligibility
from gangline.scheduler.image_locality import ImageLocality
from gangline.scheduler.model import (
    HOST_PORT,
    Constraints,
    HyperNodeFacts,
    NodeFacts,
    NodeName,
    PodFacts,
    PodKey,
    Request,
    Shape,
)
from gangline.scheduler.node_traits import DeviceModels, NodeTraits
from gangline.scheduler.plugins.fragments import CommonPods, Popularity
from gangline.scheduler.plugins.node_filters import discouraging, refusal
from gangline.scheduler.plugins.node_scores import Amounts, Scores, Weights, preference
from gangline.scheduler.plugins.pod_relations import Pods
from gangline.scheduler.scoring import Ground, Rows, Standing, score_rows
from gangline.scheduler.shared_places import Taking
from gangline.scheduler.tie_order import TieOrder

DEFAULT_WEIGHTS = Weights()
MAX_CONSTRAINTS = 1024
"""Cached evaluations, one for each distinct set of constraints; the oldest is dropped."""


class NodeTable:
    """All nodes. Used amounts include the pods of all schedulers."""

    def __init__(self, weights: Weights = DEFAULT_WEIGHTS) -> None:
        self.weights = weights
        self.rows: dict[NodeName, int] = {}
        self.columns: dict[str, int] = {}
        self.facts: list[NodeFacts | None] = []
        self.allocatable: Amounts = np.zeros((0, 0), dtype=np.int64)
        self.used: Amounts = np.zeros((0, 0), dtype=np.int64)
        self.lasting: Amounts = np.zeros((0, 0), dtype=np.int64)
        """The part of ``used`` that may never end: pods that belong to no gang."""
        self.occupants: Mapping[NodeName, Mapping[PodKey, PodFacts]] = {}
        """Pods by node; the owner of the table keeps this mapping."""
        self.repelling: dict[Pods, Counter[int]] = {}
        """Anti-affinity terms of running pods, with the number of their owners on each row."""
        self._counts: dict[Pods, NDArray[np.int64]] = {}
        self.hypernodes: dict[str, HyperNodeFacts] = {}
        """Network domains as they are described."""
        self._domains: list[Domain] | None = None
        self._vacant: list[int] = []
        self._eligible: dict[Constraints, Eligibility] = {}
        self._demands: dict[Request, Demand] = {}
        self._order = TieOrder(weights.seed)
        self.possible: dict[object, bool] = {}
        """Whether gangs would fit if all gangs had ended, by equivalence key. Dropped when nodes
        change, or pods that belong to no gang.
        """
        self._standing = Standing()
        self.popularity = Popularity()
        """Counts of requests of pending and running pods."""
        self._traits = NodeTraits()
        self._images = ImageLocality() if weights.images else None
        """None: image locality has no weight."""
        self._port_columns: list[int] = []
        self._supplied: set[int] = set()
        self.takings: dict[int, Taking] = {}
        """Columns of claims whose attachments are counted together."""

    def __len__(self) -> int:
        return len(self.rows)

    def name_of(self, row: int) -> NodeName:
        node = self.facts[row]
        assert node is not None
        return node.name

    def set(self, node: NodeFacts) -> None:
        """Add or change a node. Its used amounts stay."""
        row = self.rows.get(node.name)
        if row is None:
            row = self._new_row(node.name)
        self._replace(row, node)
        self._domains = None
        self.possible.clear()
        self._standing.touch(row)
        self._ensure_columns(node.allocatable)
        self.allocatable[:, row] = 0
        self.used[list(self._supplied), row] = self.lasting[list(self._supplied), row] = 0
        for resource, amount in node.allocatable:
            self.allocatable[self.columns[resource], row] = amount
        self.allocatable[self._port_columns, row] = 1
        for constraints, eligible in self._eligible.items():
            self._evaluate(constraints, eligible, row)

    def remove(self, name: NodeName) -> None:
        row = self.rows.pop(name, None)
        if row is None:
            return
        self._replace(row, None)
        self.possible.clear()
        self._standing.touch(row)
        self._domains = None
        for counts in self._counts.values():
            counts[row] = 0
        for owner in list(self.repelling):
            self.repelling[owner].pop(row, None)
            if not self.repelling[owner]:
                del self.repelling[owner]
        for amounts in (self.allocatable, self.used, self.lasting):
            amounts[:, row] = 0
        for eligible in self._eligible.values():
            eligible.accepts[row] = False
            eligible.note(row, "")
        self._vacant.append(row)
        self._order.forget()

    def occupy(self, pod: PodFacts, sign: int = 1) -> None:
        """Charge a pod's request to its node (``sign`` -1: release it)."""
        row = self.rows.get(pod.node) if pod.node is not None else None
        if row is None:
            return
        if self._counts or pod.shape.constraints.relations is not None:
            self._relate(pod, row, sign)
        self._standing.touch(row)
        for column, amount, _ in self.demand(pod.shape.request).parts:
            self.used[column, row] += sign * amount
            if pod.group is None:
                self.possible.clear()
                self.lasting[column, row] += sign * amount

    def demand(self, request: Request) -> Demand:
        """Return a request in columns of the table; resources that no node has get a column of
        zeros.
        """
        demand = self._demands.get(request)
        if demand is None:
            self._ensure_columns(columns_for(request, self.weights))
            demand = demand_of(request, self.columns, self.weights)
            if len(self._demands) >= MAX_CONSTRAINTS:
                self._demands.pop(next(iter(self._demands)))
            self._demands[request] = demand
        return demand

    def supply(self, resource: str, stocks: Mapping[NodeName, Stock]) -> None:
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
            self._standing.touch(row)
        if changed:
            self.possible.clear()

    def eligible(self, constraints: Constraints) -> Eligibility:
        """Return which nodes accept ``constraints``; evaluated once, then kept current."""
        eligible = self._eligible.get(constraints)
        if eligible is None:
            size = len(self.facts)
            eligible = Eligibility(
                np.zeros(size, dtype=bool),
                [""] * size,
                np.zeros(size),
                bool(constraints.preferred),
                np.zeros(size, dtype=np.int32),
            )
            for row in self.rows.values():
                self._evaluate(constraints, eligible, row)
            if len(self._eligible) >= MAX_CONSTRAINTS:
                self._eligible.pop(next(iter(self._eligible)))
            self._eligible[constraints] = eligible
        return eligible

    def refusals(self, constraints: Constraints) -> Counter[str]:
        """Return the number of refusing nodes by message."""
        return +self.eligible(constraints).counts

    def parts(self, label: str) -> NDArray[np.intp]:
        """Return the topology domain number of each row by a node label; -1 without the label."""
        return self._traits.parts(label, self.rows, self.facts)

    def count(self, meant: Pods) -> NDArray[np.int64]:
        """Return the number of selected pods on each row; counted once, then updated."""
        known = self._counts.get(meant)
        if known is None:
            known = np.zeros(len(self.facts), dtype=np.int64)
            for name, row in self.rows.items():
                known[row] = sum(map(meant.matches, self.occupants.get(name, {}).values()))
            if len(self._counts) >= MAX_CONSTRAINTS:
                self._counts.pop(next(iter(self._counts)))
            self._counts[meant] = known
        return known

    def _relate(self, pod: PodFacts, row: int, sign: int) -> None:
        """Update the inter-pod counts for a pod."""
        for meant, counts in self._counts.items():
            if meant.matches(pod):
                counts[row] += sign
        relations = pod.shape.constraints.relations
        for term in relations.apart if relations is not None else ():
            if not term.weight:
                owner = Pods(term, pod.key.partition("/")[0])
                rows = self.repelling.setdefault(owner, Counter())
                rows[row] += sign
                if not rows[row]:
                    del rows[row]
                if not rows:
                    del self.repelling[owner]

    def rank(self) -> NDArray[np.intp]:
        """Return each row's rank in the order that breaks ties; it does not depend on arrival."""
        return self._order.rank(self.rows, len(self.facts))

    @property
    def in_tie_order(self) -> bool:
        """True if the first of equal rows is also the first in the order that breaks ties."""
        return self._order.is_row_order(self.rows, len(self.facts))

    def set_hypernode(self, hypernode: HyperNodeFacts) -> None:
        self.hypernodes[hypernode.name] = hypernode
        self.possible.clear()
        self._domains = None

    def remove_hypernode(self, name: str) -> None:
        self.hypernodes.pop(name, None)
        self.possible.clear()
        self._domains = None

    def domains(self) -> list[Domain]:
        """Return the network domains, the closest tier first."""
        if self._domains is None:
            self._domains = domains(self.hypernodes, self.facts)
        return self._domains

    def usable(self) -> NDArray[np.bool_]:
        """Return a mask of the rows whose nodes are ready and not cordoned."""
        return self._traits.usable(self.facts)

    def tainted(self) -> NDArray[np.bool_]:
        """Return a mask of the rows whose nodes have a NoSchedule or NoExecute taint."""
        return self._traits.tainted(self.facts)

    def has_devices(self) -> NDArray[np.bool_]:
        """Return a mask of the rows whose nodes have an extended resource."""
        return self._traits.has_devices(self.facts)

    def models(self) -> DeviceModels | None:
        """Return the device models of the nodes; None: all devices are of one model."""
        return self._traits.models(self.facts)

    def ground(self, shape: Shape, free: Amounts) -> Ground:
        eligible = self.eligible(shape.constraints)
        return Ground(
            free,
            self.allocatable,
            self.has_devices(),
            eligible.accepts,
            eligible.preference if eligible.prefers else None,
            self.weights,
            eligible.discouraged if eligible.discourages else None,
            self._usual() if self.weights.fragments else None,
            images=self._images.scores(shape.images, len(self.facts))
            if self._images is not None and shape.images
            else None,
        )

    def scores(self, shape: Shape, free: Amounts) -> Scores:
        """Return the score of each row for a shape with the current free amounts; read-only."""
        demand = self.demand(shape.request)

        if self.weights.fragments:
            self._usual()

        def compute(rows: Rows) -> Scores:
            return score_rows(self.ground(shape, free), demand, rows)

        return self._standing.of(shape, compute)

    def _usual(self) -> CommonPods | None:
        """Return the usual pods; when they change, all scores change."""
        common, changed = self.popularity.common(self.columns, self._ensure_columns)
        if changed:
            self._standing.clear()
        return common

    def _evaluate(self, constraints: Constraints, eligible: Eligibility, row: int) -> None:
        node = self.facts[row]
        assert node is not None
        why = refusal(constraints, node)
        eligible.note(row, why)
        eligible.accepts[row] = not why
        if eligible.prefers:
            eligible.preference[row] = preference(constraints, node)
        if marks := discouraging(constraints, node):
            eligible.discourages = True
        eligible.discouraged[row] = marks

    def _replace(self, row: int, node: NodeFacts | None) -> None:
        self._traits.changed(row, self.facts[row], node)
        if self._images is not None and (moved := self._images.changed(row, self.facts[row], node)):
            self._standing.forget(moved)
        self.facts[row] = node

    def _new_row(self, name: NodeName) -> int:
        if not self._vacant:
            self._grow_rows()
        row = self._vacant.pop()
        self.rows[name] = row
        self._order.forget()
        return row

    def _grow_rows(self) -> None:
        """Add an eighth to the rows, so that adding nodes one by one has a small amortised cost.

        A larger reserve would slow down every cycle, since array operations cover empty rows too.
        """
        size = len(self.facts)
        added = max(16, size // 8)
        self.facts += [None] * added
        # numpy.pad takes many times as long for arrays of this shape.
        more = np.zeros((len(self.columns), added), dtype=np.int64)
        self.allocatable = np.hstack((self.allocatable, more))
        self.used = np.hstack((self.used, more))
        self.lasting = np.hstack((self.lasting, more))
        for eligible in self._eligible.values():
            none = np.zeros(added, dtype=bool)
            eligible.accepts = np.concatenate([eligible.accepts, none])
            eligible.preference = np.append(eligible.preference, np.zeros(added))
            eligible.discouraged = np.append(eligible.discouraged, none.astype(np.int32))
            eligible.refusals += [""] * added
        for meant, counts in self._counts.items():
            self._counts[meant] = np.append(counts, np.zeros(added, dtype=np.int64))
        self._traits.forget()
        self._standing.clear()
        self._vacant += range(size + added - 1, size - 1, -1)

    def _ensure_columns(self, request: Request) -> None:
        new = [resource for resource, _ in request if resource not in self.columns]
        if not new:
            return
        for resource in new:
            self.columns[resource] = len(self.columns)
        more = np.zeros((len(new), len(self.facts)), dtype=np.int64)
        self.allocatable = np.vstack((self.allocatable, more))
        self.used = np.vstack((self.used, more))
        self.lasting = np.vstack((self.lasting, more))
        ports = [self.columns[resource] for resource in new if resource.startswith(HOST_PORT)]
        if ports:
            self._port_columns += ports
            self.allocatable[np.ix_(ports, list(self.rows.values()))] = 1
