"""Rules of schemas in CEL, and Kubernetes' functions with the results of its documentation."""

import copy
from typing import Any

import pytest

from gangline.local.apiserver.machinery.cel.rules import (
    RULES,
    RuleError,
    SchemaRules,
    compile_expression,
    loop_depth,
    rule_causes,
)

Json = dict[str, Any]


def node(type_: str, *rules: str | Json, **schema: Any) -> Json:
    given = [{"rule": rule} if isinstance(rule, str) else rule for rule in rules]
    return {"type": type_, **({RULES: given} if given else {}), **schema}


def found(schema: Json, spec: Any, former: Any = None) -> dict[str, str]:
    rules = SchemaRules(node("object", properties={"spec": schema}))
    before = None if former is None else {"metadata": {}, "spec": former}
    obj = {"metadata": {"name": "x"}, "spec": spec}
    unchanged = copy.deepcopy(obj)
    causes = rules.validate(obj, before)
    assert obj == unchanged
    return {cause.field: cause.message for cause in causes}


IMMUTABLE = {"rule": "self == oldSelf", "message": "is immutable"}
PORTS = {
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["name"],
    "items": node("object", properties={"name": node("string"), "p": node("integer", IMMUTABLE)}),
}


def test_a_rule_with_the_former_value_applies_to_changes_only():
    schema = node("object", properties={"n": node("integer", IMMUTABLE)})
    assert not found(schema, {"n": 1})
    assert not found(schema, {"n": 1}, {})
    assert not found(schema, {"n": 1}, {"n": 1})
    assert found(schema, {"n": 2}, {"n": 1}) == {"spec.n": 'Invalid value: "integer": is immutable'}
    optional = {"rule": "oldSelf.orValue(5) <= self", "optionalOldSelf": True}
    schema = node("object", properties={"n": node("integer", optional)})
    assert set(found(schema, {"n": 4})) == {"spec.n"}
    assert not found(schema, {"n": 4}, {"n": 3})


def test_elements_of_keyed_lists_are_compared_by_their_keys():
    schema = node("array", **PORTS)
    before = [{"name": "a", "p": 1}, {"name": "b", "p": 2}]
    assert not found(schema, [before[1], before[0], {"name": "c", "p": 3}], before)
    changed = [before[1], {"name": "a", "p": 9}]
    assert set(found(schema, changed, before)) == {"spec[1].p"}


def test_an_update_is_not_refused_for_what_it_leaves():
    schema = node("object", properties={"n": node("integer", "self < 5"), "m": node("integer")})
    assert set(found(schema, {"n": 9, "m": 1})) == {"spec.n"}
    assert not found(schema, {"n": 9, "m": 2}, {"n": 9, "m": 1})
    assert set(found(schema, {"n": 8, "m": 2}, {"n": 9, "m": 1})) == {"spec.n"}


def test_an_error_has_the_reason_place_and_message_of_its_rule():
    rule = {
        "rule": "self.x__dash__y != 1", "fieldPath": ".x-y", "reason": "FieldValueForbidden",
        "messageExpression": "'not ' + string(self.x__dash__y)", "message": "unused",
    }  # fmt: skip
    schema = node("object", rule, properties={"x-y": node("integer")})
    assert found(schema, {"x-y": 1}) == {"spec.x-y": "Forbidden: not 1"}
    assert found(node("object", "self.absent == 1"), {})["spec"].startswith(
        'Invalid value: "object": rule evaluation error'
    )
    assert found(node("string", "self == 'a'"), "b") == {
        "spec": "Invalid value: \"string\": failed rule: self == 'a'"
    }


def test_a_rule_that_would_take_too_long_is_an_error():
    pairs = node("array", "self.all(x, self.exists(y, x == y))", items=node("integer"))
    assert not found(pairs, list(range(50)))
    triples = node("array", "self.all(x, self.all(y, self.all(z, x + y + z > 0)))")
    assert "too many values" in found(triples, list(range(1000)))["spec"]


@pytest.mark.parametrize(
    ("text", "depth"),
    [
        ("self == 1", 0),
        ("self.all(x, x > 1) && self.exists(y, y > 1)", 1),
        ("self.all(x, x.b.exists(y, y == '(' && size(x) > (1)))", 2),
        ("self.map(x, [x].filter(y, y.all(z, z)))", 3),
    ],
)
def test_loops_are_counted_as_they_are_nested(text: str, depth: int):
    assert loop_depth(text) == depth


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ({"rule": ""}, "Required value"),
        ({"rule": "self =="}, "compilation failed"),
        ({"rule": "1 + 1"}, "must evaluate to a bool"),
        ({"rule": "authorizer.path('/x') == 1"}, "undeclared reference to 'authorizer'"),
        ({"rule": "self.semver() == 1"}, "undeclared reference to 'semver'"),
        ({"rule": "self == oldSelf"}, "uncorrelatable"),
        ({"rule": "true", "reason": "Other"}, "Unsupported value"),
    ],
)
def test_a_rule_that_is_not_supported_is_refused(rule: Json, said: str):
    [cause] = rule_causes(node("string", rule), "s", correlated=False)
    assert said in cause.message
    assert cause.field.startswith(f"s.{RULES}[0]")


@pytest.mark.parametrize(
    "expression",
    [
        "[1, 2].sum() == 3 && [1, 3, 2].max() == 3 && [2, 1].min() == 1",
        "['a', 'b'].isSorted() && ![2, 1].isSorted()",
        "[1, 2, 2].indexOf(2) == 1 && [1, 2, 2].lastIndexOf(2) == 2 && 'abc'.indexOf('c') == 2",
        "'abc 123'.find('[0-9]+') == '123' && '1 2 3'.findAll('[0-9]', 2) == ['1', '2']",
        "quantity('1.5Gi').isGreaterThan(quantity('1500Mi'))",
        "quantity('50k') == quantity('50000') && quantity('1').add(quantity('500m')) == "
        "quantity('1500m')",
        "quantity('1').sub(2).sign() == -1 && quantity('50k').asInteger() == 50000",
        "isQuantity('1.3Gi') && !isQuantity('1,3Gi') && !quantity('500m').isInteger()",
        "url('https://example.com:80/path?k=v').getHost() == 'example.com:80'",
        "url('https://[::1]:80/').getHostname() == '::1' && url('/p').getScheme() == ''",
        "isURL('https://a/b') && !isURL('../relative')",
        "ip('127.0.0.1').isLoopback() && ip('::1').family() == 6 && !isIP('1.2.3')",
        "ip.isCanonical('127.0.0.1') && cidr('192.168.0.0/24').containsIP(ip('192.168.0.1'))",
        "cidr('192.168.0.1/24').masked() == '192.168.0.0/24' && isCIDR('10.0.0.0/8')",
        "cidr('10.0.0.0/8').containsCIDR(cidr('10.1.0.0/16'))",
        "sets.contains([1, 2, 3], [2]) && sets.intersects([1], [1, 2])",
        "!sets.contains([1], [2]) && !sets.intersects([1], [2])",
        "sets.equivalent([1, 1], [1]) && 'A,b'.lowerAscii().split(',') == ['a', 'b']",
        "{'a': 1}.?b.orValue(2) == 2 && '%s-%d'.format(['x', 1]) == 'x-1'",
    ],
)
def test_functions_of_kubernetes(expression: str):
    assert compile_expression(expression).eval(data={}).plain_value() is True


def test_a_very_long_expression_is_refused():
    with pytest.raises(RuleError, match="characters"):
        compile_expression("1 == 1 || " * 2000 + "true")
