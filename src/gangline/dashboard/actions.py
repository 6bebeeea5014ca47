"""Actions on jobs, with the viewer's own rights: what is asked before, and how it is done.

1. The confirming page names what is lost, and holds the generation of the specification.
2. The action runs with the code of the SDK and the client of the viewer. A specification that has
   changed meanwhile is a conflict, which shows what has changed; a status may change.
3. Who did what, when and with which result is logged, and an event of the job.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gangline.api.core.reference import ObjectReference
from gangline.dashboard.rights import GROUP_KIND, Question, Viewer, put_last, readable
from gangline.dashboard.views.base import JobRow, SeenJob, View
from gangline.dashboard.views.job import difference, to_yaml, work_at_risk
from gangline.kube.controller.event_recorder import EventRecorder
from gangline.kube.errors import Conflict, KubeError
from gangline.sdk.client import JobClient, JobError
from gangline.sdk.goodput import Goodput
from gangline.sdk.jobs import Job, JobState

if TYPE_CHECKING:
    from gangline.sdk.job_editor import JobEditor

log = logging.getLogger(__name__)

ATTEMPTS = 4
"""Times that an action is tried while only the status of the job changes."""
MAX_REMEMBERED = 1_000
"""Specifications that were shown on confirming pages, to name what has changed since."""


class ActionRefused(Exception):
    """The action is not possible; the message has the reason, for the viewer."""


class SpecChanged(ActionRefused):
    """The specification is not the one that the viewer has confirmed."""

    def __init__(self, difference: tuple[str, ...]) -> None:
        super().__init__("the job has changed since you opened the page")
        self.difference = difference


@dataclass(frozen=True, slots=True)
class Action:
    name: str
    verb: str
    """The verb that the viewer needs on the job."""
    applies: Callable[[Job], bool]
    run: Callable[["JobEditor", Job, str], Awaitable[object]]
    """Does it, with the value of the form."""
    field: str = ""
    """The field that the form asks for: ``replicas`` or ``queue``; empty for none."""
    needs_groups: bool = False
    """True if the viewer must be able to patch pod groups too."""


def _is_open(job: Job) -> bool:
    return not job.state.finished


async def _delete(editor: "JobEditor", job: Job, _: str) -> None:
    await editor.jobs.client.delete(
        job.kind.resource, job.name, job.namespace, propagation="Background", uid=job.uid
    )


async def _scale(editor: "JobEditor", job: Job, value: str) -> None:
    role, _, count = value.rpartition("=")
    if not (count.isascii() and count.isdecimal()) or len(count) > 6:
        raise ActionRefused(f"replicas: {count!r} is no number of replicas: give 0 or more")
    await editor.scale(job.name, job.namespace, lambda _: int(count), role or "worker")


async def _move(editor: "JobEditor", job: Job, value: str) -> None:
    if not value:
        raise ActionRefused("queue: choose the queue to move the job to")
    await editor.move(job.name, job.namespace, value)


_LIST = (
    Action(
        "suspend",
        "patch",
        lambda job: _is_open(job) and job.state is not JobState.SUSPENDED,
        lambda editor, job, _: editor.suspend(job.name, job.namespace),
    ),
    Action(
        "resume",
        "patch",
        lambda job: job.state is JobState.SUSPENDED,
        lambda editor, job, _: editor.suspend(job.name, job.namespace, suspended=False),
    ),
    Action(
        "restart",
        "patch",
        _is_open,
        lambda editor, job, _: editor.restart(job.name, job.namespace),
    ),
    Action("scale", "patch", _is_open, _scale, field="replicas"),
    Action("move", "patch", _is_open, _move, field="queue", needs_groups=True),
    Action("delete", "delete", lambda job: True, _delete),
)
ACTIONS: Mapping[str, Action] = {action.name: action for action in _LIST}


class ConfirmView(View, frozen=True):
    """What is asked before an action: what is lost, and what becomes free."""

    action: str
    row: JobRow
    generation: int
    gpus_freed: int
    replicas_stopped: int
    step: int | None = None
    checkpoint_step: int | None = None
    steps_at_risk: int | None = None
    seconds_at_risk: float | None = None
    roles: tuple[tuple[str, int], ...] = ()
    """Roles with their number of replicas, to scale."""
    queues: tuple[str, ...] = ()


_STOPPING = frozenset({"suspend", "restart", "delete"})


def confirm_view(
    action: Action,
    shown: SeenJob,
    generation: int,
    account: Goodput | None,
    queues: tuple[str, ...] = (),
) -> ConfirmView:
    job = shown.job
    stops = action.name in _STOPPING
    steps, seconds = work_at_risk(account) if account and stops else (None, None)
    return ConfirmView.of(
        account,
        action=action.name,
        row=shown.row(),
        generation=generation,
        gpus_freed=job.allocated_gpus if stops else 0,
        replicas_stopped=job.running if stops else 0,
        steps_at_risk=steps,
        seconds_at_risk=seconds,
        roles=job.roles if action.field == "replicas" else (),
        queues=queues if action.field == "queue" else (),
    )


def questions(action: Action, job: Job) -> tuple[Question, ...]:
    own = Question(action.verb, *readable(job.kind.resource), job.namespace)
    group = Question("patch", *GROUP_KIND, job.namespace)
    return (own, group) if action.needs_groups else (own,)


async def allowed_actions(viewer: Viewer, job: Job) -> tuple[str, ...]:
    """Return the names of the actions that apply to a job and that the viewer may do."""
    wanted = [action for action in ACTIONS.values() if action.applies(job)]
    answers = await viewer.rights.may_all(
        question for action in wanted for question in questions(action, job)
    )
    return tuple(
        action.name for action in wanted if all(answers[one] for one in questions(action, job))
    )


@dataclass(frozen=True, slots=True)
class ActionRequest:
    """An action that a viewer has confirmed."""

    action: Action
    viewer: Viewer
    job: Job
    generation: int
    """The specification that the confirming page was about."""
    value: str
    """Of the field of the form."""


@dataclass(slots=True)
class ActionRunner:
    recorder: EventRecorder
    _shown: dict[tuple[str, int], Mapping[str, Any]] = field(default_factory=dict)
    """Specifications on confirming pages, by UID and generation."""
    _background: set[asyncio.Task[None]] = field(default_factory=set)

    async def read(self, viewer: Viewer, job: Job) -> int:
        """Remember the specification that a confirming page is about; return its generation."""
        stored = await _manifest(viewer, job)
        generation = int(stored["metadata"].get("generation", 0))
        put_last(self._shown, (job.uid, generation), stored, MAX_REMEMBERED)
        return generation

    async def run(self, request: ActionRequest) -> None:
        """Run an action with the rights of the viewer.

        Raises:
            SpecChanged: the specification has another generation now.
            ActionRefused: it is not possible now.
            KubeError: the API server refuses it.
        """
        if request.action.name != "restart":
            await self._run(request)
            return
        # It waits until the pods have ended, which may take longer than a browser waits.
        await self._check(request)
        task = asyncio.create_task(self._report(request))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _report(self, request: ActionRequest) -> None:
        try:
            await self._run(request)
        except (ActionRefused, KubeError) as error:
            log.warning("an action has failed: %s", error)

    async def _run(self, request: ActionRequest) -> None:
        from gangline.sdk.job_editor import JobEditor

        job = request.job
        editor = JobEditor(JobClient(request.viewer.client, job.kind.trainer), request.generation)
        try:
            for attempt in range(ATTEMPTS):
                await self._check(request)
                try:
                    await request.action.run(editor, job, request.value)
                    break
                except Conflict:
                    if attempt == ATTEMPTS - 1:
                        raise
        except (JobError, KubeError, ActionRefused) as error:
            self._audit(request, str(error))
            if isinstance(error, JobError):
                raise ActionRefused(str(error)) from error
            raise
        self._audit(request)

    async def _check(self, request: ActionRequest) -> None:
        job = request.job
        stored = await _manifest(request.viewer, job)
        if int(stored["metadata"].get("generation", 0)) == request.generation:
            return
        from gangline.sdk.manifests import to_submittable

        before = self._shown.get((job.uid, request.generation))
        changed: tuple[str, ...] = ()
        if before is not None and before["metadata"]["uid"] == stored["metadata"]["uid"]:
            changed = difference(*(to_yaml(to_submittable(one)) for one in (before, stored)))
        raise SpecChanged(changed)

    def _audit(self, request: ActionRequest, problem: str = "") -> None:
        name, value, job = request.action.name, request.value, request.job
        facts = {
            "action": name,
            "viewer": request.viewer.name,
            "job": f"{job.namespace}/{job.qualified_name}",
            "value": value,
            "result": problem or "done",
        }
        log.info("action of a viewer", extra=facts)
        who = request.viewer.name or "the dashboard's user"
        failed = f" failed: {problem}" if problem else ""
        resource = job.kind.resource
        reference = ObjectReference(
            resource.kind, job.namespace, job.name, job.uid, resource.api_version
        )
        message = f"{who}: {f'{name} {value}'.strip()}{failed}"
        type_ = "Warning" if problem else "Normal"
        self.recorder.event(reference, type_, "DashboardAction", message)


async def _manifest(viewer: Viewer, job: Job) -> dict[str, Any]:
    jobs = JobClient(viewer.client, job.kind.trainer)
    try:
        return await jobs.manifest(job.name, job.namespace)
    except JobError as error:
        raise ActionRefused(str(error)) from error
