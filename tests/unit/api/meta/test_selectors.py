"""Selectors: parsed, matched, formatted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.api.meta.objects import LabelSelector, LabelSelectorRequirement
from gangline.api.meta.selectors import (
    NOTHING,
    Requirement,
    Selector,
    SelectorError,
    parse_field_selector,
    parse_label_selector,
    selector_from_object,
)

LABELS = {"app": "web", "tier": "cache", "gpus": "8", "empty": ""}
VALUES = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,8}[a-z0-9])?", fullmatch=True)


@pytest.mark.parametrize(
    ("text", "selected"),
    [
        ("", True), ("app=web", True), ("app == web", True), ("app=db", False),
        ("app!=db", True), ("missing!=x", True), ("app in (web, db)", True), ("app in (db)", False),
        ("app notin (db)", True), ("missing notin (db)", True), ("app", True), ("missing", False),
        ("!missing", True), ("! app", False), ("gpus>4", True), ("gpus>8", False), ("gpus<9", True),
        ("app>4", False), ("missing>1", False), ("empty=", True), ("app=web,tier=cache", True),
        ("app=web,tier in (disk,cache),!missing", True), ("app=web,!tier", False),
        ("missing in (web)", False), ("missing=", False),
    ],
)  # fmt: skip
def test_a_label_selector_selects(text, selected):
    assert parse_label_selector(text).matches(LABELS) == selected


@pytest.mark.parametrize(
    "text",
    ["a=b=c", "a in b", "a in (b", "=x", "a,,b", "a=b,", "a!", "-a=b", "a=-", "a>x", "a b", "x/=1"],
)
def test_what_is_no_selector_is_refused(text):
    with pytest.raises(SelectorError):
        parse_label_selector(text)


@pytest.mark.parametrize(
    ("text", "selected"),
    [
        ("", True), ("status.phase=Running", True), ("status.phase!=Running", False),
        ("spec.nodeName==", True), ("spec.nodeName!=", False), (r"name=a\,b\=c", True),
        ("status.phase=Running,spec.nodeName=x", False),
    ],
)  # fmt: skip
def test_a_field_selector_selects(text, selected):
    fields = {"status.phase": "Running", "spec.nodeName": "", "name": "a,b=c"}
    assert parse_field_selector(text).matches(fields) == selected


def test_a_field_selector_without_an_operator_is_refused():
    with pytest.raises(SelectorError, match="field=value"):
        parse_field_selector("status.phase")


def test_no_selector_selects_nothing_and_an_empty_one_everything():
    assert selector_from_object(None) == NOTHING
    assert not selector_from_object(None).matches({})
    assert selector_from_object(LabelSelector()).matches({})


@pytest.mark.parametrize(
    ("operator", "values"), [("in", ["a"]), ("In", []), ("Exists", ["a"]), ("NotIn", [])]
)
def test_a_wrong_expression_is_refused(operator, values):
    expression = LabelSelectorRequirement(key="app", operator=operator, values=values)
    with pytest.raises(SelectorError, match="app"):
        selector_from_object(LabelSelector(match_expressions=[expression]))


@given(
    st.lists(
        st.builds(
            Requirement,
            VALUES,
            st.sampled_from(["in", "notin"]),
            st.lists(VALUES, min_size=1, max_size=3, unique=True).map(lambda v: tuple(sorted(v))),
        )
        | st.builds(Requirement, VALUES, st.sampled_from(["=", "!="]), st.tuples(VALUES))
        | st.builds(Requirement, VALUES, st.sampled_from(["exists", "!"])),
        max_size=4,
    )
)
def test_a_selector_reads_back_from_its_text(requirements):
    selector = Selector(tuple(requirements))
    assert parse_label_selector(str(selector)) == selector


@given(VALUES, st.lists(VALUES, min_size=1), st.dictionaries(VALUES, VALUES))
def test_a_negated_requirement_selects_exactly_the_rest(key, values, labels):
    inside = LabelSelectorRequirement(key=key, operator="In", values=values)
    outside = LabelSelectorRequirement(key=key, operator="NotIn", values=values)
    selects = selector_from_object(LabelSelector(match_expressions=[inside])).matches(labels)
    assert selects != selector_from_object(LabelSelector(match_expressions=[outside])).matches(
        labels
    )
