"""Who may do what, seen by a client that is not Gangline's."""

from security.conftest import AttackedServer


async def test_a_user_without_bindings_reads_nothing(attacked: AttackedServer) -> None:
    status, body = await attacked.request("GET", "/api/v1/namespaces/default/pods", user="mallory")
    assert (status, body["reason"]) == (403, "Forbidden")


async def test_the_administrator_reads_pods(attacked: AttackedServer) -> None:
    status, body = await attacked.request("GET", "/api/v1/namespaces/default/pods")
    assert (status, body["kind"]) == (200, "PodList")
