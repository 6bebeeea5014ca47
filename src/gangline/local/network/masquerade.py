"""Connections from pods to other hosts: masquerading on the host's uplink, as container engines do
it.

Three changes are made and undone at the end: an nftables table with the cluster's prefix, rules
that accept the packets in a filter that drops forwarded ones, and IP forwarding for the bridge and
the uplink only. Write-ahead order: the previous state is stored first (`STATE_FILE`), so that the
changes can be undone after a kill. If a change fails, pods still reach each other, and the log has
a message.
"""

import asyncio
import contextlib
import logging
from pathlib import Path

from gangline.local.network import iproute2
from gangline.local.network.addresses import Network
from gangline.local.network.interface import NetworkError

log = logging.getLogger(__name__)

STATE_FILE = "outside"
FORWARDING = Path("/proc/sys/net/ipv4/conf")
LINKS = Path("/sys/class/net")
TABLE = """\
table ip {name} {{
    chain leave {{
        type nat hook postrouting priority 100;
        ip saddr {pods} ip daddr != {pods} masquerade
    }}
}}
"""


async def enable_masquerade(data: Path, bridge: str, pods: Network) -> None:
    """Enable connections from pods to other hosts, as far as the host has the tools."""
    try:
        uplink = await _uplink()
        if not uplink:
            return
        filtered = await _is_filtered()
        was = await asyncio.to_thread(_write_state, data, uplink, filtered)
        for rule in _rules(bridge) if filtered else ():
            await iproute2.run_command("iptables", "-w", "-I", "FORWARD", *rule)
        await iproute2.run_command("nft", "-f", "-", text=TABLE.format(name=bridge, pods=pods))
        await asyncio.to_thread(_set_forwarding, bridge, "1")
        if was == "0":
            await asyncio.to_thread(_set_forwarding, uplink, "1")
    except (NetworkError, OSError) as error:
        log.info("pods cannot reach other hosts: %s", error)


async def disable_masquerade(data: Path, bridge: str) -> None:
    """Undo the changes of `enable_masquerade`, if there are any."""
    record = data / "network" / STATE_FILE
    uplink, was, filtered = await asyncio.to_thread(_read_state, record)
    if not uplink:
        return
    await _run_ignoring_errors("nft", "delete", "table", "ip", bridge)
    for rule in _rules(bridge) if filtered else ():
        await _run_ignoring_errors("iptables", "-w", "-D", "FORWARD", *rule)
    if was == "0" and not await asyncio.to_thread(_other_bridges, bridge):
        with contextlib.suppress(OSError):
            await asyncio.to_thread(_set_forwarding, uplink, "0")
    record.unlink(missing_ok=True)


def _rules(bridge: str) -> list[tuple[str, ...]]:
    answers = ("-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED")
    return [("-i", bridge, "-j", "ACCEPT"), ("-o", bridge, *answers, "-j", "ACCEPT")]


async def _uplink() -> str:
    for route in await iproute2.query_json("-4", "route", "show", "default"):
        return str(route.get("dev", ""))
    return ""


async def _is_filtered() -> bool:
    """True if the host's filter may drop forwarded packets, as with container engines.

    A filter that drops nothing is left alone: adding a rule creates its tables, and removing the
    rule would not remove them.
    """
    try:
        rules = await iproute2.run_command("iptables", "-w", "-S", "FORWARD")
    except NetworkError:
        return False
    return rules.split() != ["-P", "FORWARD", "ACCEPT"]


async def _run_ignoring_errors(*command: str) -> None:
    try:
        await iproute2.run_command(*command)
    except NetworkError as error:
        log.debug("nothing to undo: %s", error)


def _write_state(data: Path, uplink: str, filtered: bool) -> str:
    was = (FORWARDING / uplink / "forwarding").read_text().strip()
    path = data / "network" / STATE_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{uplink} {was} {'filtered' if filtered else 'open'}\n")
    return was


def _read_state(record: Path) -> tuple[str, str, bool]:
    try:
        uplink, was, filtered = record.read_text().split()
    except (OSError, ValueError):
        return "", "", False
    return uplink, was, filtered == "filtered"


def _set_forwarding(link: str, value: str) -> None:
    (FORWARDING / link / "forwarding").write_text(value)


def _other_bridges(bridge: str) -> list[str]:
    """Bridges of other clusters, which still need forwarding on the uplink."""
    found = (path.name for path in LINKS.glob("gl*") if (path / "bridge").is_dir())
    return [name for name in found if name != bridge]
