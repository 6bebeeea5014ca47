"""Extra pods: places pods beyond a gang's minimum, in turn with other gangs."""

from collections import deque
from collections.abc import Iterable

from gangline.scheduler.cycle.allocations import Allocations
from gangline.scheduler.cycle.diagnosis import queue_limit
from gangline.scheduler.placement.colocation import place_on_models_in_use
from gangline.scheduler.placement.gang import (
    group_by_shape,
    next_subgroup,
    place_subgroup,
    rows_in_allowed_domains,
    unavailable_message,
)
from gangline.scheduler.placement.scratch import ScratchAllocation
from gangline.scheduler.queueing import messages
from gangline.scheduler.queueing.order import QueueEntry, SchedulingOrder
from gangline.scheduler.queueing.queue_tree import QueueTree
from gangline.scheduler.types.types import PendingReason, PodInfo, PodShape


class ExtraPods:
    """Serves entries for extra pods."""

    def __init__(
        self, trial: ScratchAllocation, tree: QueueTree, line: SchedulingOrder, grants: Allocations
    ) -> None:
        self._trial, self._tree, self._line, self._grants = trial, tree, line, grants

    def serve(self, turn: QueueEntry) -> list[PendingReason]:
        """Place one pod or subgroup, or all extra pods if no other entry is left.

        Returns:
            Why the pods that found no node are pending.
        """
        unit = turn.gang
        if unit.subgroups:
            refused = self._serve_part(turn)
        else:
            refused = []
            count = len(turn.remaining) if self._line.empty else 1
            pods = [turn.remaining.popleft() for _ in range(count)]
            for shape, alike in group_by_shape(pods).items():
                refused += self._place(turn, shape, alike)
        if turn.remaining:
            turn.share = self._grants.share_of(unit)
            self._line.requeue(turn)
        return refused

    def _serve_part(self, turn: QueueEntry) -> list[PendingReason]:
        """Place an extra subgroup, completely or not at all; or one pod without a subgroup."""
        unit, refused = turn.gang, []
        part, pods = next_subgroup(unit, turn.remaining)
        turn.remaining = deque(pod for pod in turn.remaining if pod not in pods)
        amount = self._tree.vector(messages.total_request(pods))
        mark = self._trial.mark()
        if (account := self._tree.blocking_queue(unit.queue, amount)) is not None:
            refused = _pending_reasons(
                pods, messages.queue_limit_message(queue_limit(self._tree, account, amount))
            )
        elif unfit := place_subgroup(self._trial, unit, part, pods):
            refused = _pending_reasons(unfit, self._unavailable_message(unfit[0]))
        self._grants.bind(unit, self._trial.since(mark))
        return refused

    def _place(self, turn: QueueEntry, shape: PodShape, pods: list[PodInfo]) -> list[PendingReason]:
        """Place pods of one shape, as many as fit and the queue allows."""
        unit = turn.gang
        one = self._tree.request_vector(shape.request)
        if shape in turn.refused_shapes:
            return _pending_reasons(pods, self._unavailable_message(pods[0]))
        while pods and self._tree.blocking_queue(unit.queue, one) is None:
            mark = self._trial.mark()
            count = self._tree.allowed_count(unit.queue, one, len(pods))
            rows = self._grants.rows_of(unit)
            self._trial.within = rows_in_allowed_domains(self._trial.nodes, unit, rows)
            unfit = place_on_models_in_use(self._trial, unit, shape, pods[:count], rows)
            self._trial.within = None
            self._grants.bind(unit, self._trial.since(mark))
            pods = [*unfit, *pods[count:]]
            if unfit:
                turn.refused_shapes |= {shape}
                break
        if not pods:
            return []
        account = self._tree.blocking_queue(unit.queue, one)
        if account is not None and shape not in turn.refused_shapes:
            return _pending_reasons(
                pods, messages.queue_limit_message(queue_limit(self._tree, account, one))
            )
        return _pending_reasons(pods, self._unavailable_message(pods[0]))

    def _unavailable_message(self, pod: PodInfo) -> str:
        return messages.extra_pod_message(unavailable_message(self._trial, pod))


def _pending_reasons(pods: Iterable[PodInfo], why: str) -> list[PendingReason]:
    return [PendingReason(messages.NOT_ENOUGH_RESOURCES, "", tuple((pod.key, why) for pod in pods))]
