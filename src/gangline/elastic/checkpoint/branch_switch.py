"""Begins a branch of checkpoints: with the first save after a load, or a save of a lower step.

See ``storage.branches`` for what a branch is. A load alone changes nothing, so that a script may
inspect an older step.
"""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from gangline.elastic.checkpoint.format.manifest import branch_of
from gangline.elastic.checkpoint.format.plan import SavePlan
from gangline.elastic.checkpoint.ranks import SaveGroup
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


def resumed_run(job: str, environment: Mapping[str, str]) -> str | None:
    """Return the name of the run, if this may be a later attempt of it."""
    is_later = environment.get("JOB_UID") or int(environment.get("TORCHELASTIC_RESTART_COUNT") or 0)
    return job if is_later else None


class BranchSwitch:
    """Which branch the saves of this process belong to. All ranks call its methods together."""

    def __init__(
        self,
        ranks: SaveGroup,
        plan: SavePlan,
        job_folder: Path,
        open_restorer: Callable[[], Restorer],
    ) -> None:
        self._ranks, self._plan, self._job_folder = ranks, plan, job_folder
        self._open_restorer = open_restorer
        self._step: int | None = None
        """The step that was loaded or saved last."""
        self._has_saved = False
        """Whether the current branch has that step."""
        self._next: BranchRecord | None = None
        """The record that is valid as soon as a save is complete."""
        self.abandons: Callable[[int, str], bool] = lambda step, plan: False
        """Whether this process has abandoned a step and plan."""

    def prepare_after_load(
        self, restorer: Restorer, loaded: Loaded | None, asked: int | None, run: str | None
    ) -> None:
        """Prepare the branch of the saves that follow a load.

        Args:
            restorer: has loaded.
            loaded: its result.
            asked: the step that the script has asked for.
            run: the run's name, if this is the process's first load.
        """
        self._step, self._next, self._has_saved = None, None, False
        if loaded is None:
            return
        self._plan.begin_branch()
        self._step = loaded.step
        first_load = (
            FirstLoad(run, loaded.step) if run is not None and asked == loaded.step else None
        )
        self._next = restorer.begin_branch(
            branch_of(self._plan.name),
            loaded.step,
            is_asked=asked is not None,
            first_load=first_load,
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
        if new and self._ranks.rank == 0:
            first, last = min(one.after for one in new), max(one.newest for one in new)
            log.warning(
                f"training has continued from step {first}: what was saved after it, up to step "
                f"{last}, is abandoned. It is not loaded by default, and removed before other steps"
            )
