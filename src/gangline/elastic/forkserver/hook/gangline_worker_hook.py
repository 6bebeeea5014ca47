"""The part of ``sitecustomize`` that runs in workers: report imports, preload, wait.

It is loaded by path and removed from ``sys.modules`` afterwards. Messages to the agent are lines of
JSON on a shared socket. An interpreter of the node check can also fork a child that runs another
function; nothing of it is left when the script runs.
"""

from __future__ import annotations

import _frozen_importlib
import _thread
import atexit
import faulthandler
import json
import os
import sys
import time

TYPE_CHECKING = False  # the script may not need typing, so it is not imported
if TYPE_CHECKING:
    from typing import Any, NoReturn

_IMPORTS_SETTLED_S = 30.0
"""Reports end when no module was imported for this time."""
_IMPORT_POLL_S = 0.1
_LOADER_SOURCE = """
def _find_and_load(name, import_):
    note(name)
    return original(name, import_)
"""
_INTEGER = 4
"""Size of a file descriptor in a control message."""
_PR_SET_PDEATHSIG, _SIGKILL = 1, 9


def run(mode: str, descriptor: int) -> None:
    """Act as ``learn``, ``plain`` or ``spare`` (see the agent); return when the script may run."""
    os.set_inheritable(descriptor, False)
    if mode == "spare":
        order = _wait_for_order(descriptor)
        os.environ.clear()
        os.environ.update(order["env"])
        mode = "learn" if order["learns"] else "plain"
    _begin_worker(descriptor if mode == "learn" else None)
    if mode != "learn":
        os.close(descriptor)


def run_server(server: Any, descriptor: int, baseline: frozenset[str]) -> None:
    """Run the fork server; return in a forked worker when the script may run."""
    os.set_inheritable(descriptor, False)
    # The user's module may change what imports see, so it comes first in the server too.
    baseline |= _imported_by(server.run_user_sitecustomize)
    request = server.serve(descriptor, baseline)
    if request.get("container"):
        return  # a container is no worker of an agent
    _begin_worker(request.get("channel"))


def _imported_by(function: Any) -> set[str]:
    before = set(sys.modules) - {"sitecustomize"}  # it is replaced by that of the user
    function()
    return set(sys.modules) - before


def _begin_worker(descriptor: int | None) -> None:
    """Prepare the process for the script; with a descriptor its imports are reported."""
    _register_stack_handler()
    atexit.register(_write_error_file)
    if descriptor is not None:
        # threading.enumerate() does not show such a thread.
        _thread.start_new_thread(_ImportReport(descriptor).run, ())


class _OrderChannel:
    """Orders of the agent, one JSON object a line, and the file descriptors sent with them."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor, self._rest = descriptor, b""
        self.descriptors: list[int] = []

    def read(self) -> Any:
        import _socket

        channel = _socket.socket(fileno=self.descriptor)
        try:
            while b"\n" not in self._rest:
                piece, extra, _, _ = channel.recvmsg(1 << 16, _socket.CMSG_SPACE(_INTEGER))
                if not piece:
                    os._exit(0)  # the agent has ended, or needs no spare any more
                self._rest += piece
                for _, _, sent in extra:
                    self.descriptors.append(int.from_bytes(sent[:_INTEGER], sys.byteorder))
        finally:
            channel.detach()
        line, _, self._rest = self._rest.partition(b"\n")
        return json.loads(line)

    def wait(self, descriptor: int) -> bool:
        """Wait until a descriptor is readable or an order arrives. Returns True for an order."""
        import select

        looks = select.poll()
        looks.register(descriptor, select.POLLIN)
        looks.register(self.descriptor, select.POLLIN)
        return bool(self._rest) or all(each != descriptor for each, _ in looks.poll())


def _wait_for_order(descriptor: int) -> Any:
    """Execute orders until the one to become a worker; return that one."""
    orders = _OrderChannel(descriptor)
    streams = [os.dup(1), os.dup(2)]
    while "env" not in (order := orders.read()):
        if "modules" in order:
            os.dup2(streams[1], 1)
            _send(descriptor, {"missing": _preload(order["modules"])})
        elif "child" in order:
            code = _run_child(orders, order["child"], streams[1])
            _send(descriptor, {"ended": code})
    for number, (original, path) in enumerate(zip(streams, order["streams"], strict=True), start=1):
        source = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644) if path else original
        os.dup2(source, number)
        os.close(source)
        if source != original:
            os.close(original)
    return order


def _send(descriptor: int, message: dict[str, Any]) -> None:
    try:
        os.write(descriptor, json.dumps(message).encode() + b"\n")
    except OSError:
        os._exit(0)  # the agent has ended, or needs no spare any more


def _run_child(orders: _OrderChannel, spec: Any, output: int) -> int:
    """Run a child on the descriptor that was sent; return its exit code.

    A child is a fork of this process. It is killed when the agent sends another order.
    """
    import warnings

    channel, parent = orders.descriptors.pop(0), os.getpid()
    with warnings.catch_warnings():
        # Python warns of threads. Those of numerical libraries end themselves before a fork.
        warnings.simplefilter("ignore")
        pid = os.fork()
    if pid == 0:
        os.close(orders.descriptor)
        _child_main(spec, channel, output, parent)
    os.close(channel)
    ended = os.pidfd_open(pid)
    if orders.wait(ended):
        os.kill(pid, _SIGKILL)
    os.close(ended)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _child_main(spec: Any, channel: int, output: int, parent: int) -> NoReturn:
    """Run ``main`` of a module as if the agent had started a new interpreter."""
    code = 1
    try:
        import contextlib
        import ctypes
        import importlib

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, _SIGKILL)
        if os.getppid() != parent:
            os._exit(code)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1), os.dup2(output, 2)
        os.environ.clear()
        os.environ.update(spec["env"])
        os.sched_setaffinity(0, spec["processors"])
        sys.path[:] = spec["path"]
        sys.modules.pop("sitecustomize", None)
        with contextlib.suppress(ImportError):  # the user may have none
            importlib.import_module("sitecustomize")
        importlib.import_module(spec["module"]).main(channel)
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        # No exit handler that this process has inherited may run in it.
        os._exit(code)


def _preload(modules: list[str]) -> list[str]:
    """Import modules; return the names that could not be imported."""
    import importlib

    missing = []
    for name in modules:
        if name not in sys.modules:
            # An import may raise anything. The script must see the error, not its spare.
            try:
                importlib.import_module(name)
            except Exception:
                missing.append(name)
    return missing


class _ImportReport:
    """Reports the imported modules to the agent, and the variables that were set before each."""

    def __init__(self, descriptor: int) -> None:
        """Begin to note the environment of each import."""
        self._descriptor = descriptor
        self._start = dict(os.environ)
        self._environment = _environment()
        self._changes: list[dict[str, str | None]] = [{}]
        self._index: dict[str, int] = {}
        self._reported: set[str] = set()
        namespace = {"note": self._note, "original": _frozen_importlib._find_and_load}  # type: ignore[attr-defined]
        # With this file name the interpreter leaves the function out of tracebacks.
        exec(compile(_LOADER_SOURCE, "<frozen importlib._bootstrap>", "exec"), namespace)
        self._original = namespace["original"]
        self._loader = _frozen_importlib._find_and_load = namespace["_find_and_load"]  # type: ignore[attr-defined]

    def _note(self, name: str) -> None:
        now = os.environ._data  # type: ignore[attr-defined]
        if now != self._environment:
            self._environment = dict(now)
            current = dict(os.environ)
            self._changes.append(
                {
                    key: current.get(key)
                    for key in self._start.keys() | current.keys()
                    if self._start.get(key) != current.get(key)
                }
            )
        self._index.setdefault(name, len(self._changes) - 1)

    def run(self) -> None:
        """Report new modules until none have been imported for a time."""
        since = time.monotonic()
        try:
            while time.monotonic() - since < _IMPORTS_SETTLED_S:
                if self._report():
                    since = time.monotonic()
                time.sleep(_IMPORT_POLL_S)
        except OSError:
            pass  # the agent has ended
        os.close(self._descriptor)
        if _frozen_importlib._find_and_load is self._loader:  # type: ignore[attr-defined]
            _frozen_importlib._find_and_load = self._original  # type: ignore[attr-defined]

    def _report(self) -> bool:
        if len(sys.modules) == len(self._reported):
            return False
        modules: list[tuple[str, str | None, int]] = []
        for name, module in list(sys.modules.items()):
            spec = getattr(module, "__spec__", None)
            if name not in self._reported and not getattr(spec, "_initializing", False):
                file = getattr(module, "__file__", None)
                modules.append((name, file, self._index.get(name, -1)))
        if not modules:
            return False
        self._reported.update(name for name, _, _ in modules)
        line = json.dumps({"modules": modules, "changes": self._changes}) + "\n"
        data = line.encode()
        while data:
            data = data[os.write(self._descriptor, data) :]
        return True


def _environment() -> dict[bytes, bytes]:
    return dict(os.environ._data)  # type: ignore[attr-defined]


def _register_stack_handler() -> None:
    """Write the stacks of all threads to a file when the agent sends the signal."""
    number, _, path = os.environ.pop("GANGLINE_STACKS", "").partition(":")
    if path:
        file = open(path, "w")  # noqa: SIM115
        faulthandler.register(int(number), file=file, all_threads=True)


def _write_error_file() -> None:
    """Write an uncaught exception to the error file, as torch's ``record`` would."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    error = getattr(sys, "last_value", None)
    if not path or error is None or os.path.exists(path):
        return
    import traceback

    lines = traceback.format_exception(type(error), error, error.__traceback__)
    extra = {"py_callstack": "".join(lines), "timestamp": str(int(time.time()))}
    message = {"message": f"{type(error).__name__}: {error}", "extraInfo": extra}
    try:
        with open(path, "w") as file:
            json.dump({"message": message}, file)
    except OSError:
        return  # the traceback is on stderr anyway
