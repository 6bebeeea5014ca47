"""Probe worker of a running container: its postStart hook, then its probes until it ends."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace

from gangline.api.core.probe import Probe
from gangline.local.kubelet.probes.handlers import ProbeTarget, run_hook, run_probe
from gangline.local.kubelet.probes.state import ProbeState, next_probe_state, probe_timing
from gangline.local.kubelet.records import ContainerRecord

RecordUpdater = Callable[[Callable[[ContainerRecord], ContainerRecord]], None]
EventReporter = Callable[[str, str, str], None]


async def run_probes_and_hooks(
    target: ProbeTarget, update_record: RecordUpdater, report_event: EventReporter
) -> None:
    """Run hook and probes and record their results, until cancelled."""
    container = target.container
    hook = container.lifecycle and container.lifecycle.post_start
    if hook and (problem := await run_hook(hook, target)):
        report_event("Warning", "FailedPostStartHook", problem)
        update_record(lambda known: replace(known, unhealthy="its postStart hook failed"))
        return
    if container.startup_probe is not None:
        await _run_startup_probe(container.startup_probe, target, update_record, report_event)
    ready = container.readiness_probe is None
    update_record(lambda known: replace(known, started=True, ready=ready))
    async with asyncio.TaskGroup() as probes:
        if container.liveness_probe is not None:
            probes.create_task(
                _run_liveness_probe(container.liveness_probe, target, update_record, report_event)
            )
        if container.readiness_probe is not None:
            probes.create_task(
                _run_readiness_probe(container.readiness_probe, target, update_record, report_event)
            )


async def _run_startup_probe(
    probe: Probe, target: ProbeTarget, update_record: RecordUpdater, report_event: EventReporter
) -> None:
    """Probe until the container has started; too many failures mark it unhealthy."""
    when, state = probe_timing(probe), ProbeState(successful=True)
    await asyncio.sleep(when.delay_s)
    while True:
        problem = await run_probe(probe, target, when.timeout_s)
        state = next_probe_state(state, problem is None, when)
        if problem is None and state.successful:
            return
        if problem is not None:
            report_event("Warning", "Unhealthy", f"Startup probe failed: {problem}")
        if not state.successful:
            _mark_unhealthy(probe, update_record, "startup", target)
            await asyncio.get_running_loop().create_future()
        await asyncio.sleep(when.period_s)


async def _run_liveness_probe(
    probe: Probe, target: ProbeTarget, update_record: RecordUpdater, report_event: EventReporter
) -> None:
    when, state = probe_timing(probe), ProbeState(successful=True)
    await asyncio.sleep(when.delay_s)
    while True:
        problem = await run_probe(probe, target, when.timeout_s)
        state = next_probe_state(state, problem is None, when)
        if problem is not None:
            report_event("Warning", "Unhealthy", f"Liveness probe failed: {problem}")
        if not state.successful:
            _mark_unhealthy(probe, update_record, "liveness", target)
            return
        await asyncio.sleep(_jitter(when.period_s))


async def _run_readiness_probe(
    probe: Probe, target: ProbeTarget, update_record: RecordUpdater, report_event: EventReporter
) -> None:
    when, state = probe_timing(probe), ProbeState(successful=False)
    await asyncio.sleep(when.delay_s)
    while True:
        problem = await run_probe(probe, target, when.timeout_s)
        before, state = state, next_probe_state(state, problem is None, when)
        if problem is not None:
            report_event("Warning", "Unhealthy", f"Readiness probe failed: {problem}")
        if state.successful != before.successful:
            good = state.successful
            update_record(lambda known: replace(known, ready=good))  # noqa: B023 - called immediately
        await asyncio.sleep(_jitter(when.period_s))


def _mark_unhealthy(
    probe: Probe, update_record: RecordUpdater, kind: str, target: ProbeTarget
) -> None:
    why = f"container {target.container.name} failed {kind} probe"
    grace_s = probe.termination_grace_period_seconds
    update_record(lambda known: replace(known, unhealthy=why, unhealthy_grace_s=grace_s))


def _jitter(period_s: float) -> float:
    """A jittered period, so that many containers are not probed in step."""
    return period_s * random.uniform(0.95, 1.05)
