"""Hang diagnosis for a node that detects a hang later than others."""

import asyncio
from collections.abc import Sequence

from gangline.elastic.agent.hang.detector import RankStack
from gangline.elastic.agent.membership.hang_diagnosis import HangDiagnosis
from gangline.elastic.agent.membership.peers import PeerTransport
from gangline.elastic.agent.membership.restart_consensus import RoundState
from gangline.elastic.protocol import encryption
from gangline.elastic.protocol.messages import WorldInfo, WorldMember

MEMBER = WorldMember(1, 0, 0, local_world_size=1, first_rank=0)
ALONE = RoundState(WorldInfo(3, (MEMBER,), "127.0.0.1", 20_000), node_id=1)


class Workers:
    """Workers whose stacks are collected once."""

    looks = 0

    async def views(self) -> Sequence[RankStack]:
        self.looks += 1
        return [RankStack(0, "node", f"look {self.looks}")]


def test_stacks_are_recalled_for_their_attempt_only():
    async def scene() -> None:
        inquest, workers = (
            HangDiagnosis(PeerTransport(encryption.read_job_secret({}, "job"), None)),
            Workers(),
        )
        assert await inquest.recall(3, 0) == ()
        seen = await inquest.gather_once(ALONE, 0, workers)
        assert await inquest.recall(3, 0) == seen == (RankStack(0, "node", "look 1"),)
        assert await inquest.recall(3, 1) == await inquest.recall(2, 0) == ()
        assert (await inquest.gather_once(ALONE, 1, workers))[0].where == "look 2"
        assert await inquest.recall(3, 0) == ()

    asyncio.run(scene())
