"""Conversion webhooks: objects of a custom kind in other versions than the stored one.

An object is stored in the storage version of its definition at the time of the write. It is served
in another version only as the definition's webhook has converted it; without an answer the request
fails, as in Kubernetes. Metadata other than labels and annotations is not the webhook's to change.
"""

import uuid
from collections.abc import Sequence

import msgspec

from gangline.api.cluster.admission import WebhookClientConfig
from gangline.local.apiserver.admission.webhook_call import (
    ConversionReview,
    WebhookClient,
    WebhookError,
    decode_review,
)
from gangline.local.apiserver.core.errors import internal
from gangline.local.apiserver.core.negotiation import encode_json, read_json
from gangline.local.apiserver.core.registry import Json, ServedKind

__all__ = ["ConversionWebhooks"]

GROUP = "apiextensions.k8s.io"
TIMEOUT_S = 30.0
REVIEW_VERSION = "v1"


class ConversionWebhooks:
    """Converts objects of kinds whose definition names a webhook; others are not touched."""

    def __init__(self, client: WebhookClient) -> None:
        self._client = client

    async def read(self, kind: ServedKind, bodies: Sequence[bytes]) -> list[bytes]:
        """Return stored objects in the version of ``kind``. Raises StatusError: 500, the webhook
        did not convert them.
        """
        if not kind.converts_when_read:
            return list(bodies)
        objects = [read_json(body) for body in bodies]
        return [encode_json(obj) for obj in await self._convert(kind, objects, kind.version)]

    async def to_stored(self, kind: ServedKind, obj: Json) -> Json:
        """Return an object in the version in which it is stored. Raises StatusError: 500."""
        if kind.conversion_webhook is None or kind.is_stored_form:
            return obj
        return (await self._convert(kind, [obj], kind.storage_version))[0]

    async def _convert(self, kind: ServedKind, objects: list[Json], version: str) -> list[Json]:
        desired = f"{kind.group}/{version}"
        others = [obj for obj in objects if obj["apiVersion"] != desired]
        if not others:
            return objects
        uid, webhook = str(uuid.uuid4()), kind.conversion_webhook or {}
        review = {
            "kind": "ConversionReview",
            "apiVersion": f"{GROUP}/{REVIEW_VERSION}",
            "request": {"uid": uid, "desiredAPIVersion": desired, "objects": others},
        }
        config = msgspec.convert(webhook.get("clientConfig") or {}, WebhookClientConfig)
        try:
            answer = await self._client.post(config, encode_json(review), TIMEOUT_S)
            converted = iter(_converted(answer, uid, desired, others))
        except (WebhookError, ValueError) as error:
            given = f"{others[0]['apiVersion']}, Kind={kind.kind}"
            raise internal(f"conversion webhook for {given} failed: {error}") from None
        return [obj if obj["apiVersion"] == desired else next(converted) for obj in objects]


def _converted(answer: bytes, uid: str, desired: str, given: Sequence[Json]) -> list[Json]:
    """Return the objects of an answer. Raises WebhookError, ValueError: it does not fit the
    request.
    """
    expected = (f"{GROUP}/{REVIEW_VERSION}", "ConversionReview", uid)
    response = decode_review(answer, ConversionReview, expected).response
    if response is None:
        raise ValueError("no response provided")
    if response.result.status != "Success":
        raise ValueError(response.result.message or "the webhook reported no success")
    if len(response.converted_objects) != len(given):
        raise ValueError(
            f"{len(given)} objects were expected, {len(response.converted_objects)} came back"
        )
    return [
        _checked(before, after, desired)
        for before, after in zip(given, response.converted_objects, strict=True)
    ]


def _checked(before: Json, after: Json, desired: str) -> Json:
    meta, changed = before["metadata"], after.get("metadata")
    if after.get("apiVersion") != desired or after.get("kind") != before["kind"]:
        shown = f"{after.get('apiVersion')}, Kind={after.get('kind')}"
        raise ValueError(f"{desired}, Kind={before['kind']} was expected, {shown} came back")
    if not isinstance(changed, dict):
        raise ValueError("a converted object has no metadata")
    if any(changed.get(name) != meta.get(name) for name in ("name", "namespace", "uid")):
        raise ValueError("a converted object has another name, namespace or uid")
    kept = {name: value for name, value in meta.items() if name not in ("labels", "annotations")}
    own = {name: changed[name] for name in ("labels", "annotations") if changed.get(name)}
    return {**after, "metadata": {**kept, **own}}
