"""The queue tree: limits, fair shares and usage of queues.

Jobs run in the leaves of the tree. A queue's *limit* is its capability, reduced by what the
guarantees of other queues leave. Its *fair share* is its ``deserved`` amount, or its weighted part
of what the other queues leave (water filling). A queue may borrow what no other queue requests, up
to its limit. Parents and weights may come from Volcano's annotations (``volcano.sh/hierarchy``).
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from itertools import chain
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from gangline.api.volcano.scheduling import (
    DEFAULT_QUEUE,
    HIERARCHY_ANNOTATION,
    HIERARCHY_WEIGHTS_ANNOTATION,
    ROOT_QUEUE,
    Queue,
)
from gangline.scheduler.cache.cache import SchedulerCache, UsageLedger
from gangline.scheduler.cache.node_table import NodeTable
from gangline.scheduler.types import (
    INTERNAL_RESOURCE_PREFIXES,
    NodeTerm,
    PlacementConstraints,
    QueueInfo,
    Request,
    RequiredNodeTerms,
    TolerationInfo,
)

Vector = NDArray[np.float64]
"""An amount of each resource.

Integers are exact up to 2^53, in bytes 8 PiB. Above that, multiples of 1 KiB are exact up to 8 EiB,
and a sum of odd bytes is rounded by at most 1 byte in 2^53 for each part: a limit of petabytes is
passed by a few bytes at most. Nodes are counted in integers (``NodeTable``), so this overcommits
none of them.
"""
Matrix = NDArray[np.float64]
"""One row for each queue."""
TOLERANCE = 1 + 1e-9
"""Tolerance: shares are floating-point fractions."""


def water_fill(total: Vector, weights: Vector, floors: Matrix, wants: Matrix) -> Matrix:
    """Divide ``total`` by weight: no queue gets more than it wants, or less than its floor.

    Each resource is divided by itself, and what one queue does not want goes to the others. Floors
    come first, even if their sum exceeds the total. A floor above what the queue wants counts as
    that.
    """
    if not len(weights):
        return np.zeros_like(wants)
    floors = np.minimum(floors, wants)
    satisfied = wants.sum(axis=0) <= total
    if satisfied.all():
        return wants
    level = _water_level(total, weights, floors, wants)
    return np.where(satisfied, wants, np.clip(level * weights[:, None], floors, wants))


def _water_level(total: Vector, weights: Vector, floors: Matrix, wants: Matrix) -> Vector:
    """Return, for each resource, the water level after ``total`` has been poured in.

    The allocated amount is a piecewise linear function of the level. Its slope increases where a
    queue's floor is reached, and decreases where a queue has what it wants.
    """
    scale = weights[:, None]
    bends = np.concatenate([floors / scale, wants / scale])
    steeper = np.concatenate([np.broadcast_to(scale, floors.shape)] * 2)
    steeper[len(weights) :] *= -1
    order = np.argsort(bends, axis=0, kind="stable")
    bends = np.take_along_axis(bends, order, axis=0)
    slopes = np.cumsum(np.take_along_axis(steeper, order, axis=0), axis=0)
    given = floors.sum(axis=0) + np.concatenate(
        [np.zeros((1, len(total))), np.cumsum(slopes[:-1] * np.diff(bends, axis=0), axis=0)]
    )
    # The last bend that the total suffices for; before the first one only floors are paid.
    last = np.maximum(np.count_nonzero(given <= total, axis=0) - 1, 0)
    here = np.arange(len(total))
    slope = np.maximum(slopes[last, here], 1e-12)
    level: Vector = bends[last, here] + np.maximum(total - given[last, here], 0.0) / slope
    return level


def dominant_share(used: Vector, entitled: Vector) -> float:
    """Return the largest used fraction of any resource; infinite if the fair share of it is 0."""
    relevant = used > 0
    if not relevant.any():
        return 0.0
    with np.errstate(divide="ignore"):
        return float((used[relevant] / entitled[relevant]).max())


NodeGroupTerms: TypeAlias = tuple[tuple[RequiredNodeTerms, ...], tuple[tuple[int, NodeTerm], ...]]
"""Node terms that jobs must match, and terms that they prefer, with weights."""
UNCOUNTED_RESOURCE = "pods"
"""Pod slots are not divided between queues."""


def queue_problems(queues: Mapping[str, QueueInfo]) -> dict[str, str]:
    """Return what is wrong with the configuration of queues, by name."""
    problems = {}
    for name, queue in queues.items():
        if ROOT_QUEUE in (name, queue.parent or ROOT_QUEUE):
            continue
        if queue.parent not in queues:
            problems[name] = (
                f"its parent {queue.parent!r} does not exist: it is treated as a top-level queue"
            )
        elif name in ancestors(queues, name):
            problems[name] = "it is its own ancestor: it is treated as a top-level queue"
    for name, queue in queues.items():
        if over := _exceeding_resources(queue.guarantee, queue.capability):
            problems.setdefault(
                name, f"its guarantee of {over} exceeds its capability, which takes precedence"
            )
        if over := _exceeding_resources(queue.deserved, queue.capability):
            problems.setdefault(
                name, f"its deserved {over} exceeds its capability, which takes precedence"
            )
        parent = queues.get(queue.parent)
        if parent is not None and (
            over := _exceeding_resources(queue.capability, parent.capability)
        ):
            why = (
                f"its capability of {over} exceeds that of {parent.name!r}, which takes precedence"
            )
            problems.setdefault(name, why)
        for why in _overcommitted_children(queue, [q for q in queues.values() if q.parent == name]):
            problems.setdefault(name, why)
    return problems


def _overcommitted_children(queue: QueueInfo, below: Iterable[QueueInfo]) -> Iterator[str]:
    """Yield what the children of a queue are granted beyond the queue's own amounts."""
    guaranteed: Counter[str] = Counter()
    deserved: Counter[str] = Counter()
    for child in below:
        guaranteed.update(dict(child.guarantee))
        deserved.update(dict(child.deserved))
    if over := _exceeding_resources(tuple(sorted(guaranteed.items())), queue.capability):
        yield f"the guarantees of its child queues exceed its capability of {over}"
    if over := _exceeding_resources(tuple(sorted(deserved.items())), queue.deserved):
        yield f"its child queues deserve more {over} than it does"


def ancestors(queues: Mapping[str, QueueInfo], name: str) -> list[str]:
    """Return the existing ancestors of a queue, the nearest first; in a cycle each one once."""
    above: list[str] = []
    parent = queues[name].parent
    while parent in queues and parent not in above:
        above.append(parent)
        parent = queues[parent].parent
    return above


def node_group_terms_of(queues: Mapping[str, QueueInfo], name: str) -> NodeGroupTerms:
    """Return the node terms of a queue: its own, or those of the nearest ancestor that has any."""
    if name in queues:
        for ancestor in (name, *ancestors(queues, name)):
            queue = queues[ancestor]
            if queue.required_node_terms or queue.preferred_node_terms:
                return queue.required_node_terms, queue.preferred_node_terms
    return (), ()


def _exceeding_resources(request: Request, limit: Request) -> str:
    limits = dict(limit)
    return ", ".join(name for name, amount in request if amount > limits.get(name, amount))


_ANY = (TolerationInfo(operator="Exists"),)


class ShareClaim(IntEnum):
    """How a request relates to the fair share of its queue; the smaller, the earlier."""

    WITHIN = 0
    """The queue stays within its fair share."""
    ENTITLED = 1
    """The queue is below its fair share, which the request alone does not exceed: it is owed once
    other jobs of the queue have ended.
    """
    BORROWS = 2


@dataclass(slots=True)
class QueueAttributes:
    """One queue in the tree, with its amounts."""

    info: QueueInfo
    used: Vector
    requested: Vector
    """Usage plus pending requests."""
    reserved: Vector
    """Reserved within the limit for the first gang that the limit blocks."""
    limit: Vector
    fair_share: Vector
    parent: "QueueAttributes | None" = None
    children: list["QueueAttributes"] = field(default_factory=list)
    has_limit: bool = False
    """True if its limit is finite for some resource."""
    promised: Vector | None = None
    """Requests of the gangs that wait with a reservation: part of the fair share is theirs."""

    revision: int = 0
    """Number of changes of its usage and promises, with those of the queues below."""
    _share: float | None = None
    _taken: Vector | None = None
    _tolerated: tuple[Vector | None, Vector] = (None, np.zeros(0))
    """A fair share, and the same with tolerance."""

    @property
    def taken(self) -> Vector:
        """What counts against the limit: usage and reservations."""
        if self._taken is None:
            self._taken = self.used + self.reserved
        return self._taken

    @property
    def share(self) -> float:
        """Dominant share of its fair share that the queue uses."""
        if self._share is None:
            self._share = dominant_share(self.used, self.fair_share)
        return self._share

    @property
    def tolerated_share(self) -> Vector:
        """The fair share with the tolerance of its fractions."""
        share, tolerated = self._tolerated
        if share is not self.fair_share:
            tolerated = self.fair_share * TOLERANCE
            self._tolerated = self.fair_share, tolerated
        return tolerated

    @property
    def claimed_share(self) -> float:
        """Dominant share with what is promised."""
        return dominant_share(self._claimed, self.fair_share)

    @property
    def _claimed(self) -> Vector:
        return self.used if self.promised is None else self.used + self.promised

    def add_usage(self, amount: Vector) -> None:
        """Add to the usage; a negative amount reduces it."""
        self.used = self.used + amount
        self._share = self._taken = None
        self.revision += 1

    def reserve(self, amount: Vector) -> None:
        """Reserve an amount within the limit."""
        self.reserved = self.reserved + amount
        self._taken = None

    def claim(self, amount: Vector) -> ShareClaim:
        """Return whether the fair share covers an additional amount."""
        over, asked = self._claimed + amount > self.tolerated_share, amount > 0
        if not (np.count_nonzero(over) and np.count_nonzero(over & asked)):
            return ShareClaim.WITHIN
        exceeds = (amount > self.tolerated_share) | (self._claimed >= self.fair_share)
        return ShareClaim.BORROWS if np.count_nonzero(asked & exceeds) else ShareClaim.ENTITLED

    def covers(self, amount: Vector) -> NDArray[np.bool_]:
        """Return of which resources the fair share covers an amount besides usage and promises.

        What a gang reclaims beside a promise, the promised gang would take: its queue were above
        its share then, and the other queue reclaimed that in turn.
        """
        return self._claimed + amount <= self.tolerated_share

    def path(self) -> Iterator["QueueAttributes"]:
        """Return the queue and its ancestors, without the root."""
        attributes: QueueAttributes | None = self
        while attributes is not None and attributes.parent is not None:
            yield attributes
            attributes = attributes.parent


class QueueStructure:
    """The part of the tree that follows from queues and resources alone.

    It outlives the cycle: usage and nodes change all the time, queues hardly ever.
    """

    def __init__(self, queues: Mapping[str, QueueInfo], nodes: NodeTable) -> None:
        self._source, self._resources = dict(queues), len(nodes.columns)
        shared = (
            name
            for name in nodes.columns
            if name != UNCOUNTED_RESOURCE and not name.startswith(INTERNAL_RESOURCE_PREFIXES)
        )
        self.columns = {name: column for column, name in enumerate(sorted(shared))}
        self.zero: Vector = np.zeros(len(self.columns))
        self.unlimited: Vector = np.full(len(self.columns), np.inf)
        # Single pods belong to the default queue, even if the object does not exist.
        self.queues = {DEFAULT_QUEUE: QueueInfo(DEFAULT_QUEUE), **queues}
        self.queues.pop(ROOT_QUEUE, None)
        self.queues = dict(sorted(self.queues.items()))
        self.parents = {
            name: info.parent if name not in ancestors(queues, name) else ""
            for name, info in self.queues.items()
            if name in queues
        }
        self.node_terms = {
            name: terms for name in self.queues if (terms := node_group_terms_of(queues, name)[0])
        }
        self.limits = {name: self._limit(info) for name, info in self.queues.items()}
        self.guarantees = {
            name: self.vector(dict(info.guarantee)) for name, info in self.queues.items()
        }
        self.deserved = {
            name: self.vector(dict(info.deserved)) for name, info in self.queues.items()
        }
        self.states_deserved = {
            name: self.vector(dict.fromkeys(dict(info.deserved), 1)) > 0
            for name, info in self.queues.items()
        }
        """Which resources the deserved amount of each queue names."""
        self._guaranteed = [name for name, info in self.queues.items() if info.guarantee]

    def taking_part(self, names: Iterable[str]) -> list[str]:
        """Return these queues, those with a guarantee and the default one, with all of their
        ancestors.
        """
        listed = {""}
        for name in chain(names, self._guaranteed, (DEFAULT_QUEUE,)):
            above = name if name in self.queues else ""
            while above not in listed:
                listed.add(above)
                parent = self.parents.get(above, "")
                above = parent if parent in self.queues else ""
        return sorted(listed - {""})

    def is_current(self, queues: Mapping[str, QueueInfo], nodes: NodeTable) -> bool:
        """Return whether neither the queues nor the resources have changed."""
        return len(nodes.columns) == self._resources and queues == self._source

    def vector(self, amounts: Mapping[str, int]) -> Vector:
        """Return amounts in the tree's columns; resources that no node has are left out."""
        if not amounts:
            return self.zero
        result = np.zeros(len(self.columns))
        for name, amount in amounts.items():
            column = self.columns.get(name)
            if column is not None:
                result[column] = amount
        return result

    def _limit(self, queue: QueueInfo) -> Vector:
        """Return a capability. Resources that it does not name are unlimited, and so are 0 cpu and
        memory.
        """
        limit = self.unlimited.copy()
        for name, amount in queue.capability:
            column = self.columns.get(name)
            if column is not None and (amount > 0 or name not in {"cpu", "memory"}):
                limit[column] = amount
        return limit


class QueueTree:
    """All queues at one moment, and what a cycle adds to their usage.

    Args:
        structure: the structure of an earlier tree; it is used again while it is current.
        asking: queues of the gangs to serve. Then queues are left out that have neither usage nor
            requests nor a guarantee: they change no limit and no fair share of the others. None:
            all queues.
    """

    @classmethod
    def of(cls, state: SchedulerCache, asking: Iterable[str] | None = None) -> "QueueTree":
        """Return the tree of the present state; the structure of the last cycle is used again."""
        return cls(
            state.queues,
            state.nodes,
            state.usage,
            state.pending_usage,
            state.schedulable_capacity(),
            state.queue_structure,
            asking,
        )

    def __init__(
        self,
        queues: Mapping[str, QueueInfo],
        nodes: NodeTable,
        running: UsageLedger,
        waiting: UsageLedger,
        obtainable: NDArray[np.bool_] | None = None,
        structure: object = None,
        asking: Iterable[str] | None = None,
    ) -> None:
        if not (isinstance(structure, QueueStructure) and structure.is_current(queues, nodes)):
            structure = QueueStructure(queues, nodes)
        self.structure = structure
        self.columns = structure.columns
        self._nodes = nodes
        self._usable = nodes.usable() if obtainable is None else obtainable
        """Rows of the nodes that count as capacity."""
        self.root = self._attributes_of(QueueInfo(ROOT_QUEUE))
        self.queues = {ROOT_QUEUE: self.root}
        self.usage_changes: list[str] = []
        """Queues whose usage or promises have grown in the cycle, one entry for each change."""
        self._request_vectors: dict[Request, Vector] = {}
        self._blocking: dict[tuple[str, Request], QueueAttributes | None] = {}
        """Results of ``blocking_request`` since the last change of usage or reservations."""
        self._claims: dict[tuple[str, Request], tuple[int, ShareClaim]] = {}
        """Results of ``request_claim``, and at which revisions."""
        self._tops: dict[str, QueueAttributes] = {}
        """The highest ancestor of each queue below the root."""
        names: Iterable[str] = structure.queues
        if asking is not None:
            ledgers = chain(running.by_queue.items(), waiting.by_queue.items())
            using = (name for name, amounts in ledgers if any(amounts.values()))
            names = structure.taking_part(chain(asking, using))
        self._build_tree(names)
        self._sum_usage(self.root, running, waiting)
        self.total = self._schedulable_capacity(nodes, running)
        self.root.fair_share = self.total
        self._divide(self.root, self.total)

    def vector(self, amounts: Mapping[str, int]) -> Vector:
        """Return amounts in this tree's columns; resources that no node has are left out."""
        return self.structure.vector(amounts)

    def request_vector(self, request: Request) -> Vector:
        """Return a request in this tree's columns. Equal requests give the same array."""
        vector = self._request_vectors.get(request)
        if vector is None:
            vector = self._request_vectors[request] = self.vector(dict(request))
        return vector

    def add_usage(self, name: str, amount: Vector, sign: int = 1) -> None:
        """Add what a cycle allocates to a queue (``sign`` -1: subtract it)."""
        change = amount if sign == 1 else sign * amount
        self.usage_changes.append(name)
        self._blocking.clear()
        for attributes in self.queues[name].path():
            attributes.add_usage(change)

    def reserve(self, name: str, amount: Vector) -> None:
        """Reserve an amount within the limits of a queue and its ancestors, for a blocked gang."""
        self._blocking.clear()
        for attributes in self.queues[name].path():
            attributes.reserve(amount)

    def blocking_request(self, name: str, request: Request) -> QueueAttributes | None:
        """Return the queue whose limit does not allow a further request; None: all allow it."""
        key = (name, request)
        if key not in self._blocking:
            self._blocking[key] = self.blocking_queue(name, self.request_vector(request))
        return self._blocking[key]

    def blocking_queue(self, name: str, amount: Vector) -> QueueAttributes | None:
        """Return the queue whose limit does not allow an additional amount; None: all allow it."""
        for attributes in self.queues[name].path():
            if not attributes.has_limit:
                continue
            over = attributes.taken + amount > attributes.limit
            if np.count_nonzero(over) and np.count_nonzero(over & (amount > 0)):
                return attributes
        return None

    def promise(self, name: str, amount: Vector) -> None:
        """Count an amount against the fair shares of a queue and its ancestors, for a gang that
        waits with a reservation: later gangs of the queue that exceed the rest borrow, and reclaim
        nothing from other queues.
        """
        self.usage_changes.append(name)
        for attributes in self.queues[name].path():
            kept = attributes.promised
            attributes.promised = amount if kept is None else kept + amount
            attributes.revision += 1

    def claim(self, name: str, amount: Vector) -> ShareClaim:
        """Return how an additional amount relates to the fair shares of a queue and its ancestors:
        the one that covers it least decides.
        """
        return max(attributes.claim(amount) for attributes in self.queues[name].path())

    def request_claim(self, name: str, request: Request) -> ShareClaim:
        """Return the same for a request; it is compared again after changes only."""
        key, revision = (name, request), self.revision(name)
        compared, claim = self._claims.get(key, (-1, ShareClaim.WITHIN))
        # Usage only grows in a cycle: a claim that borrows stays one.
        if compared != revision and claim is not ShareClaim.BORROWS:
            claim = self.claim(name, self.request_vector(request))
            self._claims[key] = revision, claim
        return claim

    def revision(self, name: str) -> int:
        """Return the number of changes below the highest ancestor of a queue: ranks and claims
        depend on these.
        """
        top = self._tops.get(name)
        if top is None:
            *_, top = self.queues[name].path()
            self._tops[name] = top
        return top.revision

    def diverging_paths(
        self, first: str, second: str
    ) -> tuple[list[QueueAttributes], list[QueueAttributes]]:
        """Return the paths of two queues below their common ancestor."""
        paths = list(self.queues[first].path()), list(self.queues[second].path())
        shared = {queue.info.name for queue in paths[0]} & {queue.info.name for queue in paths[1]}
        own, other = ([q for q in path if q.info.name not in shared] for path in paths)
        return own, other

    def allowed_count(self, name: str, one: Vector, count: int) -> int:
        """Return how many of these amounts the limits of a queue allow, at least one."""
        while count > 1 and self.blocking_queue(name, one * count) is not None:
            count //= 2
        return count

    def _attributes_of(self, info: QueueInfo) -> QueueAttributes:
        zero = self.structure.zero
        return QueueAttributes(info, zero, zero, zero, self.structure.unlimited, zero)

    def _build_tree(self, names: Iterable[str]) -> None:
        listed = list(names)
        for name in listed:
            self.queues[name] = self._attributes_of(self.structure.queues[name])
        for name in listed:
            attributes = self.queues[name]
            parent = self.structure.parents.get(name, "")
            attributes.parent = self.queues.get(parent, self.root)
            attributes.parent.children.append(attributes)

    def _sum_usage(
        self, attributes: QueueAttributes, running: UsageLedger, waiting: UsageLedger
    ) -> None:
        """Sum up usage and requests of a queue and its descendants."""
        name = attributes.info.name
        used, pending = running.by_queue.get(name), waiting.by_queue.get(name)
        attributes.used = self.structure.vector(used or {})
        attributes.requested = attributes.used
        if pending:
            attributes.requested = attributes.used + self.structure.vector(pending)
        for child in attributes.children:
            self._sum_usage(child, running, waiting)
            if child.requested is not self.structure.zero:
                attributes.used = attributes.used + child.used
                attributes.requested = attributes.requested + child.requested

    def _schedulable_capacity(self, nodes: NodeTable, running: UsageLedger) -> Vector:
        """Return what queues can use: the capacity of usable nodes, less usage outside of all
        queues.
        """
        charged = Counter[str]()
        for queue, amounts in running.by_queue.items():
            if queue in self.queues and queue != ROOT_QUEUE:
                charged.update(amounts)
        taken = nodes.used.sum(axis=1)
        capacity = np.where(self._usable, nodes.allocatable, nodes.used).sum(axis=1)
        result = np.zeros(len(self.columns))
        for name, column in self.columns.items():
            row = nodes.columns[name]
            outside = max(0, int(taken[row]) - charged[name])
            result[column] = max(0, int(capacity[row]) - outside)
        return result

    def _divide(self, parent: QueueAttributes, total: Vector) -> None:
        """Compute limits and fair shares of the children of ``parent``."""
        children = parent.children
        names = [child.info.name for child in children]
        stored = self.structure
        capability = np.array([stored.limits[name] for name in names])
        guarantee = np.minimum(np.array([stored.guarantees[name] for name in names]), capability)
        others = guarantee.sum(axis=0) - guarantee
        left = np.minimum(parent.limit, self.total) - others
        bound = np.where(others > 0, left, parent.limit)
        ceilings = np.maximum(np.minimum(capability, bound), 0.0)
        requested = np.minimum(np.array([child.requested for child in children]), ceilings)
        if stored.node_terms:
            groups = [self._node_group_capacity(name) for name in names]
            requested = np.minimum(requested, np.array(groups))
        deserved = np.minimum(np.array([stored.deserved[name] for name in names]), total)
        floors = np.maximum(np.minimum(guarantee, ceilings), np.minimum(deserved, requested))
        # A stated deserved amount is the fair share; what nobody states is divided by weight.
        stated = np.array([stored.states_deserved[name] for name in names])
        wants: Matrix = np.where(stated, floors, np.maximum(requested, floors))
        weights = np.array([float(max(1, child.info.weight)) for child in children])
        entitled = water_fill(total, weights, floors, wants)
        limited = np.isfinite(ceilings).any(axis=1).tolist()
        for index, child in enumerate(children):
            child.limit, child.fair_share = ceilings[index], entitled[index]
            child.has_limit = limited[index]
            if child.children:
                self._divide(child, np.minimum(child.fair_share, total))

    def _node_group_capacity(self, queue: str) -> Vector:
        """Return the capacity of the nodes that match a queue's node terms."""
        terms = self.structure.node_terms.get(queue)
        if not terms:
            return self.structure.unlimited
        accepts = self._nodes.eligible(
            PlacementConstraints(tolerations=_ANY, required_node_terms=terms)
        ).accepted
        rows = accepts & self._usable
        capacity = [
            self._nodes.allocatable[self._nodes.columns[n]][rows].sum() for n in self.columns
        ]
        return np.array(capacity, dtype=np.float64)


SEPARATOR = "/"


@dataclass(frozen=True, slots=True)
class HierarchyPosition:
    """Position of a queue in the hierarchy, from the top down."""

    ancestors: tuple[tuple[str, float], ...]
    """Names, each with its ancestors (``root/eng``), and weights."""
    weight: float
    """Weight of the queue itself among its siblings."""


def hierarchy_position(queue: Queue) -> HierarchyPosition | None:
    """Return a queue's position; None: its annotations state none, or cannot be parsed."""
    annotations = queue.metadata.annotations
    path = annotations.get(HIERARCHY_ANNOTATION, "").split(SEPARATOR)
    written = annotations.get(HIERARCHY_WEIGHTS_ANNOTATION)
    weights = [1.0] * len(path) if written is None else _weights(written)
    if not all(path) or len(weights) != len(path):
        return None
    if path[0] == ROOT_QUEUE:
        path, weights = path[1:], weights[1:]
    if not path:
        return None
    names = [SEPARATOR.join((ROOT_QUEUE, *path[:count])) for count in range(1, len(path))]
    return HierarchyPosition(tuple(zip(names, weights[:-1], strict=True)), weights[-1])


def hierarchy_problem(queue: Queue) -> str:
    """Return the problem with a queue's hierarchy annotations; empty: none."""
    annotations = queue.metadata.annotations
    if not annotations.get(HIERARCHY_ANNOTATION) or hierarchy_position(queue) is not None:
        return ""
    return (
        f"{HIERARCHY_ANNOTATION} and {HIERARCHY_WEIGHTS_ANNOTATION} do not state its position "
        "with one positive weight for each name"
    )


def _weights(written: str) -> list[float]:
    """Parse weights, raised to at least 1; empty: one of them is invalid."""
    try:
        weights = [float(weight) for weight in written.split(SEPARATOR)]
    except ValueError:
        return []
    if not all(weight > 0 and math.isfinite(weight) for weight in weights):
        return []
    return [max(1.0, weight) for weight in weights]


class QueueHierarchy:
    """Positions of all queues that have one."""

    def __init__(self) -> None:
        self._positions: dict[str, HierarchyPosition] = {}

    def update(self, queue: Queue) -> None:
        place = hierarchy_position(queue)
        if place is None:
            self.remove(queue.metadata.name)
        else:
            self._positions[queue.metadata.name] = place

    def remove(self, name: str) -> None:
        self._positions.pop(name, None)

    def apply_to(self, queues: dict[str, QueueInfo]) -> None:
        """Set parents and weights of queues by their positions.

        If queues disagree about the weight of an ancestor, the first queue by name decides.
        """
        for name in [name for name in queues if SEPARATOR in name]:
            del queues[name]
        for name, place in sorted(self._positions.items()):
            parent = ""
            for ancestor, weight in place.ancestors:
                queues.setdefault(ancestor, QueueInfo(ancestor, weight=weight, parent=parent))
                parent = ancestor
            queues[name] = replace(queues[name], parent=parent, weight=place.weight)
