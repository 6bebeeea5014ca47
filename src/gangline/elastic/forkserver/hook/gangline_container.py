"""Turns a forked process into the first process of a container, as a kubelet asks for.

A container must be the same as one that was started by commands: so it gets the namespaces, the
setup script, the user and the limits in the same order. Two processes are forked. The supervisor
stays outside: it ends with the kubelet, and reports the exit code. The other one is process 1 of
the container; it dies with the supervisor.

Secrets: the description of a container comes by descriptor and is read only by its own processes,
so the server, from which other containers are forked, never has any of it in its memory.

Up to the end of the setup script an error ends the container, and the kubelet starts it by
commands. Afterwards a container that could differ from a new one becomes that by ``execve``.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import json
import os
import select
import sys

import gangline_program as programs  # type: ignore[import-not-found]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import Any, NoReturn

_PR_SET_DUMPABLE, _PR_SET_PDEATHSIG, _SIGKILL = 4, 1, 9
_SIGPIPE, _SIGXFSZ = 13, 25
_CLONE_NEWNS, _CLONE_NEWUTS, _CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
_CLONE_NEWUSER, _CLONE_NEWPID, _CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
_MS_REC, _MS_PRIVATE = 0x4000, 0x40000
_SETUP_FAILED, _NOT_EXECUTABLE, _NOT_FOUND = 1, 126, 127
_UMASK = 0o022
_SUFFIXES = (".py", ".so", ".pyc")


class Containers:
    """What a server prepares once for all containers that are forked from it."""

    def __init__(self) -> None:
        """Check that the interpreter and the kernel allow it. Raises LookupError: they do not."""
        import ctypes

        self._libc: Any = ctypes.CDLL(None, use_errno=True)
        self._slot = programs.ProgramSlot()
        self._command_line = programs.CommandLine()
        self.files: dict[str, list[int]] = {}

    def note_files(self, modules: Collection[str]) -> None:
        """Note the files on which the imported modules depend: containers must see the same."""
        paths = {os.path.realpath(sys.executable), *sys.path}
        for name in modules:
            file = getattr(sys.modules.get(name), "__file__", None)
            if file and "." not in name:
                paths.add(file)
        self.files = {path: found for path in paths if (found := file_identity(path))}

    def become_container(self, descriptors: list[int], modules: Collection[str]) -> dict[str, Any]:
        """Go on as process 1 of the container, in a fork of the server; return its description.

        Args:
            descriptors: the description, standard output and error, and the pipe for the exit code.
            modules: the server's modules.
        """
        close_all_but({0, 1, 2, *descriptors})
        description, *streams, exit_code = descriptors
        spec = json.loads(_read_all(description))
        os.close(description)
        if _is_hung_up(exit_code):
            os._exit(_SETUP_FAILED)
        os.setsid()
        self._enter_namespaces(spec)
        reading, writing = os.pipe()
        pid = os.fork()
        if pid:
            _supervise(pid, exit_code, writing)
        os.close(writing)
        os.close(exit_code)
        self._libc.prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)
        if _is_hung_up(reading):
            os._exit(_SETUP_FAILED)
        os.close(reading)
        _join_groups(spec["groups"])
        _run_setup(spec["setup"])
        # Not before: the kubelet reports an error of the setup, the container's log has none.
        for number, descriptor in enumerate(streams, start=1):
            os.dup2(descriptor, number)
            os.close(descriptor)
        self._change_root_and_user(spec)
        return self._run_program(spec, modules)

    def _enter_namespaces(self, spec: Any) -> None:
        user, group = os.geteuid(), os.getegid()
        if spec["network"]:
            network = os.open(spec["network"], os.O_RDONLY)
            self._call("setns", network, _CLONE_NEWNET)
            os.close(network)
        kinds = _CLONE_NEWNS | _CLONE_NEWUTS | _CLONE_NEWIPC | _CLONE_NEWPID
        self._call("unshare", kinds | (_CLONE_NEWUSER if spec["own_users"] else 0))
        if spec["own_users"]:
            _write("/proc/self/setgroups", "deny")
            _write("/proc/self/uid_map", f"0 {user} 1")
            _write("/proc/self/gid_map", f"0 {group} 1")
        self._call("mount", b"none", b"/", None, _MS_REC | _MS_PRIVATE, None)

    def _change_root_and_user(self, spec: Any) -> None:
        try:
            if spec["enter"] is None:
                os.chdir(spec["root"])
                os.chroot(".")
                os.chdir(spec["workdir"])
            else:
                enter: dict[str, Any] = {"__name__": "gangline_enter_container"}
                exec(compile(spec["enter"]["source"], "enter_container", "exec"), enter)
                enter["enter"](spec["enter"]["options"], executes=False)
            os.umask(_UMASK)
            self._libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)
        except OSError as error:
            os.write(2, f"enter: the container cannot be entered: {error}\n".encode())
            os._exit(_NOT_EXECUTABLE)

    def _run_program(self, spec: Any, modules: Collection[str]) -> dict[str, Any]:
        argv, environment = spec["argv"], spec["env"]
        try:
            program = programs.Program(argv)
            if self._differs(program, modules):
                execute(argv, environment)
            # An interpreter without a locale sets this one itself (PEP 538).
            coerced = os.environ.get("LC_CTYPE")
            os.environ.clear()
            os.environ.update(environment)
            if coerced is not None:
                os.environ.setdefault("LC_CTYPE", coerced)
            self._command_line.set(argv, environment)
            self._slot.fill(program, argv)
        except BaseException:
            execute(argv, environment)
        return {"argv": argv, "env": environment, "container": True}

    def _differs(self, program: Any, modules: Collection[str]) -> bool:
        """Return whether a new process might import something else than the server."""
        if any(file_identity(path) != found for path, found in self.files.items()):
            return True
        if program.script and not os.path.isfile(program.script):
            return True
        if getattr(sys.flags, "safe_path", False):
            return False
        own = {name.partition(".")[0] for name in modules}
        return bool(own & _modules_in(program.folder()))

    def _call(self, function: str, *arguments: Any) -> None:
        import ctypes

        if getattr(self._libc, function)(*arguments):
            number = ctypes.get_errno()
            raise OSError(number, f"{function}: {os.strerror(number)}")


def execute(argv: list[str], environment: Mapping[str, str]) -> NoReturn:
    """Run the program in this process without any imported module."""
    for number in (_SIGPIPE, _SIGXFSZ):
        _signal.signal(number, _signal.SIG_DFL)
    try:
        os.execvpe(argv[0], argv, dict(environment))
    except OSError as error:
        os.write(2, f"enter: failed to execute {argv[0]}: {error.strerror}\n".encode())
        os._exit(_NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE)


def file_identity(path: str) -> list[int] | None:
    """Return what distinguishes a file from another one at its path; None if there is none."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns]


def _supervise(pid: int, exit_code: int, alive: int) -> NoReturn:
    """Wait for process 1 and report its exit code; end it when the kubelet ends."""
    try:
        close_all_but({0, exit_code, alive})
        ended = os.pidfd_open(pid)
        poll = select.poll()
        poll.register(ended, select.POLLIN)
        poll.register(exit_code, 0)
        if all(descriptor != ended for descriptor, _ in poll.poll()):
            os.kill(pid, _SIGKILL)
        _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        os.write(exit_code, b"%d\n" % code)
    finally:
        os._exit(0)


def _modules_in(folder: str) -> set[str]:
    """Return the names of the modules and packages in a folder; fails if it cannot be read."""
    names = set()
    with os.scandir(folder) as entries:
        for entry in entries:
            name = entry.name.partition(".")[0]
            package = f"{entry.path}/__init__.py"
            if entry.name.endswith(_SUFFIXES) or os.path.exists(package):
                names.add(name)
    return names


def _join_groups(files: list[str]) -> None:
    for path in files:
        _write(path, "0")


def _run_setup(setup: Any) -> None:
    """Run the setup script, which reports errors itself."""
    pid = os.posix_spawn(
        "/bin/sh",
        ["sh", "-c", setup["script"], "sh"],
        setup["env"],
        setsigdef=[_SIGPIPE, _SIGXFSZ],
    )
    _, status = os.waitpid(pid, 0)
    if status:
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF or _SETUP_FAILED)


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _read_all(descriptor: int) -> bytes:
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0)


def _is_hung_up(pipe: int) -> bool:
    """Return whether the other end of a pipe is closed."""
    poll = select.poll()
    poll.register(pipe, 0)
    return bool(poll.poll(0))


def open_descriptors() -> set[int]:
    """Return the descriptors of this process."""
    descriptors = {int(name) for name in os.listdir("/proc/self/fd")}
    return {descriptor for descriptor in descriptors if _is_open(descriptor)}


def close_all_but(kept: Collection[int]) -> None:
    """Close all descriptors of this process except those."""
    for descriptor in open_descriptors() - {*kept}:
        os.close(descriptor)


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False  # that of the listing
    return True
