"""The API server alone: ``python -m gangline.local.apiserver --data FOLDER [--port N]``.

Prints its address when it is ready to serve. Stops on SIGTERM or SIGINT.
"""

import argparse
import asyncio
import signal
import sys
from pathlib import Path

import uvloop

from gangline.local.apiserver.auth.pki import CertificateError
from gangline.local.apiserver.memory import configure_allocator
from gangline.local.apiserver.server import ApiServer, ApiServerSettings
from gangline.local.apiserver.storage.sqlite import DatabaseError


async def serve(settings: ApiServerSettings) -> None:
    """Serve until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    server = ApiServer(settings)
    await server.start()
    print(server.url, flush=True)
    await stop.wait()
    await server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m gangline.local.apiserver")
    parser.add_argument("--data", type=Path, required=True, help="folder of the state")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=0, help="port to listen on; 0: a free one")
    given = parser.parse_args()
    configure_allocator()
    try:
        uvloop.run(serve(ApiServerSettings(data=given.data, host=given.host, port=given.port)))
    except (DatabaseError, CertificateError, OSError) as error:
        sys.exit(f"the API server cannot start: {error}")


if __name__ == "__main__":
    main()
