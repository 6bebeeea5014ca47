"""The evictor: writes the reason on the pod, then evicts it through the eviction API.

The API server has the final decision on disruption budgets. A refused eviction is undone, and the
next cycle searches for other victims.

Gangs that announce saves are asked for one first; their pods count as terminating meanwhile. The
decisions are in ``preemption.save_first``. Here the annotations are written and read (protocol:
``api.volcano.eviction_saves``), and the time is kept.
"""

import asyncio
import logging
import secrets
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime

import msgspec

from gangline.api.failure import (
    DISRUPTION_TARGET,
    PREEMPTED_CONDITION,
    PREEMPTION_BY_SCHEDULER,
)
from gangline.api.meta.objects import Condition
from gangline.api.resources import POD_GROUPS, PODS
from gangline.api.volcano.eviction_saves import (
    SAVE_REQUEST_ANNOTATION,
    SAVES_ANNOTATION,
    SaveRequestAnnotation,
    read_save_answer,
    read_save_request,
)
from gangline.api.volcano.scheduling import PodGroup
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import KubeError, NotFound
from gangline.kube.http.request import PatchKind
from gangline.kube.informers.informer import Informer
from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.metrics import EVICTIONS
from gangline.scheduler.preemption.save_first import SaveRequests, StoredSaveRequest
from gangline.scheduler.types import CycleResult, GroupKey, PodEviction, is_kubernetes_group

log = logging.getLogger(__name__)

RETRY_S = 5.0
Evictions = Iterable[PodEviction]


class SavesBeforeEviction:
    """Holds evictions back until their gangs have saved.

    Args:
        wait_s: longest wait for a save, in seconds; 0: no gang is asked.
    """

    def __init__(
        self, client: ApiClient, groups: Informer[PodGroup], state: SchedulerCache, wait_s: float
    ) -> None:
        self._client, self._groups, self._state, self._wait_s = client, groups, state, wait_s
        self._requests = SaveRequests()
        self._desired: dict[GroupKey, str | None] = {}
        """Values of the annotation that are not written yet; None removes it."""
        self._unwritten = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self.evict: Callable[[Evictions], None] = lambda evictions: None
        """Carries out evictions whose wait is over."""
        self.withdraw: Callable[[Evictions], None] = lambda evictions: None
        """Undoes evictions that are not needed any more."""
        groups.add_listener(self._on_group)

    def hold_back(self, evictions: Evictions) -> list[PodEviction]:
        """Ask the gangs that can save; return the evictions that wait for nothing."""
        passed, asked = [], defaultdict(list)
        for eviction in evictions:
            group = eviction.group
            if group is not None and self._wait_s > 0 and self._saves_on_request(group):
                asked[group].append(eviction)
            else:
                passed.append(eviction)
        for group, held in asked.items():
            self._ask(group, held)
        self._set_timer()
        return passed

    def transfer(self, result: CycleResult) -> None:
        """Change the beneficiary of evictions that wait, where reservations went to other gangs.

        Called after each cycle, when its reservations are known and before its evictions.
        """
        for group, beneficiary in self._requests.transfer(
            result.displaced, result.awaited, self._is_waiting
        ):
            request = self._requests.open[group]
            fields = {"group": group, "for": beneficiary}
            log.info("pods that are to be evicted go to another gang", extra=fields)
            left_s = request.deadline - time.monotonic()
            # A restarted scheduler continues the request only for the beneficiary that it names.
            self._write_request(group, request.id, time.time() + left_s, beneficiary)

    def _write_request(
        self, group: GroupKey, request_id: str, deadline: float, beneficiary: str
    ) -> None:
        request = SaveRequestAnnotation(
            id=request_id,
            seconds=self._wait_s,
            deadline=datetime.fromtimestamp(deadline, UTC),
            beneficiary=beneficiary,
        )
        self._write(group, msgspec.json.encode(request).decode())

    def _saves_on_request(self, group: GroupKey) -> bool:
        is_open = group in self._requests.open
        return is_open or self._annotations(group).get(SAVES_ANNOTATION) == "true"

    def _ask(self, group: GroupKey, evictions: list[PodEviction]) -> None:
        now, wall_now = time.monotonic(), time.time()
        stored = read_save_request(self._annotations(group))
        if stored is not None and self._requests.resume(
            group,
            evictions,
            StoredSaveRequest(stored.id, stored.deadline.timestamp(), stored.beneficiary),
            now,
            self._wait_s,
            wall_now,
        ):
            return
        new_id = secrets.token_hex(8)
        if self._requests.begin(group, evictions, now, self._wait_s, new_id) is None:
            return
        fields = {"group": group, "for": evictions[0].beneficiary, "pods": len(evictions)}
        log.info("asked for a save before the eviction", extra=fields)
        self._write_request(group, new_id, wall_now + self._wait_s, evictions[0].beneficiary)

    def settle(self) -> None:
        """Carry out and withdraw what is due; called after each cycle."""
        for outcome in self._requests.settle(
            time.monotonic(),
            answered_id=self._answered_id,
            is_waiting=self._is_waiting,
            is_present=self._is_present,
        ):
            if outcome.evict:
                answer = self._answered_id(outcome.group) != ""
                fields = {"group": outcome.group, "answered": answer}
                log.info("the wait for a save is over", extra=fields)
                self.evict(outcome.evict)
            if outcome.withdraw:
                log.info("eviction withdrawn", extra={"group": outcome.group})
                self.withdraw(outcome.withdraw)
            if outcome.is_closed:
                self._write(outcome.group, None)
        self._set_timer()

    def eviction_undone(self, eviction: PodEviction) -> None:
        """Record that the API server has refused an eviction."""
        if eviction.group is not None:
            self._requests.undone(eviction.group, eviction)

    def _answered_id(self, group: GroupKey) -> str:
        answer = read_save_answer(self._annotations(group))
        return answer.id if answer is not None else ""

    def _is_waiting(self, beneficiary: str) -> bool:
        reservation = self._state.reservations.get(beneficiary)
        return reservation is not None and reservation.preempting

    def _is_present(self, eviction: PodEviction) -> bool:
        pod = self._state.pods.get(eviction.pod)
        return pod is not None and pod.uid == eviction.uid and pod.holds_resources

    def _annotations(self, key: GroupKey) -> Mapping[str, str]:
        if is_kubernetes_group(key):
            return {}  # no master reads its annotations
        namespace, _, name = key.partition("/")
        group = self._groups.get(namespace, name)
        return group.metadata.annotations if group is not None else {}

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline = self._requests.next_deadline()
        if deadline is not None:
            delay_s = max(0.0, deadline - time.monotonic())
            self._timer = asyncio.get_running_loop().call_later(delay_s, self.settle)

    def _on_group(self, old: PodGroup | None, new: PodGroup | None) -> None:
        if new is None:
            return
        key = GroupKey(f"{new.metadata.namespace}/{new.metadata.name}")
        if key in self._requests.open:
            if self._answered_id(key) == self._requests.open[key].id:
                # Not from within the event: other listeners have not seen it yet.
                asyncio.get_running_loop().call_soon(self.settle)
        elif old is None and SAVE_REQUEST_ANNOTATION in new.metadata.annotations:
            self._remove_later(key, new)

    def _remove_later(self, key: GroupKey, group: PodGroup) -> None:
        """Remove the request of an earlier process after its time, unless it is continued.

        Before that a repeated decision may continue it, and the gang is not asked twice.
        """
        stored = read_save_request(group.metadata.annotations)
        left_s = 0.0 if stored is None else stored.deadline.timestamp() - time.time()
        delay_s = min(max(left_s, 0.0), self._wait_s)
        asyncio.get_running_loop().call_later(delay_s, self._remove_abandoned, key)

    def _remove_abandoned(self, key: GroupKey) -> None:
        if key not in self._requests.open:
            self._write(key, None)

    def _write(self, group: GroupKey, value: str | None) -> None:
        self._desired[group] = value
        self._unwritten.set()

    async def run(self) -> None:
        """Write annotations until cancelled."""
        while True:
            await self._unwritten.wait()
            self._unwritten.clear()
            for group in list(self._desired):
                if not await self._patch(group, self._desired.pop(group)):
                    asyncio.get_running_loop().call_later(RETRY_S, self._unwritten.set)

    async def _patch(self, group: GroupKey, value: str | None) -> bool:
        namespace, _, name = group.partition("/")
        body = {"metadata": {"annotations": {SAVE_REQUEST_ANNOTATION: value}}}
        try:
            await self._client.patch(POD_GROUPS, name, body, namespace)
        except NotFound:
            return True  # without a group there is no master that could answer
        except KubeError as error:
            log.warning("save request not written: %s", error, extra={"group": group})
            self._desired.setdefault(group, value)
            return False
        return True


AT_ONCE = 32
"""Evictions in flight. Of thousands that are decided together the first pods end while the others
wait, and further requests of this process (bindings, the lease) do not wait behind all of them.
"""
SETTLE_S = 5.0
"""Wait after a refusal: an immediate retry would be refused again."""


class Evictor:
    """Evicts pods concurrently; its tasks run in the task group of the caller."""

    def __init__(
        self,
        client: ApiClient,
        state: SchedulerCache,
        tasks: asyncio.TaskGroup,
        *,
        saves: SavesBeforeEviction,
        evicted: Callable[[PodEviction], None],
        refused: Callable[[], None],
    ) -> None:
        self._client = client
        self._state = state
        self._tasks = tasks
        self._evicted, self._refused = evicted, refused
        self._saves = saves
        self._queue: deque[PodEviction] = deque()
        """Evictions that wait for a free worker."""
        self._workers = 0
        saves.evict, saves.withdraw = self._start, self._undo

    def evict(self, evictions: Iterable[PodEviction]) -> None:
        """Count the pods as terminating from now on, and evict them in the background."""
        decided = list(evictions)
        for eviction in decided:
            self._state.evict(eviction.pod, eviction.uid)
        self._start(self._saves.hold_back(decided))

    def _start(self, evictions: Iterable[PodEviction]) -> None:
        self._queue.extend(evictions)
        for _ in range(min(AT_ONCE - self._workers, len(self._queue))):
            self._workers += 1
            self._tasks.create_task(self._work(), name="evict")

    async def _work(self) -> None:
        while self._queue:
            await self._evict(self._queue.popleft())
        self._workers -= 1

    def _undo(self, evictions: Iterable[PodEviction]) -> None:
        for eviction in evictions:
            self._state.undo_eviction(eviction.pod, eviction.uid)
        self._refused()

    async def _evict(self, eviction: PodEviction) -> None:
        namespace, _, name = eviction.pod.partition("/")
        try:
            # The condition first: after the eviction the pod may be deleted at any time.
            await self._write_condition(name, namespace, eviction)
            await self._client.evict(name, namespace)
        except NotFound:
            return
        except KubeError as error:
            log.warning("eviction refused: %s", error, extra={"pod": eviction.pod})
            self._tasks.create_task(self._undo_later(eviction), name=f"undo {eviction.pod}")
        else:
            fields = {"pod": eviction.pod, "for": eviction.beneficiary}
            log.info("evicted", extra=fields)
            EVICTIONS.inc()
            self._evicted(eviction)

    async def _undo_later(self, eviction: PodEviction) -> None:
        await asyncio.sleep(SETTLE_S)
        self._saves.eviction_undone(eviction)
        self._undo([eviction])

    async def _write_condition(self, name: str, namespace: str, eviction: PodEviction) -> None:
        now = datetime.now(UTC).replace(microsecond=0)
        conditions = [
            Condition(
                type=type_,
                status="True",
                reason=PREEMPTION_BY_SCHEDULER,
                message=f"Evicted: {eviction.reason}",
                last_transition_time=now,
            )
            # The eviction API overwrites the first one.
            for type_ in (DISRUPTION_TARGET, PREEMPTED_CONDITION)
        ]
        # The uid protects a newer pod of the same name.
        body = {"metadata": {"uid": eviction.uid}, "status": {"conditions": conditions}}
        await self._client.patch(
            PODS, name, body, namespace, kind=PatchKind.STRATEGIC, subresource="status"
        )
