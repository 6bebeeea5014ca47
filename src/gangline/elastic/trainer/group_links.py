"""The default process group of surviving ranks: how it is formed, interrupted and formed again.

With gloo from PyTorch 2.14 on, one process group object connects with new peers (``_reconfigure``),
whose addresses were exchanged before. Otherwise the group is destroyed, and another one is formed
under a name of its own in the store of the workers.
"""

import contextlib
import ctypes
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from gangline.elastic.survivors.messages import CONNECT_S, FORM_S, RESTORE_S, Form
from gangline.elastic.survivors.orders import GROUPS_NAME
from gangline.elastic.trainer.mesh import GroupSockets
from gangline.elastic.trainer.replica import StateTransfer

torch_dist: Any = dist
"""For functions that only some releases have, or whose types PyTorch does not export."""
_POLL_S = 50e-6
_FORMING_POLL_S = 0.005
END_S = 0.2
"""Time in which an exchange ends whose connections have been shut down."""
_EXCHANGE_ERROR = re.compile(r"gloo|nccl|connection|socket|peer|timed out", re.IGNORECASE)
_GROUP_NAMES = 1000
"""Names of groups that ``new_group`` may use in one epoch."""
_ALONE = 1 << 32
"""Numbers from this one on are those of groups with one member; epochs count from 1."""


def is_exchange_error(error: BaseException | None) -> bool:
    """Return whether an exception may be the consequence of a lost rank."""
    if isinstance(error, torch_dist.DistError):  # that of the store has many texts
        return True
    return isinstance(error, RuntimeError) and bool(_EXCHANGE_ERROR.search(str(error)))


class GroupLinks:
    """The connections of this process with the other ranks."""

    def __init__(self, backend: str | None, timeout: timedelta | None, slot: str | None) -> None:
        """Open the default group.

        Args:
            slot: the slot of this process; None to form an ordinary group with all ranks now.
        """
        self._backend, self._timeout, self._slot = backend, timeout, slot
        self.sockets = GroupSockets()
        self.is_abandoned = False
        """True if a thread of the present group waits for an exchange that does not end."""
        self._is_cut = False
        """True from `interrupt` until the next group connects."""
        self.can_reconfigure = backend == "gloo" and hasattr(dist, "_reconfigure")
        if slot is None:
            dist.init_process_group(backend, timeout=timeout)
        else:
            self.open_alone(0)

    @property
    def has_old_address(self) -> bool:
        """True if `open_alone` is needed: threads of the group, which would connect, wait on."""
        return self.is_abandoned and self.can_reconfigure

    def open_alone(self, epoch: int) -> None:
        """Open a group of this process alone. Its address differs from those of other epochs."""
        self._close()
        # Groups that connect later do so by way of the store, under a name that all use.
        name = "all" if self.can_reconfigure else f"slot-{self._slot}"
        self._open(_connect_store(name), 0, 1)
        if self.can_reconfigure:
            # An address has the number of its last group, which makes it unique.
            number = (epoch + 1) * _ALONE + int(self._slot or 0)
            timeout = timedelta(seconds=FORM_S)
            torch_dist._reconfigure(number, [self.handle()], timeout=timeout).wait()
        c10d._world.group_count = _GROUP_NAMES

    @property
    def group(self) -> dist.ProcessGroup:
        """The default group."""
        group: dist.ProcessGroup = c10d._get_default_group()
        return group

    @property
    def device(self) -> torch.device:
        """The device of tensors that the group exchanges."""
        if self._backend == "gloo":
            return torch.device("cpu")
        return torch.device("cuda", torch.cuda.current_device())

    def handle(self) -> str:
        """Return the address of this process for the next group; empty if none is needed."""
        own: str = torch_dist._get_reconfigure_handle() if self.can_reconfigure else ""
        return own

    def form(self, order: Form, rank: int) -> str:
        """Connect with the members of an epoch; return the address for the one after it.

        Raises:
            RuntimeError: they cannot be reached, or `interrupt` was called.
        """
        with self.sockets.forming():
            self._is_cut = False
            store, size = _connect_store(f"epoch-{order.epoch}"), len(order.members)
            # 1. Wait until all have ended what they compute. A wait for the store can be ended, but
            #    one for a member that has yet to connect has no connection that could be cut.
            if store.add("joined", 1) == size:
                store.set("all", "")
            store.wait(["all"])
            # 2. Connect, so in a short time.
            if self.can_reconfigure:
                timeout = timedelta(seconds=CONNECT_S)
                torch_dist._reconfigure(order.epoch, order.handles, timeout=timeout).wait()
            else:
                self._close()
                self._open(store, rank, size)
        # Names of further groups must be equal on all members, and new in each epoch.
        c10d._world.group_count = order.epoch * _GROUP_NAMES
        return self.handle()

    @contextlib.contextmanager
    def adding(self) -> Iterator[None]:
        """Context in which a further group connects. `interrupt` ends what it waits for."""
        with self.sockets.adding():
            if self.can_reconfigure:  # the connection with the store is older than the group
                backend, _ = c10d._world.pg_map[self.group]
                c10d._world.pg_map[self.group] = backend, _connect_store("all")
            yield

    def interrupt(self) -> None:
        """End every exchange of the group, or its forming.

        It is called by another thread than the one that waits, which forms no further group before
        this returns.
        """
        self._is_cut = True
        while self.sockets.cut():
            time.sleep(_FORMING_POLL_S)
        if self._backend != "gloo":
            with contextlib.suppress(RuntimeError, AssertionError, ValueError):
                backend: Any = self.group._get_backend(torch.device("cuda"))
                backend.abort()

    def wait_for_device(self, is_broken: Callable[[], bool]) -> None:
        """Wait until the device has done the exchanges; the processor's are done already."""
        cuda: Any = torch.cuda
        if self._backend == "gloo" or not cuda.is_initialized():
            return
        event = cuda.Event()
        event.record()
        while not event.query() and not is_broken():
            time.sleep(_POLL_S)

    def gather(self, numbers: torch.Tensor) -> list[torch.Tensor]:
        """Return the numbers of all ranks."""
        own = numbers.to(self.device)
        gathered = [torch.empty_like(own) for _ in range(self.group.size())]
        self.wait(self.group.allgather([gathered], [own]))
        return gathered

    def transfer(self) -> StateTransfer:
        """Return what sends and receives states over the present group."""
        return StateTransfer(self.group, self.device, self.wait)

    def wait(self, work: dist.Work) -> None:
        """Wait for an exchange, which gloo forgets if a part of it has arrived when it is cut.

        Raises:
            RuntimeError: it has failed, or does not end although `interrupt` was called.
        """
        if self._backend != "gloo":
            work.wait()
            return
        errors: list[RuntimeError] = []
        waiting = threading.Thread(target=_wait, args=(work, errors), daemon=True)
        waiting.start()
        while waiting.is_alive():
            was_cut = self._is_cut
            waiting.join(END_S)
            if was_cut and waiting.is_alive():
                self.is_abandoned = True
                raise RuntimeError("an exchange does not end after its connections")
        if errors:
            raise errors[0]

    def _close(self) -> None:
        if dist.is_initialized():  # an attempt before may have failed
            if self.is_abandoned:
                # The end of the group would wait for its threads: it outlives its use.
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.group))
                self.is_abandoned = False
            dist.destroy_process_group()
        c10d._world.group_count = 0  # an attempt that has failed is counted, too

    def _open(self, store: Any, rank: int, size: int) -> None:
        options = {"enable_reconfigure": True} if self.can_reconfigure else {}
        is_gloo = self._backend == "gloo"
        timeout = timedelta(seconds=CONNECT_S) if is_gloo else self._timeout
        torch_dist.init_process_group(
            self._backend, store=store, rank=rank, world_size=size, timeout=timeout, **options
        )
        if is_gloo:
            timeout = self._timeout or c10d.default_pg_timeout
            self.group._get_backend(torch.device("cpu"))._set_default_timeout(timeout)


def _wait(work: dist.Work, errors: list[RuntimeError]) -> None:
    try:
        work.wait(timedelta(seconds=RESTORE_S))
    except RuntimeError as error:
        errors.append(error)


def _connect_store(name: str) -> Any:
    """Return the part of the workers' store that has this name, over a connection of its own."""
    store = torch_dist.TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=False,
        timeout=timedelta(seconds=FORM_S),
    )
    return torch_dist.PrefixStore(f"{GROUPS_NAME}{name}", store)
