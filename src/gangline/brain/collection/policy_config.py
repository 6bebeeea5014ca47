"""Reads the policy of administrators from the ConfigMap ``gangline-brain-policy``.

Key ``policy``: YAML with ``rules``. All mistakes are reported together, by their place, and the
last policy without mistakes stays in force. Pure, beside the watch in ``PolicyWatch``.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
import yaml

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
_MODES = tuple(str(mode) for mode in Mode)
_SELECTOR_LISTS = ("namespaces", "owners", "kinds", "queues")
_BUDGETS = {field.name: field.type for field in msgspec.structs.fields(Budgets)}
_GUARD = {
    field.name: field.type
    for field in msgspec.structs.fields(GuardSettings)
    # That a Brain leads, and knows the time, is no matter of taste.
    if field.name not in {"lease_age_s", "clock_skew_s"}
}
_MOST_GUARD = 1e9


def parse_policy(text: str) -> tuple[Policy | None, list[str]]:
    """Return the policy, or None and all mistakes, each with its place and what would be right."""
    try:
        document = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        return None, [f"{POLICY_KEY}: is not YAML: {_one_line(error)}"]
    if document is None:
        return Policy(), []
    if not isinstance(document, dict):
        return None, [f"{POLICY_KEY}: is not a mapping; write rules: [...]"]
    mistakes = list(_unknown(document, ("rules",), ""))
    written = document.get("rules") or []
    if not isinstance(written, list):
        return None, [*mistakes, "rules: is not a list"]
    rules = [_rule(rule, f"rules[{index}]", mistakes) for index, rule in enumerate(written)]
    return (None, mistakes) if mistakes else (Policy(rules=tuple(rules)), [])


def _rule(written: Any, path: str, mistakes: list[str]) -> BrainPolicyRule:
    if not isinstance(written, dict):
        mistakes.append(f"{path}: is not a mapping")
        return BrainPolicyRule()
    mistakes += _unknown(written, ("include", "exclude", "mode", "may", "budgets", "guard"), path)
    mode = written.get("mode", str(Mode.ADVISE))
    # YAML reads a bare off as false.
    mode = "off" if mode is False else mode
    if mode not in _MODES:
        mistakes.append(f"{path}.mode: {mode!r} is none of {', '.join(_MODES)}")
        mode = str(Mode.ADVISE)
    exclude = written.get("exclude") or []
    if not isinstance(exclude, list):
        exclude = [exclude]
    return BrainPolicyRule(
        include=_selector(written.get("include") or {}, f"{path}.include", mistakes),
        exclude=tuple(
            _selector(selector, f"{path}.exclude[{index}]", mistakes)
            for index, selector in enumerate(exclude)
        ),
        mode=Mode(mode),
        may=_may(written, path, mistakes),
        budgets=Budgets(
            **_numbers(
                written.get("budgets") or {}, _BUDGETS, _budget_mistake, f"{path}.budgets", mistakes
            )
        ),
        guard=GuardSettings(
            **_numbers(
                written.get("guard") or {}, _GUARD, _guard_mistake, f"{path}.guard", mistakes
            )
        ),
    )


def _selector(written: Any, path: str, mistakes: list[str]) -> JobSelector:
    if not isinstance(written, dict):
        mistakes.append(f"{path}: is not a mapping")
        return JobSelector()
    mistakes += _unknown(written, (*_SELECTOR_LISTS, "labels"), path)
    lists = {
        name: _texts(written[name], f"{path}.{name}", mistakes)
        for name in _SELECTOR_LISTS
        if name in written
    }
    labels = written.get("labels") or {}
    if not isinstance(labels, dict) or not all(isinstance(x, str) for x in labels.values()):
        mistakes.append(f"{path}.labels: is not a mapping of texts")
        labels = {}
    return JobSelector(
        namespaces=lists.get("namespaces", ()),
        owners=lists.get("owners", ()),
        kinds=lists.get("kinds", ()),
        queues=lists.get("queues", ()),
        labels={str(key): value for key, value in labels.items()},
    )


def _may(written: dict[str, Any], path: str, mistakes: list[str]) -> frozenset[str] | None:
    if written.get("may") is None:
        return None
    named = frozenset(_texts(written["may"], f"{path}.may", mistakes))
    if unknown := sorted(named - set(MAYS)):
        mistakes.append(f"{path}.may: {', '.join(unknown)} is none of {', '.join(MAYS)}")
    return named & frozenset(MAYS)


def _numbers(
    written: Any,
    types: Mapping[str, Any],
    mistake_of: Callable[[Any, Any], str],
    path: str,
    mistakes: list[str],
) -> dict[str, Any]:
    """Return the numbers of a mapping without mistakes, by the name of the field."""
    if not isinstance(written, dict):
        mistakes.append(f"{path}: is not a mapping")
        return {}
    mistakes += _unknown(written, tuple(types), path)
    values: dict[str, Any] = {}
    for name, value in written.items():
        if str(name) not in types:
            continue
        expected = types[str(name)]
        if mistake := mistake_of(value, expected):
            mistakes.append(f"{path}.{name}: {value!r} is not {mistake}")
        else:
            values[str(name)] = expected(value)
    return values


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _budget_mistake(value: Any, expected: Any) -> str:
    if expected is int:
        fits = _is_number(value) and isinstance(value, int) and value >= 0
        return "" if fits else "a number of 0 or more"
    return "" if _is_number(value) and 0 <= value <= 1 else "a share from 0 to 1"


def _guard_mistake(value: Any, expected: Any) -> str:
    if not _is_number(value) or not 0 <= value <= _MOST_GUARD:
        return "a number of 0 or more"
    if expected is int and (not isinstance(value, int) or value < 1):
        return "a whole number of 1 or more"
    return ""


def _texts(written: Any, path: str, mistakes: list[str]) -> tuple[str, ...]:
    if isinstance(written, str):
        return tuple(part.strip() for part in written.split(",") if part.strip())
    if isinstance(written, list) and all(isinstance(text, str) for text in written):
        return tuple(written)
    mistakes.append(f"{path}: is not a list of texts")
    return ()


def _unknown(written: dict[Any, Any], fields: tuple[str, ...], path: str) -> Iterator[str]:
    for key in written:
        if key not in fields:
            where = f"{path}.{key}" if path else str(key)
            yield f"{where}: is not a field; the fields are {', '.join(fields)}"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


class PolicyWatch:
    """The policy in force. Start ``run`` in a task; wait for ``synced`` before reading."""

    def __init__(
        self, client: ApiClient, namespace: str, report: Callable[[ConfigMap, list[str]], None]
    ) -> None:
        self.policy = Policy()
        self.mistakes: list[str] = []
        """Mistakes of the stored policy; while there are any, an earlier policy is in force."""
        self._report = report
        self._informer: Informer[ConfigMap] = Informer(
            client, CONFIG_MAPS, namespace, fields=f"metadata.name={POLICY_NAME}"
        )
        self._informer.add_listener(self._on_change)

    async def run(self) -> None:
        await self._informer.run()

    async def synced(self) -> None:
        await self._informer.wait_for_sync()

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
