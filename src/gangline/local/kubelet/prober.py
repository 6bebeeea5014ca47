"""Probe worker of a running container: its postStart hook, then its probes until it ends."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace

from gangline.api.probe import Probe
from gangline.local.kubelet.probe_checks import Target, check, run_hook
from gangline.local.kubelet.probing import ProbeState, advance, timing
from gangline.local.kubelet.records import ContainerRecord

Note = Callable[[Callable[[ContainerRecord], ContainerRecord]], None]
Tell = Callable[[str, str, str], None]


async def look_after(target: Target, update_record: Note, report_event: Tell) -> None:
    """Run hook and probes and record their results, until cancelled."""
    container = target.container
    hook = container.lifecycle and container.lifecycle.post_start
    if hook and (problem := await run_hook(hook, target)):
        report_event("Warning", "FailedPostStartHook", problem)
        update_record(lambda known: replace(known, unhealthy="its postStart hook failed"))
        return
    if container.startup_probe is not None:
        await _until_started(container.startup_probe, target, update_record, report_event)
    ready = container.readiness_probe is None
    update_record(lambda known: replace(known, started=True, ready=ready))
    async with asyncio.TaskGroup() as probes:
        if container.liveness_probe is not None:
            probes.create_task(
                _watch_life(container.liveness_probe, target, update_record, report_event)
            )
        if container.readiness_probe is not None:
            probes.create_task(
                _watch_readiness(container.readiness_probe, target, update_record, report_event)
            )


async def _until_started(
    probe: Probe, target: Target, update_record: Note, report_event: Tell
) -> None:
    """Probe until the container has started; too many failures mark it unhealthy."""
    when, state = timing(probe), ProbeState(good=True)
    await asyncio.sleep(when.delay_s)
    while True:
        problem = await check(probe, target, when.timeout_s)
        state = advance(state, problem is None, when)
        if problem is None and state.good:
            return
        if problem is not None:
            report_event("Warning", "Unhealthy", f"Startup probe failed: {problem}")
        if not state.good:
            _condemn(probe, update_record, "startup", target)
            await asyncio.get_running_loop().create_future()
        await asyncio.sleep(when.period_s)


async def _watch_life(
    probe: Probe, target: Target, update_record: Note, report_event: Tell
) -> None:
    when, state = timing(probe), ProbeState(good=True)
    await asyncio.sleep(when.delay_s)
    while True:
        problem = await check(probe, target, when.timeout_s)
        state = advance(state, problem is None, when)
        if problem is not None:
            report_event("Warning", "Unhealthy", f"Liveness probe failed: {problem}")
        if not state.good:
            _condemn(probe, update_record, "liveness", target)
            return
        await asyncio.sleep(_spread(when.period_s))


async def _watch_readiness(
    probe: Probe, target: Target, update_record: Note, report_event: Tell
) -> None:
    when, state = timing(probe), ProbeState(good=False)
    await asyncio.sleep(when.delay_s)
    while True:
        problem = await check(probe, target, when.timeout_s)
        before, state = state, advance(state, problem is None, when)
        if problem is not None:
            report_event("Warning", "Unhealthy", f"Readiness probe failed: {problem}")
        if state.good != before.good:
            good = state.good
            update_record(lambda known: replace(known, ready=good))  # noqa: B023 - called immediately
        await asyncio.sleep(_spread(when.period_s))


def _condemn(probe: Probe, update_record: Note, kind: str, target: Target) -> None:
    why = f"container {target.container.name} failed {kind} probe"
    grace_s = probe.termination_grace_period_seconds
    update_record(lambda known: replace(known, unhealthy=why, unhealthy_grace_s=grace_s))


def _spread(period_s: float) -> float:
    """A jittered period, so that many containers are not probed in step."""
    return period_s * random.uniform(0.95, 1.05)
