"""Volume attach limits, by CSI driver, as resources of nodes.

Nodes publish the limits in their CSINode. A claim used by one pod takes one attachment. A claim
used by several pods takes one on each of their nodes, however many of them run there: such a claim
is a resource of its own (see ``shared_volumes``). Attachments of pods without a gang are assumed to
last for ever, so that attachments of gangs that will end can be reserved.

Amounts are counted on demand, and again for all pending pods when nodes or claims have changed.

Volume attachments of claims that several pods share, in a scratch allocation.

The first pod on a node attaches the claim for all of them. The free amount of a claim's column on a
node encodes its state: ``ATTACHED_ON_NODE`` if it is attached, ``ATTACHABLE`` if the driver has a
free attachment for it, 0 otherwise. Each pod takes one, which never changes one state into the
next. Pods with several claims need all attachments together: how many such pods a node holds is a
column of its own.
"""

from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Mapping, Set
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Self

from gangline.scheduler.cache.node_stats import CountedResource
from gangline.scheduler.plugins.scores import Amounts
from gangline.scheduler.plugins.volumes import (
    ClaimInfo,
    NodeAttachments,
    StorageState,
    VolumeRequirements,
)
from gangline.scheduler.types import ATTACHMENT_PREFIX, NodeName, PodInfo, Request

ATTACHABLE = 2**40
ATTACHED_ON_NODE = 2 * ATTACHABLE
_ATTACHED_THRESHOLD = (ATTACHABLE + ATTACHED_ON_NODE) // 2


@dataclass(frozen=True, slots=True)
class AttachmentColumn:
    """A column whose free amount depends on the attachments of a driver."""

    limit_column: int
    """The column of the driver's attachments."""
    claim_columns: tuple[int, ...] = ()
    """Columns of the shared claims that are used together; empty: the column is one of these
    itself.
    """
    own_claims: int = 0
    """Number of unshared claims of each pod."""


def pods_that_fit(free: int, lacking: int, own: int) -> int:
    """Return how many pods with these claims a node holds.

    Args:
        lacking: shared claims that are not attached to the node.
        own: unshared claims of each pod.
    """
    left = free - lacking
    if not own:
        return ATTACHABLE if left >= 0 else 0
    return max(0, left // own)


class SharedAttachments:
    """Updates attachment columns while free amounts are spent.

    Args:
        free: the free amounts by column and row; changed in place.
    """

    def __init__(self, free: Amounts, takings: Mapping[int, AttachmentColumn]) -> None:
        self._free = free
        self._takings = takings
        self._places = {taking.limit_column for taking in takings.values()}
        self._users: Counter[tuple[int, int, bool]] = Counter()
        """Tentative users of shared claims, by column, row, and whether the use is only reserved.
        """
        self._charged: set[tuple[int, int, bool]] = set()
        """Uses for which an attachment was taken."""

    def update_row(self, row: int, columns: Iterable[int], count: int, planned: bool) -> None:
        """Update a row after columns were charged on it.

        Args:
            count: number of pods; negative: they are released.
            planned: True for a reservation: it takes attachments that other pods cannot share yet.
        """
        touched = set()
        for column in columns:
            taking = self._takings.get(column)
            if taking is not None:
                touched.add(taking.limit_column)
                if not taking.claim_columns:
                    self._count_users((column, row, planned), taking.limit_column, count)
            elif column in self._places:
                touched.add(column)
        if touched:
            for column, taking in self._takings.items():
                if taking.limit_column in touched:
                    self._update_column(column, taking, row)

    def detach(self, row: int, limit_column: int, claims: Iterable[int]) -> None:
        """Update a row after attachments were freed; ``claims`` are columns of detached claims."""
        for column in claims:
            self._free[column, row] = 0
        for column, taking in self._takings.items():
            if taking.limit_column == limit_column:
                self._update_column(column, taking, row)

    def _update_column(self, column: int, taking: AttachmentColumn, row: int) -> None:
        free = self._free
        if not taking.claim_columns and free[column, row] >= _ATTACHED_THRESHOLD:
            return
        lacking = sum(
            int(free[claim_column, row] < _ATTACHED_THRESHOLD)
            for claim_column in taking.claim_columns or (column,)
        )
        free[column, row] = pods_that_fit(
            int(free[taking.limit_column, row]), lacking, taking.own_claims
        )

    def _count_users(self, user: tuple[int, int, bool], place: int, count: int) -> None:
        column, row, planned = user
        if planned and self._free[column, row] < _ATTACHED_THRESHOLD:
            # A reservation has no amount here: it follows from the free attachments.
            self._free[column, row] = 0
        self._users[user] += count
        if self._users[user] > 0 and self._free[column, row] < _ATTACHED_THRESHOLD:
            if user not in self._charged:
                self._charged.add(user)
                self._free[place, row] -= 1
            if not planned:
                self._free[column, row] = ATTACHED_ON_NODE - self._users[user]
        elif self._users[user] <= 0 and user in self._charged:
            self._charged.remove(user)
            self._free[place, row] += 1
            if not planned:
                self._free[column, row] = 0


UNLIMITED_ATTACHMENTS = CountedResource(ATTACHED_ON_NODE)
"""The amount for drivers without a limit, as in Kubernetes."""


def volume_requirements_of(storage: StorageState, pod: PodInfo) -> VolumeRequirements:
    """Return what the claims of a pending pod require of its node, including attachments."""
    needs = storage.requirements(pod)
    if not storage.limits or not pod.claims:
        return needs
    return replace(
        needs, request=tuple(sorted((*needs.request, *_attachment_request(storage, pod))))
    )


def count_attachments(
    storage: StorageState, pod: PodInfo, nodes: Iterable[NodeName], skip: Container[str] = ()
) -> dict[str, dict[NodeName, CountedResource]]:
    """Return the attachments that a pod needs, counted on each node by resource; ``known`` are
    skipped.
    """
    listed = list(nodes)
    taken = [_AttachmentResource.read(name) for name, _ in _attachment_request(storage, pod)]
    taken += [_AttachmentResource(place.driver) for place in taken]
    counted: dict[str, dict[NodeName, CountedResource]] = {}
    for place in taken:
        name = str(place)
        if name not in skip and name not in counted:
            attached = _attached(storage, place.driver)
            counted[name] = {
                node: _counted_attachments(attached.get(node), place) for node in listed
            }
    return counted


def attachment_columns(
    names: Iterable[str], columns: Mapping[str, int]
) -> dict[int, AttachmentColumn]:
    """Return the columns that depend on attachments."""
    result: dict[int, AttachmentColumn] = {}
    for name in names:
        if not name.startswith(ATTACHMENT_PREFIX):
            continue
        place = _AttachmentResource.read(name)
        if place.claims:
            joint = place.claims if place.joint else ()
            result[columns[name]] = AttachmentColumn(
                columns[str(_AttachmentResource(place.driver))],
                tuple(columns[str(_AttachmentResource(place.driver, (claim,)))] for claim in joint),
                place.own_claims,
            )
    return result


@dataclass(frozen=True, slots=True)
class _AttachmentResource:
    """A parsed resource name."""

    driver: str
    claims: tuple[str, ...] = ()
    """Shared claims; empty: attachments for claims that are not shared."""
    own_claims: int = 0
    joint: bool = False
    """True if the amount is the number of pods that these claims, and this number of own ones,
    allow.
    """

    def __str__(self) -> str:
        name = f"{ATTACHMENT_PREFIX}{self.driver}"
        if self.joint:
            return f"{name}:{self.own_claims}:{'+'.join(self.claims)}"
        return f"{name}:{self.claims[0]}" if self.claims else name

    @classmethod
    def read(cls, name: str) -> Self:
        driver, *more = name.removeprefix(ATTACHMENT_PREFIX).split(":")
        if len(more) == 2:
            return cls(driver, tuple(more[1].split("+")), int(more[0]), joint=True)
        return cls(driver, tuple(more))


def _attachment_request(storage: StorageState, pod: PodInfo) -> Request:
    """Return a pod's attachments: one for each own claim, or one with all shared claims."""
    limited = {driver for limits in storage.limits.values() for driver in limits}
    own: Counter[str] = Counter()
    shared: dict[str, list[str]] = defaultdict(list)
    for key in pod.claims:
        driver = _attaching_driver(storage, storage.claims.get(key))
        if driver not in limited:
            continue
        if storage.users[key] + len(storage.waiting_pods.get(key, ())) > 1:
            shared[_escape_name(driver)].append(_escape_name(key))
        else:
            own[_escape_name(driver)] += 1
    taken = {_AttachmentResource(driver): count for driver, count in own.items()}
    for driver, claims in shared.items():
        taken |= {_AttachmentResource(driver, (claim,)): 1 for claim in claims}
        if own[driver] + len(claims) > 1:
            taken[_AttachmentResource(driver, tuple(sorted(claims)), own[driver], joint=True)] = 1
    return tuple(sorted((str(place), count) for place, count in taken.items()))


def _counted_attachments(
    attachments: NodeAttachments | None, place: _AttachmentResource
) -> CountedResource:
    """Return the amount of a resource on a node, with its usage now and its lasting usage."""
    if attachments is None:
        return UNLIMITED_ATTACHMENTS
    if not place.claims:
        return CountedResource(
            attachments.limit, len(attachments.current), len(attachments.lasting)
        )
    return CountedResource(
        ATTACHED_ON_NODE,
        ATTACHED_ON_NODE - _free_shared(place, attachments.limit, attachments.current),
        ATTACHED_ON_NODE - _free_shared(place, attachments.limit, attachments.lasting),
    )


def _free_shared(place: _AttachmentResource, most: int, attached: Set[str]) -> int:
    """Return the free amount of shared claims on a node, in the encoding of ``shared_volumes``."""
    lacking = sum(claim not in attached for claim in place.claims)
    if not place.joint and not lacking:
        return ATTACHED_ON_NODE
    return pods_that_fit(most - len(attached), lacking, place.own_claims)


def _attached(storage: StorageState, driver: str) -> dict[NodeName, NodeAttachments]:
    """Return the attachments of a driver on limited nodes; counted once for all pods."""
    attached = storage.attached.get(driver)
    if attached is None:
        attached = storage.attached[driver] = {
            node: NodeAttachments(
                limit,
                _claims_of(storage, storage.users_by_node.get(node, ()), driver),
                _claims_of(storage, storage.lasting_by_node.get(node, ()), driver),
            )
            for node, limits in storage.limits.items()
            for name, limit in limits.items()
            if _escape_name(name) == driver
        }
    return attached


def _claims_of(storage: StorageState, claims: Iterable[str], driver: str) -> Set[str]:
    return {
        _escape_name(key)
        for key in claims
        if _escape_name(_attaching_driver(storage, storage.claims.get(key))) == driver
    }


@dataclass(frozen=True, slots=True)
class DetachedVolumes:
    """What a driver detaches from a node when pods have ended."""

    resource: str
    """The resource of the driver's attachments."""
    count: int
    claim_resources: frozenset[str]
    """Resources of the detached claims, in case several pods use them."""


def detached_volumes(
    storage: StorageState, node: NodeName, pods: Iterable[PodInfo]
) -> list[DetachedVolumes]:
    """Return what is detached from a node once these of its pods have ended."""
    ended = Counter(claim for pod in pods for claim in pod.claims)
    users = storage.users_by_node.get(node, Counter[str]())
    freed: dict[str, set[str]] = defaultdict(set)
    for key, count in ended.items():
        driver = _attaching_driver(storage, storage.claims.get(key))
        if driver in storage.limits.get(node, {}) and users[key] <= count:
            freed[_escape_name(driver)].add(_escape_name(key))
    return [
        DetachedVolumes(
            str(_AttachmentResource(driver)),
            len(claims),
            frozenset(str(_AttachmentResource(driver, (claim,))) for claim in claims),
        )
        for driver, claims in sorted(freed.items())
    ]


def _attaching_driver(storage: StorageState, claim: ClaimInfo | None) -> str:
    """Return the driver that attaches the volume of a claim; empty: none, or unknown."""
    if claim is None:
        return ""
    volume = storage.volumes.get(claim.volume)
    return volume.driver if volume is not None else storage.provisioner(claim)


@lru_cache(maxsize=16_384)
def _escape_name(name: str) -> str:
    """Escape the characters that mark a device or separate parts of the name."""
    return name.replace("/", "|").replace(":", "|").replace("+", "|")
