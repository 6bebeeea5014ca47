"""Environment variables and addresses that several packages read. Importing it costs nothing."""

import socket
from collections.abc import Mapping
from typing import Final

SECRET_VARIABLE: Final = "GANGLINE_JOB_SECRET"
"""The job's secret in hexadecimal digits."""
LOCAL_MASTER_VARIABLE: Final = "GANGLINE_LOCAL_MASTER_ADDR"
"""host:port of a master for the processes of a single node.

It differs from the variable with which a cluster names its master: with that one, a launcher
started by a worker would join this job as a node.
"""

NODE_VARIABLE: Final = "GANGLINE_NODE_ID"
"""The number of the node for its workers, where no cluster sets ``NODE_ID``."""

TUNING_FILE_VARIABLE: Final = "GANGLINE_TUNING_FILE"
"""The file to which the agent writes the tuning of the job; see ``agent.tuning_file``."""
FLUSH_RESULT_VARIABLE: Final = "GANGLINE_FLUSH_RESULT"
"""A file to which a process that saves the newest checkpoint writes the step of each target."""
LOADER_FILE_VARIABLES: Final = ("GANGLINE_PARALLEL_CONFIG", "DLROVER_PARAL_CONFIG_PATH")
"""Variables that may name the file that data loaders read; the first one that is set counts."""
SLOT_VARIABLE: Final = "GANGLINE_SURVIVOR_SLOT"
"""The slot of a worker whose place another one may take; see ``survivors.coordinator``."""
SUCCESSOR_VARIABLE: Final = "GANGLINE_SUCCESSOR_AFTER"
"""Set for a successor: the number of orders that were written before its start."""
FOLDER_VARIABLE: Final = "GANGLINE_SURVIVOR_FOLDER"
"""A folder in which workers keep what their successors need beside a replica's state."""


def node_number(environment: Mapping[str, str]) -> str:
    """Return the number of this node as text, empty where it has none.

    ``NODE_ID`` is DLRover's name, which a cluster sets. The launcher sets only its own name, since
    scripts may use that one for themselves.
    """
    return environment.get(NODE_VARIABLE) or environment.get("NODE_ID") or ""


DEFAULT_MASTER_PORT: Final = 50001


def join_address(host: str, port: int | str) -> str:
    """Return host:port, or [v6]:port. Only together with a port has an address brackets."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def listen_on_any_port(backlog: int = 128) -> socket.socket:
    """Listen on one free port of all addresses of this machine, of IPv4 and of IPv6."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(
            ("::", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=backlog
        )
    return socket.create_server(("", 0), backlog=backlog)


def split_address(address: str) -> tuple[str, int]:
    """Parse host:port, host, or [v6]:port. Raises ValueError: the port is no number."""
    host, colon, port = address.rpartition(":")
    if not colon or (":" in host and not host.startswith("[")):
        return address.strip("[]"), DEFAULT_MASTER_PORT
    if not port.isdecimal():
        raise ValueError(f"{address!r}: the port must be a number")
    return host.strip("[]"), int(port)
