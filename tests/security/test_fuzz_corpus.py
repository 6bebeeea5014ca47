"""Inputs that once broke a parser, or could: each ends in time, or with a documented error."""

import pytest

from security.fuzz.__main__ import corpus_inputs, fuzz, problem_of
from security.fuzz.targets import TARGETS


@pytest.mark.parametrize("name", TARGETS)
def test_known_inputs_raise_documented_errors_only(name: str) -> None:
    target = TARGETS[name]
    for content in (b"", *target.seeds, *corpus_inputs(name)):
        assert not problem_of(target, content), content[:300]


@pytest.mark.parametrize("name", TARGETS)
def test_new_inputs_raise_documented_errors_only(name: str) -> None:
    _, count, findings = fuzz(name, seconds=0.3, seed=0)
    assert count
    assert not findings
