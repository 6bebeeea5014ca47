"""Shell completion through the protocol of the completion scripts.

Takes 30 s: each word that is completed is a process.
"""

import asyncio
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from gangline.api.resources import (
    NAMESPACES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PODS,
    PYTORCH_JOBS,
    QUEUES,
    TF_JOBS,
)
from gangline.kube.client.client import ApiClient
from gangline.local.apiserver.server import ApiServer
from gangline.local.custom_resources import install_definitions
from integration.cluster.embedded import EmbeddedCluster, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

TEMPLATE = {"spec": {"containers": [{"name": "pytorch", "image": "i", "command": ["x"]}]}}
WORKERS = {"Worker": {"replicas": 1, "template": TEMPLATE}}
TF_TEMPLATE = {"spec": {"containers": [{"name": "tensorflow", "image": "i", "command": ["x"]}]}}


async def fill(client: ApiClient) -> None:
    await install_definitions(client)
    for name in ("team-a", "team-b"):
        await client.create(NAMESPACES, {"metadata": {"name": name}})
    for name, namespace in (("digits", "default"), ("dates", "default"), ("args", "team-a")):
        body = {"metadata": {"name": name}, "spec": {"pytorchReplicaSpecs": WORKERS}}
        await client.create(PYTORCH_JOBS, body, namespace)
    replicas = {"Worker": {"replicas": 1, "template": TF_TEMPLATE}}
    body = {"metadata": {"name": "dunes"}, "spec": {"tfReplicaSpecs": replicas}}
    await client.create(TF_JOBS, body, "default")
    labels = {
        "training.kubeflow.org/job-name": "digits",
        "training.kubeflow.org/replica-type": "worker",
        "training.kubeflow.org/replica-index": "0",
    }
    metadata = {"name": "digits-worker-0", "labels": labels}
    await client.create(PODS, {"metadata": metadata, **TEMPLATE}, "default")
    await client.create(NODES, {"metadata": {"name": "node-7"}})
    await client.create(QUEUES, {"metadata": {"name": "research"}, "spec": {}})
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
    }
    await client.create(
        PERSISTENT_VOLUME_CLAIMS, {"metadata": {"name": "pictures"}, "spec": spec}, "default"
    )


async def offered(environment: dict[str, str], line: str) -> list[str]:
    """What bash is offered for the last word of a line; nothing may be written besides."""
    args = [*shlex.split(line), *([""] if line.endswith(" ") else [])]
    completion = {
        "_GANGLINE_COMPLETE": "bash_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(args) - 1),
    }
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "gangline"],
        env=environment | completion,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert not done.stderr, done.stderr
    return [each.removeprefix("plain,") for each in done.stdout.split()]


def environment_of(kubeconfig: Path, home: Path) -> dict[str, str]:
    """Of a person at a machine so slow that a second may not do."""
    patience = {"GANGLINE_COMPLETION_TIMEOUT": "60"}
    return {**os.environ, "KUBECONFIG": str(kubeconfig), "HOME": str(home), **patience}


async def _expect(environment: dict[str, str], cases: Sequence[tuple[str, list[str]]]) -> None:
    two = asyncio.Semaphore(2)

    async def one(line: str) -> list[str]:
        async with two:
            return await offered(environment, line)

    found = await asyncio.gather(*(one(line) for line, _ in cases))
    assert dict(zip((line for line, _ in cases), found, strict=True)) == dict(cases)


async def test_names_that_the_cluster_knows_are_offered(
    api_server: ApiServer, client: ApiClient, tmp_path: Path
) -> None:
    await fill(client)
    environment = environment_of(api_server.kubeconfig, tmp_path)
    cases = [
        ("gangline get d", ["dates", "digits", "dunes"]),
        ("gangline get -T tf ", ["dunes"]),
        ("gangline logs -n team-a ", ["args"]),
        ("gangline delete digits d", ["dates", "dunes"]),
        ("gangline logs digits -i ", ["worker-0"]),
        ("gangline exec digits -c ", ["pytorch"]),
        ("gangline list -n team", ["team-a", "team-b"]),
        ("gangline top node ", ["node-7"]),
        ("gangline queue close re", ["research"]),
        ("gangline submit pytorch --queue re", ["research"]),
        ("gangline submit tf --data ", ["pictures"]),
        ("gangline port-forward pod/", ["pod/digits-worker-0"]),
    ]
    await _expect(environment, cases)


async def test_replicas_whose_pods_were_cleaned_up_are_offered_for_their_logs(
    shared_cluster: EmbeddedCluster,
) -> None:
    done = shared_cluster.run(
        "submit", "pytorch", "--name", "cleaned", "--image", "any", "--cpu", "50m",
        "--share-memory", "0", "--workers", "2", "--clean-task-policy", "All", "--wait", "true",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    async with shared_cluster.client() as client:

        async def gone() -> bool:
            labels = "training.kubeflow.org/job-name=cleaned"
            return not (await client.list(PODS, "default", labels=labels)).items

        await until(gone, 60.0)
    environment = shared_cluster.environment | {"GANGLINE_COMPLETION_TIMEOUT": "60"}
    names = await offered(environment, "gangline logs cleaned -i ")
    assert names == ["master-0", "worker-0"]
    shared_cluster.run("delete", "cleaned")


async def test_completion_without_cluster_offers_nothing_silently(tmp_path: Path) -> None:
    broken = tmp_path / "kubeconfig"
    broken.write_text("clusters: 7\n")
    settings = tmp_path / "config.yaml"
    settings.write_text("profiles: {research: {}, home: {}}")
    environment = environment_of(broken, tmp_path) | {"GANGLINE_CONFIG": str(settings)}
    cases = [
        ("gangline config use re", ["research"]),
        ("gangline get ", []),
        ("gangline get -T py", ["pytorchjob"]),
        ("gangline sub", ["submit"]),
        ("gangline --deb", ["--debug"]),
    ]
    await _expect(environment, cases)


async def test_completion_times_out_on_unresponsive_server(tmp_path: Path) -> None:
    async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_server(never, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\n"
            f"clusters: [{{name: c, cluster: {{server: 'http://127.0.0.1:{port}'}}}}]\n"
            "users: [{name: u, user: {}}]\n"
            "contexts: [{name: c, context: {cluster: c, user: u}}]\n"
        )
        environment = environment_of(kubeconfig, tmp_path) | {"GANGLINE_COMPLETION_TIMEOUT": "1"}
        assert await offered(environment, "gangline get ") == []


def at_a_shell(api_server: ApiServer, folder: Path) -> dict[str, str]:
    """The environment of a person whose shell finds the command in a folder."""
    tool = folder / "gangline"
    tool.write_text(f'#!/bin/sh\nexec {sys.executable} -m gangline "$@"\n')
    tool.chmod(0o755)
    environment = environment_of(api_server.kubeconfig, folder)
    return environment | {"PATH": f"{folder}:{environment['PATH']}", "TERM": "xterm"}


PRESS_IN_BASH = r"""
eval "$(gangline completion bash)"; COMP_WORDS=(gangline get di); COMP_CWORD=2
"$(complete -p gangline | sed "s/.*-F \([^ ]*\).*/\1/")" gangline di get
echo "${COMPREPLY[@]}" > "$HOME/line"
"""
PRESS_IN_FISH = 'gangline completion fish | source; complete -C "gangline get di" > $HOME/line'
PRESS_IN_ZSH = r"""
zmodload zsh/zpty
zpty typed zsh -f -i
zpty -w typed 'autoload -Uz compinit; compinit -u -D; eval "$(gangline completion zsh)"'
zpty -w typed 'show() { print -rn -- $BUFFER > $HOME/part; mv $HOME/part $HOME/line }'
zpty -w typed 'zle -N show; bindkey "^X" show; print rea""dy'
zpty -r typed fragment '*ready*'
zpty -n -w typed $'gangline get di\t\x18'
until [[ -e $HOME/line ]]; do zpty -r -t typed fragment; sleep 0.1; done
"""
"""Keys pressed in an interactive shell on a terminal; the last one writes down the line so far."""

SHELLS = [
    pytest.param("bash", ("-c", PRESS_IN_BASH), "digits\n", id="bash"),
    pytest.param("fish", ("-c", PRESS_IN_FISH), "digits\n", id="fish"),
    pytest.param("zsh", ("-f", "-c", PRESS_IN_ZSH), "gangline get digits ", id="zsh"),
]


@pytest.mark.parametrize(("shell", "arguments", "line"), SHELLS)
async def test_a_shell_completes_a_job(
    api_server: ApiServer,
    client: ApiClient,
    tmp_path: Path,
    shell: str,
    arguments: tuple[str, ...],
    line: str,
) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell}")
    await fill(client)
    done = await asyncio.to_thread(
        subprocess.run,
        [shell, *arguments],
        env=at_a_shell(api_server, tmp_path),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert (tmp_path / "line").read_text() == line, done
