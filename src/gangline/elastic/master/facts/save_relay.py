"""Passes requests to save from the job's PodGroup to the master, and its answers back.

The protocol is in ``api.volcano.eviction_saves``. A failure here costs at most the save: the
scheduler evicts the pods at the end of its wait.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Protocol

import msgspec

from gangline.api.volcano.eviction_saves import (
    SAVE_ANSWER_ANNOTATION,
    SAVES_ANNOTATION,
    SaveAnswerAnnotation,
    SaveRequestAnnotation,
    read_save_answer,
    read_save_request,
)
from gangline.kube.errors import ApiError

log = logging.getLogger(__name__)

CHECK_EVERY_S = 1.0
"""Interval at which it is checked whether the job can save."""


RETRY_S = (5.0, 60.0)
"""Shortest and longest pause before the PodGroup is watched again after an error."""
WATCH_PAUSE_S = 1.0
"""Pause after a watch that the server has ended, in case it ends each at once."""


class SaveCluster(Protocol):
    """The objects of the job."""

    queue_changed: Callable[[str], None]
    """Called with the queue of the PodGroup when it is read, and after each change."""

    async def facts_annotations(self) -> Mapping[str, str]:
        """Return the annotations of the ConfigMap of facts."""
        ...

    async def annotate_facts(self, annotations: Mapping[str, str | None]) -> bool:
        """Write annotations of the ConfigMap of facts; return whether they are written."""
        ...

    def watch_group(self) -> AsyncGenerator[Mapping[str, str], None]:
        """Yield the annotations of the PodGroup; raises ``ApiError``."""
        ...

    def log_group_error(self, error: ApiError) -> None:
        """Log once that the PodGroup cannot be read."""
        ...


class SavingService(Protocol):
    """The master, as far as requests to save need it."""

    changed: asyncio.Event

    @property
    def can_save(self) -> bool:
        """True if all members have a complete checkpoint."""
        ...

    @property
    def answer(self) -> SaveAnswerAnnotation | None:
        """The last answer."""
        ...

    def request(self, name: str, wait_s: float, beneficiary: str) -> None:
        """Ask all members to save."""
        ...

    def withdraw(self) -> None:
        """Let the workers continue."""
        ...


class SaveRelay:
    """Relays the requests of one job."""

    def __init__(
        self,
        cluster: SaveCluster,
        service: SavingService,
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
        known = await self._cluster.facts_annotations()
        earlier = read_save_answer(known)
        self._answered = earlier.id if earlier is not None else ""
        self._written = {SAVES_ANNOTATION: known.get(SAVES_ANNOTATION)}
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch())
            group.create_task(self._publish())

    async def _watch(self) -> None:
        pause_s = RETRY_S[0]
        while True:
            watch = self._cluster.watch_group()
            try:
                async with contextlib.aclosing(watch) as events:
                    async for annotations in events:
                        pause_s = RETRY_S[0]
                        self.on_annotations(annotations)
                await asyncio.sleep(WATCH_PAUSE_S)
            except ApiError as error:
                self._cluster.log_group_error(error)
                await asyncio.sleep(random.uniform(pause_s / 2, pause_s))
                pause_s = min(pause_s * 2, RETRY_S[1])

    def on_annotations(self, annotations: Mapping[str, str]) -> None:
        """Process the annotations of the PodGroup."""
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
        """Return the annotations that the master should have."""
        wanted: dict[str, str | None] = {SAVES_ANNOTATION: None}
        if self._service.can_save:
            wanted[SAVES_ANNOTATION] = "true"
        if self._service.answer is not None:
            wanted[SAVE_ANSWER_ANNOTATION] = msgspec.json.encode(self._service.answer).decode()
        return wanted

    async def _write(self, wanted: dict[str, str | None]) -> None:
        changed = {key: value for key, value in wanted.items() if self._written.get(key) != value}
        if changed and await self._cluster.annotate_facts(changed):
            self._written |= changed
