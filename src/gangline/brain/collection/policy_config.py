"""Reads the policy of administrators from the ConfigMap ``gangline-brain-policy``.

Key ``policy``: YAML with ``rules``. All mistakes are reported together, by their place, and the
last policy without mistakes stays in force. Pure, beside the watch in ``PolicyWatch``.
"""

import logging
from collections.abc import Callable
from typing import Any, TypeVar

import yaml
from msgspec.structs import fields as fields_of

from gangline.api.brain.job_advice import MAYS
from gangline.api.core.core import ConfigMap
from gangline.api.resources import CONFIG_MAPS
from gangline.brain.facts.records import Mode
from gangline.brain.guard.policy import BrainPolicyRule, Budgets, JobSelector, Policy
from gangline.brain.guard.state import GuardSettings
from gangline.kube.client.client import ApiClient
from gangline.kube.informers.informer import Informer

log = logging.getLogger(__name__)

POLICY_NAME = "gangline-brain-policy"
POLICY_KEY = "policy"
_LISTS = ("namespaces", "owners", "kinds", "queues")
_RULE = ("include", "exclude", "mode", "may", "budgets", "guard")
_MOST = 1e9
_FIXED = {"lease_age_s", "clock_skew_s"}
"""Settings that no policy has: that a Brain leads, and knows the time, is no matter of taste."""

N = TypeVar("N", Budgets, GuardSettings)


def parse_policy(text: str) -> tuple[Policy | None, list[str]]:
    """Return the policy, or None and all mistakes, each with its place and what would be right."""
    try:
        document = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        return None, [f"{POLICY_KEY}: is not YAML: {' '.join(str(error).split())}"]
    if document is not None and not isinstance(document, dict):
        return None, [f"{POLICY_KEY}: is not a mapping; write rules: [...]"]
    reader = _PolicyReader()
    policy = reader.policy(document or {})
    return (None, reader.mistakes) if reader.mistakes else (policy, [])


class _PolicyReader:
    """Reads a document as far as it is right, and notes the mistakes."""

    def __init__(self) -> None:
        self.mistakes: list[str] = []

    def policy(self, document: dict[Any, Any]) -> Policy:
        rules = self._mapping(document, "", ("rules",)).get("rules") or []
        if not isinstance(rules, list):
            self.mistakes.append("rules: is not a list")
            return Policy()
        return Policy(tuple(self._rule(rule, f"rules[{i}]") for i, rule in enumerate(rules)))

    def _rule(self, written: Any, path: str) -> BrainPolicyRule:
        fields = self._mapping(written, path, _RULE)
        mode = fields.get("mode", Mode.ADVISE)
        mode = "off" if mode is False else mode  # YAML reads a bare off as false
        if mode not in set(Mode):
            self.mistakes.append(f"{path}.mode: {mode!r} is none of {', '.join(Mode)}")
            mode = Mode.ADVISE
        exclude = fields.get("exclude") or []
        exclude = exclude if isinstance(exclude, list) else [exclude]
        return BrainPolicyRule(
            include=self._selector(fields.get("include"), f"{path}.include"),
            exclude=tuple(
                self._selector(one, f"{path}.exclude[{i}]") for i, one in enumerate(exclude)
            ),
            mode=Mode(mode),
            may=self._may(fields.get("may"), f"{path}.may"),
            budgets=self._numbers(Budgets, fields.get("budgets"), f"{path}.budgets"),
            guard=self._numbers(GuardSettings, fields.get("guard"), f"{path}.guard"),
        )

    def _selector(self, written: Any, path: str) -> JobSelector:
        fields = self._mapping(written, path, (*_LISTS, "labels"))
        labels = fields.pop("labels", None) or {}
        if not isinstance(labels, dict) or not all(isinstance(x, str) for x in labels.values()):
            self.mistakes.append(f"{path}.labels: is not a mapping of texts")
            labels = {}
        lists = {name: self._texts(value, f"{path}.{name}") for name, value in fields.items()}
        return JobSelector(labels={str(key): value for key, value in labels.items()}, **lists)

    def _may(self, written: Any, path: str) -> frozenset[str] | None:
        if written is None:
            return None
        named = frozenset(self._texts(written, path))
        if unknown := sorted(named - set(MAYS)):
            self.mistakes.append(f"{path}: {', '.join(unknown)} is none of {', '.join(MAYS)}")
        return named & frozenset(MAYS)

    def _numbers(self, kind: type[N], written: Any, path: str) -> N:
        types = {one.name: one.type for one in fields_of(kind) if one.name not in _FIXED}
        values = {}
        for name, value in self._mapping(written, path, tuple(types)).items():
            if mistake := _mistake(value, whole=types[name] is int, budget=kind is Budgets):
                self.mistakes.append(f"{path}.{name}: {value!r} is not {mistake}")
            else:
                values[name] = types[name](value)
        return kind(**values)

    def _mapping(self, written: Any, path: str, names: tuple[str, ...]) -> dict[str, Any]:
        if written is None and not path.endswith("]"):
            return {}
        if not isinstance(written, dict):
            self.mistakes.append(f"{path}: is not a mapping")
            return {}
        for key in written:
            if key not in names:
                where = f"{path}.{key}" if path else str(key)
                self.mistakes.append(f"{where}: is not a field; the fields are {', '.join(names)}")
        return {key: value for key, value in written.items() if key in names}

    def _texts(self, written: Any, path: str) -> tuple[str, ...]:
        if isinstance(written, str):
            return tuple(part.strip() for part in written.split(",") if part.strip())
        if isinstance(written, list) and all(isinstance(text, str) for text in written):
            return tuple(written)
        self.mistakes.append(f"{path}: is not a list of texts")
        return ()


def _mistake(value: Any, *, whole: bool, budget: bool) -> str:
    """What a number should be; empty if it is so. Budgets are counts from 0 on, or shares."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if budget and not whole:
        return "" if is_number and 0 <= value <= 1 else "a share from 0 to 1"
    if not is_number or not 0 <= value <= _MOST:
        return "a number of 0 or more"
    if whole and not (isinstance(value, int) and value >= (0 if budget else 1)):
        return "a whole number of 0 or more" if budget else "a whole number of 1 or more"
    return ""


class PolicyWatch:
    """The policy in force, while ``informer`` runs; wait for its first list before reading."""

    def __init__(
        self, client: ApiClient, namespace: str, report: Callable[[ConfigMap, list[str]], None]
    ) -> None:
        self.policy = Policy()
        self.mistakes: list[str] = []
        """Mistakes of the stored policy; while there are any, an earlier policy is in force."""
        self._report = report
        self.informer: Informer[ConfigMap] = Informer(
            client, CONFIG_MAPS, namespace, fields=f"metadata.name={POLICY_NAME}"
        )
        self.informer.add_listener(self._on_change)

    def _on_change(self, _: ConfigMap | None, new: ConfigMap | None) -> None:
        if new is None:
            self.policy, self.mistakes = Policy(), []
            return
        policy, self.mistakes = parse_policy(new.data.get(POLICY_KEY, ""))
        if policy is None:
            log.warning(
                "the policy has mistakes; the last one stays in force: %s", "; ".join(self.mistakes)
            )
            self._report(new, self.mistakes)
        else:
            self.policy = policy
