"""The history as the evaluation uses it: the store, and what memory holds while it is away.

Facts go to the store's buffer, which retains them while the database is away. Ended runs stay here
as well, so that advice goes on without the database; it is marked then, and nothing is applied.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TypeVar
from zlib import crc32

from msgspec.structs import replace

from gangline.api.jobs.training_facts import FACTS_MAX_SEGMENTS
from gangline.brain.advisers.advice import GuardAction
from gangline.brain.advisers.similarity import LEVEL_WEIGHTS, select_similar, similarity_level
from gangline.brain.advisers.view import SimilarRuns
from gangline.brain.collection.collector import Collector
from gangline.brain.facts.records import NodeSpeed, Outcome, RecordedJob, Run
from gangline.brain.store.context import Fact, facts_of
from gangline.brain.store.deletion import RetentionSettings
from gangline.brain.store.engine import Store
from gangline.brain.store.errors import Fenced, StoreError
from gangline.brain.store.reader import Reader
from gangline.brain.store.writer import Writer
from gangline.kube.turns import Turns

log = logging.getLogger(__name__)

T = TypeVar("T")

REMEMBERED_RUNS = 500
PRUNE_S = 3600.0
MAX_SKEW_S = 60.0
"""With a clock that differs more from the API server's, nothing is deleted or changed."""
CACHE_S = 300.0
"""Similar runs are read again after this time at the latest, or when a similar job has ended."""


@dataclass(slots=True)
class _Cached:
    similar: SimilarRuns
    until: float
    ended: int
    """Jobs that had ended, of those that this process has seen."""


class JobHistory:
    """Reads and writes of one cluster. ``problem`` says why the store is away."""

    def __init__(
        self, store: Store, cluster: str, retention: RetentionSettings | None = None
    ) -> None:
        self._store, self._cluster = store, cluster
        self._retention = retention or RetentionSettings()
        self._fence: int | None = None
        self._ended: dict[str, Run] = {}
        self._ended_count = 0
        self._cache: dict[str, _Cached] = {}
        self._given: dict[str, Run] = {}
        """What the store has taken of each running job."""
        self._losses = 0

    @property
    def problem(self) -> str:
        """Why the history is not available; empty while it is."""
        return str(self._store.problem) if self._store.problem else ""

    async def lead(self, holder: str) -> bool:
        """Take the next fencing number. Returns whether the store gave one."""
        try:
            self._fence = await self._store.update(lambda w: w.lead(self._cluster, holder))
        except StoreError as error:
            log.warning("cannot lead in the history: %s", error)
        return self._fence is not None

    def add(self, runs: Iterable[Run]) -> None:
        """Take runs to be written; does not wait for the database."""
        if self._losses != self._store.losses:
            self._losses = self._store.losses
            self._given.clear()
        for run in runs:
            before = self._given.pop(run.job.uid, None)
            if run.job.outcome is Outcome.RUNNING:
                self._store.add(facts_of(run, before))
                self._given[run.job.uid] = run
                continue
            # At its end a job is given completely: what another writer has lost is healed.
            self._store.add(facts_of(run))
            self._ended_count += run.job.uid not in self._ended
            self._ended[run.job.uid] = run
        while len(self._ended) > REMEMBERED_RUNS:
            del self._ended[next(iter(self._ended))]

    @property
    def is_filling(self) -> bool:
        """Whether so many facts wait to be written that some may soon be dropped."""
        buffer = self._store.buffer
        return 2 * len(buffer) >= buffer.capacity

    def add_speeds(self, speeds: Iterable[NodeSpeed]) -> None:
        """Take days of nodes to be written; does not wait for the database."""
        self._store.add(Fact(self._cluster, "", speed) for speed in speeds)

    def ended_runs(self) -> list[Run]:
        return list(self._ended.values())

    async def read(self, work: Callable[[Reader, str], T]) -> T | None:
        """Ask the store about this cluster; returns None while it is away."""
        try:
            return await self._store.query(lambda reader: work(reader, self._cluster))
        except StoreError:
            return None

    async def flush(self) -> bool:
        """Write what was added. Returns False if it stays in memory."""
        try:
            written = await self._store.flush()
        except StoreError as error:
            log.debug("facts stay in memory: %s", error)
            self._given.clear()  # what the database has when it is back is not known
            return False
        for refused in written.refused[:10]:
            log.info("a fact was not stored: %s", refused)
        return True

    async def known_jobs(self) -> list[RecordedJob]:
        """Return unfinished jobs that an earlier process has watched."""
        return await self.read(lambda r, cluster: r.running_jobs(cluster)) or []

    async def end_vanished(self, present: Collection[str], now_ms: int) -> int:
        """Mark jobs as deleted that the API server does not have any more; return their number.

        When they were deleted is not known: ``now_ms`` stands for it.
        """
        vanished = [
            replace(job, outcome=Outcome.DELETED, finished_ms=now_ms, observed_ms=now_ms)
            for job in await self.known_jobs()
            if job.uid not in present
        ]
        self.add(Run(job=job) for job in vanished)
        return len(vanished)

    async def similar(self, run: Run, now_ms: int) -> SimilarRuns:
        """Return similar runs: of the store, or of memory while it is away."""
        uid, now = run.job.uid, time.monotonic()
        cached = self._cache.get(uid)
        if cached and now < cached.until and not self._has_ended_since(run, cached):
            cached.ended = self._ended_count
            return cached.similar
        ended = self._ended_count
        try:
            similar = await self._store.query(lambda r: r.similar_runs(run.job, now_ms=now_ms))
        except StoreError:
            return select_similar(run, self._ended.values(), now_ms)
        # Between a half and all of it, so that not all jobs are read again in one cycle.
        life_s = CACHE_S * (1 + crc32(uid.encode()) / 2**32) / 2
        self._cache[uid] = _Cached(similar, now + life_s, ended)
        return similar

    def _has_ended_since(self, run: Run, cached: _Cached) -> bool:
        """Whether a job has ended that would be among the similar runs of a new look-up."""
        count = self._ended_count - cached.ended
        if count > len(self._ended):
            return True
        # A look-up with enough runs at one level does not reach the next.
        last = cached.similar.level if cached.similar.runs else len(LEVEL_WEIGHTS)
        asked = Run(job=run.job)
        latest = islice(reversed(self._ended.values()), count)
        levels = (
            similarity_level(asked, past) for run in latest for past in (run, Run(job=run.job))
        )
        return any(level is not None and level <= last for level in levels)

    def forget_cached(self, uids: Iterable[str]) -> None:
        kept = set(uids)
        for cache in (self._cache, self._given):
            for uid in [uid for uid in cache if uid not in kept]:
                del cache[uid]

    async def begin_action(self, action: GuardAction) -> GuardAction | None:
        """Store an action before it happens; None if it may not happen."""
        return await self._act(
            f"an action on job {action.job} is not begun",
            lambda writer, fence: writer.begin_action(self._cluster, action, fence=fence),
        )

    async def update_action(self, action: GuardAction) -> bool:
        def update(writer: Writer, fence: int) -> bool:
            writer.update_action(self._cluster, action, fence=fence)
            return True

        return bool(await self._act(f"a verdict on job {action.job} is not stored", update))

    async def prune(self, now_ms: int) -> None:
        try:
            if deleted := await self._store.prune(now_ms, self._retention):
                log.info("the history was pruned", extra={"rows": dict(deleted)})
        except StoreError as error:
            log.warning("the history is pruned later: %s", error)

    @property
    def may_act(self) -> bool:
        """Whether this process has the newest fencing number, as far as it knows."""
        return self._fence is not None and not self.problem

    async def _act(self, failure: str, work: Callable[[Writer, int], T]) -> T | None:
        """Write as the leader; None if this process is none, or the store failed."""
        if (fence := self._fence) is None:
            return None
        try:
            return await self._store.update(lambda writer: work(writer, fence))
        except StoreError as error:
            if isinstance(error, Fenced):
                self._fence = None
            log.warning("%s: %s", failure, error)
            return None


class FactFlow:
    """Writes the facts of one cluster, whether or not anything is advised on them."""

    def __init__(
        self,
        collector: Collector,
        history: JobHistory,
        skew_s: Callable[[], float | None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._collector, self._history = collector, history
        self._skew_s, self._clock = skew_s, clock
        self._earlier_loaded: set[str] = set()
        self._pruned_at: float | None = None

    async def store(self) -> None:
        """Write what has changed; it stays in memory while the database is away."""
        for uid in self._collector.jobs.keys() - self._earlier_loaded:
            # Runs of pods that an earlier process has watched keep their numbers.
            self._earlier_loaded.add(uid)
            earlier = await self._history.read(partial(Reader.run, uid=uid))
            watched = self._collector.jobs.get(uid)
            if watched is None or earlier is None:
                continue
            for pod in earlier.pods:
                watched.observations.earlier[pod.role, pod.rank, pod.started_ms] = pod
            for segment in earlier.segments[-FACTS_MAX_SEGMENTS:]:
                watched.observations.segments.setdefault(segment.key, segment)
        self._earlier_loaded &= self._collector.jobs.keys()
        is_available, turns = True, Turns()
        for run in self._collector.changed_runs():
            self._history.add([run])
            await turns.give_way()
            # After a start each job is given completely, which is more than memory is for.
            if is_available and self._history.is_filling:
                is_available = await self._history.flush()
        self._collector.forget_ended()
        if is_available:
            await self._history.flush()

    @property
    def knows_time(self) -> bool:
        """Whether the clock is right enough to delete by age, and to change jobs."""
        skew = self._skew_s()
        return skew is not None and abs(skew) <= MAX_SKEW_S

    async def prune(self) -> None:
        now = time.monotonic()
        is_due = self._pruned_at is None or now - self._pruned_at >= PRUNE_S
        if is_due and self.knows_time:
            self._pruned_at = now
            await self._history.prune(round(self._clock() * 1000))
