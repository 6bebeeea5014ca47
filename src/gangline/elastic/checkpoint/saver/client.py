"""The connection of a process to the saver of its node; it starts the saver if none is running."""

import contextlib
import logging
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from gangline.elastic.checkpoint.errors import CheckpointError
from gangline.elastic.checkpoint.saver import messages
from gangline.elastic.checkpoint.saver.messages import (
    ClientFinished,
    FlushReply,
    FlushRequest,
    SaverMessage,
    StorageOutcome,
)
from gangline.elastic.checkpoint.snapshot import directory

log = logging.getLogger(__name__)
START_TIMEOUT_S = 30.0
"""Time for a started saver to answer."""
FLUSH_RETRY_S = 5.0
FINISH_TIMEOUT_S = 5.0


def start_saver(job_folder: Path) -> subprocess.Popen[bytes]:
    """Start a saver in a session of its own, so that it survives its parent's process group."""
    return subprocess.Popen(
        [sys.executable, "-m", "gangline.elastic.checkpoint.saver.process", str(job_folder)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={key: value for key, value in os.environ.items() if key != "GANGLINE_FAILPOINT"}
        | {"GANGLINE_FAILPOINT": os.environ.get("GANGLINE_SAVER_FAILPOINT", "")},
    )


class SaverClient:
    """Connection to the saver, which reconnects after the saver was killed."""

    def __init__(self, job_folder: Path, introduction: SaverMessage | None = None) -> None:
        self.job_folder, self.hello = job_folder, introduction
        self.outcomes: list[StorageOutcome] = []
        """What the saver has reported and the owner has not processed yet."""
        self.flushed: list[int | None] = []
        self._socket: socket.socket | None = None
        self._unread = b""
        self._speaking = threading.Lock()
        self._started: subprocess.Popen[bytes] | None = None

    def finish(self) -> None:
        """Report that training has finished, and wait a few seconds until the saver has read it.

        The saver may be sending at this moment: closing a socket with unread data resets the
        connection and would lose the last message.
        """
        self.send(ClientFinished())
        deadline = time.monotonic() + FINISH_TIMEOUT_S
        with contextlib.suppress(OSError):
            assert self._socket is not None
            self._socket.shutdown(socket.SHUT_WR)
            while (left := deadline - time.monotonic()) > 0:
                if not select.select([self._socket], [], [], left)[0]:
                    break
                if not self._socket.recv(1 << 16):
                    break

    def close(self) -> None:
        self._hang_up()
        if self._started is not None:
            self._started.poll()  # the saver continues; if it has ended, this reaps it
            self._started.returncode = self._started.returncode or 0
            self._started = None

    def _hang_up(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def connect(self) -> None:
        """Connect to the saver, and start it if none is running.

        Raises CheckpointError: it does not answer.
        """
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._try_connect():
            if not directory.is_saver_running(self.job_folder) and (
                self._started is None or self._started.poll() is not None
            ):
                self._started = start_saver(self.job_folder)
            if time.monotonic() > deadline:
                raise CheckpointError(
                    f"the saver for {self.job_folder} does not answer; "
                    f"see {self.job_folder}/saver.log"
                )
            time.sleep(0.02)

    def _try_connect(self) -> bool:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with directory.socket_address(self.job_folder) as address:
                connection.connect(address)
            if self.hello is not None:
                connection.sendall(messages.encode_message(self.hello))
        except OSError:
            connection.close()
            return False
        self._socket, self._unread = connection, b""
        return True

    def send(self, message: SaverMessage) -> None:
        """Send a message; reconnect if the saver is gone."""
        with self._speaking:  # another thread may complete a save
            for _ in range(2):
                try:
                    if self._socket is not None:
                        self._socket.sendall(messages.encode_message(message))
                        return
                except OSError:
                    self._hang_up()
                self.connect()

    def poll(self, timeout_s: float) -> bool:
        """Process messages of the saver for up to ``timeout_s``; return whether there were any."""
        with self._speaking:
            if self._socket is None:
                self.connect()
            connected = self._socket
        assert connected is not None
        try:
            if not select.select([connected], [], [], timeout_s)[0]:
                return False
            received = connected.recv(1 << 16)
        except (OSError, ValueError):  # another thread closed it meanwhile
            received = b""
        if not received:
            with self._speaking:
                if self._socket is connected:
                    self._hang_up()
            return False
        *lines, self._unread = (self._unread + received).split(b"\n")
        for line in lines:
            self._take(messages.decode_message(line))
        return True

    def _take(self, message: SaverMessage | None) -> None:
        match message:
            case StorageOutcome():
                if message.reason:
                    text = "is in storage" if message.committed else "is not in storage yet"
                    log.warning(
                        f"step {message.step} {text}: {message.reason}",
                        extra={"step": message.step, "reason": message.reason},
                    )
                self.outcomes.append(message)
            case FlushReply():
                self.flushed.append(message.step)


def job_directories(environment: Mapping[str, str]) -> list[Path]:
    """Return the shared-memory folders of this environment's job, one for each target."""
    job = directory.job_name(environment, "")
    return [
        job_folder
        for job_folder in directory.list_job_directories(directory.shared_memory_root(environment))
        if (settings := directory.read_settings(job_folder)) is not None and settings.job == job
    ]


def flush_job(environment: Mapping[str, str], timeout_s: float) -> dict[str, int | None]:
    """Write the newest complete save of this node to storage, for agents that must end.

    Returns for each target the step that is in storage now, ``None`` if none was written in time.
    It works after the training processes have died.
    """
    deadline = time.monotonic() + timeout_s
    newest_steps: dict[str, int | None] = {}
    for job_folder in job_directories(environment):
        settings = directory.read_settings(job_folder)
        if settings is None:
            continue  # the saver removed it just now
        link = SaverClient(job_folder)
        try:
            # Repeat the request: the saver that received it may have been about to end.
            while not link.flushed and (left := deadline - time.monotonic()) > 0:
                link.send(FlushRequest())
                link.poll(min(left, FLUSH_RETRY_S))
        except CheckpointError as error:
            log.warning("no saver writes the newest save", exc_info=error)
        finally:
            link.close()
        newest_steps[settings.target] = link.flushed[0] if link.flushed else None
    return newest_steps
