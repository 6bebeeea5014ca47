"""Authentication: which user a certificate or a token stands for."""

import json
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from gangline.local.apiserver.auth.authentication import (
    ADMIN,
    API_AUDIENCES,
    Authenticator,
    BoundObject,
    ObjectClaim,
    ServiceAccountTokens,
)
from gangline.local.apiserver.auth.node_authorizer import prepare_node_certificates
from gangline.local.apiserver.auth.pki import (
    ClusterAuthority,
    KeyPairFiles,
    prepare_certificates,
)
from gangline.local.apiserver.core.request import ANONYMOUS
from gangline.local.apiserver.storage.store import ObjectStore
from gangline.operator.webhook.certificate import issue_certificate


@pytest.fixture
def known(tmp_path: Path, store: ObjectStore) -> Authenticator:
    return Authenticator(tmp_path, store)


async def test_the_administrators_token_is_accepted_and_others_are_not(known: Authenticator):
    assert known.authenticate("", None) is ANONYMOUS
    assert known.authenticate(f"Bearer {known.admin_token}", None) == ADMIN
    for header in ("Bearer no", "Basic abc", "Bearer", "Bearer \udcff\udcfe", "Bearer é.é.é"):
        assert known.authenticate(header, None) is None


async def test_the_administrators_token_is_for_the_audience_of_the_server(known: Authenticator):
    assert known.authenticate_token(known.admin_token, ["vault"]) is None
    identity = known.authenticate_token(
        known.admin_token, ["vault", "https://kubernetes.default.svc"]
    )
    assert identity is not None
    assert identity.audiences == ("https://kubernetes.default.svc",)


async def test_certificates_name_user_and_groups(known: Authenticator):
    subject = ((("organizationName", "system:masters"),), (("commonName", "ann"),))
    user = known.authenticate("", {"subject": subject})
    assert user is not None
    assert (user.name, user.groups) == ("ann", ("system:masters", "system:authenticated"))


async def test_a_certificate_without_a_name_is_no_user(known: Authenticator):
    assert known.authenticate("", {"subject": ((("organizationName", "o"),),)}) is None


HOST = "node-1"


def verify_strictly(authority: Path, server: KeyPairFiles, client: KeyPairFiles | None) -> None:
    """Shake hands in memory, both ends with ``VERIFY_X509_STRICT``.

    Raises:
        SSLCertVerificationError: a certificate is refused.
    """
    of_client = ssl.create_default_context(cafile=authority)
    of_server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority)
    of_server.load_cert_chain(server.certificate, server.key)
    if client is not None:
        of_server.verify_mode = ssl.CERT_REQUIRED
        of_client.load_cert_chain(client.certificate, client.key)
    for context in (of_client, of_server):
        context.verify_flags |= ssl.VERIFY_X509_STRICT
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        of_client.wrap_bio(down, up, server_hostname=HOST),
        of_server.wrap_bio(up, down, server_side=True),
    ]
    while ends:
        for end in list(ends):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            ends.remove(end)


@pytest.mark.parametrize("client", ["admin", "kubelet_client"])
def test_certificates_of_the_api_server_pass(tmp_path: Path, client: str) -> None:
    made = prepare_certificates(tmp_path, [HOST])
    verify_strictly(made.authority.certificate, made.server, getattr(made, client))


def test_certificates_of_nodes_pass(tmp_path: Path) -> None:
    authority = prepare_certificates(tmp_path / "pki", [HOST]).authority
    node = prepare_node_certificates(
        ClusterAuthority(authority), tmp_path / "node", HOST, ["10.0.0.1"]
    )
    verify_strictly(authority.certificate, node.server, node.client)


def test_certificate_of_the_webhook_passes(tmp_path: Path) -> None:
    made = issue_certificate([HOST], datetime.now(UTC), timedelta(days=1))
    files = {"ca": made.authority.pem, "crt": made.certificate, "key": made.key}
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    verify_strictly(tmp_path / "ca", KeyPairFiles(tmp_path / "crt", tmp_path / "key"), None)


ROBOT = ObjectClaim("robot", "account-uid")
POD = BoundObject("Pod", ObjectClaim("p", "pod-uid"), ObjectClaim("n", "node-uid"))


class Clock:
    now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def tokens(store: ObjectStore, clock: Clock) -> ServiceAccountTokens:
    await put(store, "serviceaccounts.", "ns/robot", "account-uid")
    await put(store, "pods.", "ns/p", "pod-uid")
    return ServiceAccountTokens(ec.generate_private_key(ec.SECP256R1()), store, clock)


async def put(store: ObjectStore, topic: str, key: str, uid: str, **meta: Any) -> None:
    obj = {"metadata": {"name": key.rpartition("/")[2], "uid": uid, **meta}}
    await store.stage(store.cache(topic), key, obj, ({}, {}))


async def test_a_token_names_its_account_and_pod(tokens: ServiceAccountTokens):
    token, ends = tokens.issue("ns", ROBOT, API_AUDIENCES, 600, POD)
    assert ends == 1_800_000_600
    identity = tokens.verify(token)
    assert identity is not None
    user = identity.user
    assert (user.name, user.uid) == ("system:serviceaccount:ns:robot", "account-uid")
    assert "system:serviceaccounts:ns" in user.groups
    assert dict(user.extra)["authentication.kubernetes.io/pod-uid"] == ("pod-uid",)
    assert dict(user.extra)["authentication.kubernetes.io/node-name"] == ("n",)


async def test_a_token_ends_with_its_time(tokens: ServiceAccountTokens, clock: Clock):
    token, _ = tokens.issue("ns", ROBOT, API_AUDIENCES, 600)
    clock.now += 599
    assert tokens.verify(token)
    clock.now += 1
    assert tokens.verify(token) is None


async def test_a_terminating_pod_keeps_its_token_for_a_minute_after_its_grace_period(
    tokens: ServiceAccountTokens, store: ObjectStore, clock: Clock
):
    token, _ = tokens.issue("ns", ROBOT, API_AUDIENCES, 3600, POD)
    # 2027-01-15T08:00:00Z is 1_800_000_000: the grace period ends 30 s later.
    await put(store, "pods.", "ns/p", "pod-uid", deletionTimestamp="2027-01-15T08:00:30Z")
    clock.now += 89
    assert tokens.verify(token)
    clock.now += 1
    assert tokens.verify(token) is None


def sign(tokens: ServiceAccountTokens, claims: object) -> str:
    """A token with any payload and a valid signature."""
    return tokens._sign(json.dumps(claims).encode())


ACCOUNT = {"namespace": "ns", "serviceaccount": {"name": "robot", "uid": "account-uid"}}
CLAIMS = {
    "sub": "system:serviceaccount:ns:robot",
    "aud": list(API_AUDIENCES),
    "exp": 1_900_000_000,
    "iss": "https://kubernetes.default.svc",
    "iat": 0,
    "nbf": 0,
    "jti": "id",
    "kubernetes.io": ACCOUNT,
}


async def test_others_check_tokens_with_the_published_key(tokens: ServiceAccountTokens):
    token, _ = tokens.issue("ns", ROBOT, ["vault"], 10**9)
    key = jwt.PyJWK(tokens.public_key)
    options = {"verify_iat": False, "verify_nbf": False}  # the test has a clock of its own
    claims = jwt.decode(token, key, ["ES256"], options, audience="vault")
    assert claims["sub"] == "system:serviceaccount:ns:robot"
    with pytest.raises(jwt.InvalidSignatureError):
        jwt.decode(token[:-3] + "AAA", key, ["ES256"], options, audience="vault")


async def test_complete_claims_are_accepted(tokens: ServiceAccountTokens):
    assert tokens.verify(sign(tokens, CLAIMS))


@pytest.mark.parametrize(
    "claims",
    [
        [],
        {},
        CLAIMS | {"sub": "x"},
        CLAIMS | {"sub": "system:serviceaccount:ns"},
        CLAIMS | {"sub": "system:serviceaccount:other:robot"},
        CLAIMS | {"exp": "soon"},
        CLAIMS | {"aud": ["vault"]},
        CLAIMS | {"iss": ""},
        CLAIMS | {"iss": "https://evil.example"},
        CLAIMS | {"kubernetes.io": None},
    ],
)
async def test_claims_that_contradict_or_lack_something_are_refused(
    tokens: ServiceAccountTokens, claims: object
):
    assert tokens.verify(sign(tokens, claims)) is None


@pytest.mark.parametrize(
    "spoil",
    [
        lambda t: t[:-2],
        lambda t: t.replace(".", "x", 1),
        lambda t: "",
        lambda t: t + "é",
        lambda t: t.rpartition(".")[0] + ".\udcff",
        lambda t: t.rpartition(".")[0] + ".",
        lambda t: "..",
        # Other texts of the same bytes: the last letter has four unused bits; = fills up.
        lambda t: t[:-1] + chr(ord(t[-1]) + 1),
        lambda t: t + "==",
    ],
)
async def test_tokens_that_were_tampered_with_are_worth_nothing(
    tokens: ServiceAccountTokens, spoil: Any
):
    token, _ = tokens.issue("ns", ROBOT, API_AUDIENCES, 600)
    assert tokens.verify(spoil(token)) is None
