"""The save plan: when the ranks agree again, and what is pickled again."""

from typing import Any

import pytest
import torch

from gangline.elastic.checkpoint.errors import UnsavableError
from gangline.elastic.checkpoint.format import plan as plans
from gangline.elastic.checkpoint.format.plan import SavePlan
from gangline.elastic.checkpoint.ranks import SaveGroup


@pytest.mark.parametrize(
    ("later", "is_same"),
    [
        pytest.param({"w": torch.ones(4), "n": 2, "s": "ab"}, True, id="other values"),
        pytest.param({"w": torch.ones(4), "n": 2, "s": "a" * 999}, False, id="an outgrown entry"),
        pytest.param({"w": torch.ones(5), "n": 1, "s": "a"}, False, id="another shape"),
        pytest.param({"w": torch.ones(4).half(), "n": 1, "s": "a"}, False, id="another type"),
        pytest.param({"w": torch.ones(4), "n": 1}, False, id="a missing name"),
    ],
)
def test_ranks_agree_again_when_the_structure_changes(later: dict[str, Any], is_same: bool) -> None:
    plan = SavePlan(SaveGroup(), "here")
    first = plan.fit({"w": torch.zeros(4), "n": 1, "s": "a"})
    second = plan.fit(later)
    assert (second.agreement is first.agreement) == is_same
    assert plan.agreement is second.agreement


def test_an_unchanged_simple_value_is_pickled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    pickled: list[str] = []
    original = plans.pickle_value
    plan = SavePlan(SaveGroup(), "here")
    plan.fit({"n": 1, "l": {1, 2}})

    def count(key: str, value: object) -> bytes:
        pickled.append(key)
        return original(key, value)

    monkeypatch.setattr(plans, "pickle_value", count)
    plan.fit({"n": 1, "l": {1, 2}})
    assert pickled == ["l"], "sets may have changed inside"
    plan.fit({"n": True, "l": {1, 2}})
    assert "n" in pickled, "True equals 1, but is another type"


def test_a_value_that_cannot_be_saved_is_refused() -> None:
    with pytest.raises(UnsavableError, match="'f'"):
        SavePlan(SaveGroup(), "here").fit({"f": lambda: 0})
