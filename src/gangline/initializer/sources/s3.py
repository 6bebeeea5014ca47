"""``s3://``: the objects of a bucket below a prefix, by ``obstore`` (Apache Arrow's object_store).

With ``ENDPOINT`` the bucket is a part of the path, as every server of the protocol accepts it.
Without keys in the settings those of the machine count: ``AWS_`` variables, the role of the service
account or of the instance. With ``ENDPOINT`` and no keys requests are not signed.
"""

import os
import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from gangline.initializer.errors import InitializerError, TransientError
from gangline.initializer.files import (
    SourceFile,
    check_path,
    compute_digest,
    partial_file,
    select_paths,
)
from gangline.initializer.settings import (
    ACCESS_KEY_ID,
    REGION,
    ROLE_ARN,
    SECRET_ACCESS_KEY,
    InitializerSettings,
)
from gangline.initializer.source import Listing

if TYPE_CHECKING:
    from obstore.store import S3Store

PART_BYTES = 64 << 20
"""One request; a time limit for it does not limit the size of objects."""
_PART_TIMEOUT = timedelta(minutes=10)
_CHUNK_BYTES = 1 << 20
_MD5 = re.compile(r"[0-9a-f]{32}", re.ASCII)
_STATUS = re.compile(r"status code: (\d{3})", re.ASCII)
_CODE = re.compile(r"<Code>(\w+)</Code>", re.ASCII)
_REFUSED = {"AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken"}
_TRANSIENT_STATUS = {408, 425, 429}
_TOKEN_FILE = "AWS_WEB_IDENTITY_TOKEN_FILE"

T = TypeVar("T")


class S3Source:
    """The objects of a bucket."""

    def __init__(self, settings: InitializerSettings) -> None:
        self._settings = settings
        self._keys: dict[str, str] = {}
        self._mismatches: dict[str, str] = {}
        """MD5 of the content by path, of objects whose ETag is another one."""
        self._store = _guard(settings, lambda: _open_store(settings))

    def list_files(self) -> Listing:
        """List the objects below the prefix, or the one that it names."""
        return _guard(self._settings, self._list)

    def fetch(self, file: SourceFile, listing: Listing, output: Path) -> None:
        """Fetch the parts of an object that are missing."""
        _guard(self._settings, lambda: self._fetch(file, output))

    def _list(self) -> Listing:
        settings, prefix = self._settings, self._settings.source.path
        objects: dict[str, Mapping[str, Any]] = {}
        for page in self._store.list(prefix or None):
            for entry in page:
                if path := entry["path"].removeprefix(prefix).strip("/"):
                    objects[path] = entry
        if not objects and prefix:
            objects[prefix.rpartition("/")[2]] = self._store.head(prefix)
        chosen = select_paths(_without_folders(objects), settings.ignored)
        files = []
        for path in chosen:
            meta = objects[check_path(path, settings.uri_field)]
            self._keys[path] = meta["path"]
            etag = (meta["e_tag"] or "").strip('"')
            files.append(SourceFile(path, meta["size"], version=etag))
        return Listing(files)

    def _fetch(self, file: SourceFile, output: Path) -> None:
        partial = partial_file(output, file)
        with partial.open("ab") as target:
            offset = target.tell()
            if offset > file.size:
                target.truncate(0)
                offset = 0
            while offset < file.size:
                end = min(offset + PART_BYTES, file.size)
                for chunk in self._part(file, offset, end):
                    target.write(chunk)
                target.flush()
                if target.tell() != end:
                    raise TransientError(f"{file.path}: the connection ended early")
                offset = end
        self._check(file, partial)
        os.replace(partial, output / file.path)

    def _part(self, file: SourceFile, start: int, end: int) -> Any:
        options: dict[str, Any] = {"range": (start, end)}
        if file.version:
            options["if_match"] = f'"{file.version}"'
        answer = self._store.get(self._keys[file.path], options=options)  # type: ignore[arg-type]
        return answer.stream(min_chunk_size=_CHUNK_BYTES)

    def _check(self, file: SourceFile, partial: Path) -> None:
        """Compare with the ETag: the MD5 of an object, unless a key of KMS encrypts it.

        The server does not say which of both it is. If two fetches have the same content, it is
        not the MD5.
        """
        if not _MD5.fullmatch(file.version):
            return
        digest = compute_digest(partial, "md5")
        if digest == file.version or self._mismatches.get(file.path) == digest:
            return
        self._mismatches[file.path] = digest
        partial.unlink()
        raise TransientError(f"{file.path}: the received bytes do not have the MD5 of the ETag")


def _without_folders(objects: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Leave out empty objects in place of folders, as consoles store them."""
    folders = {path[:end] for path in objects for end in _slashes(path)}
    return [path for path, entry in objects.items() if entry["size"] or path not in folders]


def _slashes(path: str) -> list[int]:
    return [position for position, character in enumerate(path) if character == "/"]


def _open_store(settings: InitializerSettings) -> "S3Store":
    from obstore.store import S3Store

    options: dict[str, Any] = {}
    if settings.access_key:
        options["access_key_id"] = settings.access_key
        options["secret_access_key"] = settings.secret_key
    if settings.endpoint:
        options["endpoint"] = settings.endpoint
        options["skip_signature"] = not settings.access_key and not _has_own_keys(os.environ)
    if settings.region:
        options["region"] = settings.region
    if settings.role:
        if settings.access_key or not os.environ.get(_TOKEN_FILE):
            problem = f"{settings.role!r} is assumed by the token of a service account only"
            remedy = f"annotate the service account of the pod with it, and give no {ACCESS_KEY_ID}"
            raise InitializerError(settings.env_field(ROLE_ARN), problem, remedy)
        options["role_arn"] = settings.role
    return S3Store(
        settings.source.location,
        client_options={
            "allow_http": True,
            "connect_timeout": timedelta(seconds=10),
            "read_timeout": timedelta(seconds=60),
            "timeout": _PART_TIMEOUT,
        },
        retry_config={"max_retries": 2, "retry_timeout": timedelta(seconds=30)},
        virtual_hosted_style_request=False,
        **options,
    )


def _has_own_keys(environment: Mapping[str, str]) -> bool:
    return bool(environment.get("AWS_ACCESS_KEY_ID") or environment.get(_TOKEN_FILE))


def _guard(settings: InitializerSettings, call: Callable[[], T]) -> T:
    """Call, and turn errors of the client into ours."""
    from obstore.exceptions import BaseError, PreconditionError

    try:
        return call()
    except PreconditionError as error:
        text = f"{settings.uri!r}: an object was changed during the fetch"
        raise InitializerError(settings.uri_field, text, "start the job again") from error
    except BaseError as error:
        raise _client_error(settings, str(error)) from error
    except FileNotFoundError as error:
        if error.errno is not None:
            raise
        problem = f"{settings.uri!r} does not exist: there is no such object and none below it"
        raise InitializerError(settings.uri_field, problem) from error


def _client_error(settings: InitializerSettings, text: str) -> Exception:
    if "invalid path" in text:
        problem = f"{settings.uri!r}: an object has a key that is no path: {text}"
        return InitializerError(settings.uri_field, problem, "rename it")
    status_match, named = _STATUS.search(text), _CODE.search(text)
    status, code = int(status_match[1]) if status_match else 0, named[1] if named else ""
    if not 400 <= status < 500 or status in _TRANSIENT_STATUS:
        return TransientError(f"{settings.uri!r}: {text.partition(chr(10))[0]}")
    problem = f"{settings.uri!r}: the server answers {status} {code}".rstrip()
    if status in (401, 403) or code in _REFUSED:
        remedy = f"check {ACCESS_KEY_ID} and {SECRET_ACCESS_KEY}, and the rights of the key"
        return InitializerError(settings.env_field(ACCESS_KEY_ID), problem, remedy)
    if status == 400 and not settings.endpoint:
        return InitializerError(settings.env_field(REGION), problem, "give the bucket's region")
    return InitializerError(settings.uri_field, problem)
