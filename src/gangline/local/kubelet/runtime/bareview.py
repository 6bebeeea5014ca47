"""What a container is told where nothing can be mounted: real paths and addresses instead.

Without permission for namespaces a volume cannot appear at its mount path, and the pod's hosts file
cannot stand in for the machine's. So both are written out: a mount path in the command, in the
environment or as the working folder becomes the volume's own folder, and the name of a service or
pod, alone or with a port, becomes its address in variables that are called like one
(``MASTER_ADDR``, ``PET_RDZV_ENDPOINT``). What a program asks for by a path or name that it makes up
itself is not found; that is the price.
"""

import re
from collections.abc import Mapping
from dataclasses import replace

from gangline.local.kubelet.runtime.contract import ContainerPlan

HOSTS = "/etc/hosts"
_ADDRESS_VARIABLE = re.compile(r".*(ADDR|ADDRESS|HOST|ENDPOINT)")
_NAME_AND_PORT = re.compile(r"(?P<name>[a-z0-9][a-z0-9.-]*)(?P<port>:\d+)?")


def written_out(plan: ContainerPlan, addresses: Mapping[str, str]) -> ContainerPlan:
    """Return the plan with real paths, and with addresses where ``addresses`` knows the name."""
    folders = {mount.target.rstrip("/"): str(mount.source) for mount in plan.mounts}
    folders.pop(HOSTS, None)
    return replace(
        plan,
        argv=tuple(_with_folders(part, folders) for part in plan.argv),
        env={
            name: _with_address(value, addresses)
            if _ADDRESS_VARIABLE.fullmatch(name)
            else _with_folders(value, folders)
            for name, value in plan.env.items()
        },
        workdir=_with_folders(plan.workdir, folders),
    )


def addresses_in(hosts: str) -> dict[str, str]:
    """Read a hosts file: the address of each name; of several the first."""
    found: dict[str, str] = {}
    for line in hosts.splitlines():
        address, *names = line.partition("#")[0].split() or [""]
        for name in names:
            found.setdefault(name, address)
    return found


def _with_folders(text: str, folders: Mapping[str, str]) -> str:
    if not folders or "/" not in text:
        return text
    # Longest first, so that a mount inside another one wins; all in one pass, so that a folder
    # that was put in is not looked at again.
    targets = "|".join(re.escape(target) for target in sorted(folders, key=len, reverse=True))
    pattern = rf"(?<![\w./-])({targets})(?![\w.-])"
    return re.sub(pattern, lambda match: folders[match[1]], text)


def _with_address(text: str, addresses: Mapping[str, str]) -> str:
    match = _NAME_AND_PORT.fullmatch(text)
    if match is None or match["name"] not in addresses:
        return text
    return addresses[match["name"]] + (match["port"] or "")
