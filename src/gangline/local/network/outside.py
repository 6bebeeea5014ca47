"""The way from pods to the rest of the world: address translation on the host's uplink.

As container engines do it, with three things that are undone again: a table of nftables that
carries the cluster's prefix, rules that let the packets pass a filter that forbids forwarding, and
forwarding switched on for the bridge and the uplink alone. What was done is written down first
(`RECORD`), so that it can be undone after a kill. Where it cannot be done pods stay among
themselves, which is said in the log and breaks nothing.
"""

import asyncio
import contextlib
import logging
from pathlib import Path

from gangline.local.network import ip
from gangline.local.network.addresses import Network
from gangline.local.network.contract import NetworkError

log = logging.getLogger(__name__)

RECORD = "outside"
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


async def open_way(data: Path, bridge: str, pods: Network) -> None:
    """Let pods reach what the host reaches, as far as the host has the tools."""
    try:
        uplink = await _uplink()
        if not uplink:
            return
        filtered = await _is_filtered()
        was = await asyncio.to_thread(_record, data, uplink, filtered)
        for rule in _rules(bridge) if filtered else ():
            await ip.run("iptables", "-w", "-I", "FORWARD", *rule)
        await ip.run("nft", "-f", "-", text=TABLE.format(name=bridge, pods=pods))
        await asyncio.to_thread(_forward, bridge, "1")
        if was == "0":
            await asyncio.to_thread(_forward, uplink, "1")
    except (NetworkError, OSError) as error:
        log.info("pods have no way out: %s", error)


async def close_way(data: Path, bridge: str) -> None:
    """Undo what `open_way` did; does nothing where it did nothing."""
    record = data / "network" / RECORD
    uplink, was, filtered = await asyncio.to_thread(_recorded, record)
    if not uplink:
        return
    await _attempt("nft", "delete", "table", "ip", bridge)
    for rule in _rules(bridge) if filtered else ():
        await _attempt("iptables", "-w", "-D", "FORWARD", *rule)
    if was == "0" and not await asyncio.to_thread(_others, bridge):
        with contextlib.suppress(OSError):
            await asyncio.to_thread(_forward, uplink, "0")
    record.unlink(missing_ok=True)


def _rules(bridge: str) -> list[tuple[str, ...]]:
    answers = ("-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED")
    return [("-i", bridge, "-j", "ACCEPT"), ("-o", bridge, *answers, "-j", "ACCEPT")]


async def _uplink() -> str:
    for route in await ip.query("-4", "route", "show", "default"):
        return str(route.get("dev", ""))
    return ""


async def _is_filtered() -> bool:
    """Tell if forwarded packets could be dropped, as container engines have it.

    Where nothing is dropped the filter is left alone: putting a rule in makes its tables, which
    taking the rule out again does not remove.
    """
    try:
        rules = await ip.run("iptables", "-w", "-S", "FORWARD")
    except NetworkError:
        return False
    return rules.split() != ["-P", "FORWARD", "ACCEPT"]


async def _attempt(*command: str) -> None:
    try:
        await ip.run(*command)
    except NetworkError as error:
        log.debug("nothing to undo: %s", error)


def _record(data: Path, uplink: str, filtered: bool) -> str:
    was = (FORWARDING / uplink / "forwarding").read_text().strip()
    path = data / "network" / RECORD
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{uplink} {was} {'filtered' if filtered else 'open'}\n")
    return was


def _recorded(record: Path) -> tuple[str, str, bool]:
    try:
        uplink, was, filtered = record.read_text().split()
    except (OSError, ValueError):
        return "", "", False
    return uplink, was, filtered == "filtered"


def _forward(link: str, value: str) -> None:
    (FORWARDING / link / "forwarding").write_text(value)


def _others(bridge: str) -> list[str]:
    """Bridges of other clusters, which still need the uplink to forward."""
    found = (path.name for path in LINKS.glob("gl*") if (path / "bridge").is_dir())
    return [name for name in found if name != bridge]
