"""An informer whose server has the collection in protobuf, and starts from its watch cache."""

import asyncio

from aiohttp import web

from gangline.kube.client.client import ApiClient
from gangline.kube.informers.informer import Informer
from gangline.scheduler.wire import LEAN_PODS, LeanPod
from unit.kube.fake_server import FakeServer, binary, failing
from unit.kube.protobuf.encoding import envelope, frame, list_body, pod, status


def changed(type_: str, *parts: str) -> bytes:
    return frame(type_, envelope("v1", "Pod", pod(*parts)))


async def never(request: web.Request) -> web.StreamResponse:
    """A watch without events."""
    await asyncio.Event().wait()
    raise AssertionError


async def test_it_starts_from_the_cache_and_never_goes_back(
    client: ApiClient, server: FakeServer
) -> None:
    """Only the first list may be of any revision; each watch goes on where the copy is."""
    gone = frame("ERROR", status(410, "Expired", "too old"))
    server.faults += [
        failing(429, "TooManyRequests", 0),
        binary(list_body("v1", "PodList", [pod("a"), pod("b")], "10")),
        binary(changed("MODIFIED", "a", "n1", "12"), changed("DELETED", "b", "", "13")),
        binary(changed("BOOKMARK", "", "", "20")),
        binary(gone),
        binary(list_body("v1", "PodList", [pod("c", "", "30")], "31")),
        never,
    ]
    informer: Informer[LeanPod] = Informer(client, LEAN_PODS, from_cache=True)
    changes: list[tuple[str, str]] = []
    listed_again = asyncio.Event()

    def note(old: LeanPod | None, new: LeanPod | None) -> None:
        subject = new or old
        assert subject is not None
        changes.append((subject.metadata.name, new.spec.node_name if new else "gone"))
        if subject.metadata.name == "c":
            listed_again.set()

    informer.add_listener(note)
    running = asyncio.create_task(informer.run())
    async with asyncio.timeout(60):
        await listed_again.wait()
        while len(server.seen) < 7:
            await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert changes == [("a", ""), ("b", ""), ("a", "n1"), ("b", "gone"), ("a", "gone"), ("c", "")]
    asked = [
        (seen.query.get("watch", "list"), seen.query.get("resourceVersion")) for seen in server.seen
    ]
    assert asked == [
        ("list", "0"),
        ("list", "0"),
        ("true", "10"),
        ("true", "13"),
        ("true", "20"),
        ("list", None),
        ("true", "31"),
    ]
    [times] = informer.list_times
    assert (times.objects, times.is_protobuf) == (1, True)
    assert times.cache_s > 0
