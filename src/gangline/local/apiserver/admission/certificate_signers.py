"""Certificate signing requests: who may approve and sign, and what each subresource may change.

Beside the right to write the subresource, Kubernetes asks for the verb ``approve`` or ``sign`` on
``signers`` with the name of the signer, or with ``DOMAIN/*``. The server writes the identity of the
requester into the request, because signers copy it into certificates. The approval subresource
changes conditions only, the status subresource all but the approval.
"""

import base64
import binascii

from cryptography import x509
from cryptography.x509.oid import NameOID

from gangline.api.meta import field_causes
from gangline.api.meta.json_objects import objects_in, subobject
from gangline.local.apiserver.auth.pki import ADMIN_GROUP
from gangline.local.apiserver.auth.rbac import Authorizer
from gangline.local.apiserver.auth.rules import AccessAttributes
from gangline.local.apiserver.core.errors import forbidden_object, invalid
from gangline.local.apiserver.core.prepare import restore_field
from gangline.local.apiserver.core.registry import Json
from gangline.local.apiserver.core.request import ApiRequest, RequestUser

GROUP = "certificates.k8s.io"
PLURAL = "certificatesigningrequests"
APPROVAL_TYPES = ("Approved", "Denied")
CLIENT_SIGNER = "kubernetes.io/kube-apiserver-client"
MASTERS = "system:masters"


def is_signing_request(request: ApiRequest) -> bool:
    return request.kind.plural == PLURAL and request.kind.group == GROUP


def complete_signing_request(request: ApiRequest, obj: Json) -> None:
    """Write the requester into a new request, in place. Raises StatusError: 422, the request is not
    one in PEM; 403, it asks for full rights.
    """
    spec = obj.get("spec")
    if not is_signing_request(request) or not isinstance(spec, dict):
        return
    for name in ("username", "uid", "groups", "extra"):
        spec.pop(name, None)
    spec |= request.user.to_json()
    pem = spec.get("request")
    if not pem or not isinstance(pem, str):
        return  # validation refuses it
    try:
        parsed = x509.load_pem_x509_csr(base64.b64decode(pem, validate=True))
        organizations = parsed.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    except (ValueError, binascii.Error):
        detail = "must be a certificate request in PEM, encoded as base64"
        cause = field_causes.invalid("spec.request", pem[:60], detail)
        raise invalid(GROUP, request.kind.kind, request.name, [cause]) from None
    if spec.get("signerName") == CLIENT_SIGNER and MASTERS in (
        attribute.value for attribute in organizations
    ):
        why = f"use of {CLIENT_SIGNER} signer with {MASTERS} group is not allowed"
        raise forbidden_object(PLURAL, GROUP, request.name, why)


def restrict_signing_request(request: ApiRequest, old: Json, new: Json) -> None:
    """Undo changes that the written subresource must not make, in place.

    No write changes the spec. ``approval`` changes only the conditions, ``status`` everything but
    those of the approval.
    """
    if not is_signing_request(request):
        return
    restore_field(old, new, "spec")
    if request.subresource == "approval":
        conditions = subobject(new, "status").get("conditions") or []
        new["status"] = subobject(old, "status") | {"conditions": conditions}
    elif request.subresource == "status":
        status = {**subobject(new, "status")}
        status.pop("conditions", None)
        conditions = [*_conditions(old, approval=True), *_conditions(new, approval=False)]
        new["status"] = status | ({"conditions": conditions} if conditions else {})


def _conditions(obj: Json, *, approval: bool) -> list[Json]:
    listed = objects_in(subobject(obj, "status").get("conditions"))
    return [
        condition for condition in listed if (condition.get("type") in APPROVAL_TYPES) == approval
    ]


VERBS = {"approval": "approve", "status": "sign"}


class SignerGuard:
    """Checks approvals and signatures."""

    def __init__(self, authorizer: Authorizer) -> None:
        self._authorizer = authorizer

    def check(self, request: ApiRequest, old: Json | None, new: Json) -> None:
        """Refuse an approval or a signature by a user without the right for this signer. Raises
        StatusError: 403.
        """
        verb = VERBS.get(request.subresource)
        if verb is None or old is None or not is_signing_request(request):
            return
        if subobject(old, "status") == subobject(new, "status"):
            return
        signer = str(subobject(old, "spec").get("signerName", ""))
        if ADMIN_GROUP in request.user.groups or self._is_allowed(request.user, verb, signer):
            return
        why = f'user not permitted to {verb} requests with signerName "{signer}"'
        raise forbidden_object(PLURAL, GROUP, request.name, why)

    def _is_allowed(self, user: RequestUser, verb: str, signer: str) -> bool:
        names = (signer, f"{signer.partition('/')[0]}/*")
        return any(
            self._authorizer.allowed_reason(
                user, AccessAttributes(verb, GROUP, "signers", "", "", name)
            )
            for name in names
        )
