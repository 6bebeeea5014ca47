"""Saves before an eviction: requested on the job's PodGroup, carried out by all members.

``SaveRelay`` passes requests from the PodGroup to ``EvictionSaveRequests`` and writes the answer
back (the protocol is in ``api.volcano.eviction_saves``). The state is in memory: a restarted master
reads the request again and repeats it, and agents answer a repeated request as they did before. A
lost answer costs at most the save: the scheduler evicts the pods at the end of its wait.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from gangline.api.volcano.eviction_saves import (
    SAVE_ANSWER_ANNOTATION,
    SAVES_ANNOTATION,
    SaveAnswerAnnotation,
    SaveRequestAnnotation,
    read_save_answer,
    read_save_request,
)

if TYPE_CHECKING:
    from gangline.elastic.master.facts.cluster import JobConfigMaps

from gangline.elastic.master.state.core import MasterCore
from gangline.elastic.protocol import messages as msg

log = logging.getLogger(__name__)

CHECK_EVERY_S = 1.0

REASON = "pods of this job are to be evicted for {}"


class EvictionSaveRequests:
    """The request that is being carried out, and the last answer."""

    def __init__(self, core: MasterCore, send: Callable[[msg.SendCommand], None]) -> None:
        self._core, self._send = core, send
        self._request = ""
        self._steps: dict[int, int | None] = {}
        self.answer: SaveAnswerAnnotation | None = None
        """The last answer; None before the first one."""
        self.changed = asyncio.Event()

    @property
    def can_save(self) -> bool:
        """True if all members have a complete checkpoint, so that a request makes sense."""
        members = self._core.rendezvous.state.members
        heartbeats = [self._core.heartbeats.get(node) for node in members]
        return bool(heartbeats) and all(
            heartbeat is not None and heartbeat.checkpoint_step is not None
            for heartbeat in heartbeats
        )

    def request(self, name: str, wait_s: float, beneficiary: str) -> None:
        """Ask all members to save; a request that is known already changes nothing."""
        if name == self._request:
            return
        self._request, self._steps = name, {}
        nodes = tuple(sorted(self._core.rendezvous.state.members))
        if not nodes:
            self._finish(None)  # no workers run, so there is nothing that a save could preserve
            return
        reason = REASON.format(beneficiary)
        command = msg.SaveCheckpoint(reason=reason, request=name, wait_s=wait_s)
        self._send(msg.SendCommand(what=command, nodes=nodes))

    def withdraw(self) -> None:
        name, self._request = self._request, ""
        nodes = tuple(sorted(self._core.rendezvous.state.members))
        if name and nodes:
            command = msg.SaveCheckpoint(request=name, is_withdrawn=True)
            self._send(msg.SendCommand(what=command, nodes=nodes))

    def finished(self, reply: msg.SaveFinished) -> None:
        """Record the answer of a node; answers to other requests are ignored."""
        if not self._request or reply.request != self._request:
            return
        self._steps[reply.node_id] = reply.step
        members = self._core.rendezvous.state.members
        if not all(node in self._steps for node in members):
            return
        steps = [self._steps[node] for node in members]
        written = [step for step in steps if step is not None]
        self._finish(min(written) if written and len(written) == len(steps) else None)

    def _finish(self, step: int | None) -> None:
        self.answer = SaveAnswerAnnotation(id=self._request, step=step)
        self.changed.set()


class SaveRelay:
    """Relays the requests of one job."""

    def __init__(
        self,
        cluster: "JobConfigMaps",
        service: EvictionSaveRequests,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._cluster, self._service, self._wall_clock = cluster, service, wall_clock
        self._is_first = True
        self._answered = ""
        """The request that an earlier process of this master has answered."""
        self._written: dict[str, str | None] = {}

    async def run(self) -> None:
        """Relay until cancelled. An unexpected error ends only this."""
        try:
            await self._run()
        except Exception:  # a defect here must not end the publication of facts
            log.exception("requests to save before an eviction are no longer answered")

    async def _run(self) -> None:
        annotations = await self._cluster.facts_annotations()
        earlier = read_save_answer(annotations)
        self._answered = earlier.id if earlier is not None else ""
        self._written = {SAVES_ANNOTATION: annotations.get(SAVES_ANNOTATION)}
        async with asyncio.TaskGroup() as group:
            group.create_task(self._cluster.watch_group(self.on_annotations))
            group.create_task(self._publish())

    def on_annotations(self, annotations: Mapping[str, str]) -> None:
        request, is_first = read_save_request(annotations), self._is_first
        self._is_first = False
        if request is None:
            self._service.withdraw()
        elif not self._is_void(request, is_first):
            self._service.request(request.id, request.seconds, request.beneficiary)

    def _is_void(self, request: SaveRequestAnnotation, is_first: bool) -> bool:
        """Return whether a request was answered, or is a remainder of an earlier run.

        Clocks of nodes differ, so the deadline counts only for a request that was there before this
        process.
        """
        if request.id == self._answered:
            return True
        if is_first and request.deadline.timestamp() <= self._wall_clock():
            self._answered = request.id
            return True
        return False

    async def _publish(self) -> None:
        while True:
            self._service.changed.clear()
            await self._write(self.desired())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CHECK_EVERY_S):
                    await self._service.changed.wait()

    def desired(self) -> dict[str, str | None]:
        annotations: dict[str, str | None] = {SAVES_ANNOTATION: None}
        if self._service.can_save:
            annotations[SAVES_ANNOTATION] = "true"
        if self._service.answer is not None:
            annotations[SAVE_ANSWER_ANNOTATION] = msgspec.json.encode(self._service.answer).decode()
        return annotations

    async def _write(self, annotations: dict[str, str | None]) -> None:
        changed = {
            key: value for key, value in annotations.items() if self._written.get(key) != value
        }
        if changed and await self._cluster.annotate_facts(changed):
            self._written |= changed
