"""Timing of probes and the meaning of their results; `handlers` runs the probes."""

from dataclasses import dataclass, replace

from gangline.api.core.container import Container
from gangline.api.core.probe import Probe
from gangline.api.meta.field_doc import IntOrString


@dataclass(frozen=True, slots=True)
class ProbeState:
    """The results of a probe so far."""

    successful: bool
    """The present result, after thresholds."""

    result_run: int = 0
    """The number of equal results in a row."""

    last: bool | None = None


@dataclass(frozen=True, slots=True)
class ProbeTiming:
    """Delays in seconds and thresholds of a probe, with Kubernetes' defaults."""

    delay_s: float
    period_s: float
    timeout_s: float
    success_threshold: int
    failure_threshold: int


def probe_timing(probe: Probe) -> ProbeTiming:
    return ProbeTiming(
        delay_s=max(probe.initial_delay_seconds, 0),
        period_s=max(probe.period_seconds or 10, 1),
        timeout_s=max(probe.timeout_seconds or 1, 1),
        success_threshold=max(probe.success_threshold or 1, 1),
        failure_threshold=max(probe.failure_threshold or 3, 1),
    )


def next_probe_state(state: ProbeState, success: bool, when: ProbeTiming) -> ProbeState:
    """The state after one more result: it changes only after enough equal results in a row."""
    count = state.result_run + 1 if state.last == success else 1
    turned = replace(state, result_run=count, last=success)
    if count >= (when.success_threshold if success else when.failure_threshold):
        return replace(turned, successful=success)
    return turned


def resolve_port(port: IntOrString, container: Container) -> int | None:
    """Resolve a port that may be given by its name; None if the container has no such port."""
    if isinstance(port, int):
        return port
    if port.isdigit():
        return int(port)
    named = (each.container_port for each in container.ports if each.name == port)
    return next(named, None)
