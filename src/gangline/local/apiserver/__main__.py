"""The API server alone: ``python -m gangline.local.apiserver --data FOLDER [--port N]``.

Prints its address when it is ready to serve. Stops on SIGTERM or SIGINT.
"""

import argparse
import asyncio
import signal
import sys
from pathlib import Path

import uvloop

from gangline.local.apiserver.audit import AuditSettings
from gangline.local.apiserver.auth.pki import CertificateError
from gangline.local.apiserver.memory import configure_allocator
from gangline.local.apiserver.server import ApiServer, ApiServerSettings
from gangline.local.apiserver.storage.durable_files import Durability
from gangline.local.apiserver.storage.encryption import EncryptionKeyError
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
    parser.add_argument(
        "--durability",
        type=Durability,
        choices=list(Durability),
        default=Durability.DISK,
        help="what an acknowledged write survives: a power failure, or the process alone",
    )
    parser.add_argument("--encryption-key", type=Path, help="file of keys that encrypt Secrets")
    parser.add_argument("--audit-log", type=Path, help="file of audit events; default: none")
    parser.add_argument(
        "--audit-log-maxsize", type=int, default=100, help="MiB at which this file is rotated"
    )
    parser.add_argument(
        "--audit-log-maxbackup", type=int, default=10, help="number of rotated files to keep"
    )
    given = parser.parse_args()
    configure_allocator()
    audit = None
    if given.audit_log is not None:
        audit = AuditSettings(given.audit_log, given.audit_log_maxsize, given.audit_log_maxbackup)
    settings = ApiServerSettings(
        data=given.data,
        host=given.host,
        port=given.port,
        durability=given.durability,
        encryption_key=given.encryption_key,
        audit=audit,
    )
    try:
        uvloop.run(serve(settings))
    except (DatabaseError, EncryptionKeyError, CertificateError, OSError) as error:
        sys.exit(f"the API server cannot start: {error}")


if __name__ == "__main__":
    main()
