"""Prometheus metrics of the scheduler."""

from prometheus_client import Counter, Gauge, Histogram

BINDINGS = Counter("gangline_scheduler_bindings", "Pods bound to a node")
EVICTIONS = Counter("gangline_scheduler_evictions", "Pods evicted for other pods")
PENDING_PODS = Gauge("gangline_scheduler_waiting_pods", "Pending pods")
START_DURATION = Gauge(
    "gangline_scheduler_start_seconds",
    "Time until the end of the first cycle: list, decode and cache of pods, sync of all kinds, "
    "first_cycle",
    ["phase"],
)
CYCLE_DURATION = Histogram(
    "gangline_scheduler_decision_seconds",
    "Duration of one scheduling cycle",
    buckets=(0.0005, 0.001, 0.005, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 5.0, 10.0, 30.0),
)
CYCLE_PHASES = Histogram(
    "gangline_scheduler_cycle_phase_seconds",
    "Duration of the phases of a cycle: collect (pending gangs), prepare (queues, reservations), "
    "place (placement, preemption), apply (start of bindings and evictions, reasons)",
    ["phase"],
    buckets=(0.0005, 0.001, 0.005, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 5.0, 10.0, 30.0),
)
GANG_WAIT = Histogram(
    "gangline_scheduler_gang_wait_seconds",
    "Time from the creation of a gang's oldest pending pod until its nodes are chosen, by the "
    "number of pods that are placed together",
    ["pods"],
    buckets=(1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 4 * 3600.0, 24 * 3600.0),
)


def gang_size_class(pods: int) -> str:
    """Return the label of a gang's size; there are six of them."""
    bounds = (1, 8, 64, 512, 4096)
    for below, bound in zip((0, *bounds), bounds, strict=False):
        if pods <= bound:
            return str(bound) if bound - below == 1 else f"{below + 1}-{bound}"
    return f"{bounds[-1] + 1}-"
