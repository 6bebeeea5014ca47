"""Runs a command in the container of another pod; uses only Python's standard library.

The operator does not run this file: it copies the text into the ConfigMap of each MPIJob, beside
``kubexec.sh``, which runs it in launchers whose image has no ``kubectl``::

    python3 kubexec.py POD CONTAINER COMMAND [ARGUMENT ...]

It connects to the API server as the pod's service account, over a WebSocket, relays the command's
output, and exits with its exit code. Python 3.8 or newer.
"""

from __future__ import annotations

import base64
import json
import os
import socket
import ssl
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

SERVICE_ACCOUNT_PATH = Path("/var/run/secrets/kubernetes.io/serviceaccount")
PROTOCOLS = "v5.channel.k8s.io, v4.channel.k8s.io"
ATTEMPTS = 5
PING_EVERY_S = 30.0
CANNOT_RUN = 126
CHANNEL_STDOUT, CHANNEL_STDERR, CHANNEL_STATUS = 1, 2, 3
BINARY, CLOSE, PING, PONG = 0x2, 0x8, 0x9, 0xA


class CommandNotStarted(Exception):
    """The command was not started."""

    def __init__(self, why: str, *, may_pass: bool = False) -> None:
        super().__init__(why)
        self.may_pass = may_pass


class WebSocketFrames:
    """Reads and writes the frames of a WebSocket."""

    def __init__(self, connection: ssl.SSLSocket, received: bytes) -> None:
        self._connection = connection
        self._received = received

    def write(self, kind: int, content: bytes) -> None:
        """Send a frame of at most 125 bytes, masked as clients must."""
        mask = os.urandom(4)
        masked = bytes(byte ^ mask[i % 4] for i, byte in enumerate(content))
        self._connection.sendall(
            struct.pack("!BB", 0x80 | kind, 0x80 | len(content)) + mask + masked
        )

    def read(self) -> tuple[int, bytes]:
        """Receive a message (kind and content), joined from its frames."""
        kind, content = 0, b""
        while True:
            first, second = self._take(2)
            length = second & 0x7F
            if length == 126:
                (length,) = struct.unpack("!H", self._take(2))
            elif length == 127:
                (length,) = struct.unpack("!Q", self._take(8))
            mask = self._take(4) if second & 0x80 else b""
            part = self._take(length)
            if mask:
                part = bytes(byte ^ mask[i % 4] for i, byte in enumerate(part))
            if first & 0x08:  # a control frame, which may arrive between the frames of a message
                return first & 0x0F, part
            kind = first & 0x0F or kind
            content += part
            if first & 0x80:
                return kind, content

    def _take(self, count: int) -> bytes:
        while len(self._received) < count:
            try:
                more = self._connection.recv(65536)
            except socket.timeout:  # noqa: UP041 (a class of its own before Python 3.10)
                self.write(PING, b"")
                continue
            if not more:
                raise ConnectionError("the connection to the API server was closed")
            self._received += more
        taken, self._received = self._received[:count], self._received[count:]
        return taken


@contextmanager
def open_exec_session(pod: str, container: str, command: list[str]) -> Iterator[WebSocketFrames]:
    """Start a command through the API server. Raises CommandNotStarted: the command was not
    started.
    """
    try:
        host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
        namespace = (SERVICE_ACCOUNT_PATH / "namespace").read_text().strip()
        token = (SERVICE_ACCOUNT_PATH / "token").read_text().strip()
        context = ssl.create_default_context(cafile=str(SERVICE_ACCOUNT_PATH / "ca.crt"))
        # Python 3.13 would refuse authorities that kubectl accepts, as old clusters have them.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    except (KeyError, OSError) as error:
        raise CommandNotStarted(f"this pod has no access to the API server: {error}") from error
    parameters = [("container", container), ("stdout", "true"), ("stderr", "true")]
    query = urlencode(parameters + [("command", word) for word in command])
    path = f"/api/v1/namespaces/{quote(namespace)}/pods/{quote(pod)}/exec?{query}"
    try:
        plain = socket.create_connection((host, int(port)), timeout=PING_EVERY_S)
    except OSError as error:
        raise CommandNotStarted(f"cannot reach the API server: {error}", may_pass=True) from error
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    with plain, _wrap_tls(context, plain, host) as connection:
        yield WebSocketFrames(connection, _upgrade_connection(connection, address, path, token))


def _wrap_tls(context: ssl.SSLContext, plain: socket.socket, host: str) -> ssl.SSLSocket:
    try:
        return context.wrap_socket(plain, server_hostname=host)
    except OSError as error:
        again = not isinstance(error, ssl.SSLError)
        raise CommandNotStarted(f"no TLS with the API server: {error}", may_pass=again) from error


def _upgrade_connection(connection: ssl.SSLSocket, authority: str, path: str, token: str) -> bytes:
    """Request a WebSocket; return the bytes that follow the response header."""
    request = [
        f"GET {path} HTTP/1.1",
        f"Host: {authority}",
        f"Authorization: Bearer {token}",
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}",
        f"Sec-WebSocket-Protocol: {PROTOCOLS}",
        "\r\n",
    ]
    answer = b""
    try:
        connection.sendall("\r\n".join(request).encode())
        while b"\r\n\r\n" not in answer:
            more = connection.recv(65536)
            if not more:
                raise ConnectionError("the connection was closed")
            answer += more
    except OSError as error:  # the server may have run the command: not repeatable
        raise CommandNotStarted(f"no response from the API server: {error}") from error
    head, _, rest = answer.partition(b"\r\n\r\n")
    status = int(head.split()[1])
    if status != 101:
        raise CommandNotStarted(
            f"HTTP {status}: {_error_message(rest)}", may_pass=status == 429 or status >= 500
        )
    return rest


def _error_message(body: bytes) -> str:
    try:
        status = json.loads(body)
    except ValueError:
        return body.decode(errors="replace").strip()
    return str(status.get("message", status))


def relay_output(frames: WebSocketFrames) -> int:
    """Relay the command's output until it ends; return its exit code."""
    outputs = {CHANNEL_STDOUT: sys.stdout.buffer, CHANNEL_STDERR: sys.stderr.buffer}
    while True:
        kind, content = frames.read()
        if kind == PING:
            frames.write(PONG, content)
        elif kind == CLOSE:
            raise ConnectionError("the API server ended the connection while the command ran")
        elif kind == BINARY and content[0] in outputs:
            outputs[content[0]].write(content[1:])
            outputs[content[0]].flush()
        elif kind == BINARY and content[0] == CHANNEL_STATUS:
            return exit_code(json.loads(content[1:]))


def exit_code(outcome: Any) -> int:
    """Return the exit code of a command. Raises CommandNotStarted: the command was not started."""
    if outcome.get("status") == "Success":
        return 0
    for cause in (outcome.get("details") or {}).get("causes") or []:
        if cause.get("reason") == "ExitCode":
            return int(cause["message"])
    raise CommandNotStarted(outcome.get("message", str(outcome)))


def main(arguments: list[str]) -> int:
    """Run the command; retry if the API server is overloaded."""
    if len(arguments) < 3:
        print("usage: kubexec.py POD CONTAINER COMMAND [ARGUMENT ...]", file=sys.stderr)
        return 2
    pod, container, *command = arguments
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with open_exec_session(pod, container, command) as frames:
                return relay_output(frames)
        except CommandNotStarted as error:
            if not error.may_pass or attempt == ATTEMPTS:
                print(f"kubexec: cannot run in pod {pod}: {error}", file=sys.stderr)
                return CANNOT_RUN
        except OSError as error:  # also if standard output is closed
            print(f"kubexec: pod {pod}: {error}", file=sys.stderr)
            return CANNOT_RUN
        time.sleep(attempt)
    return CANNOT_RUN


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
