"""Which nodes live: who was heard of, and whose connection broke. Knows no rules, only times."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from gangline.elastic.protocol.server import Peer


@dataclass(slots=True)
class _Life:
    heard: float
    peer: Peer | None = None
    """The agent's connection; None: it has none that we know of."""
    timer: asyncio.TimerHandle | None = None


class Lives:
    """Ages nodes with this process's clock; ``lost`` is called for one that seems to be dead."""

    def __init__(self, silence_s: float, grace_s: float, lost: Callable[[int, str], None]) -> None:
        self._silence_s, self._grace_s, self._lost = silence_s, grace_s, lost
        self._lives: dict[int, _Life] = {}
        self._hears_nobody = False

    def expect(self, node: int) -> None:
        """A node should be heard of from now on."""
        self._lives.setdefault(node, _Life(_now()))

    def heard(self, node: int, peer: Peer | None = None) -> None:
        """A node was heard of, on its agent's connection if one is given."""
        life = self._lives.get(node)
        if life is None:
            life = self._lives[node] = _Life(0.0)
        life.heard = _now()
        if peer is not None and life.peer is not peer:
            life.peer = peer
            if life.timer is not None:
                life.timer.cancel()
                life.timer = None

    def forget(self, node: int) -> None:
        """A node is gone; its silence means nothing any more."""
        life = self._lives.pop(node, None)
        if life is not None and life.timer is not None:
            life.timer.cancel()

    def disconnected(self, peer: Peer) -> None:
        """A connection broke: its node has a little time to come back."""
        node = peer.hello.node_id if peer.hello else None
        life = self._lives.get(node) if node is not None else None
        if node is None or life is None or life.peer is not peer:
            return
        life.peer = None
        loop = asyncio.get_running_loop()
        life.timer = loop.call_later(self._grace_s, self._not_back, node, life)

    def check(self) -> None:
        """Look for nodes that were silent too long.

        When all are silent at once it is this end that is cut off, or stood still: nobody is
        blamed, and all have the whole time again once one of them is heard.
        """
        oldest = _now() - self._silence_s
        silent = [node for node, life in self._lives.items() if life.heard < oldest]
        heard_nobody, self._hears_nobody = self._hears_nobody, len(silent) == len(self._lives)
        if self._hears_nobody:
            return
        if heard_nobody:
            for life in self._lives.values():
                life.heard = _now()
            return
        for node in silent:
            self.forget(node)
            self._lost(node, f"not heard of for {self._silence_s:g} s")

    def _not_back(self, node: int, life: _Life) -> None:
        if self._lives.get(node) is life and life.peer is None:
            self.forget(node)
            self._lost(node, "its agent's connection broke")


def _now() -> float:
    return asyncio.get_running_loop().time()
