"""``diagnose`` reads logs of failed pods, also of deleted ones; ``get`` gives the same cause."""

import asyncio
import json
from typing import Any

import pytest

from gangline.cli import main
from gangline.cli.errors import ExitCode
from unit.cli.fake_api import FakeApi, pod_of_digits

MEMORY = "Loading the model\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n"
OTHERS = "torch.distributed.DistBackendError: Connection reset by peer\n"


def add_job(api: FakeApi, condition: str) -> None:
    api.add_job({"type": condition, "status": "True", "message": "a pod failed"})


def pod(replica: str, uid: str, code: int, second: int) -> dict[str, Any]:
    """A pod of the job that has ended."""
    ended = {"exitCode": code, "finishedAt": f"2026-01-01T00:00:{second:02}Z"}
    return pod_of_digits(replica, uid, state={"terminated": ended})


async def diagnosis(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    code = await asyncio.to_thread(main.run, ["diagnose", "digits", "-o", "json"])
    captured = capsys.readouterr()
    assert code == ExitCode.DONE, captured.err
    found: dict[str, Any] = json.loads(captured.out)
    return found


async def test_stored_log_of_first_failed_replica_gives_cause(
    api: FakeApi, capsys: pytest.CaptureFixture[str]
) -> None:
    add_job(api, "Failed")
    api.keep(pod("master-0", "a", 1, 2), pod("worker-0", "b", 1, 1))
    api.archived_logs |= {"digits-master-0": OTHERS, "digits-worker-0": MEMORY}
    found = await diagnosis(capsys)
    assert (found["root"]["replica"], found["root"]["cause"]) == ("worker-0", "GpuOutOfMemory")
    assert found["root"]["node"] == "node-1"
    assert found["lastLines"] == MEMORY.splitlines()
    assert [each["replica"] for each in found["consequences"]] == ["master-0"]


async def test_of_pods_of_one_name_the_last_counts_and_one_that_is_there_most(
    api: FakeApi, capsys: pytest.CaptureFixture[str]
) -> None:
    add_job(api, "Failed")
    api.keep(pod("master-0", "a", 1, 1), pod("worker-0", "b", 3, 2), pod("worker-0", "c", 5, 3))
    api.add_pod(pod("master-0", "d", 7, 4))
    found = await diagnosis(capsys)
    codes = [each["exitCode"] for each in (found["root"], *found["consequences"])]
    assert codes == [5, 7]


@pytest.mark.parametrize("exists", [True, False])
async def test_no_stored_logs_are_read_if_missing_or_job_is_active(
    api: FakeApi, capsys: pytest.CaptureFixture[str], exists: bool
) -> None:
    add_job(api, "Running" if exists else "Failed")
    if exists:
        api.keep(pod("master-0", "a", 1, 1))
    assert (await diagnosis(capsys))["root"] is None


@pytest.mark.parametrize("condition", ["Failed", "Created"])
async def test_get_gives_cause_and_exit_code_of_diagnose_for_an_init_container(
    api: FakeApi, capsys: pytest.CaptureFixture[str], condition: str
) -> None:
    add_job(api, condition)
    broken = pod("master-0", "a", 1, 1)
    ended = broken["status"].pop("containerStatuses")[0]["state"]
    state = {"waiting": {"reason": "CrashLoopBackOff"}}
    fetch = {"name": "fetch", "state": ended}
    if condition == "Created":
        fetch = {"name": "fetch", "state": state, "lastState": ended}
    broken["spec"]["initContainers"] = [{"name": "fetch"}]
    broken["status"] = {"phase": "Pending", "initContainerStatuses": [fetch]}
    api.add_pod(broken)
    line = "ModuleNotFoundError: No module named 'fetcher'\n"
    api.logs |= {"digits-master-0": line, "digits-master-0 before": line}
    verdict = await diagnosis(capsys)
    root = verdict["root"]
    assert "-i master-0 -c fetch" in " ".join(verdict["nextSteps"])
    assert (root["cause"], root["exitCode"]) == ("ModuleMissing", 1)
    assert await asyncio.to_thread(main.run, ["get", "digits", "-o", "json"]) == ExitCode.DONE
    shown = json.loads(capsys.readouterr().out)
    named = "master-0: ModuleMissing in init container fetch (exit code 1): "
    assert shown["reason"].startswith(named)
    assert [instance["exitCode"] for instance in shown["instances"]] == [1]
    assert await asyncio.to_thread(main.run, ["logs", "digits"]) == ExitCode.DONE
    assert "No module named 'fetcher'" in capsys.readouterr().out


async def test_a_failed_job_whose_pod_ends_again_and_again_keeps_its_own_reason(
    api: FakeApi, capsys: pytest.CaptureFixture[str]
) -> None:
    reason = "digits has failed because it failed 1 time: its backoff limit allows no restarts."
    api.add_job({"type": "Failed", "status": "True", "message": reason})
    ended = pod("master-0", "a", 1, 1)["status"]["containerStatuses"][0]["state"]
    state = {"waiting": {"reason": "CrashLoopBackOff"}}
    api.add_pod(pod_of_digits("master-0", "a", "Running", state=state, lastState=ended))
    assert await asyncio.to_thread(main.run, ["get", "digits", "-o", "json"]) == ExitCode.DONE
    assert json.loads(capsys.readouterr().out)["reason"] == reason
    # A known line of its log is more precise.
    api.logs["digits-master-0 before"] = MEMORY
    assert await asyncio.to_thread(main.run, ["get", "digits", "-o", "json"]) == ExitCode.DONE
    assert "GpuOutOfMemory" in json.loads(capsys.readouterr().out)["reason"]
