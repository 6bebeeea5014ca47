"""The Grafana boards: rows of panels, each with its expressions.

Variables in expressions are Grafana's: ``$__rate_interval``, ``$namespace``, ``$pod``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gangline.deploy.monitoring.alerts import CONTROLLERS, LEASES, QUEUE_GOODPUT

_RATE = "[$__rate_interval]"
_QUEUE = '{queue=~"$queue"}'
_JOB = 'namespace=~"$namespace",pod=~"$pod"'


@dataclass(frozen=True, slots=True)
class Query:
    """One expression of a panel."""

    expression: str
    legend: str = ""
    """Labels in double braces are replaced by Grafana."""


@dataclass(frozen=True, slots=True)
class Panel:
    """A time series, or a single number (``stat``)."""

    title: str
    queries: Sequence[Query]
    unit: str = "short"
    kind: str = "timeseries"
    description: str = ""
    needs_fault: bool = False
    """True if the series exist only after a failure or the end of a watch."""


@dataclass(frozen=True, slots=True)
class Variable:
    """A choice at the top of a board: the values of a label."""

    name: str
    metric: str
    label: str


@dataclass(frozen=True, slots=True)
class Board:
    """One board."""

    name: str
    """The last part of its file and uid."""
    title: str
    rows: Sequence[tuple[str, Sequence[Panel]]]
    variables: Sequence[Variable] = ()


def _panel(
    title: str, expression: str, legend: str = "", unit: str = "short", **options: Any
) -> Panel:
    return Panel(title, [Query(expression, legend)], unit, **options)


def _quantiles(title: str, metric: str, by: str = "") -> Panel:
    """The median and the 99th percentile of a histogram."""
    labels, legend = (f"le, {by}", f"{{{{{by}}}}} ") if by else ("le", "")
    rates = f"sum by ({labels}) (rate({metric}_bucket{_RATE}))"
    return Panel(
        title,
        [
            Query(f"histogram_quantile({quantile}, {rates})", f"{legend}p{name}")
            for quantile, name in ((0.5, 50), (0.99, 99))
        ],
        "s",
    )


FLEET = Board(
    "fleet",
    "Gangline / Fleet",
    [
        (
            "Resources",
            [
                _panel(
                    "Used part of ready nodes",
                    "1 - sum by (resource) (gangline_scheduler_free)"
                    " / (sum by (resource) (gangline_scheduler_capacity) > 0)",
                    "{{resource}}",
                    "percentunit",
                ),
                _panel(
                    "Free",
                    "sum by (resource) (gangline_scheduler_free)",
                    "{{resource}}",
                ),
                _panel("Pending pods", "max(gangline_scheduler_waiting_pods)"),
                _panel(
                    "Pods bound per second",
                    f"sum(rate(gangline_scheduler_bindings_total{_RATE}))",
                ),
                _panel(
                    "Pods evicted per second",
                    f"sum(rate(gangline_scheduler_evictions_total{_RATE}))",
                ),
                _quantiles(
                    "Wait of gangs by their pods", "gangline_scheduler_gang_wait_seconds", "pods"
                ),
            ],
        ),
        (
            "Jobs",
            [
                _panel(
                    "Created",
                    "sum by (framework) (increase(training_operator_jobs_created_total[1h]))",
                    "{{framework}}",
                ),
                _panel(
                    "Failed",
                    "sum by (framework) (increase(training_operator_jobs_failed_total[1h]))",
                    "{{framework}}",
                    needs_fault=True,
                ),
                _panel(
                    "Restarts by blame",
                    "sum by (blame, cause) (increase(gangline_operator_restarts_total[1h]))",
                    "{{blame}}: {{cause}}",
                    needs_fault=True,
                ),
                Panel(
                    "Recovery",
                    _quantiles("", "gangline_operator_recovery_seconds").queries,
                    "s",
                    description="From the restart of a job until all of its pods run again.",
                    needs_fault=True,
                ),
                _panel(
                    "Failures blamed on nodes",
                    "topk(20, sum by (node, cause)"
                    " (increase(gangline_operator_node_failures_total[24h])))",
                    "{{node}}: {{cause}}",
                    description="NodeFault was proved by the node check.",
                    needs_fault=True,
                ),
            ],
        ),
    ],
)

QUEUES = Board(
    "queues",
    "Gangline / Queues",
    [
        (
            "Pending gangs",
            [
                _panel(
                    "Pending gangs",
                    'sum by (queue, reason) (gangline_scheduler_pending_gangs{queue=~"$queue"})',
                    "{{queue}}: {{reason}}",
                ),
                _panel(
                    "Age of the oldest",
                    "max by (queue, reason)"
                    ' (gangline_scheduler_oldest_pending_gang_seconds{queue=~"$queue"})',
                    "{{queue}}: {{reason}}",
                    "s",
                ),
                _panel(
                    "Requested by pending pods",
                    "max by (queue, resource)"
                    ' (gangline_scheduler_pending_request{queue=~"$queue"})',
                    "{{queue}}: {{resource}}",
                ),
            ],
        ),
        (
            "Shares",
            [
                _panel(
                    title,
                    f"max by (queue, resource) (gangline_scheduler_queue_{metric}{_QUEUE})",
                    "{{queue}}: {{resource}}",
                )
                for title, metric in (
                    ("Deserved", "deserved"),
                    ("Allocated", "allocated"),
                    ("Borrowed", "borrowed"),
                )
            ],
        ),
        (
            "Goodput",
            [
                _panel(
                    "Part of their time in which jobs train",
                    f'{QUEUE_GOODPUT}{{queue=~"$queue"}}',
                    "{{queue}}",
                    "percentunit",
                )
            ],
        ),
    ],
    [Variable("queue", "gangline_scheduler_queue_allocated", "queue")],
)

JOB = Board(
    "job",
    "Gangline / Job",
    [
        (
            "Progress",
            [
                _panel("Goodput", f"gangline_master_goodput_ratio{{{_JOB}}}", "", "percentunit"),
                _panel("Steps per second", f"gangline_master_steps_per_second{{{_JOB}}}"),
                _panel("Step", f"gangline_master_step{{{_JOB}}}"),
                _panel(
                    "Time that was no training",
                    f"gangline_master_unproductive_seconds{{{_JOB}}}",
                    "{{phase}}",
                    "s",
                ),
                _panel("Lost steps", f"gangline_master_steps_lost{{{_JOB}}}"),
                Panel(
                    "Nodes",
                    [
                        Query(f"gangline_master_members{{{_JOB}}}", "members"),
                        Query(f"gangline_master_waiting_nodes{{{_JOB}}}", "waiting"),
                        Query(f"gangline_master_gone_nodes{{{_JOB}}}", "gone"),
                    ],
                ),
            ],
        ),
        (
            "Checkpoints",
            [
                Panel(
                    "Age of the last checkpoint",
                    [
                        Query(f"gangline_master_checkpoint_age_seconds{{{_JOB}}}", "age"),
                        Query(f"gangline_master_checkpoint_interval_seconds{{{_JOB}}}", "interval"),
                    ],
                    "s",
                ),
                _panel(
                    "Training stops for a save",
                    f"gangline_master_checkpoint_save_seconds{{{_JOB}}}",
                    "",
                    "s",
                ),
                Panel(
                    "Saves that did not complete",
                    [
                        Query(f"gangline_master_checkpoint_saves_{outcome}{{{_JOB}}}", outcome)
                        for outcome in ("skipped", "overtaken", "failed")
                    ],
                ),
            ],
        ),
        (
            "Failures",
            [
                Panel(
                    "Failures and restarts",
                    [
                        Query(f"gangline_master_failures{{{_JOB}}}", "failures"),
                        Query(f"gangline_master_restarts{{{_JOB}}}", "restarts"),
                    ],
                ),
                Panel(
                    "Used by workers",
                    [
                        Query(f"gangline_master_workers_cpus{{{_JOB}}}", "cores"),
                        Query(f"gangline_master_workers_memory_bytes{{{_JOB}}}", "bytes"),
                    ],
                ),
            ],
        ),
    ],
    [
        Variable("namespace", "gangline_master_goodput_ratio", "namespace"),
        Variable("pod", 'gangline_master_goodput_ratio{namespace=~"$namespace"}', "pod"),
    ],
)

CONTROL_PLANE = Board(
    "control-plane",
    "Gangline / Control plane",
    [
        (
            "Leaders",
            [
                _panel(
                    "Leaders",
                    f"sum by (name) (leader_election_master_status{{{LEASES}}})",
                    "{{name}}",
                ),
                _panel(
                    "Changes of leader",
                    f"max by (name) (gangline_leader_transitions{{{LEASES}}})",
                    "{{name}}",
                ),
                _panel(
                    "Certificate of the webhook",
                    "min(gangline_webhook_certificate_expiry_timestamp_seconds) - time()",
                    "left",
                    "s",
                    kind="stat",
                ),
                _panel(
                    "Admission reviews per second",
                    f"sum by (answer) (rate(gangline_webhook_reviews_total{_RATE}))",
                    "{{answer}}",
                ),
            ],
        ),
        (
            "Scheduler",
            [
                _quantiles("Cycle", "gangline_scheduler_decision_seconds"),
                _quantiles("Phases", "gangline_scheduler_cycle_phase_seconds", "phase"),
                _panel(
                    "Last start",
                    "max by (phase) (gangline_scheduler_start_seconds)",
                    "{{phase}}",
                    "s",
                ),
            ],
        ),
        (
            "Controllers",
            [
                _panel(
                    "Reconciles per second",
                    "sum by (controller, result)"
                    f" (rate(controller_runtime_reconcile_total{{{CONTROLLERS}}}{_RATE}))",
                    "{{controller}} {{result}}",
                ),
                _panel(
                    "Errors per second",
                    "sum by (controller) (rate(controller_runtime_reconcile_errors_total"
                    f"{{{CONTROLLERS}}}{_RATE}))",
                    "{{controller}}",
                    needs_fault=True,
                ),
                _panel(
                    "Keys in queues",
                    "max by (name) (workqueue_depth"
                    f"{{{CONTROLLERS.replace('controller', 'name')}}})",
                    "{{name}}",
                ),
                _panel(
                    "Writes per second",
                    f"sum by (kind, verb) (rate(gangline_operator_writes_total{_RATE}))",
                    "{{verb}} {{kind}}",
                ),
            ],
        ),
        (
            "API server",
            [
                _panel(
                    "Requests per second",
                    f"sum by (code, method) (rate(rest_client_requests_total{_RATE})"
                    " and on (instance) leader_election_master_status"
                    f"{{{LEASES}}})",
                    "{{method}} {{code}}",
                ),
                _panel(
                    "Age of caches", "max by (kind) (gangline_cache_age_seconds)", "{{kind}}", "s"
                ),
                _panel(
                    "Restarts of watches",
                    "sum by (kind, cause) (increase(gangline_watch_restarts_total[1h]))",
                    "{{kind}}: {{cause}}",
                    needs_fault=True,
                ),
            ],
        ),
    ],
)

BOARDS: Sequence[Board] = (FLEET, QUEUES, JOB, CONTROL_PLANE)
