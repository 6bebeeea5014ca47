"""The alerts, and the series that are recorded for them and for the boards.

Each alert has a section of its name in docs/monitoring.md. Expressions aggregate over the replicas
of a component, of which one leads and the others export zeros or nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

CONTROLLERS = 'controller=~"jobs|adoption|scale-plans|scheduler-queues|scheduler-status"'
"""Selects our controllers: others export the same metrics."""
LEASES = 'name=~"gangline-.+"'

QUEUE_GOODPUT = "gangline:queue_goodput:ratio1h"


@dataclass(frozen=True, slots=True)
class Recording:
    """A series that Prometheus computes in advance."""

    name: str
    expression: str


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert."""

    name: str
    severity: str
    """``critical``: somebody must act now. ``warning``: within a day."""
    expression: str
    duration: str
    """How long the expression must hold."""
    summary: str
    """One sentence; ``{{ $labels.… }}`` and ``{{ $value }}`` are replaced by Prometheus."""


def _per_queue(metric: str) -> str:
    with_queue = f"delta({metric}[1h]) * on (instance) group_left (queue) gangline_master_queue"
    return f"sum by (queue) ({with_queue})"


_RECONCILE = "controller_runtime_reconcile"
_FAILED_OPEN = 'apiserver_admission_webhook_fail_open_count{name=~".+[.]jobs[.]gangline[.]dev"}'
"""Kubernetes' own, from 1.24 on."""
_BLAMED = "gangline_operator_node_failures_total"
_OLDEST = "gangline_scheduler_oldest_pending_gang"
_LED = f"max by (name) (leader_election_master_status{{{LEASES}}})"

RECORDINGS: Sequence[Recording] = (
    Recording(
        QUEUE_GOODPUT,
        f"{_per_queue('gangline_master_productive_seconds')}"
        f" / ({_per_queue('gangline_master_wall_seconds')} > 0)",
    ),
)

ALERTS: Sequence[Alert] = (
    Alert(
        "GanglineNoLeader",
        "critical",
        # Second part: no replica is scraped any more.
        f"{_LED} == 0 or ({_LED.replace('}', '} offset 30m')} == 1 unless on (name) {_LED})",
        "2m",
        "No replica holds the lease {{ $labels.name }}: nothing is reconciled or scheduled.",
    ),
    Alert(
        "GanglineTwoLeaders",
        "critical",
        f"sum by (name) (leader_election_master_status{{{LEASES}}}) > 1",
        "1m",
        "{{ $value }} replicas consider themselves the holder of the lease {{ $labels.name }}.",
    ),
    Alert(
        "GanglineReconcileErrors",
        "warning",
        f"sum by (controller) (rate({_RECONCILE}_errors_total{{{CONTROLLERS}}}[10m]))"
        f" / sum by (controller) (rate({_RECONCILE}_total{{{CONTROLLERS}}}[10m])) > 0.05",
        "10m",
        "{{ $value | humanizePercentage }} of the reconciles of {{ $labels.controller }} fail.",
    ),
    Alert(
        "GanglineGangPendingDespiteFreeResources",
        "warning",
        f'max by (queue) ({_OLDEST}_seconds{{reason="NotEnoughResources"}}) > 1800'
        f" unless on (queue) (max by (queue, resource) ({_OLDEST}_request)"
        " > on (resource) group_left () max by (resource) (gangline_scheduler_free))",
        "5m",
        "The oldest gang of queue {{ $labels.queue }} has been pending for {{ $value | "
        "humanizeDuration }}, although the nodes together have the resources that it requests.",
    ),
    Alert(
        "GanglineWebhookFailing",
        "warning",
        'sum(increase(gangline_webhook_reviews_total{answer!~"allowed|denied"}[10m])) > 0'
        f" or sum(increase({_FAILED_OPEN}[10m])) > 0",
        "5m",
        "Admission reviews of jobs fail: invalid jobs are accepted, and fail later.",
    ),
    Alert(
        "GanglineCertificateExpires",
        "critical",
        "min(gangline_webhook_certificate_expiry_timestamp_seconds) - time() < 14 * 86400",
        "10m",
        "The certificate of the webhook expires in {{ $value | humanizeDuration }}.",
    ),
    Alert(
        "GanglineQueueGoodputLow",
        "warning",
        f"{QUEUE_GOODPUT} < 0.8",
        "1h",
        "Jobs of queue {{ $labels.queue }} train for {{ $value | humanizePercentage }} of their "
        "time.",
    ),
    Alert(
        "GanglineNodeBlamedRepeatedly",
        "warning",
        # increase() would miss the first failure of a node: its series begins with 1.
        f"sum by (node) (max_over_time({_BLAMED}[24h]))"
        f" - (sum by (node) ({_BLAMED} offset 24h)"
        f" or sum by (node) (max_over_time({_BLAMED}[24h])) * 0) >= 3",
        "0m",
        "Node {{ $labels.node }} has caused {{ $value }} failures within a day.",
    ),
    Alert(
        "GanglineCheckpointOld",
        "warning",
        "gangline_master_checkpoint_age_seconds > 3 * gangline_master_checkpoint_interval_seconds"
        " and gangline_master_steps_per_second > 0",
        "2m",
        "The job of {{ $labels.instance }} has not saved for {{ $value | humanizeDuration }}, more "
        "than three of its intervals.",
    ),
    Alert(
        "GanglineJobHung",
        "warning",
        'delta(gangline_master_unproductive_seconds{phase="hanging"}[10m]) > 300',
        "0m",
        "The job of {{ $labels.instance }} has hung for {{ $value | humanizeDuration }} of the "
        "last ten minutes.",
    ),
    Alert(
        "GanglineSchedulerCycleSlow",
        "warning",
        "sum(increase(gangline_scheduler_decision_seconds_count[10m]))"
        ' - sum(increase(gangline_scheduler_decision_seconds_bucket{le="5.0"}[10m])) > 0.5',
        "5m",
        "{{ $value }} scheduling cycles of the last ten minutes took more than 5 seconds.",
    ),
    Alert(
        "GanglineCacheStale",
        "warning",
        "max by (kind) (gangline_cache_age_seconds) > 1200",
        "5m",
        "The API server has sent nothing about {{ $labels.kind }} for {{ $value | "
        "humanizeDuration }}: decisions are made from an old state.",
    ),
)
