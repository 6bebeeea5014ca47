"""Messages of an agent to the master."""

from dataclasses import dataclass

from gangline.api.failure import Failure
from gangline.elastic.agent.account import ProgressReport
from gangline.elastic.agent.peers import TEXT_LIMIT
from gangline.elastic.agent.place import NodeIdentity
from gangline.elastic.agent.round import RoundState
from gangline.elastic.agent.world import free_port
from gangline.elastic.protocol import messages as msg

LONG_POLL_S = 30.0


@dataclass(frozen=True, slots=True)
class MasterMessages:
    """Creates the messages of one agent process."""

    identity: NodeIdentity
    incarnation: str

    def join(self, number: int, peer_port: int, last_round: RoundState | None) -> msg.Join:
        place = self.identity
        return msg.Join(
            node_id=place.node_id,
            incarnation=self.incarnation,
            number=number,
            node_rank=place.node_rank,
            local_world_size=place.local_world_size,
            host=place.host,
            agent_address=f"{place.host}:{peer_port}",
            store_port=free_port(),
            topology=place.topology,
            round_seen=last_round.world.round if last_round else 0,
            attempt=last_round.order.attempt if last_round else 0,
            wait_s=LONG_POLL_S,
            min_nodes=place.min_nodes,
            max_nodes=place.max_nodes,
            node_unit=place.node_unit,
            last_call_s=place.last_call_s,
            join_timeout_s=place.join_timeout_s,
        )

    def heartbeat(self, round_: int, attempt: int, report: ProgressReport) -> msg.Heartbeat:
        usage = report.usage
        return msg.Heartbeat(
            node_id=self.identity.node_id,
            incarnation=self.incarnation,
            round=round_,
            attempt=attempt,
            phase=report.phase,
            step=report.step,
            first_step=report.first_step,
            steps_per_s=round(report.steps_per_s, 4),
            spent_s=report.spent_s,
            checkpoint_step=report.checkpoint_step,
            saves=report.saves,
            resources=msg.NodeResources(usage.cpus, usage.memory_bytes) if usage else None,
        )


def failure_message(
    identity: NodeIdentity, round_: int, attempt: int, failure: Failure
) -> msg.FailureReport:
    """Return the message about a failure that is followed by a restart in place."""
    return msg.FailureReport(
        node_id=identity.node_id,
        round=round_,
        attempt=attempt,
        exit_codes=(failure.exit_code,) if failure.exit_code is not None else (),
        cause=failure.cause,
        blame=failure.blame.value,
        remedy=failure.remedy.value,
        message=failure.message[:TEXT_LIMIT],
        action="RestartInPlace",
    )
