"""The HTTP API of a running Brain: history is shown to those who may get the job, and only counted
to others.
"""

import http.client
import json
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from gangline.api.meta.resource import Resource
from gangline.api.resources import NAMESPACES, PYTORCH_JOBS, ROLE_BINDINGS, SERVICE_ACCOUNTS
from gangline.kube.client.client import ApiClient
from integration.brain.brain_process import BrainProcess, brain_process, brain_url
from integration.cluster.embedded import EmbeddedCluster, embedded, until

pytestmark = pytest.mark.slow


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[EmbeddedCluster]:
    options = ("--nodes", "1", "--network", "host", "--webhook", "off")
    async with embedded(tmp_path / "home", *options) as started:
        yield started


def write_certificate(folder: Path) -> tuple[Path, Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "brain")])
    now = datetime.now(UTC)
    names = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(names, critical=False)
        .sign(key, hashes.SHA256())
    )
    certificate, private = folder / "tls.crt", folder / "tls.key"
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return certificate, private


def job(name: str, namespace: str) -> dict[str, Any]:
    main = {"name": "pytorch", "image": "train", "command": ["python", "-c", "pass"]}
    template = {"spec": {"containers": [main]}}
    worker = {"replicas": 1, "restartPolicy": "Never", "template": template}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"pytorchReplicaSpecs": {"Worker": worker}},
    }


async def token_of_viewer(client: ApiClient, namespace: str) -> str:
    """The token of an account that may view one namespace."""
    account = {"metadata": {"name": "viewer"}}
    await client.create(SERVICE_ACCOUNTS, account, namespace)
    binding: Resource[dict[str, Any]] = Resource(
        dict[str, Any], ROLE_BINDINGS.group, "v1", "rolebindings", "RoleBinding"
    )
    group = "rbac.authorization.k8s.io"
    body = {
        "metadata": {"name": "viewer"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "view"},
        "subjects": [{"kind": "ServiceAccount", "name": "viewer", "namespace": namespace}],
    }
    await client.create(binding, body, namespace)
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/viewer/token"
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    answer = await client.request_json("POST", path, body=request)
    token = answer["status"]["token"]
    assert isinstance(token, str)
    return token


class Asker:
    """A client of the API that is not ours."""

    def __init__(self, url: str, certificate: Path, token: str = "") -> None:
        self._port = int(url.rpartition(":")[2])
        self._context = ssl.create_default_context(cafile=str(certificate))
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def ask(self, method: str, path: str, body: bytes | None = None) -> tuple[int, Any]:
        connection = http.client.HTTPSConnection(
            "127.0.0.1", self._port, context=self._context, timeout=20
        )
        try:
            connection.request(method, path, body, self._headers)
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        try:
            return answer.status, json.loads(text)
        except ValueError:
            return answer.status, text.decode()


async def history_with_two_namespaces(client: ApiClient, brain: BrainProcess, admin: Asker) -> None:
    for namespace in ("mine", "theirs"):
        await client.create(NAMESPACES, {"metadata": {"name": namespace}})
        await client.create(PYTORCH_JOBS, job(f"train-{namespace}", namespace), namespace)

    async def both_ended() -> bool:
        status, page = admin.ask("GET", "/v1/history")
        return status == 200 and len(page["jobs"]) + page["hidden"] == 2

    await until(both_ended, 60.0, brain.said)


async def test_g10_history_of_other_namespaces_is_counted_and_not_shown(
    cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    certificate, key = write_certificate(tmp_path)
    options = ("--api-bind-address", "0.0.0.0:0")
    tls = ("--tls-cert-file", str(certificate), "--tls-key-file", str(key))
    with brain_process(cluster, tmp_path, "brain", *options, *tls) as brain:
        async with cluster.client() as client:
            url = await brain_url(client, brain)
            await client.create(NAMESPACES, {"metadata": {"name": "viewers"}})
            token = await token_of_viewer(client, "viewers")
            nowhere = Asker(url, certificate, token)
            await history_with_two_namespaces(client, brain, nowhere)
            status, page = nowhere.ask("GET", "/v1/history")
            assert (status, page["jobs"], page["hidden"]) == (200, [], 2)

            mine = Asker(url, certificate, await token_of_viewer(client, "mine"))
            status, page = mine.ask("GET", "/v1/history")
            assert [each["name"] for each in page["jobs"]] == ["train-mine"]
            assert page["hidden"] == 1
            assert mine.ask("GET", "/v1/jobs/mine/train-mine/history")[0] == 200

            hidden = mine.ask("GET", "/v1/jobs/theirs/train-theirs/history")
            absent = mine.ask("GET", "/v1/jobs/theirs/train-absent/history")
            assert hidden[0] == absent[0] == 404
            assert hidden[1].replace("theirs", "x") == absent[1].replace("absent", "x").replace(
                "theirs", "x"
            )
            facts = json.dumps({"v": 1, "uid": "u", "namespace": "theirs"}).encode()
            assert mine.ask("POST", "/v1/facts", facts)[0] == 403
            manifest = json.dumps(job("train-2", "theirs")).encode()
            assert mine.ask("POST", "/v1/advice", manifest)[0] == 403

            for stranger in (Asker(url, certificate), Asker(url, certificate, "a.b.c")):
                for path in ("/v1/history", "/v1/jobs/mine/train-mine/history"):
                    assert stranger.ask("GET", path)[0] == 401


async def test_loopback_refuses_other_host_names_and_bad_requests(
    cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    with brain_process(cluster, tmp_path) as brain:
        async with cluster.client() as client:
            url = await brain_url(client, brain)
            port = int(url.rpartition(":")[2])

            def ask(method: str, path: str, body: bytes = b"", host: str = "127.0.0.1") -> int:
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
                try:
                    connection.request(method, path, body, {"Host": f"{host}:{port}"})
                    return connection.getresponse().status
                finally:
                    connection.close()

            async def leads() -> bool:
                return ask("POST", "/v1/facts", b"{}") != 503

            await until(leads, 60.0, brain.said)
            assert ask("GET", "/v1/history") == 200
            assert ask("GET", "/v1/history", host="attacker.example") == 403
            assert ask("GET", "/v1/history?limit=many") == 400
            assert ask("GET", "/v1/history?colour=red") == 400
            assert ask("GET", "/v1/history?outcome=lost") == 400
            for body in (b"", b"[]", b"{", b"\xff\xfe", b'{"uid": 3}', b'{"uid": "u"}'):
                assert ask("POST", "/v1/facts", body) == 400
            for body in (b"", b"[]", b'{"kind": "Pod"}', b'{"kind": "PyTorchJob", "spec": 3}'):
                assert ask("POST", "/v1/advice", body) == 400
            assert ask("POST", "/v1/facts", b"x" * (2 << 20)) == 413
            assert ask("GET", "/v1/history") == 200


async def test_other_addresses_need_a_certificate(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    with brain_process(cluster, tmp_path, "brain", "--api-bind-address", "0.0.0.0:0") as brain:

        async def ended() -> bool:
            return brain.process is not None and brain.process.poll() is not None

        await until(ended, 60.0, brain.said)
        assert "only loopback is served without TLS" in brain.said()
