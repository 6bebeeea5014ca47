"""MPIJob of v2beta1 with real SSH servers: the launcher reaches its workers by the job's keys."""

import os
import shutil

import pytest

from e2e.jobs import template
from e2e.kinds import MPI_V2_JOBS
from e2e.scenario import Scenario

PORT = 2222
SERVER = (
    "mkdir -p /run/sshd; ssh-keygen -q -t ed25519 -N '' -f /scratch/host; "
    f"exec /usr/sbin/sshd -De -f /dev/null -p {PORT} -h /scratch/host "
    "-o StrictModes=no -o PidFile=none -o UsePAM=yes"
)
CLIENT = (
    "set -e; for host in $(cut -d' ' -f1 /etc/mpi/hostfile); do "
    f"ssh -p {PORT} -o BatchMode=yes -o StrictHostKeyChecking=no "
    '-o UserKnownHostsFile=/dev/null "$host" hostname; done > /shared/hosts'
)


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("/usr/sbin/sshd") is None,
    reason="needs root and an SSH server on this machine",
)
async def test_the_launcher_runs_programs_in_its_workers_by_ssh(scenario: Scenario) -> None:
    if scenario.cluster.kind != "embedded":
        pytest.skip("pods of this cluster have no SSH server")
    scenario = scenario.of(MPI_V2_JOBS)
    launcher, worker = template(CLIENT, shared=str(scenario.shared)), template(SERVER)
    container = worker["spec"]["containers"][0]
    container["volumeMounts"] = [{"name": "scratch", "mountPath": "/scratch"}]
    container["readinessProbe"] = {"tcpSocket": {"port": PORT}, "periodSeconds": 1}
    worker["spec"]["volumes"] = [{"name": "scratch", "emptyDir": {}}]
    await scenario.submit(
        {
            "apiVersion": MPI_V2_JOBS.api_version,
            "kind": MPI_V2_JOBS.kind,
            "metadata": {"name": "ssh"},
            "spec": {
                "launcherCreationPolicy": "WaitForWorkersReady",
                "runPolicy": {"cleanPodPolicy": "Running", "backoffLimit": 3},
                "mpiReplicaSpecs": {
                    "Launcher": {"replicas": 1, "template": launcher},
                    "Worker": {"replicas": 2, "template": worker},
                },
            },
        }
    )
    assert await scenario.outcome("ssh") == "Succeeded"
    reached = (scenario.shared / "hosts").read_text().split()
    assert reached == ["ssh-worker-0", "ssh-worker-1"]
