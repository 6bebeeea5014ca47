"""Credential plug-ins: run when needed; invalid output is refused."""

import asyncio
import json
import os
from datetime import UTC, datetime, timedelta

import pytest

from gangline.kube.config import credentials
from gangline.kube.config.credentials import ExecPlugin
from gangline.kube.errors import ConfigError

V1 = "client.authentication.k8s.io/v1"
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def answer(version=V1, **status):
    return json.dumps({"apiVersion": version, "kind": "ExecCredential", "status": status})


@pytest.fixture
def plugin(tmp_path):
    """A program that prints a text, and counts its runs in a file."""

    def make(text="", code=0, version=V1, **options):
        output = tmp_path / "answer.json"
        output.write_text(text)
        script = tmp_path / "login"
        script.write_text(
            f"#!/bin/sh\necho run >> {tmp_path}/runs\necho complaint >&2\n"
            f'printf %s "$KUBERNETES_EXEC_INFO" > {tmp_path}/info\ncat {output}\nexit {code}\n'
        )
        script.chmod(0o755)
        options.setdefault("now", lambda: NOW)
        return ExecPlugin(str(script), (), {"HELLO": "x"}, version, **options)

    return make


def runs(tmp_path):
    return (tmp_path / "runs").read_text().count("run")


async def test_a_token_is_used_until_it_is_about_to_expire(plugin, tmp_path):
    time = NOW
    expires = (NOW + timedelta(minutes=5)).isoformat()
    source = plugin(answer(token="t", expirationTimestamp=expires), now=lambda: time)
    assert (await source.current()).authorization == "Bearer t"
    await source.current()
    assert runs(tmp_path) == 1
    time = NOW + timedelta(minutes=4, seconds=55)
    await source.current()
    assert runs(tmp_path) == 2


async def test_concurrent_requests_run_the_program_once(plugin, tmp_path):
    source = plugin(answer(token="t"))
    await asyncio.gather(*(source.current() for _ in range(10)))
    assert runs(tmp_path) == 1
    await asyncio.gather(*(source.current(refresh=True) for _ in range(10)))
    assert runs(tmp_path) == 2


async def test_a_certificate_may_come_instead_of_a_token(plugin):
    source = plugin(answer(clientCertificateData="CERT", clientKeyData="KEY"))
    credential = await source.current()
    assert (credential.authorization, credential.certificate, credential.key) == (
        "",
        b"CERT",
        b"KEY",
    )
    assert "KEY" not in repr(credential)


async def test_program_gets_the_cluster_in_its_environment(plugin, tmp_path):
    beta = "client.authentication.k8s.io/v1beta1"
    source = plugin(answer(beta, token="t"), version=beta, cluster={"server": "https://x"})
    await source.current()
    info = json.loads((tmp_path / "info").read_text())
    assert info["apiVersion"] == beta
    assert info["spec"]["cluster"] == {"server": "https://x"}


@pytest.mark.parametrize(
    ("text", "code", "complaint"),
    [
        ("", 3, "failed with exit code 3: complaint"),
        ("no json", 0, "printed no ExecCredential"),
        (answer("other/v1", token="t"), 0, "uses 'other/v1'"),
        (answer(), 0, "neither token nor certificate"),
        (json.dumps({"apiVersion": V1}), 0, "neither token nor certificate"),
    ],
)
async def test_output_without_a_credential_is_refused(plugin, text, code, complaint):
    with pytest.raises(ConfigError, match=complaint):
        await plugin(text, code).current()


async def test_missing_program_is_reported_with_its_install_hint():
    source = ExecPlugin("no-such-program", (), {}, V1, install_hint="Install it with apt.")
    with pytest.raises(ConfigError, match=r"'no-such-program' is not found. Install it with apt"):
        await source.current()


async def test_program_that_cannot_start_is_reported(tmp_path):
    script = tmp_path / "login"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    with pytest.raises(ConfigError, match="does not start"):
        await ExecPlugin(str(script), (), {}, V1).current()


async def test_a_program_that_hangs_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(credentials, "EXEC_TIMEOUT_S", 0.1)
    pid_file = tmp_path / "pid"
    script = tmp_path / "login"
    script.write_text(f"#!/bin/sh\necho $$ > {pid_file}\nexec tail -f /dev/null\n")
    script.chmod(0o755)
    with pytest.raises(ConfigError, match="did not end within 0 s"):
        await ExecPlugin(str(script), (), {}, V1).current()
    if pid_file.exists():
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid_file.read_text()), 0)


async def test_a_program_that_must_ask_a_person_needs_a_terminal():
    source = ExecPlugin("cat", (), {}, V1, interactive_mode="Always")
    with pytest.raises(ConfigError, match=r"no terminal.*service account"):
        await source.current()


def test_requests_that_are_given_up_while_the_program_starts_do_not_hang(plugin):
    async def many() -> None:
        source = plugin(code=1)
        await asyncio.gather(*(source.current() for _ in range(8)))

    for _ in range(20):
        with pytest.raises(ConfigError, match="failed with exit code 1"):
            asyncio.run(many())
