"""Substitution of paths and names where nothing can be mounted."""

from pathlib import Path

import pytest

from gangline.local.kubelet.runtime.interface import ContainerMount, ContainerPlan
from gangline.local.kubelet.runtime.process_runtime import parse_hosts, with_host_paths

OTHERS = ("/database", "/srv/data/x", "./data", "/data-2", "/data.txt")
ADDRESSES = {"digits-master-0": "127.64.0.3"}


def plan(*argv: str, workdir: str = "/", **env: str) -> ContainerPlan:
    """A container with a volume, and another one inside it."""
    mounts = (
        ContainerMount(Path("/v/data"), "/data"),
        ContainerMount(Path("/v/inner"), "/data/inner"),
    )
    return ContainerPlan("uid", "default", "pod", "main", 0, argv, env, Path("/s"), workdir, mounts)


@pytest.mark.parametrize(
    ("argv", "changed"),
    [
        pytest.param(
            ("cat", "/data/a", "--out=/data/b", "cp /data/x /data;"),
            ("cat", "/v/data/a", "--out=/v/data/b", "cp /v/data/x /v/data;"),
            id="the volume's folders",
        ),
        pytest.param(("/data/inner/x",), ("/v/inner/x",), id="a mount inside another wins"),
        pytest.param(OTHERS, OTHERS, id="paths with a common prefix stay"),
    ],
)
def test_mount_paths_in_the_command_are_real(
    argv: tuple[str, ...], changed: tuple[str, ...]
) -> None:
    assert with_host_paths(plan(*argv), {}).argv == changed
    moved = with_host_paths(plan("x", workdir=argv[-1], CACHE=f"{argv[-1]}:/usr"), {})
    assert (moved.workdir, moved.env["CACHE"]) == (changed[-1], f"{changed[-1]}:/usr")


@pytest.mark.parametrize(
    ("name", "value", "changed"),
    [
        ("MASTER_ADDR", "digits-master-0", "127.64.0.3"),
        ("PET_RDZV_ENDPOINT", "digits-master-0:29400", "127.64.0.3:29400"),
        ("MASTER_ADDR", "ask digits-master-0", "ask digits-master-0"),
        ("OTHER_HOST", "other:80", "other:80"),
        ("HOSTNAME", "digits-master-0", "digits-master-0"),
        ("POD_NAME", "digits-master-0", "digits-master-0"),
    ],
)
def test_names_become_addresses_in_variables_for_addresses(
    name: str, value: str, changed: str
) -> None:
    assert with_host_paths(plan("x", **{name: value}), ADDRESSES).env == {name: changed}


def test_the_first_address_of_a_name_counts() -> None:
    hosts = "127.0.0.1 localhost # own\n\n127.64.0.3\tdigits-master-0 digits\n127.64.0.4 digits\n"
    assert parse_hosts(hosts) == {
        "localhost": "127.0.0.1",
        "digits-master-0": "127.64.0.3",
        "digits": "127.64.0.3",
    }
