"""A webhook for tests: a real HTTPS server whose responses the test sets."""

import asyncio
import base64
import datetime
import ipaddress
import json
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

Json = dict[str, Any]
Answer = Callable[[Json], "Json | web.StreamResponse | Awaitable[Any]"]


def allow(request: Json, **more: Any) -> Json:
    return {"uid": request["uid"], "allowed": True, **more}


def deny(request: Json, **status: Any) -> Json:
    return {"uid": request["uid"], "allowed": False, "status": status}


def patch(request: Json, *operations: Json) -> Json:
    text = base64.b64encode(json.dumps(operations).encode()).decode()
    return allow(request, patch=text, patchType="JSONPatch")


def add_label(name: str, value: str) -> Answer:
    def answer(request: Json) -> Json:
        labels = {**request["object"]["metadata"].get("labels", {}), name: value}
        return patch(request, {"op": "add", "path": "/metadata/labels", "value": labels})

    return answer


def certificate(folder: Path, names: list[str]) -> tuple[Path, str]:
    """A self-signed certificate with its key in one file, and its bundle in base64."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "webhook")])
    alternatives: list[x509.GeneralName] = [x509.DNSName(name) for name in names]
    alternatives.append(x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
    today = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(today - datetime.timedelta(hours=1))
        .not_valid_after(today + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = made.public_bytes(serialization.Encoding.PEM)
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "pair.pem"
    path.write_bytes(secret + pem)
    return path, base64.b64encode(pem).decode()


@dataclass
class WebhookServer:
    """Answers each path as the test configures it, and records the requests."""

    folder: Path
    names: list[str] = field(default_factory=lambda: ["hooks.default.svc"])
    answers: dict[str, Answer] = field(default_factory=dict)
    asked: list[Json] = field(default_factory=list)
    hosts: list[str] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    port: int = 0
    bundle: str = ""
    pair: Path = Path()

    async def __aenter__(self) -> "WebhookServer":
        if not self.bundle:
            self.pair, self.bundle = certificate(self.folder, self.names)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.pair)
        self._runner = web.ServerRunner(web.Server(self._answer), shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, ssl_context=context)
        await site.start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        review = json.loads(await request.read())
        self.asked.append(review["request"])
        self.hosts.append(request.headers["Host"])
        self.paths.append(request.path_qs)
        found = self.answers[request.path.removeprefix("/")](review["request"])
        if asyncio.iscoroutine(found):
            found = await found
        if isinstance(found, web.StreamResponse):
            return found
        body = {"apiVersion": review["apiVersion"], "kind": review["kind"], "response": found}
        return web.json_response(body)

    def client(self, path: str) -> Json:
        """Where a webhook of this server answers, for a configuration."""
        return {"url": f"https://127.0.0.1:{self.port}/{path}", "caBundle": self.bundle}

    def hook(self, path: str, **more: Any) -> Json:
        """A webhook of a configuration that wants ConfigMaps."""
        return {
            "name": f"{path}.hooks.example.com",
            "clientConfig": self.client(path),
            "rules": [rule("configmaps")],
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            **more,
        }


def rule(*resources: str, **more: Any) -> Json:
    return {
        "operations": ["*"],
        "apiGroups": ["*"],
        "apiVersions": ["*"],
        "resources": list(resources),
        **more,
    }
