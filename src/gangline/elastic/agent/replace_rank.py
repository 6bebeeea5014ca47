"""Replace a rank of a running job on purpose; the other ranks keep running.

    python -m gangline.elastic.agent.replace_rank RANK [--job NAME] [--reason TEXT]

runs on a node of the job, or in one of its pods, and asks the agent there, over a socket that only
the agent's user may use. ``gangline replace`` runs it in a pod. ``--job`` is the ``--rdzv-id`` of a
launcher, where several run on one machine.
"""

import asyncio
import json
import os
import socket
import struct
import sys
from collections.abc import Callable
from pathlib import Path

_PREFIX = "gangline-agent-"
_CREDENTIALS = struct.Struct("=iII")
_TIMEOUT_S = 10.0
_MAX_REQUEST = 1 << 14


def _names_begin() -> str:
    """Return what the names of agents in this container begin with."""
    return f"{_PREFIX}{os.stat('/proc/self/ns/pid').st_ino}-"


class ReplaceServer:
    """Takes requests for the ranks of one agent."""

    def __init__(self, job: str, replace: Callable[[int, str], str]) -> None:
        """Prepare.

        Args:
            replace: called with rank and reason; returns the answer.
        """
        self._job, self._replace = job, replace
        self._server: asyncio.Server | None = None

    async def listen(self) -> None:
        """Listen on an abstract address, which ends with this process."""
        name = f"\0{_names_begin()}{os.getpid()}"
        self._server = await asyncio.start_unix_server(self._answer, name, limit=_MAX_REQUEST)

    def close(self) -> None:
        if self._server:
            self._server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            peer: socket.socket = writer.get_extra_info("socket")
            size = _CREDENTIALS.size
            data = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
            if _CREDENTIALS.unpack(data)[1] not in (0, os.getuid()):
                return
            request = json.loads(await reader.readline())
            is_ours = request["job"] in ("", self._job)
            if is_ours and request["pod"] == os.environ.get("POD_NAME", ""):
                text = self._replace(int(request["rank"]), str(request["reason"]))
                writer.write(text.encode() + b"\n")
                await writer.drain()
        except (OSError, ValueError, KeyError, TypeError):
            return  # no request of this program
        finally:
            writer.close()


def request_replacement(rank: int, job: str, reason: str) -> str:
    """Ask the agents of this container; return the answer, empty if no agent knows the job."""
    lines = Path("/proc/net/unix").read_text().splitlines()
    names = {line.rpartition("@")[2] for line in lines if f"@{_names_begin()}" in line}
    request = {"rank": rank, "job": job, "reason": reason, "pod": os.environ.get("POD_NAME", "")}
    for name in sorted(names):
        with socket.socket(socket.AF_UNIX) as agent:
            agent.settimeout(_TIMEOUT_S)
            try:
                agent.connect(f"\0{name}")
                agent.sendall(json.dumps(request).encode() + b"\n")
                with agent.makefile("rb") as answers:
                    answer = answers.readline().decode().strip()
            except OSError:
                continue  # it has ended
            if answer:
                return answer
    return ""


def main() -> int:
    import argparse

    parser = argparse.ArgumentParser(prog="replace_rank", description=__doc__)
    parser.add_argument("rank", type=int)
    parser.add_argument("--job", default="")
    parser.add_argument("--reason", default="requested")
    options = parser.parse_args()
    answer = request_replacement(options.rank, options.job, options.reason)
    if not answer:
        print(
            "no agent here has ranks that can be replaced: the script must use SurvivorGroup, and "
            "have formed its group",
            file=sys.stderr,
        )
        return 1
    is_done = answer.startswith("rank")
    print(answer, file=sys.stdout if is_done else sys.stderr)
    return 0 if is_done else 1


if __name__ == "__main__":
    sys.exit(main())
