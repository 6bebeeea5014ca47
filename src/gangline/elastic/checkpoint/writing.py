"""The uploader of the saver: writes requested saves, commits steps, computes checksums. All calls
block.

Every call reads the segments again. The only state that shared memory does not have is the list of
uncommitted steps, and that is rebuilt from storage after a restart of the saver.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import msgspec

from gangline.elastic.checkpoint import pending, persist
from gangline.elastic.checkpoint.errors import CorruptError, StepTakenError, StorageError
from gangline.elastic.checkpoint.header import State
from gangline.elastic.checkpoint.home import Settings
from gangline.elastic.checkpoint.manifest import Note, partial_of
from gangline.elastic.checkpoint.pending import Held
from gangline.elastic.checkpoint.segment import Segment
from gangline.elastic.checkpoint.target import Target, open_target
from gangline.elastic.checkpoint.words import Outcome

log = logging.getLogger(__name__)
OTHERS_S = 10.0
"""Time that a step waits for the other nodes before an older one is tried as well."""


class Writer:
    """Writes the saves of one job's folder to its target."""

    def __init__(self, home: Path, report: Callable[[Outcome], None]) -> None:
        self.home, self.report = home, report
        self.stop = threading.Event()
        self.waiting: dict[tuple[int, str], int] = {}
        """Uncommitted steps and plans that wait for other ranks, with the number of ranks."""
        self.troubles = 0
        """Number of consecutive failed attempts."""
        self.taken: set[tuple[int, str]] = set()
        """Steps and plans that another saver committed first; they are not tried again."""
        self._target: tuple[Settings, Target, persist.Pace] | None = None
        self._pool = ThreadPoolExecutor(4, thread_name_prefix="write")
        self._mapped: dict[Path, Segment] = {}
        """Segments that stay mapped for repeated checksums."""

    def close(self) -> None:
        """Stop waiting for bandwidth and end the threads."""
        self.stop.set()
        self._pool.shutdown()

    def _open(self, settings: Settings) -> tuple[Target, persist.Pace]:
        if self._target is None or self._target[0] != settings:
            target = open_target(settings.target, settings.options)
            self._find_unfinished(target)
            self._target = (settings, target, persist.Pace(settings.bandwidth, self.stop))
        return self._target[1:]

    def _find_unfinished(self, target: Target) -> None:
        """Find the uncommitted steps that an earlier saver left.

        In an object store a step is written under its final name, so it may belong to another job.
        """
        mine = {snapshot.layout.plan for snapshot in pending.survey(self.home)}
        for _, name in target.unfinished():
            notes = [one for one in target.names(name) if one.startswith("rank-")]
            for one in notes[:1]:
                try:
                    note = msgspec.json.decode(target.read(f"{name}/{one}"), type=Note)
                except (msgspec.MsgspecError, FileNotFoundError):
                    continue
                if partial_of(name) or note.plan in mine:
                    self.waiting[note.step, note.plan] = note.world

    def take_up(self, settings: Settings, snapshots: Sequence[Held]) -> None:
        """Find the uncommitted steps that an earlier saver left, if memory says that there may be
        any.
        """
        if self._target is not None:
            return
        if any(one.own and one.header.wanted and one.written for one in snapshots):
            try:
                self._open(settings)
            except (OSError, StorageError) as error:
                self.troubles += 1
                log.warning("storage cannot be read", exc_info=error)

    def write(self, settings: Settings, snapshots: Sequence[Held]) -> bool:
        """Write these saves; return whether all of them are in storage now."""
        if not snapshots:
            return True
        try:
            target, pace = self._open(settings)
            done = list(self._pool.map(lambda one: self._write_one(target, pace, one), snapshots))
        except (OSError, StorageError, CorruptError) as error:
            self.troubles += 1
            log.warning(
                "checkpoint was not written", extra={"step": snapshots[0].step}, exc_info=error
            )
            self.report(Outcome(snapshots[0].step, committed=False, reason=_words(error)))
            return False
        self.troubles = 0
        return all(done)

    def _write_one(self, target: Target, pace: persist.Pace, snapshot: Held) -> bool:
        segment = Segment(snapshot.path)
        try:
            with segment.reading() as free:
                if not free or segment.header() != snapshot.header:
                    return False  # a newer save replaces it, and will be requested itself
                if not persist.is_committed(target, snapshot.step, snapshot.layout.plan):
                    persist.write_part(target, segment, snapshot.header, snapshot.layout, pace)
                    self.waiting[snapshot.step, snapshot.layout.plan] = snapshot.layout.world
                segment.mark_persisted(snapshot.header.generation)
        except CorruptError:
            segment.put_header(replace(snapshot.header, state=State.CORRUPT))
            raise
        finally:
            segment.close()
        return True

    def commit(self, settings: Settings) -> list[int]:
        """Commit complete steps and return them. Other steps stay uncommitted."""
        done = []
        for (step, plan), world in sorted(self.waiting.items(), reverse=True):
            try:
                target, _ = self._open(settings)
                if not persist.try_commit(target, step, plan, world):
                    continue
                del self.waiting[step, plan]
                done.append(step)
                self.report(Outcome(step, committed=True))
                persist.tidy(target, settings.keep, settings.keep_every, step)
            except StepTakenError as error:
                del self.waiting[step, plan]
                self.taken.add((step, plan))
                log.warning("checkpoint was not committed", extra={"step": step}, exc_info=error)
                self.report(Outcome(step, committed=False, reason=_words(error)))
            except (OSError, StorageError) as error:
                self.troubles += 1
                self.report(Outcome(step, committed=False, reason=_words(error)))
        if done:
            self.waiting = {key: n for key, n in self.waiting.items() if key[0] > max(done)}
        return done

    def rescue(self, settings: Settings) -> int | None:
        """Write the newest save that all ranks of this node hold, and wait for its commit.

        If other nodes do not hold it, the next older one is tried as well.
        """
        for step in pending.common_steps(pending.survey(self.home)):
            snapshots = pending.at_step(pending.survey(self.home), step)
            if snapshots and (step, snapshots[0].layout.plan) in self.taken:
                continue
            if not self.write(settings, snapshots):
                return None
            if self._committed_in_time(settings, step, snapshots[0].layout.plan):
                return step
        return None

    def _committed_in_time(self, settings: Settings, step: int, plan: str) -> bool:
        begin = time.monotonic()
        while (step, plan) in self.waiting:
            self.commit(settings)
            if (step, plan) not in self.waiting:
                break
            passed = time.monotonic() - begin
            if passed > OTHERS_S or self.stop.is_set():
                return False
            if passed > OTHERS_S / 4:
                self._stand_in(settings, step, plan)
            self.stop.wait(min(1.0, 0.05 + passed / 10))
        return (step, plan) not in self.taken

    def _stand_in(self, settings: Settings, step: int, plan: str) -> None:
        """Write the parts of ranks on lost nodes, from copies on this node."""
        try:
            target, _ = self._open(settings)
            missing = persist.missing_ranks(target, step, plan, self.waiting[step, plan])
        except (OSError, StorageError):
            return  # the next commit reports the error
        snapshots = pending.stand_ins(pending.survey(self.home), step, plan, missing)
        for one in snapshots:
            log.warning("writing the part of a lost rank", extra={"rank": one.rank, "step": step})
        self.write(settings, snapshots)

    def seal(self) -> int:
        """Compute missing checksums of complete saves; return how many were missing.

        Not thread-safe.
        """
        for path in [path for path, one in self._mapped.items() if not one.is_at(path)]:
            self._mapped.pop(path).close()  # replaced or removed: its memory must be freed
        count = 0
        for snapshot in pending.survey(self.home):
            try:
                segment = self._map(snapshot.path)
            except (FileNotFoundError, CorruptError):
                continue  # removed since the inventory was taken
            if segment.seal(snapshot.header, len(snapshot.layout.entries)) is None:
                count += persist.seal_unless_overtaken(segment, snapshot.header, snapshot.layout)
        return count

    def _map(self, path: Path) -> Segment:
        """Return the segment, mapped once: faulting in its pages again costs more than the
        checksums.
        """
        if path not in self._mapped:
            self._mapped[path] = Segment(path)
        return self._mapped[path]


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
