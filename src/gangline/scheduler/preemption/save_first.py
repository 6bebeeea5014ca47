"""Saves before evictions: which evictions wait for a save, and when the wait ends.

A gang that has checkpoints in memory is asked to save one before its pods are evicted. Its pods
count as ending from the decision on, so the resources stay reserved for the beneficiary. The wait
of a gang ends with the first of: the answer to this request, the end of the time, the end of the
gang's pods, or the withdrawal, when no beneficiary of its evictions waits any more.

If the reservation of the beneficiary goes to a gang of higher priority, so do the evictions that
this gang needs; the others are withdrawn unless their beneficiary needs them again.

There is at most one request for a gang. Further evictions from it join the request. Times are of a
monotonic clock, except where the wall clock is named: it counts only when a restarted scheduler
continues the request of an earlier one, and never prolongs the wait.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from gangline.scheduler.types import GangId, GroupKey, PodEviction, PodKey

DEFAULT_SAVE_WAIT_S = 30.0
NO_GANG = GangId("")
"""Beneficiary of evictions that no gang needs any more."""


@dataclass(frozen=True, slots=True)
class StoredSaveRequest:
    """A request that an earlier process of the scheduler has written on the group."""

    id: str
    deadline: float
    """In seconds since the epoch."""
    beneficiary: str


@dataclass(slots=True)
class OpenSaveRequest:
    """The open request of one gang."""

    id: str
    deadline: float
    """Monotonic time."""
    evictions: list[PodEviction]
    """Evictions that wait. Empty once they are carried out."""
    in_progress: list[PodEviction] = field(default_factory=list)
    """Evictions that are carried out, until their pods are gone."""


@dataclass(frozen=True, slots=True)
class SaveOutcome:
    """What is to be done about one gang."""

    group: GroupKey
    evict: tuple[PodEviction, ...] = ()
    """The wait for these is over: evict them now."""
    withdraw: tuple[PodEviction, ...] = ()
    """These are not needed any more: the pods continue to run."""
    is_closed: bool = False
    """The request is to be removed from the group."""


class SaveRequests:
    """The open requests of all gangs."""

    def __init__(self) -> None:
        self.open: dict[GroupKey, OpenSaveRequest] = {}

    def begin(
        self,
        group: GroupKey,
        evictions: Sequence[PodEviction],
        now: float,
        wait_s: float,
        new_id: str,
    ) -> OpenSaveRequest | None:
        """Begin to wait, or add the evictions to the gang's open request.

        Returns:
            The request to write on the group; None if it has one already.
        """
        request_open = self.open.get(group)
        if request_open is not None:
            request_open.evictions += evictions
            return None
        request = OpenSaveRequest(new_id, now + wait_s, list(evictions))
        self.open[group] = request
        return request

    def resume(
        self,
        group: GroupKey,
        evictions: Sequence[PodEviction],
        stored: StoredSaveRequest,
        now: float,
        wait_s: float,
        wall_now: float,
    ) -> bool:
        """Continue the request of an earlier process, if it was for one of these beneficiaries.

        The rest of its time counts, and never more than ``wait_s`` seconds: clocks may differ.
        """
        if group in self.open or all(
            eviction.beneficiary != stored.beneficiary for eviction in evictions
        ):
            return False
        left_s = min(max(stored.deadline - wall_now, 0.0), wait_s)
        self.open[group] = OpenSaveRequest(stored.id, now + left_s, list(evictions))
        return True

    def transfer(
        self,
        displaced: Set[GangId],
        awaited: Mapping[PodKey, PodEviction],
        is_waiting: Callable[[str], bool],
    ) -> list[tuple[GroupKey, GangId]]:
        """Change the beneficiary of evictions whose gang does not need them any more.

        Evictions that wait for a gang without a reservation, or for one that was displaced, go to
        the gang whose reservation needs the same pods now. If that is so for one pod of a gang, it
        is so for all of its pods that wait for the former beneficiary: they may have to end
        together. If no reservation needs any of them, they are withdrawn when requests are settled.

        Args:
            displaced: gangs whose reservation has gone to other gangs.
            awaited: terminating pods that reservations need, as evictions for the present owners.
            is_waiting: whether a beneficiary still waits for the end of evicted pods.

        Returns:
            The gangs with open requests, and their new beneficiaries.
        """
        changed = []
        for group, request in self.open.items():
            lost = {
                eviction.beneficiary
                for eviction in request.evictions
                if eviction.beneficiary in displaced or not is_waiting(eviction.beneficiary)
            }
            for former in sorted(lost):
                new = _new_beneficiary(request.evictions, former, awaited)
                request.evictions = [
                    _transferred(eviction, new, awaited)
                    if eviction.beneficiary == former
                    else eviction
                    for eviction in request.evictions
                ]
                if new is not None and new.beneficiary != former:
                    changed.append((group, new.beneficiary))
        return changed

    def settle(
        self,
        now: float,
        *,
        answered_id: Callable[[GroupKey], str],
        is_waiting: Callable[[str], bool],
        is_present: Callable[[PodEviction], bool],
    ) -> list[SaveOutcome]:
        """Return what is to be done now, and forget requests that are closed.

        Args:
            now: monotonic time.
            answered_id: the id of the request that a gang has answered last; empty for none.
            is_waiting: whether a beneficiary still waits for the end of evicted pods.
            is_present: whether the pod of an eviction still exists.
        """
        outcomes = []
        for group, request in list(self.open.items()):
            outcome = self._settle(
                group, request, now, answered_id(group) == request.id, is_waiting, is_present
            )
            if outcome is not None:
                outcomes.append(outcome)
            if outcome is not None and outcome.is_closed:
                del self.open[group]
        return outcomes

    def _settle(
        self,
        group: GroupKey,
        request: OpenSaveRequest,
        now: float,
        is_answered: bool,
        is_waiting: Callable[[str], bool],
        is_present: Callable[[PodEviction], bool],
    ) -> SaveOutcome | None:
        # Before the time is looked at: a gang that no beneficiary needs any more continues to run,
        # even if its wait ends at this moment.
        present = [eviction for eviction in request.evictions if is_present(eviction)]
        withdraw = [eviction for eviction in present if not is_waiting(eviction.beneficiary)]
        request.evictions = [eviction for eviction in present if eviction not in withdraw]
        request.in_progress = [eviction for eviction in request.in_progress if is_present(eviction)]
        evict: list[PodEviction] = []
        if request.evictions and (is_answered or now >= request.deadline):
            evict, request.evictions = request.evictions, []
            request.in_progress += evict
        # Open until the evicted pods are gone: a further eviction joins this request, and the gang,
        # which has stopped, is not asked twice.
        is_closed = not request.evictions and not request.in_progress
        if not evict and not withdraw and not is_closed:
            return None
        return SaveOutcome(group, tuple(evict), tuple(withdraw), is_closed)

    def next_deadline(self) -> float | None:
        """Return the monotonic time at which the next wait ends; None: nothing waits."""
        return min(
            (request.deadline for request in self.open.values() if request.evictions), default=None
        )

    def undone(self, group: GroupKey, eviction: PodEviction) -> None:
        """Record that the API server has refused an eviction: the pod continues to run."""
        request = self.open.get(group)
        if request is not None:
            request.in_progress = [
                pending for pending in request.in_progress if pending != eviction
            ]


def _new_beneficiary(
    evictions: Iterable[PodEviction], former: GangId, awaited: Mapping[PodKey, PodEviction]
) -> PodEviction | None:
    """Return an eviction of the gang that needs these pods now; None: no gang does."""
    successors = (
        awaited.get(eviction.pod) for eviction in evictions if eviction.beneficiary == former
    )
    return next((eviction for eviction in successors if eviction is not None), None)


def _transferred(
    eviction: PodEviction, new: PodEviction | None, awaited: Mapping[PodKey, PodEviction]
) -> PodEviction:
    if new is None:
        return replace(eviction, beneficiary=NO_GANG)
    to = awaited.get(eviction.pod, new)
    return replace(eviction, beneficiary=to.beneficiary, reason=to.reason)
