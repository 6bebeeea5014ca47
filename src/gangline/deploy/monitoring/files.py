"""The files made from the tables: rules of Prometheus, and boards in Grafana's JSON."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from gangline.deploy.monitoring.alerts import ALERTS, RECORDINGS
from gangline.deploy.monitoring.boards import BOARDS, Board, Panel, Variable

RULES_FILE = "rules.yaml"
RUNBOOK = "docs/monitoring.md"
_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
_COLUMNS, _WIDTH, _HEIGHT = 24, 8, 8
_SCHEMA_VERSION = 36
"""Of Grafana 8.5; later versions migrate it when they read it."""


def rules() -> dict[str, Any]:
    """Return the content of a file of rules; it is the ``spec`` of a PrometheusRule too."""
    recordings = [{"record": alert.name, "expr": alert.expression} for alert in RECORDINGS]
    alerts = [
        {
            "alert": alert.name,
            "expr": alert.expression,
            "for": alert.duration,
            "labels": {"severity": alert.severity},
            "annotations": {
                "summary": alert.summary,
                "runbook": f"{RUNBOOK}#{alert.name.lower()}",
            },
        }
        for alert in ALERTS
    ]
    return {
        "groups": [
            {"name": "gangline.recordings", "rules": recordings},
            {"name": "gangline.alerts", "rules": alerts},
        ]
    }


def board_files() -> Mapping[str, str]:
    """Return the JSON of each board by the name of its file."""
    return {
        f"boards/{board.name}.json": json.dumps(board_json(board), indent=1) + "\n"
        for board in BOARDS
    }


def board_json(board: Board) -> dict[str, Any]:
    """Return a board in the form that Grafana imports."""
    return {
        "uid": f"gangline-{board.name}",
        "title": board.title,
        "tags": ["gangline"],
        "schemaVersion": _SCHEMA_VERSION,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [_datasource(), *map(_variable, board.variables)]},
        "panels": _panels(board),
    }


def _panels(board: Board) -> list[dict[str, Any]]:
    placed: list[dict[str, Any]] = []
    top = 0
    for title, panels in board.rows:
        placed.append(
            {
                "id": len(placed) + 1,
                "type": "row",
                "title": title,
                "collapsed": False,
                "gridPos": {"h": 1, "w": _COLUMNS, "x": 0, "y": top},
                "panels": [],
            }
        )
        top += 1
        for index, panel in enumerate(panels):
            x, y = index * _WIDTH % _COLUMNS, top + index * _WIDTH // _COLUMNS * _HEIGHT
            placed.append(_panel(panel, len(placed) + 1, x, y))
        top += -(-len(panels) * _WIDTH // _COLUMNS) * _HEIGHT
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
        "targets": list(_targets(panel)),
    }


def _targets(panel: Panel) -> Iterable[dict[str, Any]]:
    for index, query in enumerate(panel.queries):
        yield {
            "refId": chr(ord("A") + index),
            "datasource": _DATASOURCE,
            "expr": query.expression,
            "legendFormat": query.legend or "__auto",
        }


def _datasource() -> dict[str, Any]:
    return {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Source"}


def _variable(variable: Variable) -> dict[str, Any]:
    return {
        "name": variable.name,
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
