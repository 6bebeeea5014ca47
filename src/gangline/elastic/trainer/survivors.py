"""Keeps the ranks of a data-parallel training running when one of them is lost.

A loop wraps each step, and otherwise stays as it is::

    group = SurvivorGroup("gloo")  # in place of init_process_group
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters())
    group.protect(model, optimizer)
    for step in group.steps(1000):
        with step:
            inputs, targets = batch(step.number, step.rank, step.world_size)
            optimizer.zero_grad()
            loss(model(inputs), targets).backward()
            optimizer.step()

A step that is interrupted has no effect: its block ends, and the loop continues with the same step
in the next group. A successor runs the same script; its first block is a rehearsal, which ends
before the optimizer's step, and from which it returns with the state of a replica.

Invariant: an optimizer steps only if all gradients of this step were exchanged. Otherwise the
process ends, and all workers are restarted from their checkpoint.
"""

import contextlib
import logging
import os
import pickle
import zlib
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self, TypeVar

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel.distributed import _BufferCommHookLocation

from gangline.elastic.progress import StepReporter
from gangline.elastic.survivors.coordinator import plan_restore
from gangline.elastic.survivors.messages import (
    NO_STATE,
    Connected,
    Finished,
    Form,
    Formed,
    Heard,
    MemberHello,
    Message,
    Ready,
    Refused,
    Warm,
)
from gangline.elastic.trainer.gradient_exchange import GradientExchange
from gangline.elastic.trainer.group_links import GroupLinks, is_exchange_error
from gangline.elastic.trainer.loader import ElasticDataLoader
from gangline.elastic.trainer.order_inbox import NEXT_ORDER_S, OrderInbox
from gangline.elastic.trainer.replica import (
    MODEL,
    SeatFile,
    StateOwner,
    random_state,
    set_random_state,
)
from gangline.elastic.trainer.step_batches import StepBatches, StepRecords
from gangline.elastic.variables import FOLDER_VARIABLE, SLOT_VARIABLE, SUCCESSOR_VARIABLE

log = logging.getLogger(__name__)
T = TypeVar("T")

_FIRST_GROUP_S = 600.0
"""Time for which a worker waits for the others to start."""
_BEFORE_FORWARD = _BufferCommHookLocation.PRE_FORWARD
_NOTICE_S = 5.0
"""Time between an exchange that failed and the notice of the agent that has seen the reason."""
_READY_STEPS = 2
"""Steps after which the buckets of `DistributedDataParallel` do not change any more."""


class InterruptedStepError(RuntimeError):
    """A rank was lost before this step was finished.

    `with step` handles it unless no group follows. Then it ends this process, which the agents know
    by its name as the consequence of a loss, and they restart all workers.
    """


class SurvivorGroup:
    """The process group of a training whose ranks may be replaced.

    Without an agent that could replace them, such as under torchrun, it is an ordinary group.
    """

    def __init__(self, backend: str | None = None, *, timeout: timedelta | None = None) -> None:
        """Wait for the other ranks and form the default group, as ``init_process_group`` does.

        Args:
            backend: as of ``init_process_group``.
            timeout: of the collectives in training; None for that of the backend.

        Raises:
            RuntimeError: the group cannot be formed.
        """
        if backend is None and not torch.cuda.is_available():
            backend = "gloo"
        self._finished = 0
        self._epoch = 0
        self._model: DistributedDataParallel | None = None
        self._optimizers: list[torch.optim.Optimizer] = []
        self._others: dict[str, StateOwner] = {}
        self._on_form: list[Callable[[], None]] = []
        """Called when a group has formed, before states are restored."""
        self._on_discard: list[Callable[[], None]] = []
        self._on_commit: list[Callable[[], None]] = []
        self._step = Step(self)
        self._reporter = StepReporter()
        self._has_state = True
        self._discarded = 0
        self._own_steps = 0
        self._layout = 0
        self._stepped: set[int] = set()
        self._undo: Callable[[], None] = lambda: None
        self._before: dict[str, bytes] = {}
        """States of the further objects before the step."""
        self._usual_changes: set[str] = set()
        """Which of them an undisturbed step changes."""
        self._seat: SeatFile | None = None
        slot = os.environ.get(SLOT_VARIABLE)
        self._links = GroupLinks(backend, timeout, slot)
        self._exchange = GradientExchange(self._links)
        self._inbox: OrderInbox | None = None
        if slot is None:
            return
        self._slot = int(slot)
        after = os.environ.get(SUCCESSOR_VARIABLE)
        self._inbox = OrderInbox(self._slot, int(after or 0), self._exchange.interrupt)
        self._inbox.is_member = after is None
        self.is_successor = self._is_rehearsal = after is not None
        self._has_state = after is None
        if after is None:
            self._send(MemberHello(self._slot, self._links.handle()))
            self._follow(self._next_order(_FIRST_GROUP_S))

    is_successor = False
    """True in a process that was started to take the place of a lost rank."""
    _is_rehearsal = False
    _is_ready = False
    """True if this member has reported that it trains in the present group."""
    _seats: Sequence[int] = ()
    """The seats of the present group; a seat is a place in the world, whoever has it."""
    _own_seat = 0

    @property
    def _is_broken(self) -> bool:
        """True from a failed exchange, or an order, until the next group has formed."""
        return self._exchange.has_failed or (self._inbox is not None and self._inbox.is_pending)

    @property
    def rank(self) -> int:
        """The rank of this process in the present group."""
        return dist.get_rank()

    @property
    def world_size(self) -> int:
        """The number of processes in the present group."""
        return dist.get_world_size()

    @property
    def epoch(self) -> int:
        """Number of the present group, counted from 1; 0 where ranks cannot be replaced."""
        return self._epoch

    @property
    def num_steps(self) -> int:
        """Number of finished steps. A script sets it when it has loaded a checkpoint."""
        return self._finished

    @num_steps.setter
    def num_steps(self, steps: int) -> None:
        self._finished = steps

    def protect(
        self, model: DistributedDataParallel, optimizer: torch.optim.Optimizer, **others: StateOwner
    ) -> None:
        """Keep these in all ranks; a successor gets their state. All ranks call it once.

        Args:
            model: its gradients are exchanged over the present group from now on.
            optimizer: the optimizer of torch that is stepped, not a wrapper of it.
            others: further objects with ``state_dict`` and ``load_state_dict``: schedulers, an
                ``ElasticTrainer``, a ``GradScaler``, a second optimizer.

        Raises:
            ValueError: the model cannot be kept.
        """
        if self._model is not None:
            raise ValueError("a group protects one model: put several into one module")
        if not isinstance(model, DistributedDataParallel):
            raise ValueError(f"model: must be DistributedDataParallel, not {type(model).__name__}")
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise ValueError(f"optimizer: must be one of torch, not {type(optimizer).__name__}")
        if model.find_unused_parameters and not self._links.can_reconfigure:
            raise ValueError(
                "model: find_unused_parameters=True needs gloo and PyTorch 2.14 here: before, the "
                "exchange of unused parameters cannot move to another group"
            )
        self._model = model
        further = [other for other in others.values() if isinstance(other, torch.optim.Optimizer)]
        self._optimizers = [optimizer, *further]
        self._others |= others
        if self._inbox is None:
            return
        model.register_comm_hook(None, self._exchange.average)
        model._register_buffer_comm_hook(None, self._exchange.broadcast, _BEFORE_FORWARD)
        first = next(weight for weight in model.parameters() if weight.requires_grad)
        first.register_hook(lambda _: self._keep_random_state())  # type: ignore[no-untyped-call]
        for own in self._optimizers:
            own.register_step_pre_hook(self._before_optimizer)
            own.register_step_post_hook(self._after_optimizer)

    def steps(self, total: int) -> Iterator["Step"]:
        """Iterate until ``total`` steps are finished. An interrupted step comes again.

        Raises:
            RuntimeError: `protect` has not been called.
        """
        if self._model is None:
            raise RuntimeError("call protect(model, optimizer) before steps()")
        while self._finished < total:
            yield self._step
        self._finish()

    def _finish(self) -> None:
        """Let the agents know that no rank is replaced any more; a group may be forming now."""
        while self._inbox is not None and not self._inbox.is_over:
            if self._is_broken:
                self._recover()
            with contextlib.suppress(OSError):  # the store has ended: the orders are over, too
                self._send(Finished(self._slot))
            self._inbox.wait()

    def renewed(
        self, create: Callable[[], T], release: Callable[[T], None] = lambda _: None
    ) -> Callable[[], T]:
        """Return a function that calls ``create`` once in each group, when it is first called.

        For what belongs to a group: a ``Checkpointer``, a group of ``dist.new_group``. All ranks
        call the function at the same steps.

        Args:
            release: called with the object of the group before, when that has ended.
        """
        box: list[T] = []

        def clear() -> None:
            if box:
                release(box.pop())

        def current() -> T:
            if not box:
                with self._links.adding():
                    box.append(create())
            return box[0]

        self._on_form.append(clear)
        return current

    def batches(self, loader: ElasticDataLoader[T]) -> "StepBatches[T]":
        """Return the batches of an elastic loader, for any number of steps and of groups.

        Raises:
            ShareError: its sampler has no ``global_batch_size``.
        """
        batches = StepBatches(loader)
        self._others["batches"] = batches
        self._on_form.append(batches.rewind)
        self._on_discard.append(batches.rewind)
        self._on_commit.append(batches.advance)
        batches.rewind()
        return batches

    def records(self, client: Any) -> "StepRecords":
        """Return the records of a ``ShardingClient``'s shards, a batch for each step."""
        folder = os.environ.get(FOLDER_VARIABLE)
        records = StepRecords(client, None if folder is None else Path(folder))
        self._on_form.append(lambda: records.take_over(self._seats, self._own_seat))
        self._on_discard.append(lambda: records.give_back() if self._is_rehearsal else None)
        self._on_commit.append(records.advance)
        if self._seats and not self._is_rehearsal:
            records.take_over(self._seats, self._own_seat)
        return records

    # The step.

    def begin_step(self) -> None:
        """Begin a step; form the next group before, if it was ordered meanwhile."""
        self._stepped.clear()
        if self._inbox is None:
            return
        if self._is_broken and not self._is_rehearsal:
            self._recover()
        if not self._is_rehearsal:
            self._keep_random_state(self._finished)
        self._undo = self._snapshot()

    def end_step(self, error: BaseException | None) -> bool:
        """End a step. Returns True if the block's exception is handled here."""
        if self._inbox is None:
            if error is None:
                self._commit()
            return False
        if self._is_rehearsal:
            return self._end_rehearsal(error)
        if error is not None and not isinstance(error, Exception):
            return False
        is_complete = len(self._stepped) == len(self._optimizers)
        if error is None and (is_complete or not self._is_broken):
            self._usual_changes = self._changes()
            self._commit()
            return False
        has_lost = self._is_broken or (is_exchange_error(error) and self._inbox.wait(_NOTICE_S))
        if not has_lost or self._inbox.is_over:
            return False
        # 1. Gradients of all ranks were applied, and all else that a step changes has changed: the
        #    step counts, though its end was interrupted.
        if is_complete and self._changes() == self._usual_changes:
            self._commit()
        else:
            # 2. Only some of the optimizers have stepped, or a schedule has not: this replica is of
            #    no use.
            self._has_state = self._has_state and not self._stepped
            self._discard()
        self._recover()
        return error is not None

    def _commit(self) -> None:
        self._finished += 1
        self._own_steps += 1
        self._step.is_committed = True
        for notify in self._on_commit:
            notify()
        self._reporter.report_step(self._finished)
        if self._inbox is None:
            return
        self._keep_random_state(self._finished)
        if self._own_steps == _READY_STEPS and not self.is_successor:
            self._layout = self._bucket_layout()
        if not self._is_ready and (self._own_steps >= _READY_STEPS or self.is_successor):
            self._is_ready = True
            self._send(Ready(self._slot))

    def _discard(self) -> None:
        self._discarded += 1
        self._undo()
        for optimizer in self._optimizers:
            optimizer.zero_grad()
        for notify in self._on_discard:
            notify()

    def _snapshot(self) -> Callable[[], None]:
        """Return a function that takes back what a step changes before its optimizer steps."""
        assert self._model is not None
        buffers = [(buffer, buffer.clone()) for buffer in self._model.buffers()]
        random = random_state()
        self._before = {
            name: pickle.dumps(other.state_dict())
            for name, other in self._others.items()
            if not isinstance(other, torch.optim.Optimizer)
        }

        def undo() -> None:
            with torch.no_grad():
                for buffer, value in buffers:
                    buffer.copy_(value)
            for name, state in self._before.items():
                self._others[name].load_state_dict(pickle.loads(state))
            set_random_state(random)

        return undo

    def _changes(self) -> set[str]:
        """Return which of the further objects have another state than before the step."""
        return {
            name
            for name, before in self._before.items()
            if pickle.dumps(self._others[name].state_dict()) != before
        }

    def _end_rehearsal(self, error: BaseException | None) -> bool:
        if error is None:
            raise RuntimeError("the block of a step must step all optimizers")
        if not isinstance(error, InterruptedStepError):
            return False
        assert self._model is not None
        assert self._inbox is not None
        # As the next forward pass would do, so that the buckets are those of the other ranks.
        self._model.reducer._rebuild_buckets()
        self._layout = self._bucket_layout()
        self._discard()
        self._discarded = 0
        self._send(Warm(self._slot, self._links.handle()))
        self._follow(self._next_order(None))
        self._is_rehearsal, self._inbox.is_member = False, True
        return True

    def _bucket_layout(self) -> int:
        """Return a number that differs between ranks whose buckets have other gradients."""
        assert self._model is not None
        index: dict[torch.Tensor, int]
        index = {weight: number for number, weight in enumerate(self._model.parameters())}
        buckets = self._model.reducer._get_zeros_like_grad_buckets()
        layout = [[index[weight] for weight in bucket.parameters()] for bucket in buckets]
        return zlib.crc32(repr(layout).encode())

    def _keep_random_state(self, step: int | None = None) -> None:
        """Keep it for a successor: before the last exchange of a step, and at its end.

        Other ranks may finish a step as soon as this one has sent its gradients.
        """
        if self._seat is not None and not self._is_rehearsal:
            self._seat.write(self._finished + 1 if step is None else step, random_state())

    # The optimizers.

    def _before_optimizer(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        """Refuse to step unless all gradients were exchanged."""
        if self._is_rehearsal:
            raise InterruptedStepError("the rehearsal ends")
        if id(optimizer) in self._stepped:
            raise RuntimeError("an optimizer steps once in a step")
        self._links.wait_for_device(lambda: self._is_broken)
        if self._is_broken and not self._stepped:
            raise InterruptedStepError("a rank was lost in this step")

    def _after_optimizer(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        self._stepped.add(id(optimizer))

    # Groups.

    def _recover(self) -> None:
        """Form the next group."""
        self._follow(self._next_order(_NOTICE_S))

    def _follow(self, order: Form) -> None:
        """Form groups until one has formed. A further loss meanwhile has a further order."""
        while True:
            try:
                self._form(order)
                return
            except InterruptedStepError:
                raise
            except (RuntimeError, OSError) as error:
                log.info("group %d has not formed: %s", order.epoch, error)
            order = self._next_order(NEXT_ORDER_S)

    def _form(self, order: Form) -> None:
        # 0. The coordinator orders a further group if this rank gets another address.
        if self._links.has_old_address:
            if self._model is not None and self._model.find_unused_parameters:
                self._refuse("the exchange of unused parameters cannot move to another group")
            self._links.open_alone(order.epoch)
            self._send(MemberHello(self._slot, self._links.handle()))
            raise RuntimeError("an exchange was abandoned, and this rank has another address now")
        # 1. Connect: with the addresses that were exchanged before, or under a name of its own.
        self._send(Heard(self._slot, order.epoch, has_joined=True))
        rank = order.members.index(self._slot)
        handle = self._links.form(order, rank)
        self._epoch, self._is_ready = order.epoch, False
        self._send(Connected(self._slot, order.epoch, handle))
        self._seats, self._own_seat = order.seats, order.seats[rank]
        self._seat = SeatFile(Path(os.environ[FOLDER_VARIABLE], f"seat-{self._own_seat}"))
        if self._model is not None:
            self._model.process_group = self._links.group
        for notify in self._on_form:
            notify()
        # 2. Restore those that are behind: they, and their successors, have the farthest step then.
        if order.epoch > 1:
            self._restore(rank)
        self._send(Formed(self._slot, order.epoch, self._finished, self._discarded))
        # 3. Train, unless a further order has come.
        self._exchange.has_failed = False
        self._discarded = 0

    def _restore(self, rank: int) -> None:
        own = self._finished if self._has_state else NO_STATE
        states = self._links.gather(torch.tensor([own, self._layout]))
        steps, layouts = [int(state[0]) for state in states], {int(state[1]) for state in states}
        plan = plan_restore(steps)
        if plan is None or len(layouts) > 1:
            reason = "the buckets of its model differ" if plan else "no rank has a complete state"
            self._refuse(reason)
        for source, target in plan:
            if rank == source:
                self._links.transfer().send(self._state(), target)
            elif rank == target:
                self._has_state = False
                self._load(source, max(steps))
                self._has_state = True

    def _state(self) -> dict[str, Any]:
        assert self._model is not None
        others = {name: other.state_dict() for name, other in self._others.items()}
        own = self._optimizers[0].state_dict()
        return {MODEL: self._model.module.state_dict(), "optimizer": own, "others": others}

    def _load(self, source: int, step: int) -> None:
        assert self._model is not None
        with torch.no_grad():
            state = self._links.transfer().receive(self._model.module.state_dict(), source)
        self._optimizers[0].load_state_dict(state["optimizer"])
        for name, other in self._others.items():
            other.load_state_dict(state["others"][name])
        self._finished = step
        assert self._seat is not None
        if (own := self._seat.read(step)) is not None:
            set_random_state(own)
        else:
            log.warning("rank %d continues with a new random state", dist.get_rank())

    def _next_order(self, timeout_s: float | None) -> Form:
        assert self._inbox is not None
        order = self._inbox.take(timeout_s)
        if order is None:
            if self._is_rehearsal:
                raise SystemExit(0)  # the training has ended
            self._refuse("no further group was ordered")
        return order

    def _refuse(self, reason: str) -> NoReturn:
        """Leave it to the agents to restart all workers."""
        with contextlib.suppress(OSError):
            self._send(Refused(self._slot, reason))
        raise InterruptedStepError(f"this rank cannot continue: {reason}")

    def _send(self, message: Message) -> None:
        assert self._inbox is not None
        self._inbox.send(message)


class Step:
    """The present step of a group; a context around its work."""

    def __init__(self, group: SurvivorGroup) -> None:
        self._group = group
        self.is_committed = False
        """After the block: False if the step was interrupted, and comes again."""

    @property
    def number(self) -> int:
        """Number of the steps that were finished before, inside of the block."""
        return self._group.num_steps

    @property
    def rank(self) -> int:
        """The rank of this process in the present group."""
        return self._group.rank

    @property
    def world_size(self) -> int:
        """The number of processes in the present group."""
        return self._group.world_size

    def __enter__(self) -> Self:
        self.is_committed = False
        self._group.begin_step()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        return self._group.end_step(error)
