"""Substitution of paths and names where nothing can be mounted."""

from pathlib import Path

from gangline.local.kubelet.runtime.interface import ContainerMount, ContainerPlan
from gangline.local.kubelet.runtime.process_runtime import parse_hosts, with_host_paths

ADDRESSES = {"digits-master-0": "127.64.0.3"}


def plan(*argv: str, workdir: str = "/", **env: str) -> ContainerPlan:
    """A container with a volume, and another one inside it."""
    mounts = (
        ContainerMount(Path("/v/data"), "/data"),
        ContainerMount(Path("/v/inner"), "/data/inner"),
    )
    return ContainerPlan("uid", "default", "pod", "main", 0, argv, env, Path("/s"), workdir, mounts)


def test_mount_paths_in_the_command_become_the_volumes_folders() -> None:
    changed = with_host_paths(plan("cat", "/data/a", "--out=/data/b", "cp /data/x /data;"), {})
    assert changed.argv == ("cat", "/v/data/a", "--out=/v/data/b", "cp /v/data/x /v/data;")


def test_a_mount_inside_another_wins() -> None:
    assert with_host_paths(plan("ls", "/data/inner/x"), {}).argv == ("ls", "/v/inner/x")


def test_paths_with_a_common_prefix_stay() -> None:
    arguments = ("/database", "/srv/data/x", "./data", "/data-2", "/data.txt")
    assert with_host_paths(plan(*arguments), {}).argv == arguments


def test_environment_and_working_folder_are_written_out_too() -> None:
    changed = with_host_paths(plan("x", workdir="/data", CACHE="/data/c:/usr"), {})
    assert (changed.workdir, changed.env["CACHE"]) == ("/v/data", "/v/data/c:/usr")


def test_names_of_services_become_addresses_alone_or_with_a_port() -> None:
    variables = {"MASTER_ADDR": "digits-master-0", "PET_RDZV_ENDPOINT": "digits-master-0:29400"}
    changed = with_host_paths(plan("x", **variables), ADDRESSES)
    assert changed.env == {"MASTER_ADDR": "127.64.0.3", "PET_RDZV_ENDPOINT": "127.64.0.3:29400"}


def test_names_in_sentences_and_unknown_names_stay() -> None:
    variables = {"MASTER_ADDR": "ask digits-master-0", "OTHER_HOST": "other:80"}
    assert with_host_paths(plan("x", **variables), ADDRESSES).env == variables


def test_a_pods_own_name_stays_its_name() -> None:
    variables = {"HOSTNAME": "digits-master-0", "POD_NAME": "digits-master-0"}
    assert with_host_paths(plan("x", **variables), ADDRESSES).env == variables


def test_the_first_address_of_a_name_counts() -> None:
    hosts = "127.0.0.1 localhost # own\n\n127.64.0.3\tdigits-master-0 digits\n127.64.0.4 digits\n"
    assert parse_hosts(hosts) == {
        "localhost": "127.0.0.1",
        "digits-master-0": "127.64.0.3",
        "digits": "127.64.0.3",
    }
