"""Alerts and boards: what they name exists, each alert fires and does not fire, each has a page."""

import importlib
import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import yaml
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

from gangline.deploy.chart import Chart, ClusterCapabilities, ReleaseSettings
from gangline.deploy.monitoring import alerts, board_json, boards, rules
from gangline.elastic.master.queries import CheckpointAge, metrics_page
from gangline.elastic.master.state.core import MasterCore
from gangline.elastic.protocol import messages as msg
from prometheus_tools import program

DOCS = Path(__file__).parents[3] / "docs"
OTHERS = {"apiserver_admission_webhook_fail_open_count"}
"""Metrics of Kubernetes' API server, from 1.24 on."""
METRIC = re.compile(
    r"\b(?:gangline|training_operator|controller_runtime|workqueue|rest_client|leader_election"
    r"|apiserver|up)[_:][a-z0-9_:]+"
)


def exported() -> set[str]:
    """The names of all series that components and masters export."""
    modules = (
        "operator.main",
        "scheduler.loop",
        "operator.webhook.server",
        "brain.evaluation.evaluator",
    )
    for module in modules:
        importlib.import_module(f"gangline.{module}")
    checkpoints = CheckpointAge()
    checkpoints.observe_report(msg.NodeReport(save_s=1.0, save_interval_s=1.0))
    checkpoints.observe_steps(1, 1, 0.0)
    page = metrics_page(MasterCore(), 1.0, checkpoints, "default").decode()
    names = {family.name for family in text_string_to_metric_families(page)}
    suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}
    for family in REGISTRY.collect():
        names |= {family.name + suffix for suffix in suffixes.get(family.type, [""])}
    return names | alerts().recordings.keys()


def expressions() -> Iterator[tuple[str, str]]:
    """Each expression with a name."""
    yield from alerts().recordings.items()
    for name, alert in alerts().alerts.items():
        yield name, alert.expression
    for board in boards():
        for row in board.rows:
            for panel in row.panels:
                for expression in panel.queries.values():
                    yield f"{board.name}: {panel.title}", expression
        for name, variable in board.variables.items():
            yield f"{board.name}: {name}", variable.metric


def test_expressions_use_only_metrics_that_exist() -> None:
    known = exported() | OTHERS
    for name, expression in expressions():
        used = set(METRIC.findall(expression))
        assert used, name
        assert used <= known, name


def test_each_alert_has_a_section() -> None:
    text = (DOCS / "monitoring.md").read_text()
    sections = set(re.findall(r"^### (Gangline\w+)$", text, re.MULTILINE))
    assert sections == alerts().alerts.keys()
    for group in rules()["groups"]:
        for rule in group["rules"]:
            if "alert" in rule:
                page, _, anchor = rule["annotations"]["runbook"].partition("#")
                assert (DOCS.parent / page).exists()
                assert anchor in {each.lower() for each in sections}


def test_documented_metrics_are_those_that_exist() -> None:
    """The table of docs/monitoring.md, both ways, for metrics with names of our own."""
    text = (DOCS / "monitoring.md").read_text()
    documented = set(re.findall(r"`(gangline_[a-z0-9_]+)`", text))
    ours = {each for each in exported() if each.startswith("gangline_")}
    plain = {re.sub("_(bucket|sum|count)$", "", each) for each in ours}
    assert documented - plain == set()
    assert {e for e in plain - documented if not e.startswith("gangline_master_")} == set()


def test_boards_have_unique_panels_that_do_not_overlap() -> None:
    for board in boards():
        content = board_json(board)
        assert json.loads(json.dumps(content)) == content
        panels = content["panels"]
        assert len({each["id"] for each in panels}) == len(panels)
        cells = [
            (x, y)
            for each in panels
            for x in range(each["gridPos"]["x"], each["gridPos"]["x"] + each["gridPos"]["w"])
            for y in range(each["gridPos"]["y"], each["gridPos"]["y"] + each["gridPos"]["h"])
        ]
        assert len(set(cells)) == len(cells)
        assert max(x for x, _ in cells) < 24


def test_chart_ships_rules_boards_and_a_monitor_of_masters() -> None:
    chart = Chart.load()
    values = {
        "crds": {"install": False},
        "runtimes": {"install": False},
        "metrics": {
            **dict.fromkeys(("podMonitor", "prometheusRules", "grafanaBoards"), True),
            "labels": {"release": "prometheus"},
        },
    }
    served = ClusterCapabilities(
        frozenset({"v1", "apps/v1", "policy/v1", "monitoring.coreos.com/v1"})
    )
    found = chart.render(chart.complete(values), ReleaseSettings(), served)
    by_kind = {each["kind"]: each for each in found}
    assert by_kind["PrometheusRule"]["spec"] == rules()
    assert by_kind["PrometheusRule"]["metadata"]["labels"]["release"] == "prometheus"
    assert by_kind["PodMonitor"]["spec"]["selector"]["matchLabels"]
    shipped = [e for e in found if e["metadata"]["labels"].get("grafana_dashboard") == "1"]
    assert {text for each in shipped for text in each["data"].values()} == {
        json.dumps(board_json(board), indent=1) + "\n" for board in boards()
    }


class Case(NamedTuple):
    """Series of one alert, in the notation of promtool."""

    fires: Mapping[str, str]
    quiet: Mapping[str, str]
    minutes: int = 60
    """When the alert is checked."""
    interval: int = 1
    """Minutes between two samples, and between two evaluations."""


OPERATOR, SCHEDULER = '{name="gangline-operator"', '{name="gangline-scheduler"'
LEADS = "leader_election_master_status"
JOBS = '{controller="jobs"}'
OLDEST = "gangline_scheduler_oldest_pending_gang"
OLD_GANG = f'{OLDEST}_seconds{{queue="a",reason="NotEnoughResources"}}'
GPUS = 'queue="a",resource="nvidia.com/gpu"'
FREE = 'gangline_scheduler_free{resource="nvidia.com/gpu"}'
NODE = 'gangline_operator_node_failures_total{node="n1",cause="NodeLost"'
JOB = '{instance="10.0.0.1:50001"}'
CYCLES = "gangline_scheduler_decision_seconds"
HANGING = 'gangline_master_unproductive_seconds{phase="hanging"}'


def goodput(productive: int) -> dict[str, str]:
    """A job that trains for so many seconds of each minute, and one that always trains."""
    found = {}
    for instance, queue, seconds in (("i1", "a", productive), ("i2", "b", 60)):
        found[f'gangline_master_queue{{instance="{instance}",queue="{queue}"}}'] = "1x200"
        found[f'gangline_master_productive_seconds{{instance="{instance}"}}'] = f"0+{seconds}x200"
        found[f'gangline_master_wall_seconds{{instance="{instance}"}}'] = "0+60x200"
    return found


def cycles(slow: int) -> dict[str, str]:
    """60 cycles a minute, of which so many are slow."""
    return {f"{CYCLES}_count": "0+60x60", f'{CYCLES}_bucket{{le="5.0"}}': f"0+{60 - slow}x60"}


def checkpoints(age: str, speed: str = "2x60") -> dict[str, str]:
    """A job that saves every ten minutes."""
    return {
        f"gangline_master_checkpoint_age_seconds{JOB}": age,
        f"gangline_master_checkpoint_interval_seconds{JOB}": "600x60",
        f"gangline_master_steps_per_second{JOB}": speed,
    }


REVIEWS = 'gangline_webhook_reviews_total{path="/validate",answer='
FAIL_OPEN = 'apiserver_admission_webhook_fail_open_count{name="validate.jobs.gangline.dev"}'
CASES: list[tuple[str, Case]] = [
    (
        "GanglineNoLeader",
        Case(
            {f'{LEADS}{OPERATOR},pod="a"}}': "1x10 0x60", f'{LEADS}{OPERATOR},pod="b"}}': "0x60"},
            {
                f'{LEADS}{OPERATOR},pod="a"}}': "1x10 0x60",
                f'{LEADS}{OPERATOR},pod="b"}}': "0x10 1x60",
            },
        ),
    ),
    (
        "GanglineNoLeader",  # all replicas are gone
        Case({f"{LEADS}{SCHEDULER}}}": "1x40"}, {f"{LEADS}{SCHEDULER}}}": "1x60"}, 55),
    ),
    (
        "GanglineTwoLeaders",
        Case(
            {f'{LEADS}{OPERATOR},pod="a"}}': "1x60", f'{LEADS}{OPERATOR},pod="b"}}': "0x50 1x10"},
            {f'{LEADS}{OPERATOR},pod="a"}}': "1x60", f"{LEADS}{SCHEDULER}}}": "1x60"},
        ),
    ),
    (
        "GanglineReconcileErrors",
        Case(
            {
                f"controller_runtime_reconcile_errors_total{JOBS}": "0+6x60",
                f"controller_runtime_reconcile_total{JOBS}": "0+100x60",
            },
            {
                f"controller_runtime_reconcile_errors_total{JOBS}": "0+4x60",
                f"controller_runtime_reconcile_total{JOBS}": "0+100x60",
                'controller_runtime_reconcile_errors_total{controller="other"}': "0+9x60",
                'controller_runtime_reconcile_total{controller="other"}': "0+10x60",
            },
        ),
    ),
    (
        "GanglineGangPendingDespiteFreeResources",
        Case(
            {OLD_GANG: "0+60x60", f"{OLDEST}_request{{{GPUS}}}": "8x60", FREE: "16x60"},
            {OLD_GANG: "0+60x60", f"{OLDEST}_request{{{GPUS}}}": "32x60", FREE: "16x60"},
        ),
    ),
    (
        "GanglineGangPendingDespiteFreeResources",  # one of two resources is short
        Case(
            {OLD_GANG: "0+60x60", f"{OLDEST}_request{{{GPUS}}}": "8x60", FREE: "16x60"},
            {
                OLD_GANG: "0+60x60",
                f"{OLDEST}_request{{{GPUS}}}": "8x60",
                FREE: "16x60",
                f'{OLDEST}_request{{queue="a",resource="cpu"}}': "8x60",
                'gangline_scheduler_free{resource="cpu"}': "7x60",
            },
        ),
    ),
    (
        "GanglineGangPendingDespiteFreeResources",  # the queue's limit is the reason
        Case(
            {OLD_GANG: "0+60x60", f"{OLDEST}_request{{{GPUS}}}": "8x60", FREE: "16x60"},
            {f'{OLDEST}_seconds{{queue="a",reason="QueueLimit"}}': "0+60x60", FREE: "16x60"},
        ),
    ),
    (
        "GanglineWebhookFailing",
        Case(
            {f'{REVIEWS}"400"}}': "0+1x60"},
            {f'{REVIEWS}"denied"}}': "0+1x60", f'{REVIEWS}"400"}}': "3x60"},
        ),
    ),
    ("GanglineWebhookFailing", Case({FAIL_OPEN: "0+1x60"}, {FAIL_OPEN: "7x60"})),
    (
        "GanglineCertificateExpires",
        Case(
            {"gangline_webhook_certificate_expiry_timestamp_seconds": f"{13 * 86400}x60"},
            {"gangline_webhook_certificate_expiry_timestamp_seconds": f"{30 * 86400}x60"},
        ),
    ),
    ("GanglineQueueGoodputLow", Case(goodput(45), goodput(50), 150)),
    (
        "GanglineNodeBlamedRepeatedly",
        Case(
            {f"{NODE}}}": "_x9 1x10 2x10 3x40"},
            {f"{NODE}}}": "_x9 1x10 2x50", NODE.replace("n1", "n2") + "}": "1x60"},
        ),
    ),
    (
        "GanglineNodeBlamedRepeatedly",  # failures of the day before do not count
        Case(
            {f"{NODE}}}": "5x3 8x50"},
            {f"{NODE}}}": "5x60"},
            1500,
            30,
        ),
    ),
    ("GanglineCheckpointOld", Case(checkpoints("0+60x60"), checkpoints("900x60"))),
    ("GanglineCheckpointOld", Case(checkpoints("0+60x60"), checkpoints("0+60x60", "0x60"))),
    ("GanglineJobHung", Case({HANGING: "0x40 0+60x20"}, {HANGING: "4000x60"})),
    ("GanglineSchedulerCycleSlow", Case(cycles(1), cycles(0))),
    (
        "GanglineCacheStale",
        Case(
            {'gangline_cache_age_seconds{kind="Pod"}': "0+60x60"},
            {'gangline_cache_age_seconds{kind="Pod"}': "600x60"},
        ),
    ),
]


def test_each_alert_fires_and_does_not_fire(tmp_path: Path) -> None:
    assert {name for name, _ in CASES} == alerts().alerts.keys()
    every = rules()
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(every))
    for name, _ in CASES:  # a case evaluates its own alert and the recordings only
        groups = [
            {**group, "rules": [e for e in group["rules"] if e.get("alert", name) == name]}
            for group in every["groups"]
        ]
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump({"groups": groups}))
    files = []
    for number, (name, case) in enumerate(CASES):
        content = {
            "rule_files": [f"{name}.yaml"],
            "evaluation_interval": f"{case.interval}m",
            "tests": [
                {
                    "interval": f"{case.interval}m",
                    "input_series": [{"series": k, "values": v} for k, v in series.items()],
                    "promql_expr_test": [
                        {
                            "expr": f'count(ALERTS{{alertname="{name}",alertstate="firing"}})',
                            "eval_time": f"{case.minutes}m",
                            "exp_samples": [{"labels": "{}", "value": 1}] if fires else [],
                        }
                    ],
                }
                for fires, series in ((True, case.fires), (False, case.quiet))
            ],
        }
        files.append(f"case-{number}.yaml")
        (tmp_path / files[-1]).write_text(yaml.safe_dump(content))
    promtool = program("promtool")
    for arguments in (("check", "rules", "rules.yaml"), ("test", "rules", *files)):
        done = subprocess.run(
            [promtool, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_all_expressions_are_valid(tmp_path: Path) -> None:
    """As recordings, which promtool parses, with values for Grafana's variables."""
    recorded = [
        {"record": f"expression:{index}", "expr": concrete(expression)}
        for index, (_, expression) in enumerate(expressions())
    ]
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "boards", "rules": recorded}]}))
    done = subprocess.run(
        [program("promtool"), "check", "rules", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def concrete(expression: str) -> str:
    """An expression with values for Grafana's variables."""
    expression = expression.replace("$__rate_interval", "1m")
    return re.sub(r"\$(queue|namespace|pod)\b", ".+", expression)
