"""Bodies of requests: numbers without a fraction, and fields that occur twice."""

import pytest

from gangline.local.apiserver.core.negotiation import find_duplicate_fields, read_body
from gangline.local.apiserver.core.registry import all_builtin_kinds

JSON, YAML = "application/json", "application/yaml"


def test_numbers_without_a_fraction_are_integers():
    read = read_body(b'{"a": 10.0, "b": [1e1, -2.0, 1.5, 1e300], "c": "10.0"}', JSON)
    assert read == {"a": 10, "b": [10, -2, 1.5, 1e300], "c": "10.0"}
    assert [type(read["a"]), *map(type, read["b"])] == [int, int, int, float, float]
    assert type(read_body(b"a: 10.0", YAML)["a"]) is int


@pytest.mark.parametrize(
    ("body", "media", "texts"),
    [
        (b'{"a": 1, "b": {"a": 2}}', JSON, []),
        (b'{"data": {"a": 1, "a": 2, "a": 3}}', JSON, ['duplicate field "data.a"']),
        (
            b'{"l": [[{}, {"x": 1, "x": {"y": 1, "y": 2}}]], "l": 1.5}',
            "application/merge-patch+json",
            ['duplicate field "l"', 'duplicate field "l[0][1].x"', 'duplicate field "l[0][1].x.y"'],
        ),
        (b"a: {b: 1}\nb: {b: 2}\n", YAML, []),
        (b"a: &x {b: 1}\nc: {<<: *x, d: *x}\n", YAML, []),
        (
            b"data:\n  a: one\n  a: two\nlist:\n- {b: 1, b: 2}\n",
            "application/apply-patch+yaml",
            [
                'yaml: line 3: key "a" already set in map',
                'yaml: line 5: key "b" already set in map',
            ],
        ),
    ],
)
def test_fields_that_occur_twice_are_named(body, media, texts):
    assert sorted(find_duplicate_fields(body, media)) == texts


def test_built_in_kinds_are_read_as_go_reads_them():
    schemas = {kind.kind: kind.schema for kind in all_builtin_kinds() if kind.version == "v1"}
    config = {"metadata": {"labels": {"a": None}}, "data": {"b": None, "c": "1"}}
    assert not schemas["ConfigMap"].prune(config)
    assert config == {"metadata": {"labels": {"a": ""}}, "data": {"b": "", "c": "1"}}
    limits = {"cpu": "1000m", "memory": "1024Mi", "a.b/none": None, "odd": "x"}
    container = {"name": "c", "args": ["x", None], "ports": [None], "resources": {"limits": limits}}
    pod = {"spec": {"containers": [container], "hostname": None}}
    schemas["Pod"].prune(pod)
    stored = {"limits": {"cpu": "1", "memory": "1Gi", "a.b/none": "0", "odd": "x"}}
    assert pod == {
        "spec": {
            "containers": [{"name": "c", "args": ["x", ""], "ports": [{}], "resources": stored}]
        }
    }
    (cause,) = schemas["Pod"].validate(pod)[-1:]
    assert cause.field == "spec.containers[0].resources.limits[odd]"
