"""The sockets of process groups, which are cut to end what waits on them, and what follows."""

import contextlib
import socket
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from gangline.elastic.trainer.gradient_exchange import GradientExchange
from gangline.elastic.trainer.group_links import GroupLinks, is_exchange_error
from gangline.elastic.trainer.mesh import GroupSockets


def connect() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        own = socket.create_connection(server.getsockname())
        return own, server.accept()[0]


@pytest.mark.parametrize("connects", [GroupSockets.forming, GroupSockets.adding])
def test_what_waits_while_a_group_connects_ends_and_other_sockets_stay(
    connects: Callable[[GroupSockets], contextlib.AbstractContextManager[None]],
) -> None:
    sockets, (before, peer) = GroupSockets(), connect()
    received: list[bytes] = []
    with connects(sockets):
        own, other = connect()
        wait = threading.Thread(target=lambda: received.append(own.recv(1)), daemon=True)
        wait.start()
        assert sockets.cut()
        wait.join()
    assert received == [b""]
    assert not sockets.cut()
    peer.send(b"x")
    assert before.recv(1) == b"x"
    for each in (before, peer, own, other):
        each.close()


@pytest.mark.parametrize(
    ("error", "is_consequence"),
    [
        (RuntimeError("[gloo] Connection closed by peer"), True),
        (dist.DistStoreError("Stop_waiting response is expected"), True),
        (RuntimeError("shapes differ"), False),
        (ValueError("a socket"), False),
    ],
)
def test_errors_of_exchanges_and_of_the_store_may_follow_from_a_loss(
    error: Exception, is_consequence: bool
) -> None:
    assert is_exchange_error(error) is is_consequence


@pytest.mark.parametrize("kind", ["gradients", "buffers"])
def test_exchange_that_begins_during_an_interrupt_ends(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    def exchange_forever(*_: object) -> Any:
        exchange.interrupt()
        return SimpleNamespace(get_future=torch.futures.Future)  # it never ends

    links: Any = SimpleNamespace(interrupt=lambda: None)
    links.group = SimpleNamespace(allreduce=exchange_forever, broadcast=exchange_forever)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    exchange = GradientExchange(links)
    bucket: Any = SimpleNamespace(buffer=lambda: torch.ones(2))
    if kind == "gradients":
        assert exchange.average(None, bucket).done()
    else:
        with pytest.raises(RuntimeError, match="buffers has failed"):
            exchange.broadcast(None, {"mean": torch.ones(2)})
    assert exchange.has_failed
    assert links.is_abandoned


def test_transfer_that_gloo_forgets_ends_after_an_interrupt() -> None:
    forever = threading.Event()
    links = object.__new__(GroupLinks)
    links._backend, links._is_cut, links.sockets = "gloo", False, GroupSockets()
    work: Any = SimpleNamespace(wait=lambda _: [links.interrupt(), forever.wait()])
    with pytest.raises(RuntimeError, match="does not end after its connections"):
        links.wait(work)
    assert links.is_abandoned
    forever.set()
