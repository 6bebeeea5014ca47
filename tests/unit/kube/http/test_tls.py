"""TLS: certificates of server and client, and the message when one is not trusted."""

import asyncio
import base64
import gc
import os
import socket
import ssl
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from gangline.kube import errors
from gangline.kube.client.client import ApiClient
from gangline.kube.config.config import ClusterConfig
from gangline.kube.config.credentials import Credential, StaticCredential
from gangline.local.apiserver.admission import webhook_call
from unit.kube.fake_server import THINGS, FakeServer


class Authority:
    """Signs certificates."""

    def __init__(self, name):
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        constraints = x509.BasicConstraints(ca=True, path_length=None)
        builder = self._builder(self.name, self.key).add_extension(constraints, critical=True)
        self.certificate = builder.sign(self.key, hashes.SHA256())

    def _builder(self, subject, key):
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder(self.name, subject, key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
        )

    @property
    def pem(self):
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def issue(self, common_name, *names):
        """A certificate and its key, as PEM."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common_name)])
        builder = self._builder(subject, key)
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return (
            builder.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM),
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            ),
        )


AUTHORITY = Authority("authority")
LOOPBACK = x509.IPAddress(ip_address("127.0.0.1"))


@asynccontextmanager
async def serving(tmp_path, *names):
    """A server with a certificate for ``names`` that asks its clients for one."""
    certificate, key = AUTHORITY.issue("server", *names)
    for name, content in [("c", certificate), ("k", key), ("ca", AUTHORITY.pem)]:
        (tmp_path / name).write_bytes(content)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=tmp_path / "ca")
    context.load_cert_chain(tmp_path / "c", tmp_path / "k")
    context.verify_mode = ssl.CERT_OPTIONAL
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # AUTHORITY is minimal
    server = FakeServer()
    shown = []

    async def note_and_handle(request):
        peer = request.transport.get_extra_info("peercert") or {}
        shown.append(dict(field[0] for field in peer.get("subject", ())).get("commonName", ""))
        return await server.handle(request)

    application = web.Application()
    application.router.add_route("*", "/{tail:.*}", note_and_handle)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    try:
        yield ClusterConfig(site.name, certificate_authority=AUTHORITY.pem), shown
    finally:
        await runner.cleanup()


async def things_of(config):
    async with ApiClient(config) as client:
        return await client.list(THINGS)


async def test_a_server_that_proves_itself_is_believed(tmp_path):
    async with serving(tmp_path, LOOPBACK) as (config, shown):
        assert len(await things_of(config)) == 0
        assert shown == [""]


async def test_certificates_without_key_identifiers_are_accepted_where_python_is_strict(
    tmp_path, monkeypatch
):
    plain = ssl.create_default_context

    def strict_context(*arguments, **options):  # the default of Python 3.13
        context = plain(*arguments, **options)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", strict_context)
    async with serving(tmp_path, LOOPBACK) as (config, _):
        assert len(await things_of(config)) == 0
    pem = base64.b64encode(AUTHORITY.pem).decode()
    webhook_call.tls_context.cache_clear()
    assert not webhook_call.tls_context(pem).verify_flags & ssl.VERIFY_X509_STRICT


@pytest.mark.parametrize("in_memory", [True, False])
async def test_a_client_certificate_is_shown(tmp_path, monkeypatch, in_memory):
    if not in_memory:
        monkeypatch.delattr(os, "memfd_create")
    source = StaticCredential(Credential("", *AUTHORITY.issue("us")))
    async with serving(tmp_path, LOOPBACK) as (config, shown):
        await things_of(replace(config, credentials=source))
        assert shown == ["us"]


async def test_a_server_of_another_authority_is_not_believed(tmp_path):
    async with serving(tmp_path, LOOPBACK) as (config, _):
        other = replace(config, certificate_authority=Authority("other").pem)
        with pytest.raises(errors.Unreachable, match=r"is not trusted.*certificate-authority"):
            await things_of(other)


async def test_a_watch_of_a_server_of_another_authority_is_not_begun(tmp_path):
    async with serving(tmp_path, LOOPBACK) as (config, _):
        other = replace(config, certificate_authority=Authority("other").pem)
        with pytest.raises(errors.Unreachable, match=r"is not trusted.*certificate-authority"):
            async with ApiClient(other) as client, aclosing(client.watch(THINGS)) as events:
                await anext(events)


async def test_a_server_of_another_name_is_not_believed_unless_that_name_is_expected(tmp_path):
    async with serving(tmp_path, x509.DNSName("kubernetes")) as (config, _):
        with pytest.raises(errors.Unreachable, match=r"is not trusted.*tls-server-name"):
            await things_of(config)
        await things_of(replace(config, tls_server_name="kubernetes"))


async def test_proof_is_waived_only_by_wish(tmp_path):
    async with serving(tmp_path, x509.DNSName("kubernetes")) as (config, _):
        unproved = replace(config, certificate_authority=None)
        with pytest.raises(errors.Unreachable, match="is not trusted"):
            await things_of(unproved)
        await things_of(replace(unproved, verify=False))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"certificate_authority": b"no PEM"}, "certificate-authority is not a PEM certificate"),
        ({"certificate_authority": b"\xff"}, "certificate-authority is not a PEM certificate"),
        (
            {"credentials": StaticCredential(Credential("", b"x", b"y"))},
            "client certificate and key are not a pair",
        ),
        (
            {
                "credentials": StaticCredential(
                    Credential("", AUTHORITY.issue("a")[0], AUTHORITY.issue("b")[1])
                )
            },
            "client certificate and key are not a pair",
        ),
    ],
)
async def test_invalid_certificates_are_refused(changes, complaint):
    with pytest.raises(errors.ConfigError, match=complaint):
        await things_of(ClusterConfig("https://127.0.0.1:1", **changes))


async def test_plain_http_to_a_tls_server_is_reported(tmp_path):
    async with serving(tmp_path, LOOPBACK) as (config, _):
        plain = replace(config, server=config.server.replace("https", "http"))
        with pytest.raises(errors.ApiError):
            await things_of(plain)


async def test_tls_to_a_plain_http_server_is_reported(server):
    with pytest.raises(errors.Unreachable, match="https"):
        await things_of(ClusterConfig(server.url.replace("http", "https")))


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = b'{"type":"ADDED","object":{"apiVersion":"v1","kind":"Thing","metadata":{"name":"a"}}}\n'


def test_a_stream_that_is_left_is_closed_though_its_server_is_silent(tmp_path):
    """A transport that waits for the server would outlive the loop, and warn when it is deleted."""
    certificate, key = AUTHORITY.issue("server", LOOPBACK)
    (tmp_path / "c").write_bytes(certificate + key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "c")
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor() as threads:
        url = f"https://127.0.0.1:{listener.getsockname()[1]}"
        left = threading.Event()
        listener.settimeout(60)

        def serve():
            with context.wrap_socket(listener.accept()[0], server_side=True) as connection:
                connection.recv(1 << 16)
                connection.sendall(HEAD + b"%x\r\n%s\r\n" % (len(EVENT), EVENT))
                left.wait(60)  # reads nothing, so that it answers no end of the connection

        async def leave_a_watch():
            config = ClusterConfig(url, certificate_authority=AUTHORITY.pem)
            async with ApiClient(config) as client, aclosing(client.watch(THINGS)) as events:
                await anext(events)

        served = threads.submit(serve)
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                asyncio.run(leave_a_watch())
                gc.collect()
        finally:
            left.set()
        served.result()
    assert [str(warning.message) for warning in caught] == []
