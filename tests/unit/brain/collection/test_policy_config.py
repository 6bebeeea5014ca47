"""The policy of administrators: all mistakes at one time, with their places."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.api.core.core import ConfigMap
from gangline.brain.collection.policy_config import PolicyWatch, parse_policy
from gangline.brain.facts.records import Mode
from gangline.brain.guard.policy import Policy

GOOD = """
rules:
- include: {namespaces: [research-*], owners: anna, labels: {team: vision}}
  exclude:
  - {kinds: [MPIJob]}
  mode: apply
  may: workers, memory
  budgets: {actions_per_day: 2, wall_share: 0.01}
  guard: {cooldown_s: 30, trial_segments: 2}
- mode: off
"""


def test_policy_with_all_fields() -> None:
    policy, mistakes = parse_policy(GOOD)
    assert mistakes == []
    assert policy is not None
    first, second = policy.rules
    assert first.include.namespaces == ("research-*",)
    assert first.include.owners == ("anna",)
    assert first.exclude[0].kinds == ("MPIJob",)
    assert first.mode is Mode.APPLY
    assert first.may == {"workers", "memory"}
    assert (first.budgets.actions_per_day, first.budgets.wall_share) == (2, 0.01)
    assert first.budgets.resizes_per_hour == 20
    guard = first.guard
    assert (guard.cooldown_s, guard.trial_segments, guard.stable_s) == (30.0, 2, 60)
    assert second.mode is Mode.OFF


def test_all_mistakes_are_named_with_their_places() -> None:
    policy, mistakes = parse_policy(
        "rules:\n- mode: sometimes\n  may: [all]\n  budgets: {wall_share: 5, speed: 1}\n"
        "- include: {namespace: a}\n  exclude: {labels: [x]}\n- 3\n"
        "- guard: {trial: 1, cooldown_s: -1, trial_segments: 1.5, trial_s: x, gain: true}\n"
        "version: 1\n"
    )
    assert policy is None
    assert [mistake.partition(":")[0] for mistake in mistakes] == [
        "rules[0].budgets.speed",
        "rules[0].budgets.wall_share",
        "rules[0].may[0]",
        "rules[0].mode",
        "rules[1].exclude[0].labels",
        "rules[1].include.namespace",
        "rules[2]",
        "rules[3].guard.cooldown_s",
        "rules[3].guard.gain",
        "rules[3].guard.trial",
        "rules[3].guard.trial_s",
        "rules[3].guard.trial_segments",
        "version",
    ]


@pytest.mark.parametrize("text", ["", "rules: []", "rules:", "{}"])
def test_empty_policy_has_no_rules(text: str) -> None:
    assert parse_policy(text) == (Policy(), [])


@pytest.mark.parametrize("text", ["[", "!!python/object:os.system {}", "- 1", "[]", "\x00"])
def test_other_texts_are_refused_with_a_reason(text: str) -> None:
    policy, mistakes = parse_policy(text)
    assert policy is None
    assert len(mistakes) == 1


@given(st.text(max_size=80) | st.text(max_size=40).map(lambda text: f"rules:\n- {text}"))
def test_no_text_raises(text: str) -> None:
    policy, mistakes = parse_policy(text)
    assert (policy is None) == bool(mistakes)


def test_last_policy_without_mistakes_stays_in_force() -> None:
    reports: list[str] = []
    watch = PolicyWatch.__new__(PolicyWatch)
    recorder: Any = SimpleNamespace(event=lambda *event: reports.append(event[-1]))
    watch.policy, watch._events = Policy(), recorder
    watch._on_change(None, ConfigMap(data={"policy": GOOD}))
    good = watch.policy
    assert len(good.rules) == 2
    watch._on_change(None, ConfigMap(data={"policy": "rules: 7"}))
    assert watch.policy is good
    [report] = reports
    assert report.endswith(': rules: 7 is not of type "array"')
    watch._on_change(None, None)
    assert watch.policy == Policy()
