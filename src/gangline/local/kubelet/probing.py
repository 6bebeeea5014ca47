"""Timing of probes and the meaning of their results; `probe_checks` runs the probes."""

from dataclasses import dataclass, replace

from gangline.api.container import Container
from gangline.api.describe import IntOrString
from gangline.api.probe import Probe


@dataclass(frozen=True, slots=True)
class ProbeState:
    """The results of a probe so far."""

    good: bool
    """The present result, after thresholds."""

    in_a_row: int = 0
    """The number of equal results in a row."""

    last: bool | None = None


@dataclass(frozen=True, slots=True)
class Timing:
    """Delays in seconds and thresholds of a probe, with Kubernetes' defaults."""

    delay_s: float
    period_s: float
    timeout_s: float
    successes: int
    failures: int


def timing(probe: Probe) -> Timing:
    return Timing(
        delay_s=max(probe.initial_delay_seconds, 0),
        period_s=max(probe.period_seconds or 10, 1),
        timeout_s=max(probe.timeout_seconds or 1, 1),
        successes=max(probe.success_threshold or 1, 1),
        failures=max(probe.failure_threshold or 3, 1),
    )


def advance(state: ProbeState, success: bool, when: Timing) -> ProbeState:
    """The state after one more result: it changes only after enough equal results in a row."""
    count = state.in_a_row + 1 if state.last == success else 1
    turned = replace(state, in_a_row=count, last=success)
    if count >= (when.successes if success else when.failures):
        return replace(turned, good=success)
    return turned


def port_number(port: IntOrString, container: Container) -> int | None:
    """Resolve a port that may be given by its name; None if the container has no such port."""
    if isinstance(port, int):
        return port
    if port.isdigit():
        return int(port)
    named = (each.container_port for each in container.ports if each.name == port)
    return next(named, None)
