"""Runs one container of a pod: plans and starts its runs, runs probes and hooks, and stops it."""

import asyncio
import logging
import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

from gangline.api.core.container import Container
from gangline.kube.errors import ApiError
from gangline.local.kubelet.configuration import (
    ContainerConfigError,
    ObjectName,
    ValueSources,
    build_environment,
    names_in_environment,
    token_specs,
)
from gangline.local.kubelet.containers.images import ResolvedImage
from gangline.local.kubelet.containers.plan import (
    NoCommandError,
    PlanInputs,
    build_container_plan,
    gpu_variables,
    requested_gpus,
    termination_message,
)
from gangline.local.kubelet.logs import LogWriter, rotated_files
from gangline.local.kubelet.pods.pod_context import PodContext
from gangline.local.kubelet.probes import ProbeTarget, run_hook, run_probes_and_hooks
from gangline.local.kubelet.records import (
    ContainerInstance,
    ContainerRecord,
    ExitRecord,
    StartProblem,
    next_backoff,
)
from gangline.local.kubelet.runtime.interface import (
    EXIT_START_FAILED,
    ContainerExit,
    ContainerPlan,
    ContainerStartError,
    RunningContainer,
)

log = logging.getLogger(__name__)


async def plan_container_run(
    context: PodContext, container: Container, number: int
) -> ContainerPlan:
    """Return the plan of one run. Raises ContainerConfigError: an object that it refers to is
    missing; NoCommandError, ApiError, OSError: the disk is full.
    """
    assert context.attachment is not None, "containers are started in prepared pods only"
    node = context.node
    image = node.images.resolve(container.image)
    if number == 0:
        _record_image_event(context, container, image)
    gpus = node.devices.assign(context.pod.metadata.uid, container)
    if gpus is None:
        raise ContainerConfigError(
            f"{requested_gpus(container)} free GPUs are required, the node has fewer"
        )
    sources = await fetch_value_sources(context, names_in_environment(container))
    base = {
        **image.variables,
        "HOSTNAME": context.attachment.hostname,
        **({"TERM": "xterm"} if container.tty else {}),
        **gpu_variables(gpus, bool(node.spec.gpus)),
    }
    env = build_environment(context.pod, container, sources, base, node.services())
    inputs = PlanInputs(image, env, context.folders, context.volumes, context.attachment, gpus)
    return build_container_plan(context.pod, container, number, inputs)


async def fetch_value_sources(context: PodContext, names: Iterable[ObjectName]) -> ValueSources:
    """Fetch the values for environments and volumes. Raises ApiError: the API server does not
    answer.
    """
    node, pod = context.node, context.pod
    objects = await node.configs.collect(pod.metadata.namespace, names)
    tokens = {spec: await context.tokens.get(pod, spec) for spec in token_specs(pod)}
    return ValueSources(
        objects=objects,
        allocatable=node.allocatable,
        node_name=node.spec.name,
        host_ip=node.spec.address,
        pod_ip=context.record.ip,
        service_account_tokens={spec: token for spec, token in tokens.items() if token},
    )


def _record_image_event(context: PodContext, container: Container, image: ResolvedImage) -> None:
    if image.matched:
        message = f'Image "{container.image}" maps to {image.description}'
        context.record_event("Normal", "Pulled", message)
    else:
        message = (
            f'Image "{container.image}" is not in the image map: '
            f"container {container.name} runs in {image.description}"
        )
        context.record_event("Normal", "ImageNotMapped", message)


_LEAST_GRACE_S = 2.0
"""Seconds that a process still gets after a hook has used up the grace period, as in Kubernetes."""

_KILL_WAIT_S = 2.0
_KEPT_LOGS = 2
_TAIL_BYTES = 2048


class ContainerWorker:
    """One container of a pod, from its first start to its last end."""

    def __init__(self, context: PodContext, container: Container) -> None:
        self.container = container
        self.running: RunningContainer | None = None
        self.writer: LogWriter | None = None
        self._context = context
        self._tail = b""
        self._stopper: asyncio.Task[None] | None = None

    @property
    def record(self) -> ContainerRecord:
        return self._context.record.container(self.container.name)

    def start(self) -> None:
        self._update_record(lambda record: replace(record, starting=True, problem=None))
        self._context.spawn(self._guarded_run(), f"container {self.container.name}")

    def stop(self, by: datetime, why: str) -> None:
        """Stop the run; it is killed at the time ``by`` if it still runs."""
        first = self.record.kill_at is None
        self._update_record(lambda record: replace(record, kill_at=by))
        if first:
            message = f"Stopping container {self.container.name}: {why}"
            self._context.record_event("Normal", "Killing", message)
        if self._stopper is not None:
            self._stopper.cancel()
        if self.running is not None:
            self._stopper = self._context.spawn(
                self._stop_run(self.running, by, hook=first), f"end of {self.container.name}"
            )

    async def _guarded_run(self) -> None:
        """The outermost handler of a run: after an internal error the record must not stay
        "starting".
        """
        try:
            await self._run()
        except Exception as error:
            log.exception("container run failed", extra={"container": self.container.name})
            lost = self.record.instance
            if lost is not None and lost.ended is None:
                ended = ExitRecord(
                    EXIT_START_FAILED, "Error", self._context.node.clock(), str(error)
                )
                self._update_record(
                    lambda record: replace(record, instance=replace(lost, ended=ended))
                )
            self._delay_start("RunContainerError", f"internal error: {error}")

    async def _run(self) -> None:
        before = self.record
        number = before.instance.number + 1 if before.instance else 0
        try:
            plan = await plan_container_run(self._context, self.container, number)
            self.writer = self._open_log(number)
            running = await self._context.node.runtime.start(plan, self._output)
            self.running = running
        except ContainerStartError as error:
            self._record_failed_start(number, error)
            return
        except (ContainerConfigError, ApiError) as error:
            self._delay_start("CreateContainerConfigError", str(error))
            return
        except (NoCommandError, OSError) as error:
            self._delay_start("CreateContainerError", str(error))
            return
        try:
            await self._run_until_exit(number, plan, running)
        finally:
            # Invariant: no process of a container outlives its task, also when the kubelet ends.
            if self.running is not None:
                self.running = None
                await _kill_and_wait(running)

    async def _run_until_exit(
        self, number: int, plan: ContainerPlan, running: RunningContainer
    ) -> None:
        now = self._context.node.clock()
        instance = ContainerInstance(number, running.container_id, running.started_at)
        backoff = next_backoff(self.record, now, self._context.node.settings.backoff)
        self._update_record(
            lambda record: ContainerRecord(
                instance=instance,
                previous=record.instance if record.ended else record.previous,
                backoff=backoff,
                started=_is_started_initially(self.container),
                ready=_is_started_initially(self.container)
                and self.container.readiness_probe is None,
            )
        )
        self._context.record_event("Normal", "Started", f"Started container {self.container.name}")
        target = ProbeTarget(self.container, running, self._context.record.ip)
        probing = asyncio.create_task(
            run_probes_and_hooks(target, self._update_record, self._context.record_event)
        )
        try:
            exit_ = await running.wait()
        finally:
            probing.cancel()
            await asyncio.wait({probing})
        if not probing.cancelled() and (error := probing.exception()) is not None:
            raise error
        self._record_exit(instance, plan, exit_)

    def _record_exit(
        self, instance: ContainerInstance, plan: ContainerPlan, exit_: ContainerExit
    ) -> None:
        self._close_log()
        message = exit_.message or termination_message(
            self.container, plan.state_dir, self._tail, exit_.code
        )
        ended = ExitRecord(exit_.code, _reason(exit_), exit_.finished_at, message)
        self.running = None
        if self._stopper is not None:
            self._stopper.cancel()
            self._stopper = None
        self._update_record(
            lambda record: replace(
                record,
                instance=replace(instance, ended=ended),
                started=False,
                ready=False,
                unhealthy="",
                kill_at=None,
            )
        )
        self._clean_up(plan.state_dir)

    def _record_failed_start(self, number: int, error: ContainerStartError) -> None:
        """Record a failed start: it counts as a run and has an exit code."""
        self._close_log()
        context, now = self._context, self._context.node.clock()
        plan_id = f"gangline://{context.pod.metadata.uid}/{self.container.name}/{number}"
        ended = ExitRecord(error.exit_code, error.reason, now, error.message)
        backoff = next_backoff(self.record, now, context.node.settings.backoff)
        self._update_record(
            lambda record: ContainerRecord(
                instance=ContainerInstance(number, plan_id, now, ended),
                previous=record.instance if record.ended else record.previous,
                backoff=backoff,
            )
        )
        context.record_event("Warning", "Failed", f"Error: {error.message}")
        self._clean_up(context.folders.instance(self.container.name, number))

    def _delay_start(self, reason: str, message: str) -> None:
        """Record why the run cannot start yet, and when to try again."""
        node = self._context.node
        retry = node.clock() + timedelta(seconds=node.settings.retry_s)
        self._update_record(
            lambda record: replace(
                record, starting=False, problem=StartProblem(reason, message, retry)
            )
        )
        self._context.record_event("Warning", "Failed", f"Error: {message}")

    async def _stop_run(self, running: RunningContainer, by: datetime, *, hook: bool) -> None:
        """Run the preStop hook, send SIGTERM, and SIGKILL at the end of the grace period."""
        life = self.container.lifecycle
        left_s = self._left_s(by)
        if hook and life is not None and life.pre_stop is not None and left_s > 0:
            target = ProbeTarget(self.container, running, self._context.record.ip)
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    if problem := await run_hook(life.pre_stop, target):
                        self._context.record_event("Warning", "FailedPreStopHook", problem)
            left_s = max(self._left_s(by), _LEAST_GRACE_S)
        running.terminate()
        await asyncio.sleep(max(left_s, 0))
        running.kill()

    def _left_s(self, by: datetime) -> float:
        return (by - self._context.node.clock()).total_seconds()

    def _open_log(self, number: int) -> LogWriter:
        path = self._context.folders.log(self.container.name, number)
        for old in path.parent.glob("*.log"):
            if old.stem.isdigit() and int(old.stem) <= number - _KEPT_LOGS:
                for file in [old, *rotated_files(old)]:
                    file.unlink(missing_ok=True)
        self._tail = b""
        return LogWriter(path)

    def _close_log(self) -> None:
        if self.writer is None:
            return
        self.writer.close()
        if self.writer.lost_bytes:
            message = (
                f"{self.writer.lost_bytes} bytes of the log of container {self.container.name} "
                f"could not be written: {self.writer.loss_reason}"
            )
            self._context.record_event("Warning", "LogLost", message)

    def _clean_up(self, state_dir: Path) -> None:
        removal = asyncio.to_thread(shutil.rmtree, state_dir, ignore_errors=True)
        self._context.spawn(removal, "clean-up")

    def _output(self, stream: str, data: bytes) -> None:
        if self.writer is not None:
            self.writer.write(stream, data)
        self._tail = (self._tail + data[-_TAIL_BYTES:])[-_TAIL_BYTES:]

    def _update_record(self, change: Callable[[ContainerRecord], ContainerRecord]) -> None:
        self._context.update_container(self.container.name, change)


async def _kill_and_wait(running: RunningContainer) -> None:
    running.kill()
    with suppress(TimeoutError):
        async with asyncio.timeout(_KILL_WAIT_S):
            await running.wait()


def _is_started_initially(container: Container) -> bool:
    """True if a run counts as started immediately: no startup probe and no postStart hook."""
    hook = container.lifecycle is not None and container.lifecycle.post_start is not None
    return container.startup_probe is None and not hook


def _reason(exit_: ContainerExit) -> str:
    if exit_.reason:
        return exit_.reason
    if exit_.oom_killed:
        return "OOMKilled"
    return "Completed" if exit_.code == 0 else "Error"
