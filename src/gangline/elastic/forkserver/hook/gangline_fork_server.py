"""The fork server: imports modules once, and forks a process for each request.

It runs in an interpreter that was started with the command line of the processes, before that
program begins. A forked process returns from ``serve``, and the interpreter runs the program: so
``__main__``, arguments and tracebacks are the real ones. The server has one thread and opens no
device. The messages are described in ``protocol`` of this project.
"""

from __future__ import annotations

import _socket
import gc
import json
import os
import select
import sys
import time

import gangline_container as containers  # type: ignore[import-not-found]
import gangline_hidden_modules as hidden  # type: ignore[import-not-found]
import gangline_import_records as import_records  # type: ignore[import-not-found]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

VERSION = 1
_MAX_DESCRIPTORS = 16
_INTEGER = 4
_LENGTH = 4
_PR_SET_NAME, _PR_SET_PDEATHSIG, _SIGKILL = 15, 1, 9
_ARG_START, _ARG_END = 45, 46
"""Positions in ``/proc/self/stat`` (proc(5), fields 48 and 49), after the name of the program."""
_ADOPTION_POLL_S = 0.0002
_TITLE, _NAME = b"gangline-fork-server", b"gangline-fork"
_FIXED_AT_START = ("PYTHON", "LD_", "GLIBC_", "MALLOC_")
"""Prefixes of variables that a program reads before its first instruction."""


class _Channel:
    """Messages with descriptors: four bytes of length, big-endian, then JSON."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._rest = b""
        self._descriptors: list[int] = []

    def has_message(self) -> bool:
        return len(self._rest) >= _LENGTH and len(self._rest) >= self._end()

    def _end(self) -> int:
        return _LENGTH + int.from_bytes(self._rest[:_LENGTH], "big")

    def read(self) -> bool:
        """Read what has arrived. Returns False if the client has closed the connection."""
        channel = _socket.socket(fileno=self.descriptor)
        try:
            space = _socket.CMSG_SPACE(_INTEGER * _MAX_DESCRIPTORS)
            data, extra, _, _ = channel.recvmsg(1 << 16, space, _socket.MSG_CMSG_CLOEXEC)
        except OSError:
            return False
        finally:
            channel.detach()
        for _, _, sent in extra:
            self._descriptors += [
                int.from_bytes(sent[start : start + _INTEGER], sys.byteorder)
                for start in range(0, len(sent) - _INTEGER + 1, _INTEGER)
            ]
        self._rest += data
        return bool(data)

    def take(self) -> tuple[Any, list[int]]:
        """Return a message and its descriptors."""
        end = self._end()
        message = json.loads(self._rest[_LENGTH:end])
        self._rest = self._rest[end:]
        count = int(message.get("descriptors", 0))
        sent, self._descriptors = self._descriptors[:count], self._descriptors[count:]
        return message, sent

    def send(self, message: dict[str, Any]) -> None:
        data = json.dumps(message).encode()
        data = len(data).to_bytes(_LENGTH, "big") + data
        try:
            while data:
                data = data[os.write(self.descriptor, data) :]
        except OSError:
            os._exit(0)  # the client has ended


class _Server:
    def __init__(self, descriptor: int, baseline: frozenset[str]) -> None:
        self._channel = _Channel(descriptor)
        # What the interpreter has opened itself (0, 1 and 2, files of a ``.pth`` hook) is open in
        # a new process too. Imports leave nothing open: such a package is not imported here.
        self._own_descriptors = containers.open_descriptors() - {descriptor}
        self._baseline = baseline
        self._environment = dict(os.environ)
        self._start_environment = dict(os.environ)
        self._recorder = _recorder
        # Recorded, because programs import it as well.
        self._recorder.import_modules(["ctypes"])
        self._title = _ProcessTitle()
        self._title.replace(_TITLE, _NAME)
        self._varying: frozenset[str] = frozenset()
        self._queue: list[tuple[str, int]] = []
        self._changes: list[dict[str, str | None]] = [{}]
        self._children: dict[int, int] = {}
        self._adoptions: dict[int, tuple[int, int]] = {}
        """Parents of processes that the client adopts, and requests, by the pipe of the parent."""
        self._hidden: Any = None
        self._containers: Any = None
        self._libraries: Any = None
        self._refuses_containers = "not asked for"
        self._import_request = 0

    def run(self) -> Any:
        """Serve; return the request in a forked process."""
        # Most objects of an import stay. A collector that visits them all the time takes a third of
        # the time to import PyTorch; without it 5 MB more remain.
        collects = gc.isenabled()
        gc.disable()
        request = self._serve()
        if collects:
            gc.enable()
        return request

    def _serve(self) -> Any:
        self._channel.send({"event": "ready", "version": VERSION, "pid": os.getpid()})
        while True:
            self._wait()
            while self._channel.has_message():
                request = self._handle(*self._channel.take())
                if request is not None:
                    return request
            if self._queue and not self._adoptions:
                self._import_next()

    def _wait(self) -> None:
        poll = select.poll()
        poll.register(self._channel.descriptor, select.POLLIN)
        for descriptor in (*self._children, *self._adoptions):
            poll.register(descriptor, select.POLLIN)
        # An import takes time, so replies come before the next one.
        importing = self._queue and not self._adoptions
        for descriptor, _ in poll.poll(0 if importing else None):
            if descriptor in self._adoptions:
                self._end_adoption(descriptor)
            elif descriptor != self._channel.descriptor:
                self._report_end(descriptor)
            elif not self._channel.read():
                os._exit(0)  # the client needs no server any more

    def _report_end(self, descriptor: int) -> None:
        pid = self._children.pop(descriptor)
        os.close(descriptor)
        _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        self._channel.send({"event": "ended", "pid": pid, "code": code})

    def _handle(self, message: Any, descriptors: list[int]) -> Any:
        if message["op"] == "import":
            self._begin_import(message)
        elif message["op"] == "fork":
            return self._fork(message, descriptors)
        return None

    # Imports.

    def _begin_import(self, message: Any) -> None:
        if message.get("containers"):
            self._allow_containers()
        self._varying = frozenset(message["varying"])
        self._recorder.set_varying(self._varying)
        self._changes += message["changes"]
        base = len(self._changes) - len(message["changes"])
        self._import_request = message["id"]
        self._queue += [
            (name, base + index if index >= 0 else 0) for name, index in message["modules"]
        ]
        if not self._queue:
            self._end_import()

    def _allow_containers(self) -> None:
        try:
            self._containers = containers.Containers()
            self._refuses_containers = ""
        except (LookupError, OSError) as error:
            self._refuses_containers = str(error)
        self._libraries = hidden.LibraryNames()

    def _import_next(self) -> None:
        """Import modules up to the next one that takes time, so that requests need not wait."""
        began, count = time.monotonic(), len(sys.modules)
        # Descriptors of children have come since the last import.
        self._recorder.ignore_open_files()
        while self._queue and time.monotonic() - began < 0.05:
            name, index = self._queue.pop(0)
            if name in sys.modules:
                continue
            self._apply_changes(index)
            self._recorder.import_modules([name])
        if len(sys.modules) != count:
            self._hidden = None
        if not self._queue:
            self._end_import()

    def _apply_changes(self, index: int) -> None:
        """Set the variables that the program had set before this import."""
        for key, value in self._changes[index].items():
            if value is None:
                os.environ.pop(key, None)
            elif os.environ.get(key) != value:
                os.environ[key] = value

    def _end_import(self) -> None:
        if self._libraries is not None:
            for record in self._recorder.records.values():
                for path in record.libraries:
                    self._libraries.collect(path)
        self._prepare_fork()
        reply = {
            "event": "imported",
            "id": self._import_request,
            "modules": len(self._recorder.records),
            "dependent": self._recorder.find_dependent(),
            "refuses_containers": self._refuses_containers,
        }
        if self._containers is not None:
            self._containers.note_files(self._hidden.names)
            reply["files"] = self._containers.files
        self._channel.send(reply)

    def _prepare_fork(self) -> None:
        if self._hidden is None:
            self._hidden = hidden.HiddenModules(
                self._baseline, self._recorder.records, self._varying, self._libraries
            )
            # Objects of the server need no visits of a collector, which would copy their pages.
            gc.freeze()

    # Forks.

    def _fork(self, message: Any, descriptors: list[int]) -> Any:
        reason = self._refusal(message)
        if reason:
            for descriptor in descriptors:
                os.close(descriptor)
            self._channel.send({"event": "refused", "id": message["id"], "reason": reason})
            return None
        self._prepare_fork()
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        adopt = bool(message.get("adopt"))
        pid = self._fork_adopted(message["id"]) if adopt else os.fork()
        if pid == 0:
            if message.get("container"):
                message = self._become_container(descriptors)
            else:
                self._title.restore()
                # Not the channel, nor those of other children.
                containers.close_all_but(self._own_descriptors | {*descriptors})
                _become(message, descriptors)
            self._hidden.hide(_StartAgain(message))
            return message
        for descriptor in descriptors:
            os.close(descriptor)
        if not adopt:
            self._children[os.pidfd_open(pid)] = pid
            self._send_forked(message["id"], pid)
        return None

    def _send_forked(self, request: int, pid: int) -> None:
        self._channel.send({"event": "forked", "id": request, "pid": pid})

    def _become_container(self, descriptors: list[int]) -> Any:
        try:
            return self._containers.become_container(descriptors, self._hidden.names)
        except BaseException as error:
            # Never the server's loop again, nor a program that is only partly in a container.
            os.write(2, f"gangline fork server: {type(error).__name__}: {error}\n".encode())
            os._exit(1)

    def _fork_adopted(self, request: int) -> int:
        """Fork a process that the client adopts; return 0 in it, when its parent has ended.

        The client is a subreaper (prctl(2)) or process 1. The reply follows when the parent has
        ended: meanwhile other processes are forked.
        """
        reading, writing = os.pipe()
        middle = os.fork()
        if middle:
            os.close(writing)
            self._adoptions[reading] = middle, request
            return middle
        own = os.getpid()
        if pid := os.fork():
            os.write(writing, pid.to_bytes(_INTEGER, "big"))
            os._exit(0)
        while os.getppid() == own:
            time.sleep(_ADOPTION_POLL_S)
        return 0

    def _end_adoption(self, descriptor: int) -> None:
        middle, request = self._adoptions.pop(descriptor)
        pid = int.from_bytes(os.read(descriptor, _INTEGER), "big")
        os.close(descriptor)
        os.waitpid(middle, 0)
        if pid:
            self._send_forked(request, pid)
        else:
            reason = "a process cannot be forked now"
            self._channel.send({"event": "refused", "id": request, "reason": reason})

    def _refusal(self, message: Any) -> str:
        """Return why a new process would not be what the request asks for; empty if it would."""
        if message["version"] != VERSION:
            return f"the server has version {VERSION} of the protocol"
        if self._recorder.find_dependent():
            return "the server has imported modules that depend on the process"
        if message.get("container"):
            return str(self._refuses_containers)
        if message["argv"] != sys.orig_argv:
            return "the server has another command line"
        wanted = message["env"]
        for key in self._start_environment.keys() | wanted.keys():
            before, now = self._start_environment.get(key), wanted.get(key)
            if before != now and key.startswith(_FIXED_AT_START):
                return f"the server was started with another {key}"
        return ""


class _ProcessTitle:
    """The command line and the name that ``ps`` shows for this server. Needs ``ctypes``.

    The server was started with the command line of the workers, and looked like one of them. It
    writes another text over its arguments in memory, as PostgreSQL and others do. A forked process
    gets the original back before its program begins.
    """

    def __init__(self) -> None:
        """Remember the original."""
        self._ctypes: Any = sys.modules["ctypes"]
        self._name = self._title = b""
        self._start = 0
        try:
            with open("/proc/self/comm", "rb") as file:
                self._name = file.read().rstrip(b"\n")
            with open("/proc/self/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            return  # without /proc the title is not shown either
        self._start, end = int(fields[_ARG_START]), int(fields[_ARG_END])
        if 0 < self._start < end:
            self._title = self._ctypes.string_at(self._start, end - self._start)

    def replace(self, title: bytes, name: bytes) -> None:
        """Show another command line, cut to the length of the original, and another name."""
        size = len(self._title)
        self._write(title[: max(size - 1, 0)].ljust(size, b"\0"), name)

    def restore(self) -> None:
        """Show the original again."""
        self._write(self._title, self._name)

    def _write(self, title: bytes, name: bytes) -> None:
        if title:
            self._ctypes.memmove(self._start, title, len(title))
        if self._name:
            self._ctypes.CDLL(None).prctl(_PR_SET_NAME, name)


class _StartAgain:
    """Starts the program of a forked process again, without modules of the server."""

    def __init__(self, request: Any) -> None:
        self._request = request

    def __call__(self, module: str, variable: str) -> NoReturn:
        if self._request.get("container"):
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:
                    stream.flush()
            containers.execute(self._request["argv"], self._request["env"])
        if path := self._request.get("notes"):
            with open(path, "w") as notes:
                json.dump({"module": module, "variable": variable}, notes)
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        channel = self._request.get("channel")
        descriptor = os.open(os.devnull, os.O_RDONLY) if channel is None else channel
        os.set_inheritable(descriptor, True)
        folder = os.path.dirname(hidden.__file__)
        environment = dict(self._request["env"])
        paths = [folder, *filter(None, [environment.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
        mode = "plain" if channel is None else "learn"
        environment["GANGLINE_WORKER_HOOK"] = f"{mode}:{descriptor}"
        os.execve(sys.executable, sys.orig_argv, environment)


def _become(request: Any, descriptors: list[int]) -> None:
    """Give a forked process the properties that the request names."""
    os.setsid()
    _die_with(request.get("parent"))
    _take_descriptors(request, descriptors)
    if processors := request.get("processors"):
        os.sched_setaffinity(0, processors)
    if (nice := request.get("nice")) is not None and os.getpriority(os.PRIO_PROCESS, 0) != nice:
        os.setpriority(os.PRIO_PROCESS, 0, nice)
    os.environ.clear()
    os.environ.update(request["env"])


def _take_descriptors(request: Any, descriptors: list[int]) -> None:
    for number, index in enumerate(request.get("stdio", ())):
        if index is not None:
            os.dup2(descriptors[index], number)
    channel = request.get("channel")
    for index, descriptor in enumerate(descriptors):
        if index != channel:
            os.close(descriptor)
    if channel is not None:
        request["channel"] = descriptors[channel]
    stdout: Any = sys.stdout
    if stdout is not None and not stdout.write_through:
        stdout.reconfigure(line_buffering=os.isatty(1))


def _die_with(parent: int | None) -> None:
    """End this process with its parent."""
    sys.modules["ctypes"].CDLL(None).prctl(_PR_SET_PDEATHSIG, _SIGKILL)
    if parent is not None and os.getppid() != parent:
        os._exit(1)


_recorder = import_records.ImportRecorder()


def run_user_sitecustomize() -> None:
    """Run the user's site customization before anything is imported, as an interpreter does."""
    sys.modules.pop("sitecustomize", None)
    _recorder.import_modules(["sitecustomize"])


def serve(descriptor: int, baseline: frozenset[str]) -> Any:
    """Serve until the client closes the connection.

    Returns only in forked processes, the request: ``channel`` is a descriptor or None.
    """
    return _Server(descriptor, baseline).run()
