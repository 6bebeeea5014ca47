"""Hang diagnosis for a node that detects a hang later than others."""

import asyncio
from collections.abc import Sequence

from gangline.elastic.agent.hang_detector import RankStack
from gangline.elastic.agent.membership.peers import PeerTransport
from gangline.elastic.agent.membership.restart_consensus import HangDiagnosis, Round
from gangline.elastic.protocol.channel import read_job_secret
from gangline.elastic.protocol.messages import WorldInfo, WorldMember

MEMBER = WorldMember(1, 0, 0, local_world_size=1, first_rank=0)
PEERS = PeerTransport(read_job_secret({}, "job"), None)
ALONE = Round(WorldInfo(3, (MEMBER,), "127.0.0.1", 20_000), 1, PEERS)


class Workers:
    """Workers whose stacks are collected once."""

    requests = 0

    async def rank_stacks(self) -> Sequence[RankStack]:
        self.requests += 1
        return [RankStack(0, "node", f"request {self.requests}")]


def test_stacks_are_recalled_for_their_attempt_only():
    async def scene() -> None:
        diagnosis, workers = HangDiagnosis(PEERS), Workers()
        assert await diagnosis.recall(3, 0) == ()
        seen = await diagnosis.gather_once(ALONE, 0, workers)
        assert await diagnosis.recall(3, 0) == seen == (RankStack(0, "node", "request 1"),)
        assert await diagnosis.recall(3, 1) == await diagnosis.recall(2, 0) == ()
        assert (await diagnosis.gather_once(ALONE, 1, workers))[0].where == "request 2"
        assert await diagnosis.recall(3, 0) == ()

    asyncio.run(scene())
