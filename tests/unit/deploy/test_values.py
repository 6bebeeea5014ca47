"""Values of the chart without Helm: merged, parsed and checked as Helm does."""

from typing import Any

import pytest

from gangline.deploy.chart import Chart
from gangline.deploy.values import (
    InvalidValues,
    find_errors,
    merge_values,
    parse_assignments,
    read_values,
)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["a.b=1", "a.c=x"], {"a": {"b": 1, "c": "x"}}),
        (["a=true,b=null,c=-3"], {"a": True, "b": None, "c": -3}),
        (["a={x,2},b="], {"a": ["x", 2], "b": ""}),
        (["a={}"], {"a": []}),
        (["a=x\\,y"], {"a": "x,y"}),
        (["a.b\\.c/d=1"], {"a": {"b.c/d": 1}}),
        (["a=007"], {"a": "007"}),
    ],
)
def test_assignments_are_read_as_helm_reads_them(texts: list[str], expected: Any) -> None:
    assert parse_assignments(texts) == expected


@pytest.mark.parametrize("text", ["a", "=1", "a..b=1", "a[0]=1"])
def test_what_is_no_assignment_is_named(text: str) -> None:
    with pytest.raises(InvalidValues, match="must be KEY"):
        parse_assignments([text])


def test_maps_are_merged_and_null_removes_a_key() -> None:
    base = {"a": {"b": 1, "c": [1]}, "d": 1}
    assert merge_values(base, {"a": {"c": [2]}, "d": None}) == {"a": {"b": 1, "c": [2]}}
    assert base == {"a": {"b": 1, "c": [1]}, "d": 1}


@pytest.mark.parametrize(("text", "message"), [("[1]", "must be a map"), ("{", "is not YAML")])
def test_a_file_that_has_no_values_is_named(text: str, message: str) -> None:
    with pytest.raises(InvalidValues, match=f"v.yaml {message}"):
        read_values(text, "v.yaml")


def test_all_errors_are_named_with_what_was_meant() -> None:
    chart = Chart.load()
    changes = {"operater": {}, "operator": {"replica": 2, "replicas": 0}}
    errors = find_errors(merge_values(chart.default_values, changes), chart.schema)
    assert len(errors) == 3
    assert errors[0] == "operater: there is no such value; did you mean 'operator'?"
    assert errors[1] == "operator.replica: there is no such value; did you mean 'replicas'?"
    assert errors[2].startswith("operator.replicas: 0 is less than the minimum of 1")


def test_a_value_that_a_template_refuses_is_named() -> None:
    chart = Chart.load()
    values = chart.complete({"webhook": {"queueAccess": True}})
    with pytest.raises(InvalidValues, match=r"webhook\.failurePolicy"):
        chart.render(values)
