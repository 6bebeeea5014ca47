"""Reads the policy of administrators from the ConfigMap ``gangline-brain-policy``.

Key ``policy``: YAML with ``rules``. All mistakes are reported together, by their place, and the
last policy without mistakes stays in force. Pure, beside the watch in ``PolicyWatch``.
"""

import logging
from collections.abc import Iterator
from functools import cache
from typing import Any

import jsonschema_rs
import msgspec
import yaml

from gangline.api.brain.job_advice import MAYS
from gangline.api.core.core import ConfigMap
from gangline.api.meta.json_objects import without_nulls
from gangline.api.resources import CONFIG_MAPS
from gangline.api.schema.field_error import format_path
from gangline.brain.guard.policy import Policy
from gangline.kube.client.client import ApiClient
from gangline.kube.controller.event_recorder import EventRecorder
from gangline.kube.informers.informer import Informer

log = logging.getLogger(__name__)

POLICY_NAME = "gangline-brain-policy"
POLICY_KEY = "policy"
_MOST = 1e9
_LIMITS: dict[str, Any] = {
    "Budgets": {
        "integer": {"minimum": 0, "maximum": _MOST},
        "number": {"minimum": 0, "maximum": 1},
    },
    "GuardSettings": {
        "integer": {"minimum": 1, "maximum": _MOST},
        "number": {"minimum": 0, "maximum": _MOST},
    },
}
"""Of numbers by their type. Budgets are counts from 0 on, or shares."""


def parse_policy(text: str) -> tuple[Policy | None, list[str]]:
    """Return the policy, or None and all mistakes, each with its place."""
    try:
        written = yaml.safe_load(text)
        document = {} if written is None else without_nulls(written)
        _spell_out(document)
        if mistakes := sorted(_mistakes(document)):
            return None, mistakes
        return msgspec.convert(document, Policy), []
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        return None, [f"{POLICY_KEY}: is not a policy: {' '.join(str(error).split())}"]


def _spell_out(document: Any) -> None:
    """Replace what a policy may have in place of a list: one entry, or a text with commas."""
    rules = document.get("rules") if isinstance(document, dict) else None
    for rule in rules if isinstance(rules, list) else ():
        if not isinstance(rule, dict):
            continue
        if rule.get("mode") is False:
            rule["mode"] = "off"  # YAML reads a bare off as false
        if not isinstance(rule.setdefault("exclude", []), list):
            rule["exclude"] = [rule["exclude"]]
        for part in (rule, rule.get("include"), *rule["exclude"]):
            for name, value in part.items() if isinstance(part, dict) else ():
                if isinstance(value, str) and name != "mode":
                    part[name] = [word.strip() for word in value.split(",") if word.strip()]


@cache
def _schema() -> dict[str, Any]:
    schema = msgspec.json.schema(Policy)
    parts = schema["$defs"]
    for part, limits in _LIMITS.items():
        parts[part]["additionalProperties"] = False
        parts[part]["properties"] = {
            name: field | limits[field["type"]] for name, field in parts[part]["properties"].items()
        }
    may = {"type": "array", "items": {"enum": list(MAYS)}}
    parts["BrainPolicyRule"]["properties"]["may"] = may
    return schema


def _mistakes(document: Any) -> Iterator[str]:
    schema = _schema()
    for violation in jsonschema_rs.validator_for(schema).iter_errors(document):
        place = tuple(violation.instance_path)
        if violation.kind.name != "additionalProperties":
            yield f"{format_path(place) or POLICY_KEY}: {violation.message}"
            continue
        known = ", ".join(schema["$defs"][violation.schema_path[1]]["properties"])
        for name in violation.kind.value:
            yield f"{format_path((*place, name))}: is not a field; the fields are {known}"


class PolicyWatch:
    """The policy in force, while ``informer`` runs; wait for its first list before reading."""

    def __init__(self, client: ApiClient, namespace: str, events: EventRecorder) -> None:
        self.policy, self._events = Policy(), events
        self.informer: Informer[ConfigMap] = Informer(
            client, CONFIG_MAPS, namespace, fields=f"metadata.name={POLICY_NAME}"
        )
        self.informer.add_listener(self._on_change)

    def _on_change(self, _: ConfigMap | None, new: ConfigMap | None) -> None:
        if new is None:
            self.policy = Policy()
            return
        policy, mistakes = parse_policy(new.data.get(POLICY_KEY, ""))
        if policy is not None:
            self.policy = policy
            return
        message = f"the last policy without mistakes stays in force: {'; '.join(mistakes)}"
        log.warning("%s", message)
        self._events.event(new, "Warning", "InvalidPolicy", message)
