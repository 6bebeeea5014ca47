"""Commands that change, copy, access and diagnose jobs, on a complete cluster.

Takes 25 s: each command is a process of its own.
"""

import json
import subprocess
from pathlib import Path

import pytest

from gangline.cli.errors import ExitCode
from integration.cluster.embedded import EmbeddedCluster, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

SUBMIT = ("submit", "pytorch", "--image", "any", "--cpu", "50m", "--share-memory", "0")
PATIENCE_S = 60.0


def typed(cluster: EmbeddedCluster, *args: str) -> str:
    """What a command prints that goes well."""
    done = cluster.run(*args)
    assert done.returncode == ExitCode.DONE, f"{args}: {done.stdout}\n{done.stderr}"
    return done.stdout


def waited(cluster: EmbeddedCluster, *args: str) -> subprocess.CompletedProcess[str]:
    """``gangline wait``, again and again for as long as a slow machine may take."""
    for _ in range(6):
        done = cluster.run("wait", *args, "--timeout", "20s")
        if "still not" not in done.stderr:
            break
    return done


def report(done: subprocess.CompletedProcess[str]) -> str:
    return f"{done.returncode}\n{done.stdout}\n{done.stderr}"


async def test_a_job_is_held_scaled_copied_entered_and_run_again(
    shared_cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    cluster = shared_cluster
    code = tmp_path / "code"
    code.mkdir()
    # As the first process of its pod it would not hear a SIGTERM that it does not ask for.
    (code / "train.sh").write_text(
        "trap exit TERM; echo trained from here; while :; do sleep 0.1; done"
    )
    typed(
        cluster, *SUBMIT, "--name", "first", "--workers", "2", "--working-dir", "/work-of-job",
        "--sync-mode", "local", "--sync-source", str(code), "exec sh code/code/train.sh",
    )  # fmt: skip
    assert waited(cluster, "first", "--for", "running").returncode == ExitCode.DONE
    assert typed(cluster, "logs", "first") == "trained from here\n"

    entered = cluster.run("exec", "first", "-i", "worker-0", "--", "sh", "-c", "echo $RANK; exit 7")
    assert (entered.returncode, entered.stdout) == (7, "1\n"), report(entered)

    typed(cluster, "suspend", "first")

    async def state(expected: str) -> bool:
        job = json.loads(typed(cluster, "get", "first", "-o", "json"))
        return job["status"] == expected and (expected != "SUSPENDED" or not job["instances"])

    await until(lambda: state("SUSPENDED"), PATIENCE_S)
    assert "was suspended already" in typed(cluster, "suspend", "first")
    typed(cluster, "resume", "first")
    await until(lambda: state("RUNNING"), PATIENCE_S)
    assert "from 1 to 2" in typed(cluster, "scale", "first", "2")
    assert "from 2 to 1" in typed(cluster, "scalein", "etjob", "--name", "first")
    assert cluster.run("scalein", "first", "--count", "9").returncode == ExitCode.UNEXPECTED

    typed(cluster, "clone", "first", "second", "--set", "spec.runPolicy.backoffLimit=5")
    assert waited(cluster, "second", "--for", "running").returncode == ExitCode.DONE
    assert typed(cluster, "logs", "second") == "trained from here\n"
    limit = json.loads(
        typed(cluster, "get", "second", "--spec", "-o", "json").split("\n}\n")[0] + "}"
    )
    assert limit["spec"]["runPolicy"]["backoffLimit"] == 5

    before = json.loads(typed(cluster, "get", "first", "-o", "json"))
    typed(cluster, "restart", "first")
    after = json.loads(typed(cluster, "get", "first", "-o", "json"))
    assert before["uuid"] == after["uuid"]
    assert "2 deleted" not in typed(cluster, "delete", "first", "second")


async def test_diagnose_and_doctor_find_problems(shared_cluster: EmbeddedCluster) -> None:
    cluster = shared_cluster
    script = (
        'if [ "$RANK" = 1 ]; then sleep 1; echo "OSError: [Errno 28] No space left on device"; '
        "exit 1; fi; trap exit TERM; while true; do sleep 0.2; done"
    )
    typed(cluster, *SUBMIT, "--name", "full", "--workers", "3", script)
    ended = waited(cluster, "full")
    assert ended.returncode == ExitCode.JOB_FAILED, report(ended)
    found = json.loads(typed(cluster, "diagnose", "full", "-o", "json"))
    assert (found["root"]["cause"], found["root"]["replica"]) == ("DiskFull", "worker-0")

    lacking = cluster.run(*SUBMIT, "--name", "x", "--data", "nothing:/x", "--queue", "none", "true")
    assert lacking.returncode == ExitCode.NOT_FOUND, report(lacking)
    assert "no PersistentVolumeClaim 'nothing'" in lacking.stderr
    assert "no Queue 'none'" in lacking.stderr
    checks = json.loads(typed(cluster, "doctor", "-o", "json"))
    assert {check["name"] for check in checks if check["verdict"] == "failed"} == set()

    typed(cluster, "restart", "full")
    assert waited(cluster, "full").returncode == ExitCode.JOB_FAILED
    assert "1d ago" in cluster.run("prune", "--since", "1d").stderr
    assert typed(cluster, "prune", "--since", "0").splitlines() == ["default/full deleted"]
