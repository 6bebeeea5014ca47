"""Containers without namespaces: real paths and addresses in place of mount paths and names.

Without permission for namespaces nothing can be mounted. So two substitutions are made in the plan:

1. a mount path in the command, the environment or the working folder becomes the volume's own
folder;
2. the name of a service or pod, with or without a port, becomes its address in variables that are
   named like one (``MASTER_ADDR``, ``PET_RDZV_ENDPOINT``).

Limit: paths and names that a program composes itself are not substituted.
"""

import re
from collections.abc import Mapping
from dataclasses import replace

from gangline.local.kubelet.runtime.interface import ContainerPlan

HOSTS = "/etc/hosts"
_ADDRESS_VARIABLE = re.compile(r".*(ADDR|ADDRESS|HOST|ENDPOINT)")
_NAME_AND_PORT = re.compile(r"(?P<name>[a-z0-9][a-z0-9.-]*)(?P<port>:\d+)?")


def with_host_paths(plan: ContainerPlan, addresses: Mapping[str, str]) -> ContainerPlan:
    """Return the plan with real paths, and with addresses for names in ``addresses``."""
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


def parse_hosts(hosts: str) -> dict[str, str]:
    """Parse a hosts file: the address of each name, the first one if there are several."""
    found: dict[str, str] = {}
    for line in hosts.splitlines():
        address, *names = line.partition("#")[0].split() or [""]
        for name in names:
            found.setdefault(name, address)
    return found


def _with_folders(text: str, folders: Mapping[str, str]) -> str:
    if not folders or "/" not in text:
        return text
    # Longest first, so that a mount inside another one wins. In a single pass, so that a
    # substituted folder is not substituted again.
    targets = "|".join(re.escape(target) for target in sorted(folders, key=len, reverse=True))
    pattern = rf"(?<![\w./-])({targets})(?![\w.-])"
    return re.sub(pattern, lambda match: folders[match[1]], text)


def _with_address(text: str, addresses: Mapping[str, str]) -> str:
    match = _NAME_AND_PORT.fullmatch(text)
    if match is None or match["name"] not in addresses:
        return text
    return addresses[match["name"]] + (match["port"] or "")
