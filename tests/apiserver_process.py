"""An API server in a process of its own, as `gangline apiserver`, on a port that it prints."""

import argparse
import asyncio
import signal
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path

from gangline.local.apiserver.audit import AuditSettings
from gangline.local.apiserver.server import ApiServer, ApiServerSettings
from gangline.local.apiserver.storage.durable_files import Durability

STARTS_WITHIN_S = 60


async def start(data: Path, *arguments: str, env: dict[str, str] | None = None) -> Process:
    """Return the process of a server, once it responds."""
    program = (sys.executable, __file__, "--data", str(data), *arguments)
    process = await asyncio.create_subprocess_exec(*program, stdout=PIPE, env=env)
    assert process.stdout is not None
    async with asyncio.timeout(STARTS_WITHIN_S):
        assert (await process.stdout.readline()).startswith(b"https://")
    return process


async def refusal(data: Path, *arguments: str) -> str:
    """Return the message of ``gangline apiserver``, which must end with an error."""
    program = (sys.executable, "-m", "gangline", "apiserver", "--port", "0", "--data-dir")
    process = await asyncio.create_subprocess_exec(*program, str(data), *arguments, stderr=PIPE)
    _, output = await process.communicate()
    assert process.returncode == 1
    return output.decode()


async def serve(settings: ApiServerSettings) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    server = ApiServer(settings)
    await server.start()
    print(server.url, flush=True)
    await stop.wait()
    await server.stop()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--durability", type=Durability, default=Durability.DISK)
    parser.add_argument("--encryption-key", type=Path)
    parser.add_argument("--audit-log", type=lambda path: AuditSettings(Path(path)), dest="audit")
    asyncio.run(serve(ApiServerSettings(**vars(parser.parse_args(arguments)))))


if __name__ == "__main__":
    main()
