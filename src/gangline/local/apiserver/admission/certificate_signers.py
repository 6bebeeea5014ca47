"""Approving and signing certificates: the right to do it for the signer of a request.

Beside the right to write the subresource, Kubernetes asks for the verb ``approve`` or ``sign`` on
``signers`` with the name of the signer, or with ``DOMAIN/*``.
"""

from gangline.api.meta.json_objects import subobject
from gangline.local.apiserver.auth.pki import ADMIN_GROUP
from gangline.local.apiserver.auth.rbac import Authorizer
from gangline.local.apiserver.auth.rules import AccessAttributes
from gangline.local.apiserver.core.errors import forbidden
from gangline.local.apiserver.core.registry import Json
from gangline.local.apiserver.core.request import ApiRequest, RequestUser
from gangline.local.apiserver.core.signing_requests import GROUP, PLURAL, is_signing_request

VERBS = {"approval": "approve", "status": "sign"}


class SignerGuard:
    """Checks approvals and signatures."""

    def __init__(self, authorizer: Authorizer) -> None:
        self._authorizer = authorizer

    def check(self, request: ApiRequest, old: Json | None, new: Json) -> None:
        """Refuse an approval or a signature by a user without the right for this signer.

        Raises:
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
        message = (
            f'{PLURAL}.{GROUP} "{request.name}" is forbidden: user not permitted to {verb} '
            f'requests with signerName "{signer}"'
        )
        raise forbidden(message, PLURAL, GROUP, request.name)

    def _is_allowed(self, user: RequestUser, verb: str, signer: str) -> bool:
        names = (signer, f"{signer.partition('/')[0]}/*")
        return any(
            self._authorizer.allowed_reason(
                user, AccessAttributes(verb, GROUP, "signers", "", "", name)
            )
            for name in names
        )
