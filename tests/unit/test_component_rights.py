"""The reading of an audit log: what an account used, and which rights it lacks."""

import json

from e2e.component_rights import read_usage

USER = "system:serviceaccount:gangline-system:gangline-operator"


def event(verb: str, decision: str, *, user: str = USER, namespace: str = "") -> str:
    return json.dumps(
        {
            "user": {"username": user},
            "verb": verb,
            "requestURI": f"/api/v1/pods?{verb}",
            "objectRef": {"resource": "pods", "namespace": namespace},
            "responseStatus": {"code": 200},
            "annotations": {"authorization.k8s.io/decision": decision},
        }
    )


def test_a_right_that_was_never_granted_is_lacking() -> None:
    log = [event("list", "allow"), event("delete", "forbid"), event("watch", "forbid", user="me")]
    usage = read_usage(log, USER)
    assert usage.lacking == ["delete /api/v1/pods?delete"]
    assert usage.used == {("", "pods", "list")}


def test_a_call_that_was_refused_for_a_time_lacks_no_right() -> None:
    usage = read_usage([event("list", "forbid"), event("list", "allow")], USER)
    assert usage.lacking == []


def test_rights_of_one_namespace_are_not_those_of_another() -> None:
    log = [event("list", "forbid", namespace="a"), event("list", "allow", namespace="b")]
    assert len(read_usage(log, USER).lacking) == 1
