"""Numbers and names in pods that mean something else to the system than to Kubernetes."""

from itertools import product
from typing import Any

from security.conftest import AttackedServer

PODS = "/api/v1/namespaces/default/pods"
MAX_INT64 = (1 << 63) - 1
NO_CHANGE = (1 << 32) - 1
"""For setresuid: keep the present user."""


def pod(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "c", "image": "any"}], **spec},
    }


async def test_ids_out_of_range_are_refused(attacked: AttackedServer) -> None:
    fields = ("runAsUser", "runAsGroup", "fsGroup", "supplementalGroups")
    for field, number in product(fields, (-1, 1 << 31, NO_CHANGE, MAX_INT64)):
        value: Any = [number] if field == "supplementalGroups" else number
        status, answer = await attacked.request(
            "POST", PODS, json=pod("it", securityContext={field: value})
        )
        assert status == 422, answer
        assert field in answer["message"]
        assert "must be between 0 and 2147483647, inclusive" in answer["message"]


async def test_the_user_of_a_container_is_checked_too(attacked: AttackedServer) -> None:
    # With this number the container kept the rights of root, also with runAsNonRoot.
    context = {"runAsUser": NO_CHANGE, "runAsNonRoot": True}
    body = pod("it")
    body["spec"]["containers"][0]["securityContext"] = context
    status, answer = await attacked.request("POST", PODS, json=body)
    assert (status, "runAsUser" in answer["message"]) == (422, True)


async def test_files_of_hosts_and_name_servers_get_no_further_lines(
    attacked: AttackedServer,
) -> None:
    evil = "1.1.1.1\n6.6.6.6 bank"
    for spec in (
        {"hostAliases": [{"ip": evil, "hostnames": ["a"]}]},
        {"hostAliases": [{"ip": "1.1.1.1", "hostnames": ["a\n6.6.6.6 bank"]}]},
        {"dnsConfig": {"nameservers": [evil]}},
        {"dnsConfig": {"searches": ["a\nnameserver 6.6.6.6"]}},
        {"dnsConfig": {"options": [{"name": "a\nnameserver 6.6.6.6"}]}},
    ):
        status, answer = await attacked.request("POST", PODS, json=pod("it", **spec))
        assert status == 422, (spec, answer)
    spec = {
        "hostAliases": [{"ip": "fd00::1", "hostnames": ["a.b"]}],
        "dnsConfig": {
            "nameservers": ["1.1.1.1", "fd00::2"],
            "searches": ["a.b.", "_tcp.a", "."],
            "options": [{"name": "ndots", "value": "2"}],
        },
    }
    assert (await attacked.request("POST", PODS, json=pod("good", **spec)))[0] == 201


async def test_a_grace_period_may_have_any_length(attacked: AttackedServer) -> None:
    bound = pod("it", nodeName="n", terminationGracePeriodSeconds=MAX_INT64)
    assert (await attacked.request("POST", PODS, json=bound))[0] == 201
    for query in ("", f"?gracePeriodSeconds={MAX_INT64}"):
        status, answer = await attacked.request("DELETE", f"{PODS}/it{query}")
        assert status == 200, answer
    assert (await attacked.request("DELETE", f"{PODS}/it?gracePeriodSeconds=0"))[0] == 200
