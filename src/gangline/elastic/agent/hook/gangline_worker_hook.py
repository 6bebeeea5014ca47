"""What ``sitecustomize`` beside it does in a worker: learning, warming, waiting, last words.

Loaded by path and dropped from ``sys.modules`` at once. Messages to the agent are lines of JSON on
a socket that both share. A spare may also lend the agent a child: a fork of itself that does
something else, and of which nothing is left when the script runs.
"""

from __future__ import annotations

import atexit
import json
import os
import sys

TYPE_CHECKING = False  # typing is not imported: the script may never need it
if TYPE_CHECKING:
    from typing import Any, NoReturn

_SETTLED_S = 1.0
"""So long no module may have been imported before the list of modules counts as complete."""
_LOOK_EVERY_S = 0.25
_STEP_SIZE = 8
_INTEGER = 4
"""Bytes of a descriptor that is sent."""
_PR_SET_PDEATHSIG, _SIGKILL = 1, 9


def run(mode: str, descriptor: int) -> None:
    """Act as ``learn``, ``plain`` or ``spare`` (see the agent); return when the script may run."""
    os.set_inheritable(descriptor, False)
    if mode == "spare":
        order = _wait_for_order(descriptor)
        os.environ.clear()
        os.environ.update(order["env"])
        mode = "learn" if order["learns"] else "plain"
    if mode == "learn":
        import _thread  # noqa: PLC0415 - a thread that threading.enumerate() does not show

        _thread.start_new_thread(_learn, (descriptor,))
    if mode != "learn":
        os.close(descriptor)
    _arrange_stacks()
    atexit.register(_last_words)


class _Orders:
    """What the agent writes, line by line, and the descriptors that it sends along."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor, self._rest = descriptor, b""
        self.lent: list[int] = []

    def read(self) -> Any:
        import _socket  # noqa: PLC0415 - the script may never need the module around it

        channel = _socket.socket(fileno=self.descriptor)
        try:
            while b"\n" not in self._rest:
                piece, extra, _, _ = channel.recvmsg(1 << 16, _socket.CMSG_SPACE(_INTEGER))
                if not piece:
                    os._exit(0)  # the agent is gone, or wants no spare any more
                self._rest += piece
                for _, _, sent in extra:
                    self.lent.append(int.from_bytes(sent[:_INTEGER], sys.byteorder))
        finally:
            channel.detach()
        line, _, self._rest = self._rest.partition(b"\n")
        return json.loads(line)

    def wait(self, descriptor: int) -> bool:
        """Wait for a descriptor to be readable, or an order to come; return whether one has."""
        import select  # noqa: PLC0415

        looks = select.poll()
        looks.register(descriptor, select.POLLIN)
        looks.register(self.descriptor, select.POLLIN)
        return bool(self._rest) or all(each != descriptor for each, _ in looks.poll())


def _wait_for_order(descriptor: int) -> Any:
    """Do what the agent wants; return the order to become a worker."""
    orders = _Orders(descriptor)
    streams = [os.dup(1), os.dup(2)]
    nothing = os.open(os.devnull, os.O_WRONLY)
    while "env" not in (order := orders.read()):
        if "modules" in order:
            shown = nothing if order["quiet"] else streams[1]
            os.dup2(shown, 1), os.dup2(shown, 2)
            _tell(descriptor, {"missing": _warm(order)})
        elif "child" in order:
            code = _lend_child(orders, order["child"], streams[1])
            _tell(descriptor, {"ended": code})
    for number, (kept, path) in enumerate(zip(streams, order["streams"], strict=True), start=1):
        source = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644) if path else kept
        os.dup2(source, number)
        os.close(source)
        if source != kept:
            os.close(kept)
    os.close(nothing)
    return order


def _warm(order: Any) -> list[str]:
    """Import, and have a tiny step trained; return the names that could not be imported."""
    missing = _preload(order["modules"])
    if order["step"] and "torch" in sys.modules:
        _tiny_step(sys.modules["torch"])
    _regain_priority(order["nice"])
    return missing


def _tell(descriptor: int, words: dict[str, Any]) -> None:
    try:
        os.write(descriptor, json.dumps(words).encode() + b"\n")
    except OSError:
        os._exit(0)  # the agent is gone, or wants no spare any more


def _lend_child(orders: _Orders, wanted: Any, output: int) -> int:
    """Have a fork of this process serve the descriptor that was sent; return its exit code.

    It is killed when the agent has another order for this process.
    """
    import warnings  # noqa: PLC0415

    channel, parent = orders.lent.pop(0), os.getpid()
    with warnings.catch_warnings():
        # Libraries of mathematics have threads, and end them themselves before a fork.
        warnings.simplefilter("ignore")
        pid = os.fork()
    if pid == 0:
        os.close(orders.descriptor)
        _be_child(wanted, channel, output, parent)
    os.close(channel)
    ended = os.pidfd_open(pid)
    if orders.wait(ended):
        os.kill(pid, _SIGKILL)
    os.close(ended)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _be_child(wanted: Any, channel: int, output: int, parent: int) -> NoReturn:
    """Run ``main`` of a module of the agent's, as if the agent had started an interpreter."""
    code = 1
    try:
        import contextlib  # noqa: PLC0415
        import ctypes  # noqa: PLC0415
        import importlib  # noqa: PLC0415

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, _SIGKILL)
        if os.getppid() != parent:
            os._exit(code)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1), os.dup2(output, 2)
        os.environ.clear()
        os.environ.update(wanted["env"])
        os.sched_setaffinity(0, wanted["processors"])
        sys.path[:] = wanted["path"]
        sys.modules.pop("sitecustomize", None)
        with contextlib.suppress(ImportError):  # there may be none
            importlib.import_module("sitecustomize")
        importlib.import_module(wanted["module"]).main(channel)
        code = 0
    except BaseException:
        import traceback  # noqa: PLC0415

        traceback.print_exc()
    finally:
        # Nothing that this process has inherited may be cleared away by it.
        os._exit(code)


def _preload(modules: list[str]) -> list[str]:
    import importlib  # noqa: PLC0415

    missing = []
    for name in modules:
        if name not in sys.modules:
            # Whatever an import raises, the script is the one to meet it, not its spare.
            try:
                importlib.import_module(name)
            except Exception:
                missing.append(name)
    return missing


def _tiny_step(torch: Any) -> None:
    """One step of training on the processor: threads, kernels and caches come to life."""
    state = torch.get_rng_state()
    layer = torch.nn.Linear(_STEP_SIZE, _STEP_SIZE)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        layer(torch.randn(_STEP_SIZE, _STEP_SIZE)).pow(2).mean().backward()
        optimizer.step()
    torch.set_rng_state(state)


def _regain_priority(nice: int) -> None:
    if os.path.exists("/proc/self/autogroup"):
        with open("/proc/self/autogroup", "w") as group:
            group.write("0")
    for thread in os.listdir("/proc/self/task"):
        if os.getpriority(os.PRIO_PROCESS, int(thread)) != nice:
            os.setpriority(os.PRIO_PROCESS, int(thread), nice)


def _learn(descriptor: int) -> None:
    """Tell the agent what has been imported, once that stops growing."""
    import time  # noqa: PLC0415

    count, since = 0, time.monotonic()
    while time.monotonic() - since < _SETTLED_S:
        time.sleep(_LOOK_EVERY_S)
        if len(sys.modules) != count:
            count, since = len(sys.modules), time.monotonic()
    modules = [
        [name, getattr(module, "__file__", None)] for name, module in list(sys.modules.items())
    ]
    line = json.dumps({"modules": modules}) + "\n"
    try:
        with os.fdopen(descriptor, "w") as agent:
            agent.write(line)
    except OSError:
        return  # the agent is gone


def _arrange_stacks() -> None:
    """Have the stacks of all threads written to a file when the agent sends the signal."""
    number, _, path = os.environ.pop("GANGLINE_STACKS", "").partition(":")
    if path:
        import faulthandler  # noqa: PLC0415

        file = open(path, "w")  # noqa: SIM115 - stays open as long as the process
        faulthandler.register(int(number), file=file, all_threads=True)


def _last_words() -> None:
    """Write an uncaught exception where torch's ``record`` would have written it."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    error = getattr(sys, "last_value", None)
    if not path or error is None or os.path.exists(path):
        return
    import time  # noqa: PLC0415
    import traceback  # noqa: PLC0415

    words = traceback.format_exception(type(error), error, error.__traceback__)
    extra = {"py_callstack": "".join(words), "timestamp": str(int(time.time()))}
    message = {"message": f"{type(error).__name__}: {error}", "extraInfo": extra}
    try:
        with open(path, "w") as file:
            json.dump({"message": message}, file)
    except OSError:
        return  # nowhere to write: the traceback is on stderr all the same
