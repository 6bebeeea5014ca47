"""Sources of initializers: ``hf://``, ``s3://``, ``file://`` and ``pvc://``.

``hf`` and ``s3`` are upstream's; ``file`` is a path in the container of the initializer, ``pvc`` a
claim of the job's namespace. Other schemes are those of other programs, such as ``cache``.
"""

import re

import msgspec

from gangline.api import names

HF, S3, FILE, PVC = "hf", "s3", "file", "pvc"
SCHEMES = (HF, S3, FILE, PVC)
STORAGE_URI = "STORAGE_URI"
"""The variable of an initializer that has its source."""
SOURCE_CLAIM_PATH = "/var/run/gangline/source"
"""Where the claim of a ``pvc`` source is mounted, read-only."""

_URI = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)://(.+)", re.ASCII | re.DOTALL)
_REPOSITORY_PART = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?", re.ASCII)
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9]", re.ASCII)


class StorageUriError(ValueError):
    """The text is no source; the message is a predicate, ``remedy`` an imperative."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(problem)
        self.remedy = remedy


class StorageUri(msgspec.Struct, frozen=True):
    """A source of an initializer."""

    scheme: str
    location: str = ""
    """Repository, bucket or claim; empty for ``file`` and for schemes that are not known."""
    path: str = ""
    """The path below the location, without a slash at its begin or end; with ``file`` absolute."""
    revision: str = ""
    """Branch, tag or commit of a repository; empty: its default branch."""

    @property
    def is_known(self) -> bool:
        return self.scheme in SCHEMES


def parse_storage_uri(text: str) -> StorageUri:
    """Parse a source. Raises StorageUriError: it has no scheme, or not the parts that its scheme
    needs.
    """
    match = _URI.fullmatch(text)
    if match is None:
        remedy = "give SCHEME://PATH, such as hf://OWNER/NAME or s3://BUCKET/PATH"
        raise StorageUriError("has no scheme", remedy)
    scheme, rest = match[1].lower(), match[2]
    if scheme not in SCHEMES:
        return StorageUri(scheme)
    if any(part in (".", "..") for part in rest.split("/")) or not rest.isprintable():
        raise StorageUriError("has a part that is no name", "give a path without . and ..")
    if scheme == FILE:
        return _parse_file(rest)
    location, _, path = rest.partition("/")
    if "@" in location and scheme != HF:
        raise StorageUriError("contains credentials", "put them into a Secret and name it")
    path = path.strip("/")
    if scheme == HF:
        return _parse_repository(location, path)
    if scheme == PVC:
        if names.validate_dns_subdomain(location):
            remedy = "give pvc://CLAIM/PATH with the name of a PersistentVolumeClaim"
            raise StorageUriError("names no claim", remedy)
        return StorageUri(scheme, location, path)
    if not _BUCKET.fullmatch(location):
        raise StorageUriError("names no bucket", "give s3://BUCKET/PATH")
    return StorageUri(scheme, location, path)


def _parse_file(rest: str) -> StorageUri:
    if not rest.startswith("/"):
        remedy = "give file:///PATH with an absolute path, as the container sees it"
        raise StorageUriError("names no absolute path", remedy)
    return StorageUri(FILE, path="/" + rest.strip("/"))


def _parse_repository(owner: str, rest: str) -> StorageUri:
    name, _, path = rest.partition("/")
    name, at, revision = name.partition("@")
    parts = (owner, name) if rest else (owner.partition("@")[0],)
    if not rest:
        _, at, revision = owner.partition("@")
    is_named = all(_REPOSITORY_PART.fullmatch(part) for part in parts)
    if not is_named or (at and not revision):
        remedy = "give hf://OWNER/NAME, hf://OWNER/NAME@REVISION or hf://OWNER/NAME/PATH"
        raise StorageUriError("names no repository", remedy)
    return StorageUri(HF, "/".join(parts), path, revision)
