"""Begins a branch of checkpoints: with the first save after a load, or a save of a lower step.

See ``storage.branches`` for what a branch is. A load alone changes nothing, so that a script may
inspect an older step.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from gangline.elastic.checkpoint.format.manifest import branch_of
from gangline.elastic.checkpoint.format.plan import SavePlan
from gangline.elastic.checkpoint.restore.restore import (
    Loaded,
    RestoreCandidate,
    Restorer,
    invalidate,
)
from gangline.elastic.checkpoint.snapshot import directory, inventory
from gangline.elastic.checkpoint.storage.branches import (
    RECORD,
    BranchRecord,
    FirstLoad,
    encode_record,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CurrentRun:
    """The run of a launcher or of a job that this process belongs to."""

    name: str
    may_be_resumed: bool
    """Whether this may be a later attempt of it."""

    @classmethod
    def from_environment(cls, job: str, environment: Mapping[str, str]) -> Self:
        """Return the run of this process, which ``job`` names."""
        restarts = int(environment.get("TORCHELASTIC_RESTART_COUNT") or 0)
        return cls(job, restarts > 0 or bool(environment.get("JOB_UID")))


class BranchSwitch:
    """Which branch the saves of this process belong to. All ranks call its methods together."""

    def __init__(
        self,
        plan: SavePlan,
        job_folder: Path,
        run: CurrentRun,
        open_restorer: Callable[[], Restorer],
    ) -> None:
        self._plan, self._job_folder, self._run = plan, job_folder, run
        self._open_restorer = open_restorer
        self._is_first_load = True
        self._step: int | None = None
        """The step that was loaded or saved last."""
        self._has_saved = False
        """Whether the current branch has that step."""
        self._next: BranchRecord | None = None
        """The record that is valid as soon as a save is complete."""
        self.abandons: Callable[[int, str], bool] = lambda step, plan: False
        """Whether this process has abandoned a step and plan."""

    @property
    def resumed_run(self) -> str | None:
        """The run that the next load may resume: the process's first one in a later attempt."""
        is_resumed = self._is_first_load and self._run.may_be_resumed
        return self._run.name if is_resumed else None

    def prepare_after_load(
        self, restorer: Restorer, loaded: Loaded | None, asked: int | None
    ) -> None:
        """Prepare the branch of the saves that follow a load.

        Args:
            restorer: has loaded.
            loaded: its result.
            asked: the step that the script has asked for.
        """
        is_first, self._is_first_load = self._is_first_load, False
        self._step, self._next, self._has_saved = None, None, False
        if loaded is None:
            return
        self._plan.begin_branch()
        self._step = loaded.step
        is_start = is_first and asked == loaded.step
        self._next = restorer.begin_branch(
            branch_of(self._plan.name),
            loaded.step,
            is_asked=asked is not None,
            first_load=FirstLoad(self._run.name, loaded.step) if is_start else None,
        )

    def before_save(self, step: int) -> None:
        """Give the save a plan of its own if it repeats a step."""
        if self._step is not None and step < self._step + (not self._has_saved):
            # The script has gone back by its own means, or replaces the step that it has loaded.
            restorer = self._open_restorer()
            restorer.read_storage()
            restorer.loaded = RestoreCandidate(step - 1, self._plan.name)
            self._plan.begin_branch()
            self._next = restorer.begin_branch(branch_of(self._plan.name), step - 1, is_asked=True)
        elif step == self._step:
            self._plan.renew()
        self._step, self._has_saved = step, True

    def after_save(self) -> None:
        """Begin the prepared branch on this node, after the first save of it is complete."""
        record, self._next = self._next, None
        if record is None:
            return
        self.abandons = record.abandons
        directory.write_file(self._job_folder / RECORD, encode_record(record))
        for snapshot in inventory.list_snapshots(self._job_folder):
            if record.abandons(snapshot.step, snapshot.layout.plan):
                invalidate(snapshot)
        branch = branch_of(self._plan.name)
        new = [one for one in record.abandoned if one.successor == branch]
        if new and self._plan.is_first_rank:
            first, last = min(one.after for one in new), max(one.newest for one in new)
            log.warning(
                f"training has continued from step {first}: what was saved after it, up to step "
                f"{last}, is abandoned. It is not loaded by default, and removed before other steps"
            )
