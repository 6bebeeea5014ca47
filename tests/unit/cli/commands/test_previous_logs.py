"""``logs --previous``: restarted containers, replaced pods, and clusters without stored logs."""

import asyncio
from typing import Any

import pytest

from gangline.cli import main
from gangline.cli.errors import ExitCode
from unit.cli.fake_api import FakeApi, pod_of_digits

TIME = "2026-01-01T00:00:00Z "


def pod(replica: str, *, restarted: bool = False) -> dict[str, Any]:
    before = {"lastState": {"terminated": {"exitCode": 1}}} if restarted else {}
    state = {"state": {"running": {}}, "restartCount": int(restarted), **before}
    return pod_of_digits(replica, phase="Running", **state)


def run(api: FakeApi, *pods: dict[str, Any]) -> None:
    """Let the job run with these pods."""
    api.add_job()
    for made in pods:
        api.add_pod(made)


async def logs(*flags: str) -> int:
    return await asyncio.to_thread(main.run, ["logs", "digits", *flags])


async def test_of_all_replicas_those_that_were_not_restarted_are_passed_over(
    api: FakeApi, capsys: pytest.CaptureFixture[str]
) -> None:
    run(api, pod("master-0"), pod("worker-0", restarted=True))
    api.logs["digits-worker-0 before"] = f"{TIME}before\n"
    assert await logs("--all", "--previous") == ExitCode.DONE
    assert capsys.readouterr().out == "[worker-0] before\n"
    assert "digits-master-0 before" not in api.read


async def test_previous_logs_of_a_new_pod_are_those_of_the_replaced_pod(
    api: FakeApi, capsys: pytest.CaptureFixture[str]
) -> None:
    run(api, pod("master-0"), pod("worker-0"))
    api.keep(pod("master-0"))
    api.archived_logs["digits-master-0"] = f"{TIME}the last of the pod before\n"
    assert await logs("--previous") == ExitCode.DONE
    assert capsys.readouterr().out == "the last of the pod before\n"


async def test_previous_log_of_deleted_pod_is_read(
    api: FakeApi, capsys: pytest.CaptureFixture[str]
) -> None:
    api.add_job({"type": "Succeeded", "status": "True"})
    api.keep(pod("master-0"), pod("worker-0"))
    api.archived_logs["digits-worker-0 before"] = f"{TIME}before\n"
    # Nothing ran before in the master: that is no error while another replica has something.
    assert await logs("--all", "-p", "-f") == ExitCode.DONE
    assert capsys.readouterr().out == "[worker-0] before\n"


@pytest.mark.parametrize(
    ("stores", "why"), [(False, "does not store logs"), (True, "no log of an earlier pod")]
)
async def test_without_previous_logs_the_message_names_what_the_cluster_stores(
    api: FakeApi, capsys: pytest.CaptureFixture[str], stores: bool, why: str
) -> None:
    run(api, pod("master-0"))
    if stores:
        api.keep()
    assert await logs("--previous") == ExitCode.UNEXPECTED
    result = capsys.readouterr()
    assert not result.out
    assert "no container was restarted" in result.err
    assert why in result.err
    # Lines of the last minute may well be none: that is no mistake.
    assert await logs("--previous", "--since", "1m") == ExitCode.DONE


async def test_deleted_pods_without_logs_are_reported(
    api: FakeApi, capsys: pytest.CaptureFixture[str]
) -> None:
    api.add_job({"type": "Succeeded", "status": "True"})
    assert await logs() == ExitCode.DONE
    assert "does not store logs of deleted pods" in capsys.readouterr().err
    api.keep()
    assert await logs() == ExitCode.DONE
    assert "does not store logs" not in capsys.readouterr().err
