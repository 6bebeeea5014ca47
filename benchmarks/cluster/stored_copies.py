"""Many objects in a real Kubernetes within seconds: copies of stored ones, written to its etcd.

The API server creates one object of each kind, with all defaults. Its copies are the stored bytes
with other texts of the same length, so that the lengths in the protobuf message stay true. The API
server learns of them as of all changes: by its watch of etcd.
"""

import base64
import http.client
import json
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

ETCD_PORT = int(os.environ.get("ETCD_PORT", "12379"))
BATCH = 128
"""The most operations that etcd takes in one transaction."""


class Store:
    """The etcd of the real Kubernetes, through its gateway for JSON."""

    def __init__(self) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", ETCD_PORT, timeout=60)

    def get(self, key: str) -> bytes:
        """Return the stored bytes of a key."""
        [found] = self._send("range", {"key": _encoded(key.encode())})["kvs"]
        return base64.b64decode(found["value"])

    def put(self, values: Iterable[tuple[str, bytes]]) -> None:
        """Store all values."""
        pending = iter(values)
        while batch := list(islice(pending, BATCH)):
            puts = [
                {"requestPut": {"key": _encoded(key.encode()), "value": _encoded(value)}}
                for key, value in batch
            ]
            self._send("txn", {"success": puts})

    def _send(self, operation: str, body: dict[str, Any]) -> dict[str, Any]:
        self._connection.request("POST", f"/v3/kv/{operation}", json.dumps(body))
        answer = self._connection.getresponse()
        text = answer.read()
        if answer.status != 200:
            raise ConnectionError(f"etcd answered {answer.status}: {text[:300]!r}")
        found: dict[str, Any] = json.loads(text)
        return found


def copies(
    key: str, stored: bytes, uid: str, changes: Iterable[Mapping[str, str]]
) -> Iterator[tuple[str, bytes]]:
    """Yield copies of a stored object, with their keys.

    Args:
        key: its key.
        stored: its bytes.
        uid: its uid; each copy has one of its own.
        changes: the new texts of each copy, by the present ones.
    """
    for change in changes:
        new_key, value = key, stored.replace(uid.encode(), str(uuid.uuid4()).encode())
        for present, new in change.items():
            if len(present.encode()) != len(new.encode()):
                raise ValueError(f"{new!r} is not as long as {present!r}")
            new_key = new_key.replace(present, new)
            value = value.replace(present.encode(), new.encode())
        yield new_key, value


def _encoded(value: bytes) -> str:
    return base64.b64encode(value).decode()
