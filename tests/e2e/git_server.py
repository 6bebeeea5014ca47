"""Git repositories over HTTP with a user name and a password, by git's ``http-backend``."""

import base64
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


def address_of_machine() -> str:
    """The address of this machine for pods: the one of its default route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as outward:
        outward.connect(("203.0.113.1", 9))  # this sends nothing
        return str(outward.getsockname()[0])


class _Handler(BaseHTTPRequestHandler):
    folder: Path
    wanted: str

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Authorization") != self.wanted:
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="code"')
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        head, _, content = self._backend(body).partition(b"\r\n\r\n")
        fields = dict(line.decode().split(": ", 1) for line in head.split(b"\r\n"))
        self.send_response(int(fields.pop("Status", "200").split()[0]))
        for name, value in fields.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _backend(self, body: bytes) -> bytes:
        path, _, query = self.path.partition("?")
        environment = {
            "PATH": os.environ["PATH"],
            "GIT_PROJECT_ROOT": str(self.folder),
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "REQUEST_METHOD": str(self.command),
            "CONTENT_TYPE": self.headers.get("Content-Type") or "",
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding") or "",
            "REMOTE_USER": "somebody",
            # The files may belong to another user.
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": "safe.directory",
            "GIT_CONFIG_VALUE_0": "*",
        }
        done = subprocess.run(
            ["git", "http-backend"], input=body, env=environment, capture_output=True, check=True
        )
        return done.stdout


def make_repository(folder: Path, script: Path) -> None:
    """Create a bare repository with one commit of one file."""
    work = folder.with_suffix(".work")
    work.mkdir(parents=True)
    (work / script.name).write_text(script.read_text())
    identity = ["-c", "user.name=n", "-c", "user.email=n@example.org"]
    for command in (
        ["init", "-q"],
        ["add", "."],
        [*identity, "commit", "-q", "-m", "The script"],
        ["clone", "-q", "--bare", ".", str(folder)],
    ):
        subprocess.run(["git", *command], cwd=work, check=True)


@contextmanager
def git_server(folder: Path, user: str, password: str) -> Iterator[int]:
    """Serve the repositories of a directory on all addresses; yields the port."""
    credential = base64.b64encode(f"{user}:{password}".encode()).decode()
    handler = type("Handler", (_Handler,), {"folder": folder, "wanted": f"Basic {credential}"})
    server = ThreadingHTTPServer(("0.0.0.0", 0), handler)
    serving = threading.Thread(target=server.serve_forever, daemon=True)
    serving.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        serving.join()
        server.server_close()
