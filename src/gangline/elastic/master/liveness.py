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
    """Tracks when nodes were last heard from; ``lost`` is called for one that seems dead."""

    def __init__(self, silence_s: float, grace_s: float, lost: Callable[[int, str], None]) -> None:
        self._silence_s, self._grace_s, self._lost = silence_s, grace_s, lost
        self._nodes: dict[int, _NodeLiveness] = {}
        self._all_silent = False

    def expect(self, node: int) -> None:
        """Start the timeout of a node."""
        self._nodes.setdefault(node, _NodeLiveness(_now()))

    def mark_alive(self, node: int, peer: Peer | None = None) -> None:
        """Restart the timeout of a node, and record its agent's connection if one is given."""
        liveness = self._nodes.get(node)
        if liveness is None:
            liveness = self._nodes[node] = _NodeLiveness(0.0)
        liveness.heard = _now()
        if peer is not None and liveness.peer is not peer:
            liveness.peer = peer
            if liveness.timer is not None:
                liveness.timer.cancel()
                liveness.timer = None

    def forget(self, node: int) -> None:
        liveness = self._nodes.pop(node, None)
        if liveness is not None and liveness.timer is not None:
            liveness.timer.cancel()

    def mark_disconnected(self, peer: Peer) -> None:
        """Process a broken connection: its node has the grace period to reconnect."""
        node = peer.hello.node_id if peer.hello else None
        liveness = self._nodes.get(node) if node is not None else None
        if node is None or liveness is None or liveness.peer is not peer:
            return
        liveness.peer = None
        loop = asyncio.get_running_loop()
        liveness.timer = loop.call_later(self._grace_s, self._not_back, node, liveness)

    def check(self) -> None:
        """Report nodes that have been silent for too long.

        If all nodes are silent at the same time, the master itself was cut off or suspended: no
        node is reported, and every timeout restarts once one of them is heard.
        """
        oldest = _now() - self._silence_s
        silent = [node for node, liveness in self._nodes.items() if liveness.heard < oldest]
        all_were_silent, self._all_silent = self._all_silent, len(silent) == len(self._nodes)
        if self._all_silent:
            return
        if all_were_silent:
            for liveness in self._nodes.values():
                liveness.heard = _now()
            return
        for node in silent:
            self.forget(node)
            self._lost(node, f"silent for {self._silence_s:g} s")

    def _not_back(self, node: int, liveness: _NodeLiveness) -> None:
        if self._nodes.get(node) is liveness and liveness.peer is None:
            self.forget(node)
            self._lost(node, "its agent's connection broke")


def _now() -> float:
    return asyncio.get_running_loop().time()
