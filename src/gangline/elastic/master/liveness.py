"""Liveness of nodes: when each was last heard from, and which connections broke."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from gangline.elastic.protocol.server import Peer


@dataclass(slots=True)
class _NodeLiveness:
    heard: float
    peer: Peer | None = None
    """The agent's connection; None if it has no known one."""
    timer: asyncio.TimerHandle | None = None


class LivenessTracker:
    """Tracks nodes with this process's clock; ``lost`` is called for a node that seems to be
    dead.
    """

    def __init__(self, silence_s: float, grace_s: float, lost: Callable[[int, str], None]) -> None:
        self._silence_s, self._grace_s, self._lost = silence_s, grace_s, lost
        self._lives: dict[int, _NodeLiveness] = {}
        self._all_silent = False

    def expect(self, node: int) -> None:
        """Start the timeout of a node."""
        self._lives.setdefault(node, _NodeLiveness(_now()))

    def mark_alive(self, node: int, peer: Peer | None = None) -> None:
        """Restart the timeout of a node, and record its agent's connection if one is given."""
        life = self._lives.get(node)
        if life is None:
            life = self._lives[node] = _NodeLiveness(0.0)
        life.heard = _now()
        if peer is not None and life.peer is not peer:
            life.peer = peer
            if life.timer is not None:
                life.timer.cancel()
                life.timer = None

    def forget(self, node: int) -> None:
        life = self._lives.pop(node, None)
        if life is not None and life.timer is not None:
            life.timer.cancel()

    def mark_disconnected(self, peer: Peer) -> None:
        """Process a broken connection: its node has the grace period to reconnect."""
        node = peer.hello.node_id if peer.hello else None
        life = self._lives.get(node) if node is not None else None
        if node is None or life is None or life.peer is not peer:
            return
        life.peer = None
        loop = asyncio.get_running_loop()
        life.timer = loop.call_later(self._grace_s, self._not_back, node, life)

    def check(self) -> None:
        """Report nodes that have been silent for too long.

        If all nodes are silent at the same time, the master itself was cut off or suspended: no
        node is reported, and every timeout restarts once one of them is heard.
        """
        oldest = _now() - self._silence_s
        silent = [node for node, life in self._lives.items() if life.heard < oldest]
        all_were_silent, self._all_silent = self._all_silent, len(silent) == len(self._lives)
        if self._all_silent:
            return
        if all_were_silent:
            for life in self._lives.values():
                life.heard = _now()
            return
        for node in silent:
            self.forget(node)
            self._lost(node, f"silent for {self._silence_s:g} s")

    def _not_back(self, node: int, life: _NodeLiveness) -> None:
        if self._lives.get(node) is life and life.peer is None:
            self.forget(node)
            self._lost(node, "its agent's connection broke")


def _now() -> float:
    return asyncio.get_running_loop().time()
