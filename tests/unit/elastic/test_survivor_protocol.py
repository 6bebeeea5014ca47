"""The coordinator of surviving workers: epochs, successors, shrinking, deadlines; its orders."""

import asyncio
import random
import secrets
from types import SimpleNamespace

import msgspec
import pytest

from gangline.elastic.agent.rendezvous import WorldSpec, free_port
from gangline.elastic.agent.settings import AgentSettings, WorkerCommand
from gangline.elastic.agent.store import AgentStore
from gangline.elastic.agent.survivors import NodeSurvivors
from gangline.elastic.survivors.coordinator import (
    HEARD_S,
    MAX_FAILED_SUCCESSORS,
    MAX_REPEATS,
    SUCCESSOR_S,
    EpochCoordinator,
    Replacement,
    plan_restore,
)
from gangline.elastic.survivors.messages import (
    FORM_S,
    NO_STATE,
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
    Order,
    Place,
    Ready,
    Replace,
    Start,
    Train,
    Warm,
)
from gangline.elastic.survivors.orders import OrderClient


class Job:
    """A coordinator whose members answer as they should."""

    def __init__(self, nodes: list[int], **settings: int) -> None:
        self.coordinator, self.now, self.step = EpochCoordinator(nodes, **settings), 0.0, 0
        self.orders: list[Order] = []
        for slot in range(len(nodes)):
            self.send(MemberHello(slot, f"address {slot}"))
        self.form()

    def send(self, *messages: object) -> list[Order]:
        """Return the orders that follow from messages."""
        orders: list[Order] = []
        for message in messages:
            orders += self.coordinator.handle(message, self.now)  # type: ignore[arg-type]
        self.orders += orders
        return orders

    def form(self, *, steps: int = 1) -> None:
        """Let the members of the present epoch connect, and train some steps."""
        order = self.last_form
        self.send(
            *(Connected(slot, order.epoch, f"{slot}/{order.epoch}") for slot in order.members)
        )
        self.step += steps
        self.send(*(Formed(slot, order.epoch, self.step, 1) for slot in order.members))
        self.send(*(Ready(slot) for slot in order.members))

    @property
    def last_form(self) -> Form:
        return [order for order in self.orders if isinstance(order, Form)][-1]

    @property
    def started(self) -> list[int]:
        return [order.slot for order in self.orders if isinstance(order, Start)]


def test_first_group_has_all_ranks_in_their_order_with_their_addresses() -> None:
    coordinator = EpochCoordinator([0, 0, 0])
    assert [coordinator.handle(MemberHello(slot, f"a{slot}"), 0.0) for slot in (2, 0)] == [[], []]
    orders = coordinator.handle(MemberHello(1, "a1"), 0.0)
    assert orders == [Form(1, [0, 1, 2], [0, 1, 2], ["a0", "a1", "a2"])]


def test_warm_successor_takes_the_seat_and_another_one_is_started() -> None:
    job = Job([0, 0, 0])
    job.send(Warm(3, "address 3"))
    job.now = 10.0
    orders = job.send(Lost(0, "Killed"))
    assert orders == [Form(2, [3, 1, 2], [0, 1, 2], ["address 3", "1/1", "2/1"], leaves=[0])]
    job.now = 10.25
    job.step = 811
    job.form()
    assert job.orders[-1] == Start(4, 0), "after a step, since it takes processor time"
    (replacement,) = job.coordinator.replacements
    assert replacement.describe() == "rank 0 was replaced at step 812; 0.25 s, 1 step"


def test_member_with_another_address_gets_a_further_group() -> None:
    job = Job([0, 0], successors=2)
    job.send(Warm(2, "address 2"), Lost(1, "Killed"))
    assert job.send(MemberHello(0, "new")) == [Form(3, [0, 2], [0, 1], ["new", "address 2"])]
    job.form()
    assert job.coordinator.replacements[0].ranks == (1,)
    assert job.send(MemberHello(0, "late")) == []


def test_members_hold_until_a_successor_is_warm() -> None:
    job = Job([0, 0])
    assert job.send(Lost(1, "Killed")) == [Hold(1)]
    orders = job.send(Warm(2))
    assert orders[:1] == [Form(2, [0, 2], [0, 1], ["0/1", ""], leaves=[1])]


def test_no_successor_in_time_restarts_all() -> None:
    job = Job([0, 0])
    job.send(Lost(1, "Killed"))
    assert job.coordinator.deadline == SUCCESSOR_S
    assert job.coordinator.tick(SUCCESSOR_S - 1) == []
    (order,) = job.coordinator.tick(SUCCESSOR_S)
    assert isinstance(order, Fallback)
    assert job.send(Warm(2)) == []


def test_world_shrinks_to_the_minimum_and_grows_back() -> None:
    job = Job([0, 0, 0], minimum=2, successors=0)
    assert job.started == []
    assert job.send(Lost(1, "Killed")) == [
        Form(2, [0, 2], [0, 2], ["0/1", "2/1"], leaves=[1]),
        Start(3, 0, seat=1),
    ]
    job.form()
    assert job.coordinator.replacements[0].describe().startswith("rank 1 was lost, 2 continue at")
    job.send(Warm(3))
    assert job.last_form.members == [0, 3, 2]
    job.form()
    assert job.coordinator.replacements[1].describe().startswith("the world grew to 3 ranks at")
    job.send(Lost(0, "Killed"))
    assert job.send(Lost(3, "Killed"))[0] == Hold(4)


def test_successor_takes_a_seat_of_its_own_node_only() -> None:
    job = Job([0, 0, 1, 1])
    assert job.started == [4, 5]
    job.send(Warm(4), Warm(5))
    job.send(Lost(2, "Killed"))
    assert job.last_form.members == [0, 1, 5, 3]


def test_loss_while_a_group_forms_leads_to_a_further_epoch() -> None:
    job = Job([0, 0], successors=2)
    job.send(Warm(2), Warm(3))
    job.send(Lost(0, "Killed"))
    job.send(Connected(1, 2), Lost(2, "Killed"))
    assert job.last_form == Form(3, [3, 1], [0, 1], ["", ""], leaves=[2])
    job.send(Formed(1, 2, 5))  # of the epoch before
    assert job.coordinator.replacements == []
    job.form()
    assert job.coordinator.replacements[0].ranks == (0,)


def test_members_that_do_not_join_are_replaced_and_all_are_restarted_if_some_connect_not() -> None:
    job = Job([0, 0, 0])
    job.send(Warm(3))
    job.send(Lost(0, "Killed"), *(Heard(slot, 2) for slot in (1, 2, 3)))
    job.send(Heard(1, 2, True), Heard(3, 2, True))
    assert job.coordinator.tick(FORM_S) == [KillRank(2, "it did not answer in time")]
    job.send(Lost(2, "Killed"), Warm(4), *(Heard(slot, 3) for slot in (3, 1, 4)))
    job.send(*(Heard(slot, 3, True) for slot in (3, 1, 4)), Connected(3, 3), Connected(1, 3))
    assert job.coordinator.tick(2 * FORM_S) == [Fallback("these ranks did not answer in time", [4])]


def test_member_that_computes_is_waited_for_longer_than_one_that_does_not_hear() -> None:
    job = Job([0, 0, 0])
    job.send(Warm(3), Lost(0, "Killed"))
    assert job.coordinator.deadline == HEARD_S
    job.now = 1.0
    job.send(*(Heard(slot, 2) for slot in (1, 2, 3)))
    assert job.coordinator.deadline == 1.0 + FORM_S
    silent = Job([0, 0, 0])
    silent.send(Warm(3), Lost(0, "Killed"), Heard(3, 2), Heard(1, 2))
    assert silent.coordinator.tick(HEARD_S) == [KillRank(2, "it did not answer in time")]
    assert silent.coordinator.tick(HEARD_S) == []
    silent.send(Lost(2, "Killed"))
    (form,) = (order for order in silent.send(Warm(4)) if isinstance(order, Form))
    assert form.members == [3, 1, 4]
    silent.send(Heard(3, 3), Heard(1, 3))
    assert silent.coordinator.tick(2 * HEARD_S) == [KillRank(4, "it did not answer in time")]
    dead = silent.coordinator.tick(3 * HEARD_S)
    assert dead == [Fallback("these ranks did not answer in time", [4])]


def test_others_continue_without_a_lost_node_and_with_another_one() -> None:
    job = Job([0, 0, 1, 1, 2, 2], minimum=4)
    job.send(Warm(6), Warm(7))
    assert job.send(LostNode(1)) == [
        Form(2, [0, 1, 4, 5], [0, 1, 4, 5], ["0/1", "1/1", "4/1", "5/1"], leaves=[2, 3])
    ]
    job.form()
    assert job.coordinator.replacements[0].describe().startswith("ranks 2, 3 were lost, 4 continue")
    assert job.send(Warm(8)) == [], "a successor of another node fills none of the vacant seats"
    assert job.send(Arrived("a")) == [Place("a", 1), Start(9, 1), Start(10, 1)]
    assert job.send(Warm(9)) == []  # the seats of a node are taken together
    job.send(Warm(10))
    assert job.last_form.members == [0, 1, 9, 10, 4, 5]
    assert job.send(Arrived("b"))[0] == Place("b", 3)  # a node more than at the start


def test_too_few_nodes_wait_for_another_one() -> None:
    job = Job([0, 1], minimum=1, min_nodes=2)
    assert job.send(LostNode(1)) == [Hold(1)]
    assert job.send(Arrived("a")) == [Place("a", 1), Start(4, 1)]
    job.send(Warm(4))
    assert job.last_form.members == [0, 4]
    job.form()
    job.send(LostNode(1))
    assert isinstance(job.coordinator.tick(SUCCESSOR_S)[0], Fallback)


def test_loss_before_all_are_ready_restarts_all() -> None:
    coordinator = EpochCoordinator([0, 0])
    coordinator.handle(MemberHello(0), 0.0)
    coordinator.handle(MemberHello(1), 0.0)
    (order,) = coordinator.handle(Lost(1), 0.0)
    assert isinstance(order, Fallback)


def test_losses_without_a_step_between_them_restart_all() -> None:
    job = Job([0, 0])
    for slot in range(2, MAX_REPEATS + 10):
        job.send(Warm(slot))
        orders = job.send(Lost(job.coordinator._members[1], "Killed"))
        if isinstance(orders[0], Fallback):
            break
        job.form(steps=0)
    assert slot == MAX_REPEATS + 2


def test_successors_that_are_lost_whenever_they_are_restored_restart_all() -> None:
    job = Job([0, 0])
    orders: list[Order] = []
    while not orders or not isinstance(orders[0], Fallback):
        job.send(Warm(job.started[-1]))
        orders = job.send(Lost(job.last_form.members[1], "Killed"))
    assert job.last_form.epoch == MAX_REPEATS + 2


def test_successors_that_end_early_are_started_a_few_times() -> None:
    job = Job([0, 0])
    for _ in range(MAX_FAILED_SUCCESSORS + 2):
        job.send(Lost(job.started[-1]))
    assert len(job.started) == MAX_FAILED_SUCCESSORS
    orders = job.send(Lost(0, "Killed"))
    assert isinstance(orders[-1], Fallback)


def test_end_of_one_rank_ends_the_protocol() -> None:
    job = Job([0, 0])
    (order,) = job.send(Ended(0))
    assert isinstance(order, Fallback)
    assert order.is_end, "nothing is said of an ordinary end"
    assert job.send(Lost(1)) == []


def test_protocol_ends_with_the_last_step_but_not_while_a_group_forms() -> None:
    job = Job([0, 0])
    job.send(Warm(2))
    job.send(Lost(1, "Killed"))
    assert job.send(Finished(0)) == []
    job.form()
    assert isinstance(job.send(Finished(0))[0], Fallback)
    assert job.send(Lost(0)) == []


def test_rank_is_replaced_on_purpose_when_a_successor_is_warm() -> None:
    job = Job([0, 0])
    assert job.send(Replace(1, "maintenance")) == []
    assert job.send(Warm(2)) == [KillRank(1, "maintenance")]
    hung = Job([0, 0])
    orders = hung.send(*[Replace(0, "hangs", is_urgent=True, epoch=1)] * 2, Warm(2), Lost(0))
    assert [*filter(lambda order: isinstance(order, KillRank), orders)] == [
        KillRank(0, "hangs")
    ] * 2
    assert hung.send(Replace(0, "hangs", is_urgent=True, epoch=1)) == []


@pytest.mark.parametrize(
    ("steps", "plan"),
    [
        ([4, 4], []),
        ([4, 5, 5, NO_STATE], [(1, 0), (2, 3)]),
        ([NO_STATE, NO_STATE], None),
    ],
)
def test_ranks_that_are_behind_are_restored_from_the_farthest(
    steps: list[int], plan: list[tuple[int, int]] | None
) -> None:
    assert plan_restore(steps) == plan


def test_several_ranks_are_named_in_their_order() -> None:
    both = Replacement((2, 0), 3, 5, 0.5, 0, has_successor=True)
    assert both.describe() == "ranks 0, 2 were replaced at step 5; 0.50 s, 0 steps"


@pytest.mark.parametrize("seed", range(20))
def test_groups_name_living_slots_in_any_order_of_events(seed: int) -> None:
    """Each group has one living slot for each of its seats, in order, and its epoch is new."""
    chance = random.Random(seed)
    job = Job([0, 0, 1, 1], minimum=chance.choice((0, 2)), successors=chance.choice((0, 1, 2)))
    living, nodes = set(range(4)), {2: 1, 3: 1}
    for _ in range(60):
        job.now += chance.random()
        before = len(job.orders)
        starting = set(job.started) & living
        choice = chance.random()
        if choice < 0.05:
            living -= {slot for slot, node in nodes.items() if node == 1}
            job.send(LostNode(1), Arrived("another"))
        elif choice < 0.4 and living:
            slot = chance.choice(sorted(living))
            living.discard(slot)
            job.send(Lost(slot, "Killed"))
        elif choice < 0.7 and starting:
            job.send(Warm(chance.choice(sorted(starting))))
        elif not job.coordinator.is_over:
            job.form()
        for order in job.orders[before:]:
            if isinstance(order, Start):
                living.add(order.slot)
                nodes[order.slot] = order.node
            if isinstance(order, Form):
                assert set(order.members) <= living
                assert order.seats == sorted(set(order.seats))
    epochs = [order.epoch for order in job.orders if isinstance(order, Form)]
    assert epochs == sorted(set(epochs))
    assert not any(isinstance(order, Fallback) for order in job.orders[:-1])


async def test_no_hang_is_looked_for_from_the_order_of_a_group_until_all_members_train() -> None:
    group = SimpleNamespace(slots={}, workers=[], is_held=False)
    coordinator = SimpleNamespace(listeners=[], agent="", close=lambda: None)
    settings = AgentSettings(WorkerCommand((), True, "train.py"), 2, run_id=secrets.token_hex(8))
    world = WorldSpec(0, 0, 1, 0, 2, "host", 20_000)
    survivors = NodeSurvivors(settings, world, group, coordinator, {})  # type: ignore[arg-type]
    job, held = Job([0, 0]), []
    job.send(Lost(1), Warm(2))
    job.form()
    for order in job.orders:
        survivors._follow(order)
        held.append((order, group.is_held))
    first, last = (at for at in job.orders if isinstance(at, Form))
    assert [order for order, is_held in held if not is_held] == [
        Train(first.epoch), Start(2, 0), Train(last.epoch), Start(3, 0)
    ]  # fmt: skip
    await survivors.close()


async def test_followers_get_the_orders_before_and_after_they_connect() -> None:
    port = free_port()
    store = await AgentStore.listen(port)
    orders: list[Order] = [Hold(1), KillRank(2, "hangs"), Hold(3)]
    early = await asyncio.to_thread(OrderClient, "127.0.0.1", port, 0)
    for order in orders[:2]:
        store.append_order(msgspec.json.encode(order))
    late = await asyncio.to_thread(OrderClient, "127.0.0.1", port, 1)
    store.append_order(msgspec.json.encode(orders[2]))

    assert [await asyncio.to_thread(early.read) for _ in range(3)] == orders
    assert [await asyncio.to_thread(late.read) for _ in range(2)] == orders[1:]
    store.close()
    with pytest.raises(ConnectionError):
        await asyncio.to_thread(early.read)
    for follower in (early, late):
        follower._socket.close()
