"""How nodes find each other: a single node, the cluster's master, or a master on a node."""

import argparse
import math
from collections.abc import Mapping
from dataclasses import dataclass

from gangline.elastic.launcher.flags import FlagError
from gangline.elastic.variables import join_address

DEFAULT_STORE_PORT = 29_500
LOCAL_STORE_HOST = "localhost"
"""Host of the store of a single node: what torchrun gives its workers as MASTER_ADDR."""
JOIN_TIMEOUT_S = 600.0
CONNECT_TIMEOUT_S = 60.0
"""Used without a timeout of the user. A cluster starts all pods at the same time and uses a longer
one.
"""
_MAX_PORT = 65_535
_BACKENDS = ("static", "c10d", "gangline", "dlrover-master")
_JOIN_TIMES = ("join_timeout", "timeout", "pend_timeout")
_RDZV_KEYS = (*_JOIN_TIMES, "last_call_timeout", "lastcall_timeout", "node_unit", "is_host", "rank")
_TRUE_WORDS = ("1", "true", "t", "yes", "y")


@dataclass(frozen=True, slots=True)
class RendezvousConfig:
    """Number of nodes, and where the master is."""

    min_nodes: int = 1
    max_nodes: int = 1
    node_unit: int = 1
    master_address: str | None = None
    """host:port of the master; None for a single node."""
    is_managed_by_cluster: bool = False
    """True if a cluster runs the master and can replace this node."""
    hosts_master: bool | None = False
    """True if this node runs the master; None if that depends on the address."""
    node_id: int | None = None
    node_rank: int = -1
    witness_address: str | None = None
    """host:port of the cluster's API server, if a cluster can replace this node."""
    local_address: str | None = None
    """Address of this node for other nodes; None to find out."""
    store_host: str = LOCAL_STORE_HOST
    store_port: int | None = None
    """Port chosen by the user; None for a new one in each attempt."""
    join_timeout_s: float = JOIN_TIMEOUT_S
    connect_timeout_s: float = CONNECT_TIMEOUT_S
    """Maximum time to reach the master at the start."""
    last_call_s: float = 5.0


def parse_node_range(text: str) -> tuple[int, int]:
    """Parse ``2`` or ``1:4``. Raises FlagError: the text is neither, or the bounds are reversed."""
    least, _, most = text.partition(":")
    try:
        low, high = int(least), int(most or least)
    except ValueError:
        raise FlagError(f"--nnodes {text}: must be a number or MIN:MAX") from None
    if not 1 <= low <= high:
        raise FlagError(f"--nnodes {text}: at least one node, and no more than the maximum")
    return low, high


def build_rendezvous_config(
    flags: argparse.Namespace, environment: Mapping[str, str]
) -> RendezvousConfig:
    """Return how this node finds the others. Raises FlagError: flags contradict each other."""
    if flags.rdzv_backend not in _BACKENDS:
        raise FlagError(f"--rdzv-backend {flags.rdzv_backend}: no such server is needed; use c10d")
    conf = _parse_rdzv_conf(flags.rdzv_conf)
    low, high = parse_node_range(_node_count(flags, environment))
    rank = _node_rank(flags, environment, conf)
    given = environment.get("GANGLINE_MASTER_ADDR") or environment.get("DLROVER_MASTER_ADDR")
    local = (flags.local_addr or environment.get("POD_IP") or "").strip("[]") or None
    if flags.standalone and (high > 1 or (rank or 0) > 0):
        raise FlagError("--standalone is for one node; several nodes need --rdzv-endpoint")
    if flags.master_port:  # 0 is any port, as for torchrun
        _check_port("--master-port", str(flags.master_port))
    if flags.standalone or (
        high == 1 and not given and _is_single_node_endpoint(flags.rdzv_endpoint)
    ):
        own = flags.master_addr if "master_addr" in flags.given else local or LOCAL_STORE_HOST
        port = None if flags.standalone else flags.master_port or None
        return RendezvousConfig(store_host=own.strip("[]"), store_port=port)
    is_static = flags.rdzv_backend == "static" and not given
    if is_static and low == high and rank is not None and not 0 <= rank < high:
        raise FlagError(f"--node-rank {rank}: must be between 0 and {high - 1}, for {high} nodes")
    address, hosts = _master_address(flags, given, rank, conf)
    return RendezvousConfig(
        min_nodes=low,
        max_nodes=high,
        node_unit=_node_unit(flags, conf, high),
        master_address=address,
        is_managed_by_cluster=bool(given),
        hosts_master=hosts,
        node_id=_node_id(environment, rank) if given or rank is not None else None,
        node_rank=-1 if rank is None else rank,
        witness_address=_api_server(environment) if given else None,
        local_address=local,
        join_timeout_s=_seconds(conf, *_JOIN_TIMES, default=JOIN_TIMEOUT_S),
        connect_timeout_s=_seconds(
            conf, *_JOIN_TIMES, default=JOIN_TIMEOUT_S if given else CONNECT_TIMEOUT_S
        ),
        last_call_s=_seconds(conf, "last_call_timeout", "lastcall_timeout", default=5.0),
    )


def _api_server(environment: Mapping[str, str]) -> str | None:
    """Read the variables that Kubernetes sets in every container."""
    host = environment.get("KUBERNETES_SERVICE_HOST")
    port = environment.get("KUBERNETES_SERVICE_PORT", "443")
    return join_address(host, port) if host else None


def _parse_rdzv_conf(text: str) -> dict[str, str]:
    values = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = pair.partition("=")
        if not equals:
            raise FlagError(f"--rdzv-conf {pair}: must be KEY=VALUE")
        if key.strip() not in _RDZV_KEYS:
            raise FlagError(f"--rdzv-conf {key}: unknown; known are {', '.join(_RDZV_KEYS)}")
        values[key.strip()] = value.strip()
    return values


def _node_count(flags: argparse.Namespace, environment: Mapping[str, str]) -> str:
    number = environment.get("NODE_NUM")
    if flags.auto_config and number and "nnodes" not in flags.given:
        return number
    return str(flags.nnodes)


def _node_rank(
    flags: argparse.Namespace, environment: Mapping[str, str], conf: Mapping[str, str]
) -> int | None:
    text = next(
        filter(
            None, (conf.get("rank"), environment.get("NODE_RANK"), environment.get("WORKER_RANK"))
        ),
        None,
    )
    if flags.node_rank is not None:
        return int(flags.node_rank)
    try:
        return int(text) if text else None
    except ValueError:
        raise FlagError(f"the rank of this node must be a number, not {text}") from None


def _master_address(
    flags: argparse.Namespace,
    cluster_address: str | None,
    rank: int | None,
    conf: Mapping[str, str],
) -> tuple[str, bool | None]:
    if cluster_address:
        return _check_address("the master's address", cluster_address), False
    stated = conf["is_host"].lower() in _TRUE_WORDS if "is_host" in conf else None
    if flags.rdzv_endpoint:
        own = None if flags.rdzv_backend != "static" else (rank or 0) == 0
        address = _check_address("--rdzv-endpoint", flags.rdzv_endpoint)
        return address, own if stated is None else stated
    if flags.rdzv_backend != "static":
        raise FlagError("several nodes need a master: give --rdzv-endpoint HOST:PORT")
    if rank is None:
        raise FlagError("several nodes with --rdzv-backend static need --node-rank on each")
    address = join_address(flags.master_addr, flags.master_port or DEFAULT_STORE_PORT)
    _check_address("--master-addr and --master-port", address)
    return address, rank == 0 if stated is None else stated


def _is_single_node_endpoint(endpoint: str) -> bool:
    """True if no other node can connect: no endpoint, or any free port, as in torchrun."""
    return not endpoint or endpoint.endswith(":0")


def _node_id(environment: Mapping[str, str], rank: int | None) -> int:
    text = environment.get("NODE_ID") or environment.get("WORKER_ID") or str(rank or 0)
    if not text.isdecimal():
        raise FlagError(f"the number of this node (NODE_ID) must be a number, not {text}")
    return int(text)


def _check_address(what: str, address: str) -> str:
    """Validate a host:port, a host or a [v6]:port, and return it."""
    host, colon, port = address.rpartition(":")
    is_bare = not colon or (":" in host and not host.startswith("["))
    host = address if is_bare else host
    if not is_bare:
        _check_port(f"{what} {address}: the port", port)
    try:
        host.encode("idna")
    except UnicodeError:
        host = ""
    if not host.strip("[]"):
        raise FlagError(f"{what} {address}: must name a host")
    return address


def _check_port(what: str, text: str) -> None:
    if not text.isdecimal() or not 1 <= int(text) <= _MAX_PORT:
        raise FlagError(f"{what} {text}: must be between 1 and {_MAX_PORT}")


def _node_unit(flags: argparse.Namespace, conf: Mapping[str, str], high: int) -> int:
    text = conf.get("node_unit", str(flags.node_unit))
    unit = int(text) if text.isdecimal() else 0
    if not 1 <= unit <= high:
        raise FlagError(f"--node-unit {text}: must be between 1 and the maximum of --nnodes")
    return unit


def _seconds(conf: Mapping[str, str], *names: str, default: float) -> float:
    for name in names:
        if name in conf:
            try:
                seconds = float(conf[name])
            except ValueError:
                seconds = math.nan
            if not 0 <= seconds < math.inf:
                raise FlagError(f"--rdzv-conf {name}={conf[name]}: must be seconds")
            return seconds
    return default
