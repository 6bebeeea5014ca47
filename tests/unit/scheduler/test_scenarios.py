"""Typical situations of batch scheduling, each with the expected result."""

import pytest

from gangline.scheduler.types import CycleResult
from unit.scheduler.scenarios.reading import Expected, Play, Scenario, arrangements, scenarios

SCENARIOS = list(scenarios())
EVICTING = [
    scenario
    for scenario in SCENARIOS
    if (expect := scenario.expect).evicts or expect.evicted or expect.runs or expect.together
]
"""What others decide first, and is all that is expected of them, precedes any end of a pod."""


@pytest.mark.parametrize("scenario", [pytest.param(s, id=f"{s.id}: {s.says}") for s in SCENARIOS])
def test_the_decision_is_the_one_expected(scenario: Scenario) -> None:
    _play(Play(scenario), scenario)


@pytest.mark.parametrize("scenario", [pytest.param(s, id=s.id) for s in SCENARIOS if s.arranged])
def test_names_and_positions_do_not_matter(scenario: Scenario) -> None:
    for arranged in arrangements(scenario):
        _play(Play(arranged), arranged)


@pytest.mark.parametrize("scenario", [pytest.param(s, id=s.id) for s in EVICTING if not s.then])
@pytest.mark.parametrize("cycles", [1, 4])
def test_end_state_does_not_depend_on_how_fast_evicted_pods_end(
    scenario: Scenario, cycles: int
) -> None:
    _compare(Play(scenario, slow=cycles), scenario.expect)


def _play(play: Play, scenario: Scenario) -> None:
    _compare(play, scenario.expect)
    for step in scenario.then:
        play.happen(step)
        _compare(play, step.expect)


def _compare(play: Play, expected: Expected) -> None:
    decision = play.decide()
    _compare_decision(expected, decision)
    play.carry_out(decision)
    found = {gang: play.phase(gang, decision) for gang in expected.phases}
    assert found == expected.phases
    if expected.runs or expected.together:
        play.rest()
    assert {gang: len(play.running(gang)) for gang in expected.runs} == expected.runs
    for gang, domains in expected.together.items():
        nodes = {str(pod.node) for pod in play.running(gang)}
        assert any(nodes <= _nodes_of(play, domain) for domain in domains)


def _compare_decision(expected: Expected, decision: CycleResult) -> None:
    bound = {b.pod.removeprefix("d/"): str(b.node) for b in decision.bindings}
    if expected.binds is not None:
        expected_nodes = {pod: node or bound.get(pod) for pod, node in expected.binds.items()}
        assert bound == expected_nodes
    if expected.evicts is not None:
        assert sorted(e.pod.removeprefix("d/") for e in decision.evictions) == expected.evicts
    if expected.evicted is not None:
        assert len(decision.evictions) == expected.evicted
    if expected.order:
        assert list(bound) == expected.order
    verdicts = decision.pending_reasons
    messages = {key.removeprefix("d/"): text for v in verdicts for key, text in v.pods}
    messages |= {str(v.group).removeprefix("d/"): v.message for v in verdicts}
    for gang, texts in expected.reasons.items():
        for text in [texts] if isinstance(texts, str) else texts:
            assert text in messages[gang]
    codes = {str(v.group).removeprefix("d/"): v.reason for v in verdicts}
    assert {gang: codes.get(gang) for gang in expected.codes} == expected.codes


def _nodes_of(play: Play, domain: str) -> set[str]:
    described = play.domains[domain]
    below = [_nodes_of(play, each) for each in described.domains]
    return set(described.nodes).union(*below)
