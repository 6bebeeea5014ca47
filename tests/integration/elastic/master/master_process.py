"""A master as a process of its own, which tests kill and start again, and agents of a job."""

import os
import secrets
import subprocess
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Self

from gangline.elastic.protocol.channel import JobSecret
from gangline.elastic.protocol.client import ClientIdentity, MasterClient
from gangline.elastic.protocol.messages import Join, WorldInfo

PATIENCE_S = 90.0


@dataclass
class MasterProcess:
    """``python -m gangline.elastic.master`` with a journal in ``folder``."""

    folder: Path
    secret_text: str = field(default_factory=partial(secrets.token_hex, 32))
    port: int = 0
    flags: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    largest_file: int | None = None
    """Limit of file sizes for the process, to simulate a full disk."""
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def secret(self) -> JobSecret:
        return JobSecret(bytes.fromhex(self.secret_text))

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self, *, journal: bool = True) -> Self:
        """Start it on its previous port, or any; return when it reports that it listens."""
        command = [sys.executable, "-m", "gangline.elastic.master", "--job-name", "train"]
        command += ["--host", "127.0.0.1", "--port", str(self.port), *self.flags]
        if journal:
            command += ["--journal", str(self.folder / "journal")]
        if self.largest_file is not None:
            command = ["prlimit", f"--fsize={self.largest_file}", *command]
        self.process = subprocess.Popen(
            command,
            env={**os.environ, **self.environment, "GANGLINE_JOB_SECRET": self.secret_text},
            stdout=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        said = self.process.stdout.readline().decode()
        assert "listens on port" in said, said
        self.port = int(said.rsplit(" ", 1)[1])
        return self

    def kill(self) -> None:
        """SIGKILL."""
        assert self.process is not None
        self.process.kill()
        self.ended()

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        assert self.process is not None
        self.process.terminate()
        return self.ended()

    def ended(self) -> int:
        assert self.process is not None
        code = self.process.wait(PATIENCE_S)
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.process = None
        return code

    async def agent(self, stack: AsyncExitStack, node: int) -> MasterClient:
        """The client of a node's agent, until the stack unwinds."""
        name = ClientIdentity("train", node_id=node, incarnation=f"i{node}")
        return await stack.enter_async_context(MasterClient(self.address, self.secret, name))


def a_join(node: int, number: int = 1, *, lowest: int = 2, highest: int = 2) -> Join:
    return Join(
        node_id=node, incarnation=f"i{node}", number=number, node_rank=node, host=f"h{node}",
        store_port=20000 + number, min_nodes=lowest, max_nodes=highest, last_call_s=1.0,
        wait_s=5.0,
    )  # fmt: skip


async def world_for(client: MasterClient, join: Join) -> WorldInfo:
    """Join until there is a world."""
    while True:
        reply = await client.call(join, timeout_s=PATIENCE_S)
        if isinstance(reply, WorldInfo):
            return reply
