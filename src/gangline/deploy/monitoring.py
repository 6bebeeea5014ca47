"""Alert rules of Prometheus from ``alerts.toml``, and Grafana's boards from ``boards.toml``."""

import json
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

import msgspec

RULES_FILE = "rules.yaml"
RUNBOOK = "docs/monitoring.md"
SELECTORS = {
    "$controllers": "jobs|adoption|scale-plans|scheduler-queues|scheduler-status",
    "$leases": 'name=~"gangline-.+"',
    "$job": 'namespace=~"$namespace",pod=~"$pod"',
}
"""Abbreviations in the expressions of both tables."""
_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
_DATASOURCE_CHOICE = {
    "name": "datasource",
    "type": "datasource",
    "query": "prometheus",
    "label": "Source",
}
_COLUMNS, _WIDTH, _HEIGHT = 24, 8, 8
_SCHEMA_VERSION = 36
"""Of Grafana 8.5; later versions migrate it when they read it."""


class Panel(msgspec.Struct):
    """A time series, or a single number (``stat``)."""

    title: str
    queries: dict[str, str]
    """Expressions by their legends."""
    unit: str = "short"
    kind: str = "timeseries"
    description: str = ""
    needs_fault: bool = False

    def __post_init__(self) -> None:
        self.queries = {legend: _expand(text) for legend, text in self.queries.items()}


class Row(msgspec.Struct):
    title: str
    panels: list[Panel]


class Variable(msgspec.Struct):
    """A choice at the top of a board: the values of a label."""

    metric: str
    label: str


class Board(msgspec.Struct):
    name: str
    """The last part of its file and uid."""
    title: str
    rows: list[Row]
    variables: dict[str, Variable] = {}


class Alert(msgspec.Struct, rename={"duration": "for"}):
    severity: str
    expression: str
    duration: str
    summary: str

    def __post_init__(self) -> None:
        self.expression = _expand(self.expression)


class Alerts(msgspec.Struct):
    recordings: dict[str, str]
    alerts: dict[str, Alert]


@cache
def alerts() -> Alerts:
    return msgspec.convert(_read("alerts.toml"), Alerts)


@cache
def boards() -> list[Board]:
    return msgspec.convert(_read("boards.toml")["boards"], list[Board])


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads(resources.files(__package__).joinpath(name).read_text("utf-8"))


def _expand(expression: str) -> str:
    for selector, labels in SELECTORS.items():
        expression = expression.replace(selector, labels)
    return expression


def rules() -> dict[str, Any]:
    """Return the content of a file of rules; it is the ``spec`` of a PrometheusRule too."""
    table = alerts()
    recordings = [{"record": name, "expr": text} for name, text in table.recordings.items()]
    listed = [
        {
            "alert": name,
            "expr": alert.expression,
            "for": alert.duration,
            "labels": {"severity": alert.severity},
            "annotations": {
                "summary": alert.summary,
                "runbook": f"{RUNBOOK}#{name.lower()}",
            },
        }
        for name, alert in table.alerts.items()
    ]
    return {
        "groups": [
            {"name": "gangline.recordings", "rules": recordings},
            {"name": "gangline.alerts", "rules": listed},
        ]
    }


def board_files() -> Mapping[str, str]:
    """Return the JSON of each board by the name of its file."""
    return {
        f"boards/{board.name}.json": json.dumps(board_json(board), indent=1) + "\n"
        for board in boards()
    }


def board_json(board: Board) -> dict[str, Any]:
    """Return a board in the form that Grafana imports."""
    variables = [_variable(name, variable) for name, variable in board.variables.items()]
    return {
        "uid": f"gangline-{board.name}",
        "title": board.title,
        "tags": ["gangline"],
        "schemaVersion": _SCHEMA_VERSION,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [_DATASOURCE_CHOICE, *variables]},
        "panels": _panels(board),
    }


def _panels(board: Board) -> list[dict[str, Any]]:
    placed: list[dict[str, Any]] = []
    top = 0
    for row in board.rows:
        placed.append(
            {
                "id": len(placed) + 1,
                "type": "row",
                "title": row.title,
                "collapsed": False,
                "gridPos": {"h": 1, "w": _COLUMNS, "x": 0, "y": top},
                "panels": [],
            }
        )
        top += 1
        for index, panel in enumerate(row.panels):
            x, y = index * _WIDTH % _COLUMNS, top + index * _WIDTH // _COLUMNS * _HEIGHT
            placed.append(_panel(panel, len(placed) + 1, x, y))
        top += -(-len(row.panels) * _WIDTH // _COLUMNS) * _HEIGHT
    return placed


def _panel(panel: Panel, number: int, x: int, y: int) -> dict[str, Any]:
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": _DATASOURCE,
        "gridPos": {"h": _HEIGHT, "w": _WIDTH, "x": x, "y": y},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": _DATASOURCE,
                "expr": expression,
                "legendFormat": legend or "__auto",
            }
            for index, (legend, expression) in enumerate(panel.queries.items())
        ],
    }


def _variable(name: str, variable: Variable) -> dict[str, Any]:
    return {
        "name": name,
        "type": "query",
        "datasource": _DATASOURCE,
        "query": f"label_values({variable.metric}, {variable.label})",
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".+",
        "current": {"text": "All", "value": "$__all"},
    }
