"""The page of one job: its head with the timeline, and what each tab shows."""

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from gangline.api.masking import mask_data, secret_values
from gangline.api.verdict import Finding
from gangline.api.volcano.scheduling import PodGroup
from gangline.dashboard.views.base import JobRow, Observation, SeenJob, View, started
from gangline.dashboard.views.jobs import NO_ACCOUNTS, job_row
from gangline.sdk.diagnosis import Diagnosis
from gangline.sdk.events import EventRecord
from gangline.sdk.goodput import Goodput
from gangline.sdk.jobs import Job, Replica
from gangline.sdk.usage import GpuUsage, ResourceUsage

MAX_MOMENTS = 200
"""The newest are shown."""


class TimelineRow(View, frozen=True):
    at: datetime
    what: str
    """``submitted``, ``queued``, ``placed``, ``started``, ``restarting``, ``suspended``,
    ``succeeded``, ``failed``, or the reason of an event.
    """
    message: str = ""
    subject: str = ""
    """The object of an event, such as ``pod/digits-worker-1``."""
    count: int = 1
    is_warning: bool = False


_OF_CONDITION = {
    "Restarting": ("restarting", True),
    "Suspended": ("suspended", False),
    "Succeeded": ("succeeded", False),
    "Failed": ("failed", True),
    "InvalidSpec": ("invalid", True),
    "Stalled": ("stalled", True),
}
_OF_GROUP = {"Unschedulable": ("queued", False), "Scheduled": ("placed", False)}


def timeline(
    job: Job,
    conditions: Iterable[Any],
    groups: Sequence[PodGroup],
    events: Sequence[EventRecord],
) -> tuple[TimelineRow, ...]:
    moments = [TimelineRow(job.created, "submitted"), *_of_conditions(conditions, _OF_CONDITION)]
    for group in groups:
        moments += _of_conditions(group.status.conditions, _OF_GROUP)
    if at := started(job):
        moments.append(TimelineRow(at, "started"))
    moments += [
        TimelineRow.of(event, at=event.last, what=event.reason, is_warning=event.type == "Warning")
        for event in events
    ]
    moments.sort(key=lambda moment: moment.at)
    return tuple(moments[-MAX_MOMENTS:])


def _of_conditions(
    conditions: Iterable[Any], names: dict[str, tuple[str, bool]]
) -> Iterator[TimelineRow]:
    for condition in conditions:
        at = condition.last_transition_time
        if condition.type in names and condition.status == "True" and at is not None:
            what, is_warning = names[condition.type]
            yield TimelineRow(
                at, what, condition.message or condition.reason, is_warning=is_warning
            )


class ReplicaCell(View, frozen=True):
    name: str
    short_name: str
    status: str
    mark: str = ""
    """A letter for its state, which does not depend on colours: R, P, W, C, T or F."""
    is_chief: bool = False
    node: str = ""
    restarts: int = 0
    exit_code: int | None = None
    gpus: int = 0
    message: str = ""
    cpu: float | None = None
    """Cores; None if nothing measures them."""
    memory: float | None = None
    """Bytes; None if nothing measures them."""
    gpu_use: float | None = None
    """Sum of the use of its GPUs; None if nothing measures them."""


_MARKS = {"Running": "R", "Succeeded": "C", "Completed": "C", "Terminating": "T"}
_STARTING = ("Pending", "ContainerCreating", "PodInitializing", "Init:Running")


def replica_cell(replica: Replica, **measured: float | None) -> ReplicaCell:
    return ReplicaCell.of(replica, mark=_replica_mark(replica), is_chief=replica.chief, **measured)


def _replica_mark(replica: Replica) -> str:
    """Return the letter of a replica: R runs, P pending or starting, C completed, T terminating,
    F failed, W waits for something that its status names.
    """
    if replica.status in _MARKS:
        return _MARKS[replica.status]
    if replica.status in _STARTING:
        return "P"
    return "F" if replica.exit_code else "W"


class JobHead(View, frozen=True):
    row: JobRow
    uid: str
    replicas: tuple[ReplicaCell, ...]
    timeline: tuple[TimelineRow, ...]
    last_restart: str = ""
    expected_start: str = ""
    """When the scheduler expects it to start; empty if it has not stated it."""
    managed_elsewhere: bool = False


class JobPage(View, frozen=True):
    """A job with the content of one tab."""

    head: JobHead
    content: View | None = None
    """None if there is nothing to show yet, or if the record does not have it."""


def job_head(
    seen: Observation,
    shown: SeenJob,
    accounts: Mapping[str, Goodput] = NO_ACCOUNTS,
    usage: Mapping[tuple[str, str], ResourceUsage] | None = None,
    gpus: GpuUsage | None = None,
) -> JobHead:
    job, stored = shown.job, shown.entry.stored
    groups = seen.cluster.groups_of(job.uid)
    return JobHead.of(
        job,
        row=job_row(shown, accounts),
        replicas=tuple(_cell(job, replica, usage or {}, gpus) for replica in job.replicas),
        timeline=timeline(job, job.kind.status(stored).conditions, groups, seen.events(job)),
        expected_start=expected_start(groups),
    )


def expected_start(groups: Iterable[Any]) -> str:
    """Return when the scheduler expects a gang to start, as it states on the pod group."""
    for group in groups:
        for condition in group.status.conditions:
            if condition.type == "StartExpected" and condition.status == "True":
                return str(condition.message)
    return ""


def _cell(
    job: Job,
    replica: Replica,
    usage: Mapping[tuple[str, str], ResourceUsage],
    gpus: GpuUsage | None,
) -> ReplicaCell:
    place = job.namespace, replica.name
    used = usage.get(place)
    return replica_cell(
        replica,
        cpu=used.cpu if used else None,
        memory=used.memory if used else None,
        gpu_use=gpus.pods.get(place) if gpus else None,
    )


class FindingView(View, frozen=True):
    title: str
    meaning: str
    blame: str
    remedy: str = ""
    evidence: str = ""
    replica: str = ""
    node: str = ""
    is_consequence: bool = False


class WhyView(View, frozen=True):
    """Why a job waits or failed: the texts of ``gangline diagnose`` and ``gangline explain``."""

    summary: str
    root: FindingView | None = None
    consequences: tuple[FindingView, ...] = ()
    last_lines: tuple[str, ...] = ()
    next_steps: tuple[str, ...] = ()
    explanations: tuple[Any, ...] = ()
    """``Explanation`` of each gang of a job that waits; empty if it does not, or if the viewer may
    not list all nodes and pods.
    """
    is_explanation_hidden: bool = False
    """True if it is empty for lack of rights."""


def why_view(
    diagnosis: Diagnosis, explanations: Sequence[Any] = (), *, hidden: bool = False
) -> WhyView:
    return WhyView.of(
        diagnosis,
        root=_finding(diagnosis.root) if diagnosis.root else None,
        consequences=tuple(map(_finding, diagnosis.consequences)),
        explanations=tuple(explanations),
        is_explanation_hidden=hidden,
    )


def _finding(finding: Finding) -> FindingView:
    return FindingView.of(finding, is_consequence=finding.consequence)


class CheckpointsView(View, frozen=True):
    step: int | None
    checkpoint_step: int | None
    steps_at_risk: int | None
    seconds_at_risk: float | None
    """Time in which these steps were made; None if their rate is not known."""
    saves_skipped: int
    saves_overtaken: int
    saves_failed: int
    steps_lost: int
    last_restart: str = ""
    restored_step: int | None = None
    """The step at which the last restart continued."""


def work_at_risk(account: Goodput) -> tuple[int | None, float | None]:
    """Return the steps since the last checkpoint, and the time in which they were made; None if
    they are not known.
    """
    if account.step is None:
        return None, None
    steps = max(0, account.step - (account.checkpoint_step or 0))
    return steps, steps / account.steps_per_s if account.steps_per_s else None


def checkpoints_view(account: Goodput) -> CheckpointsView:
    restart = account.last_restart
    steps, seconds = work_at_risk(account)
    return CheckpointsView.of(
        account,
        steps_at_risk=steps,
        seconds_at_risk=seconds,
        last_restart=f"{restart.replica}: {restart.cause}" if restart else "",
        restored_step=restart.step if restart else None,
    )


class GoodputPart(View, frozen=True):
    name: str
    seconds: float
    share: float
    gpu_hours: float


class GoodputView(View, frozen=True):
    share: float
    wall_s: float
    restarts: int
    failures: int
    steps_lost: int
    summary: str
    """As ``gangline get`` prints it."""
    parts: tuple[GoodputPart, ...] = ()
    """The productive part, then the others, the longest first."""


def goodput_view(account: Goodput, gpus: int) -> GoodputView:
    """Return what the tab Goodput shows, for a job with ``gpus`` GPUs."""
    wall = account.wall_s
    others = sorted(account.unproductive_s.items(), key=lambda part: -part[1])
    parts = [("productive", account.productive_s), *others]
    return GoodputView.of(
        account,
        parts=tuple(
            GoodputPart(name, seconds, seconds / wall if wall else 0.0, seconds * gpus / 3600)
            for name, seconds in parts
        ),
    )


class SpecView(View, frozen=True):
    written: str
    """The job as it was submitted, as YAML; values of variables with secret names are masked."""
    effective: str = ""
    """What a TrainJob runs after its runtime is merged, as YAML; empty for other kinds."""
    compared_with: str = ""
    difference: tuple[str, ...] = ()
    """Lines of the difference to the other job: they begin with ``+``, ``-`` or a space."""


def spec_view(
    stored: Mapping[str, Any],
    effective: Mapping[str, Any] | None = None,
    other: Mapping[str, Any] | None = None,
    other_name: str = "",
) -> SpecView:
    """Return what the tab Spec shows; ``other`` is a job to compare with."""
    from gangline.sdk.manifests import to_submittable  # takes as long as all other imports here

    written = to_yaml(to_submittable(stored))
    return SpecView(
        written=written,
        effective=to_yaml(effective) if effective else "",
        compared_with=other_name if other is not None else "",
        difference=difference(to_yaml(to_submittable(other)), written) if other is not None else (),
    )


def difference(old: str, new: str) -> tuple[str, ...]:
    """Return the lines of a difference: they begin with ``+``, ``-``, ``@`` or a space."""
    return tuple(difflib.unified_diff(old.splitlines(), new.splitlines(), n=3, lineterm=""))[2:]


def to_yaml(value: Any) -> str:
    import yaml

    shown = mask_data(value, secret_values(value))
    text: str = yaml.safe_dump(shown, sort_keys=False, allow_unicode=True, width=100)
    return text
