"""All that a master must not forget, in a form that can be written down and read again."""

from typing import Final

import msgspec

from gangline.elastic.data.ledger import Ledger
from gangline.elastic.master.clock import Moment
from gangline.elastic.master.goodput import Account
from gangline.elastic.protocol.messages import Command, JobEvent, Reply
from gangline.elastic.rendezvous import RendezvousState

VERSION: Final = 1
EVENTS_KEPT = 500
REPLIES_KEPT = 64
"""For each client: how many of its requests may be under way at a time and be repeated."""
CLIENTS_KEPT = 4096


class Kept(msgspec.Struct):
    """What is remembered beside the ledger of shards."""

    job: str = ""
    rendezvous: RendezvousState = msgspec.field(default_factory=RendezvousState)
    values: dict[str, bytes] = {}
    commands: dict[int, list[Command]] = {}
    """What nodes have not confirmed yet."""
    next_command: int = 1
    attempts: dict[int, tuple[int, int]] = {}
    """Node -> round and attempt of the workers that run there."""
    events: list[JobEvent] = []
    first_event: int = 1
    """The number of the oldest that is kept."""
    account: Account = msgspec.field(default_factory=Account)
    down_s: float = 0.0
    """How long there was no master, in all."""
    moment: Moment | None = None
    """The last one that was written down ..."""
    moment_at: float = 0.0
    """... and when that was on the job's clock."""
    replies: dict[str, dict[int, Reply]] = {}
    """Client -> number -> what was answered, where doing it twice would do harm."""


class _Snapshot(msgspec.Struct, array_like=True):
    version: int
    at: float
    kept: Kept
    ledger: bytes


class MasterState:
    """What is remembered, and the ledger."""

    def __init__(self, kept: Kept | None = None, ledger: Ledger | None = None) -> None:
        self.kept = kept or Kept()
        self.ledger = ledger or Ledger()

    def snapshot(self, at: float) -> bytes:
        """Write all of it down."""
        return msgspec.msgpack.encode(_Snapshot(VERSION, at, self.kept, self.ledger.snapshot()))

    @staticmethod
    def restored(snapshot: bytes) -> "tuple[MasterState, float]":
        """Read it again; also the time at which it was written.

        Raises:
            ValueError: it cannot be read, or a newer version wrote it.
        """
        read = msgspec.msgpack.decode(snapshot, type=_Snapshot)
        if read.version > VERSION:
            raise ValueError(
                f"a newer gangline wrote this state: version {read.version}, not {VERSION}"
            )
        return MasterState(read.kept, Ledger.restored(read.ledger)), read.at
