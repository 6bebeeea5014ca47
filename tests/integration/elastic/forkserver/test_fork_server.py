"""The fork server as a program: its protocol over a raw socket, in an interpreter of its own.

The interpreter has no packages installed, so Gangline is not there.
"""

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gangline.elastic.agent.process import HOOK_FOLDER

PYTHON = sys._base_executable  # type: ignore[attr-defined]
PR_SET_CHILD_SUBREAPER = 36
SCRIPT = """
    import sys
    modules = sorted(sys.modules)
    import json, os, importlib
    for name, value in json.loads(os.environ.get("CHANGES", "{}")).items():
        os.environ[name] = value
    seen = {"modules": modules, "argv": sys.argv, "file": __file__, "cwd": os.getcwd(),
            "parent": os.getppid(), "session": os.getsid(0) == os.getpid(), "path": sys.path,
            "mapped": "_decimal" in open("/proc/self/maps").read(),
            "gangline": importlib.util.find_spec("gangline") is not None}
    for name in os.environ.get("IMPORTS", "").split():
        importlib.import_module(name)
    library = sys.modules.get("library")
    seen["library"] = getattr(library, "VALUE", None)
    seen["environment"] = dict(os.environ)
    seen["after"] = sorted(sys.modules)
    print(json.dumps(seen), flush=True)
    if "SIGNAL" in os.environ:
        os.kill(os.getpid(), int(os.environ["SIGNAL"]))
    sys.exit(int(os.environ.get("CODE", "0")))
"""


class Server:
    """A fork server, and a client that knows the protocol only."""

    def __init__(self, folder: Path, libraries: Path) -> None:
        self.argv = [PYTHON, "-u", str(folder / "train.py"), "--lr", "0.1"]
        self.environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(libraries)}
        self.socket, theirs = socket.socketpair()
        self.socket.settimeout(60)
        hook = {
            "PYTHONPATH": f"{HOOK_FOLDER}{os.pathsep}{libraries}",
            "GANGLINE_WORKER_HOOK": f"server:{theirs.fileno()}",
        }
        with theirs:
            self.process = subprocess.Popen(
                self.argv,
                env={**self.environment, **hook},
                pass_fds=[theirs.fileno()],
                cwd=folder,
            )
        self.notes = folder / "notes.json"
        assert self.receive()["event"] == "ready"

    def send(self, message: dict[str, Any], descriptors: list[int] | None = None) -> None:
        sent = descriptors or []
        data = json.dumps({"id": 1, "descriptors": len(sent), **message}).encode()
        data = len(data).to_bytes(4, "big") + data
        if sent:
            socket.send_fds(self.socket, [data[:1]], sent)
            data = data[1:]
        self.socket.sendall(data)

    def receive(self) -> dict[str, Any]:
        length = int.from_bytes(self._exactly(4), "big")
        message: dict[str, Any] = json.loads(self._exactly(length))
        return message

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = self.socket.recv(count - len(data))
            assert piece, "the server has ended"
            data += piece
        return data

    def imports(self, *names: str, changes: dict[str, str | None] | None = None) -> dict[str, str]:
        """Import modules; return those that depend on the process."""
        number = 0 if changes else -1
        self.send(
            {
                "op": "import",
                "modules": [[name, number] for name in names],
                "changes": [changes or {}],
                "varying": ["RANK"],
            }
        )
        dependent: dict[str, str] = self.receive()["dependent"]
        return dependent

    def fork(self, environment: dict[str, str], **more: Any) -> tuple[dict[str, Any], int]:
        """Fork a process; return its last line of output, and how it ended."""
        text, code = self.fork_text(environment, **more)
        return json.loads(text.splitlines()[-1]), code

    def fork_text(self, environment: dict[str, str], **more: Any) -> tuple[str, int]:
        reading, writing = os.pipe()
        request = {
            "op": "fork",
            "version": 1,
            "argv": self.argv,
            "env": {**self.environment, **environment},
            "stdio": [None, 0, 0],
            "notes": str(self.notes),
            **more,
        }
        self.send(request, [writing])
        os.close(writing)
        forked = self.receive()
        with os.fdopen(reading) as output:
            assert forked["event"] == "forked", forked
            text = output.read()
        if more.get("adopt"):
            return text, os.waitstatus_to_exitcode(os.waitpid(forked["pid"], 0)[1])
        ended = self.receive()
        assert (ended["event"], ended["pid"]) == ("ended", forked["pid"])
        return text, ended["code"]

    def refusal(self, **more: Any) -> str:
        request = {"op": "fork", "version": 1, "argv": self.argv, "env": self.environment, **more}
        self.send(request)
        reply = self.receive()
        assert reply["event"] == "refused"
        return str(reply["reason"])

    def end(self) -> None:
        self.socket.close()
        assert self.process.wait(60) == 0

    def run_without(self, environment: dict[str, str]) -> dict[str, Any]:
        """Run the program as a worker that starts as a new process."""
        reading, writing = os.pipe()
        hook = {
            "PYTHONPATH": f"{HOOK_FOLDER}{os.pathsep}{self.environment['PYTHONPATH']}",
            "GANGLINE_WORKER_HOOK": f"plain:{reading}",
        }
        run = subprocess.run(
            self.argv,
            env={**self.environment, **environment, **hook},
            stdout=subprocess.PIPE,
            pass_fds=[reading],
            check=True,
            timeout=60,
        )
        os.close(reading), os.close(writing)
        seen: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
        return seen


@pytest.fixture
def libraries(tmp_path: Path) -> Path:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    return folder


@pytest.fixture
def library(libraries: Path) -> Callable[[str], None]:
    """Write the library that the program imports."""

    def write(text: str) -> None:
        (libraries / "library.py").write_text(textwrap.dedent(text))

    return write


@pytest.fixture
def server(tmp_path: Path, libraries: Path) -> Iterator[Server]:
    (tmp_path / "train.py").write_text(textwrap.dedent(SCRIPT))
    server = Server(tmp_path, libraries)
    yield server
    server.end()


def test_a_forked_process_runs_the_program_as_its_request_says(
    server: Server, tmp_path: Path
) -> None:
    seen, code = server.fork({"CODE": "7", "RANK": "3"})
    assert code == 7
    assert seen["argv"] == server.argv[2:]
    assert seen["file"] == str(tmp_path / "train.py")
    assert seen["session"]
    assert seen["parent"] == server.process.pid
    assert seen["path"][0] == str(tmp_path)
    assert not seen["gangline"]
    assert seen["environment"] == {**server.environment, "CODE": "7", "RANK": "3"}


def test_the_server_reports_the_signal_that_ended_a_process(server: Server) -> None:
    assert server.fork({"SIGNAL": "9"})[1] == -9


def test_an_adopted_process_is_a_child_of_the_client(server: Server) -> None:
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        seen, code = server.fork({"CODE": "5"}, adopt=True, parent=os.getpid())
    finally:
        libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
    assert (seen["parent"], code) == (os.getpid(), 5)


def test_forked_process_has_its_own_descriptors_only(server: Server, libraries: Path) -> None:
    (libraries / "library.py").write_text(
        "import os\n"
        "links = [f'/proc/self/fd/{each}' for each in os.listdir('/proc/self/fd')]\n"
        "VALUE = sorted(os.readlink(each) for each in links if os.path.exists(each))\n"
    )
    (libraries / "slow.py").write_text("import time\ntime.sleep(0.2)\n")
    request = {"op": "fork", "version": 1, "argv": server.argv, "stdio": [None, 0, 0]}
    pipes = [os.pipe() for _ in range(3)]
    modules = [["slow", -1], ["decimal", -1]]
    server.send({"op": "import", "modules": modules, "changes": [], "varying": []})
    for _, writing in pipes:
        environment = {**server.environment, "IMPORTS": "library"}
        server.send({**request, "env": environment}, [writing])
        os.close(writing)
    for reading, _ in pipes:
        pipe = os.readlink(f"/proc/self/fd/{reading}")
        with os.fdopen(reading) as output:
            seen = json.loads(output.read())["library"]
        # Standard output and error are this pipe; input is that of the server.
        cold = server.run_without({"IMPORTS": "library"})["library"]
        assert [each for each in seen if each == pipe] == [pipe, pipe]
        assert len(seen) == len(cold) == 3
    events = [server.receive()["event"] for _ in range(7)]
    assert sorted(events) == sorted(["imported", *["forked", "ended"] * 3])


def test_a_forked_process_does_not_see_imported_modules_before_it_imports_them(
    server: Server,
) -> None:
    names = ("decimal", "email.mime.text", "logging.handlers")
    assert server.imports(*names) == {}
    warm, _ = server.fork({"IMPORTS": " ".join(names)})
    cold = server.run_without({"IMPORTS": " ".join(names)})
    assert (warm["mapped"], cold["mapped"]) == (True, False), "it is imported in the server"
    assert warm["modules"] == cold["modules"]
    assert warm["after"] == cold["after"]
    other, _ = server.fork({"IMPORTS": "logging"})
    assert other["after"] == server.run_without({"IMPORTS": "logging"})["after"]


def test_a_program_that_changes_what_an_import_read_starts_again_without_it(
    server: Server, library: Callable[[str], None]
) -> None:
    library("""
        import os, decimal
        VALUE = os.environ.get("LIBRARY_HOME", "default")
    """)
    assert server.imports("library") == {}
    assert server.fork({"IMPORTS": "library"})[0]["library"] == "default"
    assert not server.notes.exists()
    changes = json.dumps({"LIBRARY_HOME": "/mine"})
    seen, code = server.fork({"IMPORTS": "library", "CHANGES": changes, "CODE": "4"})
    assert (seen["library"], code, seen["mapped"]) == ("/mine", 4, False)
    assert json.loads(server.notes.read_text()) == {
        "module": "library",
        "variable": "LIBRARY_HOME",
    }
    other = json.dumps({"UNRELATED": "yes"})
    assert server.fork({"IMPORTS": "library", "CHANGES": other})[0]["mapped"]


def test_imports_see_the_variables_that_the_program_had_set(
    server: Server, library: Callable[[str], None]
) -> None:
    library("""
        import os, decimal
        VALUE = os.environ["LIBRARY_HOME"]
    """)
    assert server.imports("library", changes={"LIBRARY_HOME": "/mine"}) == {}
    changes = json.dumps({"LIBRARY_HOME": "/mine"})
    seen, _ = server.fork({"IMPORTS": "library", "CHANGES": changes})
    assert (seen["library"], seen["mapped"]) == ("/mine", True)
    assert "LIBRARY_HOME" not in server.fork({})[0]["environment"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param("import os\nos.environ.get('RANK')", "reads RANK", id="rank"),
        pytest.param("import os\n'RANK' in os.environ", "reads RANK", id="presence"),
        pytest.param("import os\ndict(os.environ)", "reads the environment", id="copy"),
        pytest.param("import os\nos.getpid()", "calls os.getpid()", id="process"),
        pytest.param("import uuid\nuuid.uuid4()", "calls os.urandom()", id="random"),
        pytest.param(
            "import threading, time\n"
            "threading.Thread(target=time.sleep, args=(100,), daemon=True).start()",
            "starts threads",
            id="thread",
        ),
        pytest.param("import socket\nKEPT = socket.socket()", "opens socket:", id="file"),
        pytest.param("1 / 0", "cannot be imported", id="error"),
    ],
)
def test_a_module_that_depends_on_the_process_is_found(
    server: Server, libraries: Path, text: str, reason: str
) -> None:
    (libraries / "inner.py").write_text(text)
    (libraries / "library.py").write_text("import inner")
    dependent = server.imports("json", "library")
    assert dependent.keys() >= {"library"}
    assert reason in dependent["library"]
    assert "depend" in server.refusal()


def test_a_library_that_imports_a_module_of_the_program_is_found(
    server: Server, libraries: Path, tmp_path: Path
) -> None:
    (tmp_path / "settings.py").write_text("VALUE = 1")
    (libraries / "library.py").write_text("import settings")
    assert "module of the program" in server.imports("library")["library"]


def test_imports_in_the_server_see_the_path_of_the_program(
    server: Server, library: Callable[[str], None]
) -> None:
    library("""
        import sys, decimal
        VALUE = [sys.path, sys.argv, sys.flags, sys.modules["__main__"].__file__]
    """)
    assert server.imports("library") == {}
    warm, cold = server.fork({"IMPORTS": "library"})[0], server.run_without({"IMPORTS": "library"})
    assert (warm["mapped"], cold["mapped"]) == (True, False)
    assert warm["library"] == cold["library"]


def test_effects_of_an_import_follow_when_the_program_imports_it(
    server: Server, library: Callable[[str], None]
) -> None:
    library("""
        import os
        os.environ["LIBRARY_SET"] = "1"
        print("imported the library", flush=True)
    """)
    assert server.imports("library") == {}
    text, _ = server.fork_text({"IMPORTS": "library"})
    assert text.splitlines()[0] == "imported the library"
    assert json.loads(text.splitlines()[1])["environment"]["LIBRARY_SET"] == "1"
    text, _ = server.fork_text({})
    assert "imported the library" not in text
    assert "LIBRARY_SET" not in json.loads(text)["environment"]


def test_requests_that_a_fork_cannot_meet_are_refused(server: Server) -> None:
    assert "command line" in server.refusal(argv=[*server.argv, "more"])
    assert "version" in server.refusal(version=2)
    environment = {**server.environment, "PYTHONHASHSEED": "1"}
    assert "PYTHONHASHSEED" in server.refusal(env=environment)


def test_processes_outlive_their_server(server: Server, libraries: Path) -> None:
    (libraries / "library.py").write_text("import sys\nprint('up', flush=True)\nsys.stdin.read()")
    ours, theirs = socket.socketpair()
    reading, writing = os.pipe()
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        server.send(
            {
                "op": "fork",
                "version": 1,
                "argv": server.argv,
                "env": {**server.environment, "IMPORTS": "library"},
                "stdio": [0, 1, 1],
                "adopt": True,
            },
            [theirs.fileno(), writing],
        )
        os.close(writing)
        pid = server.receive()["pid"]
    finally:
        libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
    theirs.close()
    with os.fdopen(reading) as output:
        assert output.readline() == "up\n"
        server.process.send_signal(signal.SIGKILL)
        server.process.wait(60)
        server.process.returncode = 0
        ours.close()
        assert json.loads(output.read())["argv"] == server.argv[2:]
    assert os.waitpid(pid, 0)[1] == 0
