"""Formats that must not change: messages on the wire, journals and files of an earlier release.

Processes of two releases meet in one job: a master is updated while agents run, a saver reads
segments that an older worker wrote, a new master replays the journal of an old one. The recordings
in this folder were written by release 0.1 and do not change; a new message adds a recording.
``wire`` is what was sent, ``fields`` is the same content as JSON, with the names on the wire.
Nothing here depends on the names of message classes, only on the unions that decode them.
"""

import base64
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gangline.elastic.agent.membership import restart_consensus as agent_peers
from gangline.elastic.checkpoint.format import manifest
from gangline.elastic.checkpoint.saver import messages as saver_messages
from gangline.elastic.checkpoint.saver import replication as saver_peers
from gangline.elastic.checkpoint.snapshot import directory, segment
from gangline.elastic.master.cluster_journal import ClusterJournal
from gangline.elastic.master.journal import FileJournal, Journal
from gangline.elastic.master.main import replay_journal
from gangline.elastic.master.state import state
from gangline.elastic.master.state.core import STATE_CHANGING, MasterCore
from gangline.elastic.master.state.state import PersistentState
from gangline.elastic.nodecheck import result
from gangline.elastic.protocol import messages
from gangline.elastic.rendezvous import RendezvousState
from gangline.elastic.shards import events
from gangline.elastic.shards.ledger import ShardLedger

HERE = Path(__file__).parent
MESSAGES = json.loads((HERE / "messages.json").read_text())
JOURNALS = json.loads((HERE / "journals.json").read_text())

TYPES: dict[str, Any] = {
    "requests": messages.Request,
    "replies": messages.Reply,
    "agent_messages": agent_peers.PeerMessage,
    "saver_messages": saver_messages.SaverMessage,
    "saver_peer_requests": saver_peers.SegmentRequest,
    "saver_peer_replies": saver_peers.SegmentReply,
    "saver_settings": directory.SaverSettings,
    "checkpoint_notes": manifest.PartNote,
    "checkpoint_manifests": manifest.Manifest,
    "segment_layouts": manifest.PartLayout,
    "node_check_start": result.WorkerStart,
    "node_check_orders": result.MeasureOrder,
    "node_check_replies": result.WorkerMessage,
    "journal_records": state.JournalRecord,
    "rendezvous_state": RendezvousState,
    "shard_events": events.LedgerEvent,
    "shard_answers": events.LedgerAnswer,
    "dataset_states": events.DatasetState,
    "master_states": PersistentState,
}


def cases() -> list[Any]:
    return [
        pytest.param(group, row, id=f"{group}-{number}")
        for group, content in MESSAGES.items()
        for number, row in enumerate(content["messages"])
    ]


@pytest.mark.parametrize(("group", "row"), cases())
def test_recorded_message_is_read_and_written_unchanged(group: str, row: dict[str, Any]) -> None:
    if MESSAGES[group]["encoding"] == "json":
        codec: Any = msgspec.json
        wire = row["wire"].encode()
    else:
        codec = msgspec.msgpack
        wire = base64.b64decode(row["wire"])
    message = codec.decode(wire, type=TYPES[group])
    assert json.loads(msgspec.json.encode(message)) == row["fields"]
    assert codec.encode(message) == wire


def test_every_group_of_messages_is_recorded() -> None:
    assert TYPES.keys() == MESSAGES.keys()


@pytest.mark.parametrize(
    ("group", "union"),
    [
        ("requests", messages.Request),
        ("replies", messages.Reply),
        ("agent_messages", agent_peers.PeerMessage),
        ("saver_messages", saver_messages.SaverMessage),
        ("node_check_replies", result.WorkerMessage),
        ("shard_events", events.LedgerEvent),
        ("shard_answers", events.LedgerAnswer),
    ],
)
def test_every_message_of_a_union_is_recorded(group: str, union: Any) -> None:
    tags = {member.__struct_config__.tag for member in union.__args__}
    recorded = set()
    for row in MESSAGES[group]["messages"]:
        fields = row["fields"]
        recorded.add(fields["type"] if isinstance(fields, dict) else fields[0])
    assert recorded == tags


def test_journal_of_an_old_master_is_replayed(tmp_path: Path) -> None:
    (tmp_path / "journal").write_bytes(base64.b64decode(JOURNALS["file_journal"]))
    journal = FileJournal(tmp_path / "journal")
    kinds = {type(state.decode_record(line).body) for line in journal.read()[1]}
    assert kinds == STATE_CHANGING, "the recording holds every record that changes the state"


@pytest.mark.parametrize("name", ["file_journal", "file_journal_with_snapshot"])
async def test_state_after_replay_is_as_it_was(tmp_path: Path, name: str) -> None:
    (tmp_path / "journal").write_bytes(base64.b64decode(JOURNALS[name]))
    journal = FileJournal(tmp_path / "journal")
    core, at = replay_journal(journal)
    assert at == JOURNALS["ends_at"]
    check_state(core)
    await journal.close()


def test_state_in_a_config_map_is_read() -> None:
    journal: Journal = ClusterJournal.__new__(ClusterJournal)
    vars(journal)["_content"] = JOURNALS["config_map_state"]
    check_state(replay_journal(journal)[0])


def check_state(core: MasterCore) -> None:
    kept = json.loads(msgspec.json.encode(core.state.persistent))
    kept["account"].pop("restart", None)  # newer than what was recorded
    assert without_texts(kept) == without_texts(JOURNALS["state"])
    assert json.loads(msgspec.json.encode(core.state.ledger.states())) == JOURNALS["datasets"]


def without_texts(value: Any) -> Any:
    """Blank sentences, which replay generates again and which may be reworded."""
    if isinstance(value, dict):
        return {key: without_texts(one) for key, one in value.items()}
    if isinstance(value, list):
        return [without_texts(one) for one in value]
    return "" if isinstance(value, str) and " " in value else value


def test_position_of_a_data_set_in_an_old_checkpoint_is_restored() -> None:
    ledger = ShardLedger()
    content = base64.b64decode(JOURNALS["dataset_checkpoint"])
    assert isinstance(
        ledger.apply(events.RestorePosition(content), 1.0).answer, events.EventAccepted
    )
    assert ledger.checkpoint("corpus") == content


def test_records_of_a_segment_are_read_and_written_unchanged() -> None:
    packed = base64.b64decode(JOURNALS["segment_header"])
    header = segment.unpack_header(packed)
    assert header is not None
    assert segment.pack_header(header) == packed
    assert (header.step, header.generation, header.total_bytes) == (120, 7, 16384)
    assert segment.is_marked_persisted(base64.b64decode(JOURNALS["segment_mark"]), 7)
    assert segment.unpack_seal(base64.b64decode(JOURNALS["segment_seal"]), 7, 3) == [1, 2, 3]
