"""Records what an import depends on and what it changes, in the fork server.

For each module: the modules that it imports, the variables of the environment that it reads and
writes while it is imported, the environment at that time, and its output. A module that reads what
differs between the workers (a variable such as ``RANK``, the process id, random bytes) or leaves
threads, files or a device behind cannot be imported before the fork.
"""

from __future__ import annotations

import _frozen_importlib
import builtins
import importlib
import itertools
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from typing import Any

_PROCESS_FUNCTIONS = ("getpid", "getppid", "urandom")
"""Functions of ``os`` whose results differ between two processes."""
_FORK_SAFE = frozenset(
    {"filelock", "fsspec", "multiprocessing", "numpy", "random", "tempfile", "torch"}
)
"""Packages that may call them: a fork renews the result, or nothing needs it."""
_READ_BY_PREFIX = {"tqdm.utils": b"TQDM_", "fsspec.config": b"FSSPEC"}
"""Modules that go through all variables and use those with a prefix. PyTorch imports them."""
_COPIES_ENVIRONMENT = frozenset({"ctypes.util", "subprocess"})
"""Modules that copy the environment for a child process: no result depends on the copy."""
_SYSTEM_LIBRARIES = ("libc.", "libm.", "libdl.", "libpthread.", "ld-linux", "libpython")
_DEVICE_FILES = ("/dev/nvidia", "/dev/kfd", "/dev/dri")


class _Reads(set):  # type: ignore[type-arg]
    """Names of variables. With a prefix it contains all names that begin with it."""

    def __init__(self) -> None:
        super().__init__()
        self.prefixes: set[bytes] = set()

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or (
            isinstance(name, bytes) and name.startswith(tuple(self.prefixes))
        )

    def add_all(self, other: _Reads) -> None:
        self.update(other)
        self.prefixes |= other.prefixes


class ImportRecord:
    """What one module depends on and changes while it is imported."""

    def __init__(self, name: str, environment: dict[bytes, bytes]) -> None:
        """Begin with the environment before the import."""
        self.name, self.environment = name, environment
        self.loaded_before = len(sys.modules)
        self.imported: set[str] = set()
        self.reads = _Reads()
        self.writes: list[tuple[str, str | None]] = []
        self.output = (b"", b"")
        self.libraries: set[str] = set()
        """Shared libraries that were loaded meanwhile."""


class ImportRecorder:
    """Imports modules and records them. Everything is patched only while it imports."""

    def __init__(self) -> None:
        """Begin in a process with one thread."""
        self._varying: frozenset[bytes] = frozenset()
        self._stack: list[ImportRecord] = []
        self._last: dict[bytes, bytes] = {}
        self.records: dict[str, ImportRecord] = {}
        self.dependent: dict[str, str] = {}
        """Reasons for which modules must be imported after the fork, by top-level package."""
        self._suspects: dict[str, str] = {}
        self._threads = _thread_count()
        self._files = _open_files()
        self._program_folder = _program_folder()
        self._libraries = mapped_libraries()

    def set_varying(self, names: Collection[str]) -> None:
        """Take the names of variables that differ between the processes that are forked."""
        self._varying = frozenset(os.fsencode(name) for name in names)
        for record in self.records.values():
            for key in record.reads & self._varying:
                self._note(record.name, f"reads {os.fsdecode(key)} while it is imported")

    def ignore_open_files(self) -> None:
        """Take the open files as those of the server: the next import has not opened them."""
        self._files = _open_files()

    def import_modules(self, names: Iterable[str]) -> None:
        """Import modules one after another."""
        with _Patches(self), _ProgramPath(self._program_folder):
            for name in names:
                if name not in sys.modules:
                    self._import(name)

    def find_dependent(self) -> dict[str, str]:
        """Return the packages that cannot be imported before a fork, and why.

        Some libraries end their threads before each fork. So a fork is tried if there are any.
        """
        if self._suspects:
            self._threads = _threads_after_fork()
            if self._threads > 1:
                self.dependent.update(self._suspects)
            self._suspects.clear()
        return self.dependent

    def _import(self, name: str) -> None:
        output = _CapturedOutput()
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not (name + ".").startswith(error.name + "."):
                self._note(name, f"cannot be imported before a fork: {error}")
        except BaseException as error:
            # A part of it has been imported. Its effects would occur twice in a worker.
            self._note(name, f"cannot be imported before a fork: {type(error).__name__}: {error}")
        finally:
            printed = output.end()
        if any(printed) and name in self.records:
            self.records[name].output = printed
        self._check_process(name)

    def _check_process(self, name: str) -> None:
        if (threads := _thread_count()) > self._threads:
            self._suspects[_package(name)] = "starts threads that do not end before a fork"
        self._threads = threads
        files = _open_files()
        for number in files.keys() - self._files.keys():
            target = files[number]
            device = target.startswith(_DEVICE_FILES)
            self._note(name, f"opens {'the device ' if device else ''}{target}")
        self._files = files

    def _note(self, name: str, reason: str) -> None:
        self.dependent.setdefault(_package(name), reason)
        for record in self._stack:
            self.dependent.setdefault(_package(record.name), reason)

    def begin(self, name: str) -> None:
        """Note that the import of a module begins."""
        now: dict[bytes, bytes] = os.environ._data  # type: ignore[attr-defined]
        if now != self._last:
            self._last = dict(now)
        record = ImportRecord(name, self._last)
        if self._stack:
            self._stack[-1].imported.add(name)
        self._stack.append(record)

    def end(self, name: str, *, succeeded: bool) -> None:
        """Note that it has ended."""
        record = self._stack.pop()
        # Some libraries put modules into sys.modules that no import statement names.
        record.imported.update(
            each
            for each in itertools.islice(sys.modules, record.loaded_before, None)
            if each not in self.records
        )
        file = getattr(sys.modules.get(name), "__file__", None)
        if "." not in name or (file or "").endswith(".so"):
            libraries = mapped_libraries()
            record.libraries, self._libraries = libraries - self._libraries, libraries
        if self._program_folder and file and os.path.dirname(file) == self._program_folder:
            self._note(name, "imports a module of the program")
        if succeeded and (nested := self.records.get(name)):
            # The import of its package has imported it already.
            nested.imported |= record.imported
        elif succeeded:
            self.records[name] = record
        elif self._stack:
            # What a failed import has read has decided how its importer continues.
            self._stack[-1].reads.add_all(record.reads)

    def add_imported(self, names: Iterable[str]) -> None:
        """Note that the module that is being imported needs others."""
        if self._stack:
            self._stack[-1].imported.update(names)

    def add_read(self, key: bytes) -> None:
        """Note that it reads a variable."""
        if not self._stack or self._is_read_by_prefix():
            return
        self._stack[-1].reads.add(key)
        if key in self._varying:
            self._note(self._stack[-1].name, f"reads {os.fsdecode(key)} while it is imported")

    def add_copy(self) -> None:
        """Note that it reads all variables."""
        if not self._stack or self._is_read_by_prefix():
            return
        if not self._is_called_by(_COPIES_ENVIRONMENT):
            self._note(self._stack[-1].name, "reads the environment while it is imported")

    def add_write(self, key: str, value: str | None) -> None:
        """Note that it sets a variable; None for a deleted one."""
        if self._stack:
            self._stack[-1].writes.append((key, value))

    def add_call(self, name: str) -> None:
        """Note that it calls a function whose result differs between processes."""
        if self._stack and _package(self._stack[-1].name) not in _FORK_SAFE:
            self._note(self._stack[-1].name, f"calls os.{name}() while it is imported")

    def _is_read_by_prefix(self) -> bool:
        """Note the prefix if the reader uses only the variables with one."""
        for module, prefix in _READ_BY_PREFIX.items():
            if self._is_called_by({module}):
                self._stack[-1].reads.prefixes.add(prefix)
                return True
        return False

    @staticmethod
    def _is_called_by(modules: Collection[str]) -> bool:
        frame = sys._getframe(2)
        for _ in range(7):
            if frame.f_globals.get("__name__") in modules:
                return True
            if frame.f_back is None:
                break
            frame = frame.f_back
        return False


class _Patches:
    """Replaces the functions through which imports pass, and those that read the environment."""

    def __init__(self, recorder: ImportRecorder) -> None:
        self._recorder = recorder
        self._restore: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> None:
        recorder = self._recorder
        environ: Any = type(os.environ)
        load, import_ = _frozen_importlib._find_and_load, builtins.__import__  # type: ignore[attr-defined]
        get, set_, delete, iterate = (
            getattr(environ, name)
            for name in ("__getitem__", "__setitem__", "__delitem__", "__iter__")
        )

        def find_and_load(name: str, importer: object) -> object:
            if name in sys.modules:
                recorder.add_imported({name})
                return load(name, importer)
            recorder.begin(name)
            try:
                module = load(name, importer)
            except BaseException:
                recorder.end(name, succeeded=False)
                raise
            recorder.end(name, succeeded=True)
            return module

        def import_statement(
            name: str,
            globals: Any = None,
            locals: Any = None,
            fromlist: Any = (),
            level: int = 0,
        ) -> object:
            module = import_(name, globals, locals, fromlist, level)
            parent = getattr(module, "__name__", name)
            names = {parent} if level else {name, parent}
            names.update(f"{parent}.{item}" for item in fromlist or ())
            recorder.add_imported(names & sys.modules.keys())
            return module

        def get_item(own: Any, key: Any) -> Any:
            recorder.add_read(key.encode() if isinstance(key, str) else bytes(key))
            return get(own, key)

        def set_item(own: Any, key: Any, value: Any) -> None:
            set_(own, key, value)
            recorder.add_write(key, value)

        def delete_item(own: Any, key: Any) -> None:
            delete(own, key)
            recorder.add_write(key, None)

        def iterate_keys(own: Any) -> Any:
            recorder.add_copy()
            return iterate(own)

        self._replace(_frozen_importlib, "_find_and_load", find_and_load)
        self._replace(builtins, "__import__", import_statement)
        self._replace(environ, "__getitem__", get_item)
        self._replace(environ, "__setitem__", set_item)
        self._replace(environ, "__delitem__", delete_item)
        self._replace(environ, "__iter__", iterate_keys)
        for name in _PROCESS_FUNCTIONS:
            self._replace(os, name, _counted(recorder, name, getattr(os, name)))

    def __exit__(self, *_: object) -> None:
        for owner, name, original in reversed(self._restore):
            setattr(owner, name, original)

    def _replace(self, owner: Any, name: str, value: object) -> None:
        self._restore.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)


def _counted(recorder: ImportRecorder, name: str, function: Any) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        recorder.add_call(name)
        return function(*arguments)

    call.__name__ = call.__qualname__ = name
    return call


class _ProgramPath:
    """The path of imports as the program has it: its folder is first; ``__file__`` is set."""

    def __init__(self, folder: str | None) -> None:
        self._folder = folder

    def __enter__(self) -> None:
        if self._folder is not None:
            sys.path.insert(0, self._folder)
        if sys.argv[0] not in ("-c", "-m", ""):
            sys.modules["__main__"].__file__ = sys.argv[0]

    def __exit__(self, *_: object) -> None:
        if self._folder is not None and self._folder in sys.path:
            sys.path.remove(self._folder)
            sys.path_importer_cache.pop(self._folder, None)
        vars(sys.modules["__main__"]).pop("__file__", None)


class _CapturedOutput:
    """What is written to descriptors 1 and 2 until the end."""

    def __init__(self) -> None:
        self._saved = [os.dup(number) for number in (1, 2)]
        self._files = [os.memfd_create("output") for _ in (1, 2)]
        for number, file in zip((1, 2), self._files, strict=True):
            os.dup2(file, number)

    def end(self) -> tuple[bytes, bytes]:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        outputs = []
        for number, file, saved in zip((1, 2), self._files, self._saved, strict=True):
            os.dup2(saved, number)
            outputs.append(os.pread(file, os.fstat(file).st_size, 0))
            os.close(saved)
            os.close(file)
        return outputs[0], outputs[1]


def _program_folder() -> str | None:
    """Return the folder that the interpreter puts first on its path for the program."""
    if sys.flags.safe_path or not sys.argv[0]:
        return None
    if sys.argv[0] == "-m":
        return os.getcwd()
    return "" if sys.argv[0] == "-c" else os.path.dirname(os.path.realpath(sys.argv[0]))


def mapped_libraries() -> set[str]:
    """Return the shared libraries of this process, without those of every program."""
    with open("/proc/self/maps") as maps:
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if ".so" in line}
    return {path for path in paths if not os.path.basename(path).startswith(_SYSTEM_LIBRARIES)}


def _package(name: str) -> str:
    return name.partition(".")[0]


def _thread_count() -> int:
    return len(os.listdir("/proc/self/task"))


def _threads_after_fork() -> int:
    """Return the number of this process's threads after a fork."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return _thread_count()


def _open_files() -> dict[int, str]:
    paths = {}
    for number in os.listdir("/proc/self/fd"):
        try:
            paths[int(number)] = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue  # the listing's own descriptor
    return paths
