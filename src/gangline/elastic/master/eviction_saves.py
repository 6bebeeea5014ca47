"""Saves before an eviction: the master asks all members, and answers when all of them have saved.

The state is in memory: a restarted master reads the request again and repeats it, and agents answer
a repeated request as they did before.
"""

import asyncio
from collections.abc import Callable

from gangline.api.volcano.eviction_saves import SaveAnswerAnnotation
from gangline.elastic.master.state.core import MasterCore
from gangline.elastic.protocol import messages as msg

REASON = "pods of this job are to be evicted for {}"


class EvictionSaves:
    """The request that is being carried out, and the last answer."""

    def __init__(self, core: MasterCore, send: Callable[[msg.SendCommand], None]) -> None:
        self._core, self._send = core, send
        self._request = ""
        self._steps: dict[int, int | None] = {}
        """The step that each node has written."""
        self._answer: SaveAnswerAnnotation | None = None
        self.changed = asyncio.Event()
        """Set when the answer has changed."""

    @property
    def can_save(self) -> bool:
        """True if all members have a complete checkpoint, so that a request makes sense."""
        members = self._core.rendezvous.state.members
        heartbeats = [self._core.heartbeats.get(node) for node in members]
        return bool(heartbeats) and all(
            heartbeat is not None and heartbeat.checkpoint_step is not None
            for heartbeat in heartbeats
        )

    def request(self, name: str, wait_s: float, beneficiary: str) -> None:
        """Ask all members to save; a request that is known already changes nothing."""
        if name == self._request:
            return
        self._request, self._steps = name, {}
        nodes = tuple(sorted(self._core.rendezvous.state.members))
        if not nodes:
            self._finish(None)  # no workers run, so there is nothing that a save could preserve
            return
        reason = REASON.format(beneficiary)
        command = msg.SaveCheckpoint(reason=reason, request=name, wait_s=wait_s)
        self._send(msg.SendCommand(what=command, nodes=nodes))

    def withdraw(self) -> None:
        """Let the workers continue."""
        name, self._request = self._request, ""
        nodes = tuple(sorted(self._core.rendezvous.state.members))
        if name and nodes:
            command = msg.SaveCheckpoint(request=name, is_withdrawn=True)
            self._send(msg.SendCommand(what=command, nodes=nodes))

    def finished(self, reply: msg.SaveFinished) -> None:
        """Record the answer of a node; answers to other requests are ignored."""
        if not self._request or reply.request != self._request:
            return
        self._steps[reply.node_id] = reply.step
        members = self._core.rendezvous.state.members
        if not all(node in self._steps for node in members):
            return
        steps = [self._steps[node] for node in members]
        known = [step for step in steps if step is not None]
        self._finish(min(known) if known and len(known) == len(steps) else None)

    def _finish(self, step: int | None) -> None:
        self._answer = SaveAnswerAnnotation(id=self._request, step=step)
        self.changed.set()

    @property
    def answer(self) -> SaveAnswerAnnotation | None:
        """The last answer; None before the first one."""
        return self._answer
