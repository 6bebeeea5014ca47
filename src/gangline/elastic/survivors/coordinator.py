"""The coordinator of surviving workers: epochs, members, successors, and who restores whom.

A *slot* is one worker process; slots are numbered in the order of their start and never used again.
A *seat* is a place in the world; it belongs to a node, and the occupied seats in their order are
the ranks. An *epoch* is one process group. A *successor* is a process that has run the script up to
its first step and waits for a seat.

One coordinator, in the agent of rank 0's node, receives messages and appends orders to a log that
all workers and agents read:

1. Every worker sends `MemberHello`. When all seats have one: `Form` of epoch 1.
2. A member that has finished some steps sends `Ready`; when all have, successors are started. So
   they take no processor time from members that recover.
3. A member is `Lost`: its agent has been told, or has seen it on `Look`. The warm successor of its
   node takes the seat, and `Form` of the next epoch tells the members who they are. Without one the
   world shrinks if enough members are left, else they `Hold` until there is a successor.
4. Members form the group, exchange their steps, and restore those that are behind (`plan_restore`).
   They send `Formed`, and `Train` follows. A loss meanwhile leads to a further epoch.
5. A successor that becomes warm takes a vacant seat: `Form` again, the group grows. When a node is
   lost, all of its seats are vacant, until a node that has `Arrived` gets its `Place`.
6. A member that has done all steps is `Finished`, and ends when the protocol has ended.

Invariants: a `Form` names only slots that were alive when it was written, in the order of their
seats; at most one step is discarded for each epoch; after `Fallback` there are no further orders,
and the agents restart all workers as without this protocol. Every wait has a deadline, after which
`Fallback` is written: the training never hangs in here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from gangline.elastic.survivors.messages import (
    FORM_S,
    NO_STATE,
    RESTORE_S,
    Arrived,
    Connected,
    Ended,
    Fallback,
    Finished,
    Form,
    Formed,
    Heard,
    Hold,
    KillRank,
    Lost,
    LostNode,
    MemberHello,
    Message,
    Order,
    Place,
    Ready,
    Refused,
    Replace,
    Start,
    Train,
    Warm,
)

HEARD_S: Final = 10.0
"""Time in which a living member hears of an epoch, whatever it computes."""
SUCCESSOR_S: Final = 60.0
"""Time for which too few members wait for a successor."""
MAX_REPEATS: Final = 3
"""Losses without a step between them, after which all workers are restarted as before."""
MAX_FAILED_SUCCESSORS: Final = 3
"""Successors of a node that may end before they are warm."""


@dataclass(frozen=True, slots=True)
class Replacement:
    """How a group of members got over losses, for reports."""

    ranks: tuple[int, ...]
    """The lost ranks, as they were numbered before; empty if the group grew."""
    world_size: int
    step: int
    seconds: float
    discarded: int
    """Steps that were done again."""
    has_successor: bool
    """False if the group continues with fewer ranks."""

    def describe(self) -> str:
        """Return one sentence, such as `rank 3 was replaced at step 812; 0.14 s, 1 step`."""
        names = ", ".join(map(str, sorted(self.ranks)))
        subject = f"rank{'s' * (len(self.ranks) > 1)} {names}"
        verb = "were" if len(self.ranks) > 1 else "was"
        if not self.ranks:
            what = f"the world grew to {self.world_size} ranks"
        elif self.has_successor:
            what = f"{subject} {verb} replaced"
        else:
            what = f"{subject} {verb} lost, {self.world_size} continue"
        steps = f"{self.discarded} step{'s' * (self.discarded != 1)}"
        return f"{what} at step {self.step}; {self.seconds:.2f} s, {steps}"


@dataclass(slots=True)
class _Loss:
    """What happened since the members last trained."""

    begun: float
    ranks: tuple[int, ...] = ()
    has_successor: bool = True


@dataclass(slots=True)
class EpochCoordinator:
    """Decides about epochs. Times are of a monotonic clock."""

    nodes: list[int]
    """The node of each seat; every node has as many as the first one."""
    minimum: int = 0
    """Members that continue without a successor; 0 for all of them."""
    min_nodes: int = 1
    """Nodes that continue when another one is lost."""
    successors: int = 1
    """Successors to keep warm on each node; with 0 they are started for a seat that was lost."""
    epoch: int = 0
    is_over: bool = False
    """True after `Fallback`, and when the first member has ended."""
    replacements: list[Replacement] = field(default_factory=list)
    """What was got over since the list was last emptied."""
    _seats: list[int | None] = field(default_factory=list)
    _handles: dict[int, str] = field(default_factory=dict)
    _hello: set[int] = field(default_factory=set)
    _ready: set[int] = field(default_factory=set)
    """Slots that could be continued."""
    _trained: set[int] = field(default_factory=set)
    """Members that have done a step in the present group."""
    _starting: dict[int, tuple[int, int | None]] = field(default_factory=dict)
    """Node and seat of successors that are not warm yet."""
    _warm: dict[int, tuple[int, int | None]] = field(default_factory=dict)
    _failed: dict[int, int] = field(default_factory=dict)
    """Successors of a node that have ended early."""
    _gone: set[int] = field(default_factory=set)
    """Nodes that are lost."""
    _next_slot: int = 0
    _members: list[int] = field(default_factory=list)
    _ranks: dict[int, int] = field(default_factory=dict)
    _heard: set[int] = field(default_factory=set)
    _joined: set[int] = field(default_factory=set)
    _connected: set[int] = field(default_factory=set)
    _formed: dict[int, Formed] = field(default_factory=dict)
    _loss: _Loss | None = None
    _leaves: list[int] = field(default_factory=list)
    _deadline: float | None = None
    _last_step: int | None = None
    _repeats: int = 0
    """Losses without a step between them."""
    _proven: set[int] = field(default_factory=set)
    """Slots that have been in a group which has formed."""
    _silent: set[int] = field(default_factory=set)
    """Slots that were ended because the others waited for them."""
    _replaced: dict[int, str] = field(default_factory=dict)
    """Slots that end as soon as a successor is warm, with reasons."""

    def __post_init__(self) -> None:
        self._seats = [*range(len(self.nodes))]
        self._next_slot = len(self.nodes)
        self.minimum = min(self.minimum or len(self.nodes), len(self.nodes))

    @property
    def deadline(self) -> float | None:
        """The time at which `tick` has something to do; None for never."""
        return self._deadline

    @property
    def is_active(self) -> bool:
        """Return whether losses are handled here now."""
        seats = {slot for slot in self._seats if slot is not None}
        return not self.is_over and self.epoch > 0 and seats <= self._ready

    def rank_of(self, slot: int) -> int | None:
        """Return the last rank of a slot; None if it has had none."""
        return self._ranks.get(slot)

    def handle(self, message: Message, now: float) -> list[Order]:
        """Take a message; return the orders that follow from it."""
        if self.is_over:
            return []
        match message:
            case MemberHello(slot, handle):
                return self._hear_hello(slot, handle, now)
            case Ready(slot):
                self._ready.add(slot)
                self._trained.add(slot)
                return self._refill()
            case Warm(slot, handle):
                return self._hear_warm(slot, handle, now)
            case Heard():
                self._hear_heard(message, now)
            case Connected(slot, epoch, handle):
                self._hear_connected(slot, epoch, handle, now)
            case Formed():
                return self._hear_formed(message, now)
            case Finished() if not self._is_forming() and self._members:
                return self._fall_back("the training ends", is_end=True)
            case Refused(slot, reason):
                return self._fall_back(f"rank {self.rank_of(slot)} cannot continue: {reason}")
            case _:
                return self._handle_agent(message, now)
        return []

    def _handle_agent(self, message: Message, now: float) -> list[Order]:
        match message:
            case Lost(slot):
                return self._hear_lost(slot, now)
            case Ended(slot):
                return self._hear_ended(slot)
            case Replace():
                return self._hear_replace(message)
            case Arrived(agent, None) if self.is_active:
                return [Place(agent, self._place_node()), *self._refill()]
            case LostNode(node):
                return self._hear_node_lost(node, now)
        return []

    def tick(self, now: float) -> list[Order]:
        """Return the orders that follow from the time."""
        if self.is_over or self._deadline is None or now < self._deadline:
            return []
        if None in self._seats and not self._is_forming():
            return self._fall_back("no successor was ready in time")
        stages = self._heard, self._joined, self._connected, {*self._formed}
        late = next(missing for done in stages if (missing := {*self._members} - done))
        if late - self._joined - self._silent and late < {*self._members}:
            # The others wait for these, which become lost ones. Those that connect, or copy states,
            # wait for each other.
            self._silent |= late
            self._deadline = now + HEARD_S
            return [KillRank(slot, "it did not answer in time") for slot in sorted(late)]
        return self._fall_back("these ranks did not answer in time", sorted(late))

    # What workers report.

    def _hear_hello(self, slot: int, handle: str, now: float) -> list[Order]:
        self._hello.add(slot)
        self._handles[slot] = handle
        if self.epoch:  # it has another address
            return self._form(now) if slot in self._members and self._is_forming() else []
        return self._form(now) if self._hello >= {*self._seats} else []

    def _hear_warm(self, slot: int, handle: str, now: float) -> list[Order]:
        if slot not in self._starting:
            return []
        node, seat = self._warm[slot] = self._starting.pop(slot)
        self._handles[slot] = handle
        if None in self._seats:
            if self._is_forming() or self._is_filling(node):
                return []
            if self._fill_seats():
                return self._reform(now)
        for replaced, reason in self._replaced.items():
            number = self._seats.index(replaced)
            if node == self.nodes[number] and seat in (None, number):
                return [KillRank(replaced, reason)]
        return []

    def _hear_heard(self, message: Heard, now: float) -> None:
        if message.epoch == self.epoch:
            known = self._joined if message.has_joined else self._heard
            known.add(message.slot)
            if self._heard >= {*self._members} and not message.has_joined:
                self._deadline = now + FORM_S

    def _hear_connected(self, slot: int, epoch: int, handle: str, now: float) -> None:
        if epoch == self.epoch:
            self._connected.add(slot)
            self._handles[slot] = handle
            if self._connected >= {*self._members}:
                self._deadline = now + RESTORE_S

    def _hear_formed(self, message: Formed, now: float) -> list[Order]:
        if message.epoch != self.epoch or message.slot not in self._members:
            return []
        self._formed[message.slot] = message
        if not self._formed.keys() >= {*self._members}:
            return []
        # All members have the same state, and train.
        self._deadline = None
        self._proven |= {*self._members}
        loss, self._loss = self._loss, None
        reports = self._formed.values()
        step = max(report.step for report in reports)
        self._repeats = self._repeats + 1 if loss and step == self._last_step else 0
        self._last_step = step
        if loss:
            discarded = max(report.discarded for report in reports)
            self.replacements.append(
                Replacement(
                    loss.ranks, len(self._members), step, now - loss.begun, discarded,
                    loss.has_successor,
                )
            )  # fmt: skip
        if None in self._seats and self._fill_seats():
            return [*self._reform(now), *self._refill()]
        return [Train(self.epoch)]

    # What agents report.

    def _hear_lost(self, slot: int, now: float) -> list[Order]:
        if slot in self._starting or slot in self._warm:
            return self._lose_successor(slot)
        return self._lose([slot], now) if slot in self._seats else []

    def _hear_node_lost(self, node: int, now: float) -> list[Order]:
        for places in (self._starting, self._warm):
            for slot in [slot for slot, place in places.items() if place[0] == node]:
                del places[slot]
        self._gone.add(node)
        self._failed.pop(node, None)
        seats = zip(self._seats, self.nodes, strict=True)
        slots = [slot for slot, place in seats if place == node and slot is not None]
        return self._lose(slots, now) if slots else []

    def _lose(self, slots: Sequence[int], now: float) -> list[Order]:
        if not self.is_active:
            return self._fall_back(
                f"rank {self.rank_of(slots[0])} was lost before the others could continue"
            )
        if self._repeats >= MAX_REPEATS:
            return self._fall_back(f"{MAX_REPEATS + 1} losses at step {self._last_step}")
        if not self._proven >= {*slots}:  # a successor, which may fail whenever it is restored
            self._repeats += 1
        if self._loss is None:
            self._loss = _Loss(now)
        for slot in slots:
            self._seats[self._seats.index(slot)] = None
            self._leaves.append(slot)
            self._replaced.pop(slot, None)
            rank = self.rank_of(slot)
            if rank is not None and rank not in self._loss.ranks:
                self._loss.ranks += (rank,)
        return [*self._reform(now), *self._refill()]

    def _lose_successor(self, slot: int) -> list[Order]:
        places = self._starting if slot in self._starting else self._warm
        node, _ = places.pop(slot)
        self._failed[node] = self._failed.get(node, 0) + 1
        if orders := self._refill():
            return orders
        is_held = self._deadline is not None and not self._members
        if is_held and not self._starting and not self._gone:
            return self._fall_back("no successor can be started")
        return []

    def _hear_ended(self, slot: int) -> list[Order]:
        # The training ends: the others finish without this protocol.
        return self._fall_back("a rank has ended", is_end=True) if slot in self._seats else []

    def _hear_replace(self, message: Replace) -> list[Order]:
        if not self.is_active or not 0 <= message.rank < len(self._members):
            return []
        if message.is_urgent and message.epoch not in (0, self.epoch):
            return []  # several agents have found the same rank, which is replaced by now
        slot = self._members[message.rank]
        if slot not in self._seats:
            return []
        number = self._seats.index(slot)
        if message.is_urgent or not self.successors or self._successor_for(number) is not None:
            return [KillRank(slot, message.reason)]
        self._replaced[slot] = message.reason
        return self._refill()

    # Decisions.

    def _is_forming(self) -> bool:
        return bool(self._members) and not self._formed.keys() >= {*self._members}

    def _is_filling(self, node: int) -> bool:
        """Return whether further successors are about to fill the vacant seats of a node."""
        seats = zip(self._seats, self.nodes, strict=True)
        vacant = sum(slot is None and place == node for slot, place in seats)
        warm = sum(place == node for place, _ in self._warm.values())
        return warm < vacant and any(place == node for place, _ in self._starting.values())

    def _place_node(self) -> int:
        """Give a node that has joined the seats of one that is lost, or further seats."""
        if self._gone:
            node = min(self._gone)
            self._gone.remove(node)
            return node
        node = max(self.nodes) + 1
        size = self.nodes.count(self.nodes[0])
        self.nodes += [node] * size
        self._seats += [None] * size
        return node

    def _successor_for(self, number: int) -> int | None:
        places = self._warm.items()
        node = self.nodes[number]
        fitting = (slot for slot, place in places if place in ((node, None), (node, number)))
        return next(fitting, None)

    def _fill_seats(self) -> bool:
        """Give vacant seats to warm successors. Returns True if there was any."""
        is_filled = False
        for number, slot in enumerate(self._seats):
            if slot is None and (successor := self._successor_for(number)) is not None:
                del self._warm[successor]
                self._seats[number] = successor
                self._ready.add(successor)
                is_filled = True
        return is_filled

    def _reform(self, now: float) -> list[Order]:
        """Form the next epoch, or wait for a successor."""
        if self._loss is None:  # a successor for a vacant seat
            self._loss = _Loss(now)
        self._fill_seats()
        are_enough = sum(slot is not None for slot in self._seats) >= self.minimum
        if not are_enough or len({*self.nodes} - self._gone) < self.min_nodes:
            self._members, self._formed = [], {}
            self._deadline = now + SUCCESSOR_S
            orders = self._refill()
            if not self._starting and not self._gone:
                return self._fall_back("no successor can be started")
            return [Hold(self.epoch), *orders]
        self._loss.has_successor = None not in self._seats
        return self._form(now)

    def _form(self, now: float) -> list[Order]:
        taken = [(number, slot) for number, slot in enumerate(self._seats) if slot is not None]
        self.epoch += 1
        self._members = [slot for _, slot in taken]
        self._ranks |= {slot: rank for rank, slot in enumerate(self._members)}
        self._heard, self._joined, self._connected, self._formed = set(), set(), set(), {}
        self._trained = set()
        self._deadline = now + HEARD_S
        leaves, self._leaves = self._leaves, []
        handles = [self._handles.get(slot, "") for slot in self._members]
        return [Form(self.epoch, self._members, [number for number, _ in taken], handles, leaves)]

    def _refill(self) -> list[Order]:
        """Start successors where too few are warm or starting."""
        if not self.is_active:
            return []
        if None not in self._seats and not self._trained >= {*self._members}:
            return []
        orders: list[Order] = []
        places = [*self._starting.values(), *self._warm.values()]
        for node in dict.fromkeys(self.nodes):
            if node in self._gone or self._failed.get(node, 0) >= MAX_FAILED_SUCCESSORS:
                continue
            vacant = [
                number
                for number, slot in enumerate(self._seats)
                if slot is None and self.nodes[number] == node
            ]
            if self.successors:
                desired: list[int | None] = [None] * max(self.successors, len(vacant))
                desired = desired[sum(place[0] == node for place in places) :]
            else:
                desired = [number for number in vacant if (node, number) not in places]
            for seat in desired:
                slot, self._next_slot = self._next_slot, self._next_slot + 1
                self._starting[slot] = node, seat
                orders.append(Start(slot, node, seat))
        return orders

    def _fall_back(
        self, reason: str, blamed: Sequence[int] = (), *, is_end: bool = False
    ) -> list[Order]:
        self.is_over, self._deadline = True, None
        return [Fallback(reason, [*blamed], is_end)]


def plan_restore(steps: Sequence[int]) -> list[tuple[int, int]] | None:
    """Return which rank sends its state to which other one; None if no rank has any state.

    The farthest step counts: a rank has finished it only if the gradients of all ranks were
    exchanged, so an undisturbed training would have reached it, too. Sources take turns.

    Args:
        steps: finished steps by rank; `NO_STATE` for a rank whose state must not be used.
    """
    farthest = max(steps)
    if farthest == NO_STATE:
        return None
    sources = [rank for rank, step in enumerate(steps) if step == farthest]
    behind = [rank for rank, step in enumerate(steps) if step != farthest]
    return [(sources[number % len(sources)], rank) for number, rank in enumerate(behind)]
