"""Sentences of advice show the numbers of their JSON (G12)."""

import math
import re
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gangline.brain
from gangline.brain.advisers.advice import Advice, Reason, Unit, What
from gangline.brain.advisers.explain import (
    TEMPLATES,
    published,
    published_reason,
    written,
)

AMOUNTS = st.one_of(
    st.floats(1e-4, 1e15, allow_nan=False), st.integers(0, 10**15), st.sampled_from([0.0, 119.6])
)
NAMES = st.from_regex(r"[a-z0-9]([a-z0-9.-]{0,40}[a-z0-9])?", fullmatch=True)
TIMES = st.integers(0, 4_000_000_000_000)
TOKEN = re.compile(r"\{(\w+):([^}]+)\}")


def values(kind: str) -> st.SearchStrategy:
    if kind == "level":
        return st.integers(0, 4)
    if kind == "name":
        return NAMES
    if kind in ("day", "time"):
        return TIMES
    if kind == "count" or kind.startswith("n "):
        return st.integers(0, 10**9)
    if kind in ("percent", "number", "points"):
        return st.floats(-1e4, 1e4, allow_nan=False)
    return AMOUNTS


def reason_of(code: str, is_short: bool, value: Callable[[str], Any]) -> Reason:
    """A reason with arguments of the kinds in its template, a short one without optional ones."""
    template = TEMPLATES[code]
    if is_short:
        template = re.sub(r"\[[^\]]*\]", "", template)
    template = template.replace("[+", "[")
    return Reason(code=code, arguments={k: value(kind) for k, kind in TOKEN.findall(template)})


@pytest.mark.parametrize("name", ["bytes", "millicores", "seconds", "percent", "number"])
@given(amount=AMOUNTS)
def test_quantity_text_is_stable_and_within_a_half_of_a_percent(name: str, amount: float) -> None:
    text, shown = written(name, amount)
    assert written(name, shown) == (text, shown)
    assert isinstance(shown, float)
    assert math.isclose(shown, amount, rel_tol=0.0101, abs_tol=1e-6)


ALL_KINDS = sorted({kind for text in TEMPLATES.values() for _, kind in TOKEN.findall(text)})


@settings(max_examples=60)
@given(
    drawn=st.fixed_dictionaries(
        {kind: st.lists(values(kind), min_size=1, max_size=3) for kind in ALL_KINDS}
    ),
    is_short=st.booleans(),
)
def test_g12_each_reason_shows_what_json_shows(drawn: dict[str, list[Any]], is_short: bool) -> None:
    turns = {kind: cycle(several) for kind, several in drawn.items()}
    for code in TEMPLATES:
        reason = reason_of(code, is_short, lambda kind: next(turns[kind]))
        shown = published_reason(reason)
        assert published_reason(shown[0]) == shown


@given(
    what=st.sampled_from(What),
    unit=st.sampled_from(Unit),
    role=st.sampled_from(["", "worker", "ps"]),
    rank=st.none() | st.integers(0, 10_000),
    target=st.just("") | NAMES,
    numbers=st.tuples(*[st.none() | AMOUNTS] * 4),
)
def test_g12_each_advice_shows_what_json_shows(
    what: What,
    unit: Unit,
    role: str,
    rank: int | None,
    target: str,
    numbers: tuple[float | None, ...],
) -> None:
    was, value, low, high = numbers
    reason = Reason(code="CoolDown", arguments={"left": 30.04})
    target = target or (reason.code if what is What.WARNING else "")
    advice = Advice(
        what=what, role=role, rank=rank, target=target, unit=unit,
        was=was, value=value, low=low, high=high, reason=reason,
    )  # fmt: skip
    shown = published(advice)
    assert published(shown.advice) == shown


def test_each_code_of_the_source_has_a_sentence() -> None:
    """Codes are literals: of reasons, of holds, of judgements."""
    root = Path(gangline.brain.__file__).parent
    codes: set[str] = set()
    for path in root.rglob("*.py"):
        text = path.read_text()
        codes |= set(re.findall(r'(?:because\(|code = |else )\s*"([A-Z][a-z]\w+)"', text))
        codes |= set(re.findall(r'because\(\s*"(?:\w+)" if .* else "([A-Z]\w+)"', text))
        codes |= set(re.findall(r'(?:_judgement\([^"]*|Verdict\.\w+, )"([A-Z]\w+)"', text))

    assert len(codes) > 60
    assert codes <= set(TEMPLATES)


def test_sentence_of_a_checkpoint_interval_reads_well() -> None:
    advice = Advice(
        what=What.CHECKPOINT_INTERVAL,
        unit=Unit.SECONDS,
        was=3600,
        value=660,
        reason=Reason(
            code="SavesAndFailures",
            arguments={
                "save": 12.0,
                "between_failures": 32_000.0,
                "failures": 3,
                "lost": 0.019,
                "lost_was": 0.044,
            },
        ),
    )
    assert published(advice).sentence == (
        "checkpoint interval: 11 min instead of 60 min. A save stops training for 12 s, and a "
        "failure is expected every 8.89 h, from 3 observed failures. Saves and repeated steps then "
        "cost 1.9 % of the time instead of 4.4 %."
    )
