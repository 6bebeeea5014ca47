"""CertificateSigningRequests: the identity in a request, and the right to approve or sign it."""

import base64
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from security.conftest import AttackedServer
from security.rbac_objects import grant, rule

GROUP = "certificates.k8s.io"
REQUESTS = f"/apis/{GROUP}/v1/certificatesigningrequests"
SIGNER = "example.com/own"


def request_named(name: str) -> dict[str, Any]:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "somebody")])
    made = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    pem = made.public_bytes(serialization.Encoding.PEM)
    spec = {
        "request": base64.b64encode(pem).decode(),
        "signerName": SIGNER,
        "usages": ["client auth"],
        "username": "system:admin",
        "groups": ["system:masters"],
    }
    return {"metadata": {"name": name}, "spec": spec}


def with_condition(request: dict[str, Any]) -> dict[str, Any]:
    return {**request, "status": {"conditions": [{"type": "Approved", "status": "True"}]}}


async def test_requester_cannot_claim_another_identity(attacked: AttackedServer) -> None:
    await grant(attacked, "asker", rule(GROUP, "certificatesigningrequests", "create"))
    status, made = await attacked.request(
        "POST", REQUESTS, user="asker", json=with_condition(request_named("a"))
    )
    assert status == 201, made
    assert made["spec"]["username"] == "asker"
    assert made["spec"]["groups"] == ["system:authenticated"]
    assert "status" not in made


async def test_approval_needs_the_right_for_the_signer(attacked: AttackedServer) -> None:
    _, made = await attacked.request("POST", REQUESTS, json=request_named("a"))
    approve = rule(GROUP, "certificatesigningrequests/approval", "update")
    await grant(attacked, "writer", approve)
    await grant(attacked, "other", approve, rule(GROUP, "signers", "approve", "other.com/*"))
    await grant(attacked, "approver", approve, rule(GROUP, "signers", "approve", "example.com/*"))
    path, body = f"{REQUESTS}/a/approval", with_condition(made)
    for user in ("writer", "other"):
        status, answer = await attacked.request("PUT", path, user=user, json=body)
        assert status == 403, answer
        assert SIGNER in answer["message"]
    status, answer = await attacked.request("PUT", path, user="approver", json=body)
    assert status == 200, answer
    assert [each["type"] for each in answer["status"]["conditions"]] == ["Approved"]


async def test_signature_needs_its_own_right_and_approves_nothing(attacked: AttackedServer) -> None:
    _, made = await attacked.request("POST", REQUESTS, json=request_named("a"))
    status_right = rule(GROUP, "certificatesigningrequests/status", "update")
    await grant(attacked, "writer", status_right, rule(GROUP, "signers", "approve", SIGNER))
    await grant(attacked, "signer", status_right, rule(GROUP, "signers", "sign", SIGNER))
    signed = with_condition(made)
    signed["status"]["certificate"] = "eA=="
    path = f"{REQUESTS}/a/status"
    status, _ = await attacked.request("PUT", path, user="writer", json=signed)
    assert status == 403
    status, answer = await attacked.request("PUT", path, user="signer", json=signed)
    assert (status, answer["status"]) == (200, {"certificate": "eA=="})
