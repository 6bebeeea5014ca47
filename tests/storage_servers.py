"""Servers that initializers fetch from: the API of Hugging Face's hub, and that of S3.

Both answer from memory and can fail on request: refuse, end a connection early, send other bytes.
The clients are the unchanged ones, so what these servers lack shows as a failed test.
"""

import hashlib
import json
import re
import threading
import urllib.parse
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from xml.sax.saxutils import escape

_REPOSITORY = "/api/(datasets|models)/([^/]+/[^/]+)"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class StorageServer(ThreadingHTTPServer):
    """What both servers have: files, faults to come, and the requests that came."""

    daemon_threads = True

    def __init__(self, handler: "type[StorageHandler]", files: dict[str, bytes]) -> None:
        super().__init__(("0.0.0.0", 0), handler)  # also for pods with networks of their own
        self.files = files
        self.token = ""
        """The token or access key that is required; empty: none."""
        self.refusals: Counter[str] = Counter()
        """How many requests for a path are answered with 503."""
        self.cut: dict[str, int] = {}
        """Bytes of the next answer for a path, after which the connection ends."""
        self.damaged: Counter[str] = Counter()
        """How many answers for a path have other bytes."""
        self.served: list[tuple[str, str]] = []
        """Path and range of each request for content."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    @contextmanager
    def running(self) -> Iterator["StorageServer"]:
        """Serve until the end of the block."""
        thread = threading.Thread(target=self.serve_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.shutdown()
            self.server_close()
            thread.join()


class StorageHandler(BaseHTTPRequestHandler):
    """Answers of content, with the server's faults."""

    protocol_version = "HTTP/1.1"
    server: StorageServer

    def log_message(self, format: str, *args: Any) -> None:
        """Write nothing."""

    def answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_file(self, name: str, etag: str) -> None:
        """Send a file, or the range of it that the request names."""
        server, content = self.server, self.server.files[name]
        headers = {"ETag": f'"{etag}"', "Accept_Ranges": "bytes", "X_Repo_Commit": COMMIT}
        headers["Last_Modified"] = "Mon, 23 Nov 2026 10:00:00 GMT"
        if self.command == "HEAD":
            self.send_response(200)
            for key, value in headers.items():
                self.send_header(key.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            return
        if server.refusals[name] > 0:
            server.refusals[name] -= 1
            self.answer(503, b"<Error><Code>SlowDown</Code></Error>")
            return
        span = self.headers.get("Range", "")
        server.served.append((name, span))
        if server.damaged[name] > 0:
            server.damaged[name] -= 1
            content = bytes(byte ^ 1 for byte in content)
        status = 200
        if found := re.fullmatch(r"bytes=(\d+)-(\d*)", span):
            first, last = int(found[1]), int(found[2] or len(content) - 1)
            last = min(last, len(content) - 1)
            headers["Content_Range"] = f"bytes {first}-{last}/{len(content)}"
            content, status = content[first : last + 1], 206
        if name in server.cut:
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: server.cut.pop(name)])
            self.close_connection = True
            return
        self.answer(status, content, **headers)


class HubHandler(StorageHandler):
    """The part of the hub's API that ``huggingface_hub`` uses to read a repository.

    Files are named ``datasets/OWNER/NAME/PATH`` or ``models/OWNER/NAME/PATH``. Those above 1 kB are
    stored as LFS objects.
    """

    LARGE: ClassVar[int] = 1000

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path, _, _ = urllib.parse.unquote(self.path).partition("?")
        if self.server.token and self.headers.get("Authorization") != f"Bearer {self.server.token}":
            self.answer(401, b'{"error":"no access"}', X_Error_Code="RepoNotFound")
        elif found := re.fullmatch(
            r"/api/(datasets|models)/([^/]+/[^/]+)(?:/revision/(.+))?", path
        ):
            self._describe(*found.groups())
        elif found := re.fullmatch(r"/api/(datasets|models)/([^/]+/[^/]+)/tree/([^/]+)/?", path):
            self._list(found[1], found[2])
        elif found := re.fullmatch(r"/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            kind = "datasets" if found[1] else "models"
            name = f"{kind}/{found[2]}/{found[4]}"
            if name in self.server.files:
                self.send_file(name, _hub_etag(self.server.files[name]))
            else:
                self.answer(404, b"{}", X_Error_Code="EntryNotFound")
        else:
            self.answer(404, b"{}")

    def _paths(self, kind: str, name: str) -> list[str]:
        prefix = f"{kind}/{name}/"
        return [path.removeprefix(prefix) for path in self.server.files if path.startswith(prefix)]

    def _describe(self, kind: str, name: str, revision: str | None) -> None:
        paths = self._paths(kind, name)
        if not paths:
            self.answer(404, b"{}", X_Error_Code="RepoNotFound")
            return
        if revision not in (None, "main", "v1", COMMIT):
            self.answer(404, b"{}", X_Error_Code="RevisionNotFound")
            return
        siblings = [{"rfilename": path} for path in paths]
        self._json({"id": name, "sha": COMMIT, "siblings": siblings, "private": False})

    def _list(self, kind: str, name: str) -> None:
        entries = []
        for path in self._paths(kind, name):
            content = self.server.files[f"{kind}/{name}/{path}"]
            entry: dict[str, Any] = {
                "type": "file",
                "oid": _git_sha1(content),
                "size": len(content),
                "path": path,
            }
            if len(content) > self.LARGE:
                digest = hashlib.sha256(content).hexdigest()
                entry["lfs"] = {"oid": digest, "size": len(content), "pointerSize": 130}
            entries.append(entry)
        self._json(entries)

    def _json(self, content: Any) -> None:
        self.answer(200, json.dumps(content).encode(), Content_Type="application/json")


class BucketHandler(StorageHandler):
    """The part of S3's API that reads a bucket; objects are named ``BUCKET/KEY``."""

    PAGE: ClassVar[int] = 3

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        url = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        bucket, _, key = urllib.parse.unquote(url.path).lstrip("/").partition("/")
        name = f"{bucket}/{key}"
        given = re.search(r"Credential=([^/]+)/", self.headers.get("Authorization", ""))
        if self.server.token and (given is None or given[1] != self.server.token):
            self._error(403, "InvalidAccessKeyId")
        elif not any(path.startswith(f"{bucket}/") for path in self.server.files):
            self._error(404, "NoSuchBucket")
        elif not key:
            self._list(bucket, query)
        elif name not in self.server.files:
            self._error(404, "NoSuchKey")
        else:
            etag = hashlib.md5(self.server.files[name], usedforsecurity=False).hexdigest()
            wanted = self.headers.get("If-Match", "").strip('"')
            if wanted not in ("", etag):
                self._error(412, "PreconditionFailed")
            else:
                self.send_file(name, etag)

    def _error(self, status: int, code: str) -> None:
        body = f"<Error><Code>{code}</Code><Message>refused</Message></Error>"
        self.answer(status, body.encode(), Content_Type="application/xml")

    def _list(self, bucket: str, query: dict[str, str]) -> None:
        keys = sorted(
            key
            for path in self.server.files
            if path.startswith(f"{bucket}/")
            and (key := path.removeprefix(f"{bucket}/")).startswith(query.get("prefix", ""))
        )
        start = int(query.get("continuation-token", "0"))
        page, more = keys[start : start + self.PAGE], len(keys) > start + self.PAGE
        listed = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>2026-11-23T10:00:00.000Z"
            f"</LastModified><ETag>&quot;{self._etag(bucket, key)}&quot;</ETag>"
            f"<Size>{len(self.server.files[f'{bucket}/{key}'])}</Size></Contents>"
            for key in page
        )
        token = f"<NextContinuationToken>{start + self.PAGE}</NextContinuationToken>"
        body = (
            f"<ListBucketResult><Name>{bucket}</Name><IsTruncated>{str(more).lower()}"
            f"</IsTruncated>{token if more else ''}{listed}</ListBucketResult>"
        )
        self.answer(200, body.encode(), Content_Type="application/xml")

    def _etag(self, bucket: str, key: str) -> str:
        content = self.server.files[f"{bucket}/{key}"]
        return hashlib.md5(content, usedforsecurity=False).hexdigest()


def _git_sha1(content: bytes) -> str:
    text = f"blob {len(content)}\0".encode() + content
    return hashlib.sha1(text, usedforsecurity=False).hexdigest()


def _hub_etag(content: bytes) -> str:
    if len(content) > HubHandler.LARGE:
        return hashlib.sha256(content).hexdigest()
    return _git_sha1(content)
