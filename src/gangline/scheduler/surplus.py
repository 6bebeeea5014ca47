"""Extra pods: places pods beyond a gang's minimum, in turn with other gangs."""

from collections import deque
from collections.abc import Iterable

from gangline.scheduler import reasons
from gangline.scheduler.device_models import place_like_the_others
from gangline.scheduler.grants import Grants
from gangline.scheduler.limits import limit_of
from gangline.scheduler.line import Line
from gangline.scheduler.model import PodFacts, Shape, Verdict
from gangline.scheduler.place import availability, by_shape, next_part, place_part, rows_near
from gangline.scheduler.queues import QueueTree
from gangline.scheduler.trial import Trial
from gangline.scheduler.turns import Turn


class Surplus:
    """Serves entries for extra pods."""

    def __init__(self, trial: Trial, tree: QueueTree, line: Line, grants: Grants) -> None:
        self._trial, self._tree, self._line, self._grants = trial, tree, line, grants

    def serve(self, turn: Turn) -> list[Verdict]:
        """Place one pod or subgroup, or all extra pods if no other entry is left.

        Returns:
            Why the pods that found no node are pending.
        """
        unit = turn.unit
        if unit.parts:
            refused = self._serve_part(turn)
        else:
            refused = []
            count = len(turn.left) if self._line.empty else 1
            pods = [turn.left.popleft() for _ in range(count)]
            for shape, alike in by_shape(pods).items():
                refused += self._place(turn, shape, alike)
        if turn.left:
            turn.share = self._grants.share_of(unit)
            self._line.again(turn)
        return refused

    def _serve_part(self, turn: Turn) -> list[Verdict]:
        """Place an extra subgroup, completely or not at all; or one pod without a subgroup."""
        unit, refused = turn.unit, []
        part, pods = next_part(unit, turn.left)
        turn.left = deque(pod for pod in turn.left if pod not in pods)
        amount = self._tree.vector(reasons.total_request(pods))
        mark = self._trial.mark()
        if (account := self._tree.blocking(unit.queue, amount)) is not None:
            refused = _left(pods, reasons.over_limit(limit_of(self._tree, account, amount)))
        elif unfit := place_part(self._trial, unit, part, pods):
            refused = _left(unfit, self._no_room(unfit[0]))
        self._grants.bind(unit, self._trial.since(mark))
        return refused

    def _place(self, turn: Turn, shape: Shape, pods: list[PodFacts]) -> list[Verdict]:
        """Place pods of one shape, as many as fit and the queue allows."""
        unit = turn.unit
        one = self._tree.amount(shape.request)
        if shape in turn.refused:
            return _left(pods, self._no_room(pods[0]))
        while pods and self._tree.blocking(unit.queue, one) is None:
            mark = self._trial.mark()
            count = self._tree.allowed(unit.queue, one, len(pods))
            rows = self._grants.rows_of(unit)
            self._trial.within = rows_near(self._trial.nodes, unit, rows)
            unfit = place_like_the_others(self._trial, unit, shape, pods[:count], rows)
            self._trial.within = None
            self._grants.bind(unit, self._trial.since(mark))
            pods = [*unfit, *pods[count:]]
            if unfit:
                turn.refused |= {shape}
                break
        if not pods:
            return []
        account = self._tree.blocking(unit.queue, one)
        if account is not None and shape not in turn.refused:
            return _left(pods, reasons.over_limit(limit_of(self._tree, account, one)))
        return _left(pods, self._no_room(pods[0]))

    def _no_room(self, pod: PodFacts) -> str:
        return reasons.explain_surplus(availability(self._trial, pod))


def _left(pods: Iterable[PodFacts], why: str) -> list[Verdict]:
    return [Verdict(reasons.NOT_ENOUGH_RESOURCES, "", tuple((pod.key, why) for pod in pods))]
