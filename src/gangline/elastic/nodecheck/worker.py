"""A worker process of the node check: a matrix product, then an all-reduce with its group.

It is a fork of an interpreter that has imported PyTorch. It reads one order a line from a socket
and answers with a line; output of libraries goes to standard error. After a failure it ends,
because a broken process group may have left threads behind.
"""

import os
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, BinaryIO

import msgspec

from gangline.elastic.nodecheck.result import (
    MeasureOrder,
    NodeResult,
    PortReport,
    WorkerMessage,
    WorkerStart,
)
from gangline.elastic.variables import listen_on_any_port

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

_WARM_UPS = 2


class _TestError(Exception):
    """A test failed."""

    def __init__(self, test: str, message: str, *, local: bool) -> None:
        super().__init__(message)
        self.test, self.local = test, local


class Tester:
    """Runs the tests on one device."""

    def __init__(self, start: WorkerStart) -> None:
        import torch

        self._torch = torch
        self.workload = start.workload
        uses_gpu = start.workload.backend != "gloo" and (
            torch.cuda.is_available() and torch.cuda.device_count() >= start.local_world_size
        )
        if start.workload.backend == "nccl" and not uses_gpu:
            raise _TestError("devices", "there are fewer GPUs than processes", local=True)
        self._backend = "nccl" if uses_gpu else "gloo"
        self._device = torch.device("cuda", start.local_rank) if uses_gpu else torch.device("cpu")
        if uses_gpu:
            torch.cuda.set_device(self._device)
        else:
            cores = len(os.sched_getaffinity(0))
            torch.set_num_threads(max(1, cores // start.local_world_size))
        self._small = not uses_gpu
        self.name = str(self._device) if uses_gpu else f"cpu process {start.local_rank}"

    def memory(self) -> None:
        if self._small:
            return
        free, total = self._torch.cuda.mem_get_info(self._device)
        used = 1 - free / total
        if used > self.workload.memory_limit:
            raise _TestError(
                "memory",
                f"{used:.0%} of the memory is in use before the test, at most "
                f"{self.workload.memory_limit:.0%} should be",
                local=True,
            )

    def compute(self) -> float:
        torch, load = self._torch, self.workload
        size = load.matrix_size or (512 if self._small else 8192)
        repeats = load.matrix_repeats or (10 if self._small else 50)
        kind = torch.float32 if self._small else torch.bfloat16
        matrix = torch.ones(size, size, device=self._device, dtype=kind)
        result = matrix @ matrix
        if result.flatten()[-1].item() != size:
            raise _TestError("compute", "a matrix product is wrong", local=True)
        return self._timed(lambda: torch.matmul(matrix, matrix, out=result), repeats)

    def collective(self, order: MeasureOrder, store: "Store") -> tuple[float, float]:
        """Return the seconds of one all-reduce, and its bytes per second."""
        import torch.distributed as dist

        torch, load = self._torch, self.workload
        dist.init_process_group(
            self._backend,
            store=store,
            rank=order.rank,
            world_size=order.world_size,
            timeout=timedelta(seconds=load.timeout_s),
            device_id=None if self._small else self._device,
        )
        try:
            count = (load.collective_bytes or (2**20 if self._small else 2**26)) // 4
            repeats = load.collective_repeats or (10 if self._small else 40)
            tensor = torch.ones(count, device=self._device)
            dist.all_reduce(tensor)
            if tensor[-1].item() != order.world_size:
                raise _TestError("collective", "a sum is wrong", local=False)
            tensor.zero_()
            seconds = self._timed(lambda: dist.all_reduce(tensor), repeats)
        finally:
            dist.destroy_process_group()
        return seconds, count * 4 / seconds

    def _timed(self, work: Callable[[], object], repeats: int) -> float:
        for _ in range(_WARM_UPS):
            work()
        self._wait()
        begin = time.perf_counter()
        for _ in range(repeats):
            work()
        self._wait()
        return (time.perf_counter() - begin) / repeats

    def _wait(self) -> None:
        if not self._small:
            self._torch.cuda.synchronize(self._device)


def measure(tester: Tester, order: MeasureOrder, listener: socket.socket | None) -> NodeResult:
    timeout_s = tester.workload.timeout_s
    compute_s, failure = 0.0, None
    try:
        tester.memory()
        compute_s = tester.compute()
    except (_TestError, RuntimeError) as error:
        failure = error
    try:
        store = _store(order, listener, timeout_s)
        _exchange_status(store, order, ok=failure is None, timeout_s=timeout_s)
        if failure is not None:
            raise failure
        collective_s, bandwidth = tester.collective(order, store)
    except (_TestError, RuntimeError) as error:
        return _failed(tester.name, failure or error, local=failure is not None)
    return NodeResult(
        passed=True,
        compute_s=compute_s,
        collective_s=collective_s,
        bandwidth=bandwidth,
        device=tester.name,
    )


def _store(order: MeasureOrder, listener: socket.socket | None, timeout_s: float) -> "Store":
    import torch.distributed as dist

    is_host = order.rank == 0 and listener is not None
    return dist.TCPStore(  # type: ignore[attr-defined] # not exported explicitly
        order.store_host,
        order.store_port,
        order.world_size,
        is_master=is_host,
        timeout=timedelta(seconds=timeout_s),
        wait_for_workers=False,
        master_listen_fd=listener.detach() if is_host and listener is not None else None,
        use_libuv=False,  # before PyTorch 2.7 the libuv server accepts no descriptor
    )


def _exchange_status(store: "Store", order: MeasureOrder, *, ok: bool, timeout_s: float) -> None:
    """Exchange the status of all processes of the group, so that none waits for a failed one."""
    store.set(f"note/{order.rank}", "ok" if ok else "failed")
    others = [f"note/{rank}" for rank in range(order.world_size)]
    store.wait(others, timedelta(seconds=timeout_s))
    failed = [rank for rank, note in enumerate(others) if store.get(note) != b"ok"]
    # The process that hosts the store leaves last: without it the others could not read the notes.
    store.set(f"read/{order.rank}", "")
    if order.rank == 0:
        store.wait(
            [f"read/{rank}" for rank in range(order.world_size)], timedelta(seconds=timeout_s)
        )
    if failed and ok:
        ranks = ", ".join(map(str, failed))
        raise _TestError("partner", f"the tests of rank {ranks} of the group failed", local=False)


def _failed(device: str, error: Exception, *, local: bool) -> NodeResult:
    named = isinstance(error, _TestError)
    return NodeResult(
        passed=False,
        local=error.local if isinstance(error, _TestError) else local,
        device=device,
        test=error.test if isinstance(error, _TestError) else "compute" if local else "collective",
        message=str(error)[:500] if named else f"{type(error).__name__}: {error}"[:500],
    )


def serve(start: WorkerStart, orders: BinaryIO, answers: BinaryIO) -> None:
    listener = _listen(answers) if start.local_rank == 0 else None
    tester: Tester | None = None
    try:
        tester = Tester(start)
        begin_failure = None
    except (_TestError, RuntimeError, ImportError, OSError) as error:
        begin_failure = _failed(f"process {start.local_rank}", error, local=True)
    for line in orders:
        order = msgspec.json.decode(line, type=MeasureOrder)
        if tester is None or begin_failure is not None:
            _send(answers, begin_failure or _failed("", RuntimeError("no device"), local=True))
            return
        measured = measure(tester, order, listener)
        _send(answers, measured)
        if not measured.passed:
            return
        if listener is not None:
            listener = _listen(answers, listener)


def _listen(answers: BinaryIO, before: socket.socket | None = None) -> socket.socket:
    """Hold a port for the store of the next round, so that no other process takes it."""
    listener = before
    if listener is None or listener.fileno() < 0:
        listener = listen_on_any_port(backlog=2048)
    _send(answers, PortReport(listener.getsockname()[1]))
    return listener


def _send(answers: BinaryIO, message: WorkerMessage) -> None:
    answers.write(msgspec.json.encode(message) + b"\n")
    answers.flush()


def main(descriptor: int) -> None:
    """Serve the peer of a socket. The caller ends the process afterwards."""
    with (
        socket.socket(fileno=descriptor) as channel,
        channel.makefile("rb") as orders,
        channel.makefile("wb") as answers,
    ):
        serve(msgspec.json.decode(orders.readline(), type=WorkerStart), orders, answers)
