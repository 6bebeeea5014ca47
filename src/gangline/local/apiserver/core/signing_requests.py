"""CertificateSigningRequests: who requests a certificate, and what each subresource may change.

The server writes the identity of the requester into the request: signers copy it into certificates
that they sign. The approval subresource changes conditions only, the status subresource all but the
approval. These are the rules of Kubernetes.
"""

import base64
import binascii

from cryptography import x509
from cryptography.x509.oid import NameOID

from gangline.api.meta import field_causes
from gangline.api.meta.json_objects import objects_in, subobject
from gangline.local.apiserver.core.errors import forbidden, invalid
from gangline.local.apiserver.core.metadata import restore_field
from gangline.local.apiserver.core.registry import Json
from gangline.local.apiserver.core.request import ApiRequest

GROUP = "certificates.k8s.io"
PLURAL = "certificatesigningrequests"
APPROVAL_TYPES = ("Approved", "Denied")
CLIENT_SIGNER = "kubernetes.io/kube-apiserver-client"
MASTERS = "system:masters"


def is_signing_request(request: ApiRequest) -> bool:
    return request.kind.plural == PLURAL and request.kind.group == GROUP


def complete_signing_request(request: ApiRequest, obj: Json) -> None:
    """Write the requester into a new request, in place.

    Raises:
        StatusError: 422, the request is not one in PEM; 403, it asks for full rights.
    """
    spec = obj.get("spec")
    if not is_signing_request(request) or not isinstance(spec, dict):
        return
    for name in ("username", "uid", "groups", "extra"):
        spec.pop(name, None)
    user = request.user
    spec["username"] = user.name
    given = {
        "uid": user.uid,
        "groups": list(user.groups),
        "extra": {name: list(values) for name, values in user.extra},
    }
    spec |= {name: value for name, value in given.items() if value}
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
        each.value for each in organizations
    ):
        message = (
            f'{PLURAL}.{GROUP} "{request.name}" is forbidden: use of {CLIENT_SIGNER} signer with '
            f"{MASTERS} group is not allowed"
        )
        raise forbidden(message, PLURAL, GROUP, request.name)


def restrict_signing_request(request: ApiRequest, old: Json, new: Json) -> None:
    """Undo changes that the written subresource must not make, in place.

    No write changes the spec. ``approval`` changes only the conditions of the approval, ``status``
    everything but these.
    """
    if not is_signing_request(request):
        return
    restore_field(old, new, "spec")
    if request.subresource == "approval":
        status = dict(subobject(old, "status"))
        status["conditions"] = [
            *_conditions(old, approval=False),
            *_conditions(new, approval=True),
        ]
        new["status"] = status
    elif request.subresource == "status":
        status = {**subobject(new, "status")}
        status.pop("conditions", None)
        conditions = [*_conditions(old, approval=True), *_conditions(new, approval=False)]
        new["status"] = status | ({"conditions": conditions} if conditions else {})


def _conditions(obj: Json, *, approval: bool) -> list[Json]:
    listed = objects_in(subobject(obj, "status").get("conditions"))
    return [each for each in listed if (each.get("type") in APPROVAL_TYPES) == approval]
