"""Secrets with tokens of service accounts: filled, and deleted with their account.

Such a Secret has the type `TYPE` and names its account in an annotation. Its token is bound to it,
so that deleting the Secret revokes it. It is valid for a hundred years; Kubernetes' never expires.
"""

import base64
import contextlib

from gangline.api.core.core import Secret, ServiceAccount
from gangline.api.resources import SECRETS, SERVICE_ACCOUNTS
from gangline.kube.errors import NotFound
from gangline.kube.informers.informer import ObjectKey
from gangline.local.controllers.context import ControllerContext, QueueLoop, enqueue_changes
from gangline.local.kubelet.configuration import TokenSpec
from gangline.local.kubelet.volumes import request_token

TYPE = "kubernetes.io/service-account-token"
ACCOUNT = "kubernetes.io/service-account.name"
ACCOUNT_UID = "kubernetes.io/service-account.uid"
LIFETIME_S = 100 * 365 * 24 * 3600


class TokenSecretController(QueueLoop):
    def __init__(self, context: ControllerContext) -> None:
        super().__init__(context)
        self._accounts = context.informers.informer(SERVICE_ACCOUNTS)
        self._secrets = context.informers.informer(
            SECRETS, fields=f"type={TYPE}", indexes={"account": _account}
        )
        self._queue = self._add_queue("token-secrets", self._reconcile)
        self._secrets.add_listener(enqueue_changes(self._queue))
        self._accounts.add_listener(self._account_changed)

    def _account_changed(self, old: ServiceAccount | None, new: ServiceAccount | None) -> None:
        changed = new or old
        if changed is not None and (old is None or new is None):
            meta = changed.metadata
            for secret in self._secrets.by_index("account", f"{meta.namespace}/{meta.name}"):
                self._queue.add(ObjectKey(meta.namespace, secret.metadata.name))

    async def _reconcile(self, key: ObjectKey) -> None:
        secret = self._secrets.get(key.namespace, key.name)
        if secret is None or secret.metadata.deletion_timestamp is not None:
            return
        annotations = secret.metadata.annotations
        with contextlib.suppress(NotFound):
            try:
                account = await self._client.get(
                    SERVICE_ACCOUNTS, annotations.get(ACCOUNT, ""), key.namespace
                )
            except NotFound:
                account = None
            if account is None or annotations.get(ACCOUNT_UID, account.metadata.uid) != (
                account.metadata.uid
            ):
                uid = secret.metadata.uid
                await self._client.delete(SECRETS, key.name, key.namespace, uid=uid)
            elif not secret.data.keys() >= {"token", "ca.crt", "namespace"}:
                await self._fill(secret, account)

    async def _fill(self, secret: Secret, account: ServiceAccount) -> None:
        meta = secret.metadata
        spec = TokenSpec(lifetime_s=LIFETIME_S)
        name = account.metadata.name
        issued = await request_token(self._client, name, spec, "Secret", secret)
        content = {
            "token": issued["status"]["token"].encode(),
            "ca.crt": self._client.config.certificate_authority or b"",
            "namespace": meta.namespace.encode(),
        }
        patch = {
            "metadata": {"uid": meta.uid, "annotations": {ACCOUNT_UID: account.metadata.uid}},
            "data": {key: base64.b64encode(value).decode() for key, value in content.items()},
        }
        await self._client.patch(SECRETS, meta.name, patch, meta.namespace)


def _account(secret: Secret) -> list[str]:
    return [f"{secret.metadata.namespace}/{secret.metadata.annotations.get(ACCOUNT, '')}"]
