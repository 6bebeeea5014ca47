"""Hang diagnosis for a node that detects a hang later than others."""

import asyncio
from collections.abc import Sequence

from gangline.elastic.agent.hang import View
from gangline.elastic.agent.inquest import Inquest
from gangline.elastic.agent.peers import Peers
from gangline.elastic.agent.round import Round
from gangline.elastic.protocol import seal
from gangline.elastic.protocol.messages import Member, World

MEMBER = Member(1, 0, 0, local_world_size=1, first_rank=0)
ALONE = Round(World(3, (MEMBER,), "127.0.0.1", 20_000), node_id=1)


class Workers:
    """Workers whose stacks are collected once."""

    looks = 0

    async def views(self) -> Sequence[View]:
        self.looks += 1
        return [View(0, "node", f"look {self.looks}")]


def test_stacks_are_recalled_for_their_attempt_only():
    async def scene() -> None:
        inquest, workers = Inquest(Peers(seal.secret_of({}, "job"), None)), Workers()
        assert await inquest.recalled(3, 0) == ()
        seen = await inquest.gathered(ALONE, 0, workers)
        assert await inquest.recalled(3, 0) == seen == (View(0, "node", "look 1"),)
        assert await inquest.recalled(3, 1) == await inquest.recalled(2, 0) == ()
        assert (await inquest.gathered(ALONE, 1, workers))[0].where == "look 2"
        assert await inquest.recalled(3, 0) == ()

    asyncio.run(scene())
