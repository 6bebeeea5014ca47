"""Code that pods fetch before they start: from git, by rsync, or uploaded from this machine.

An init container writes it to a volume that the main container mounts at ``WORKING_DIR/code``.
Invariant: user names and passwords are in a Secret of the job, and only the init container reads
it.
"""

import base64
from dataclasses import dataclass, replace
from urllib.parse import unquote, urlsplit, urlunsplit

from gangline.cli.jobs.flags import JobFlags, Manifest, Mount
from gangline.cli.jobs.owned import owned_object

GIT_IMAGE = "alpine/git:2.47.2"
RSYNC_IMAGE = "instrumentisto/rsync-ssh:alpine3.20"
CODE_VOLUME, MOUNT_PATH = "code-sync", "/code"
INIT_CONTAINER = "init-code"
_PREFIX = "GIT_SYNC_"
_CREDENTIALS = ("GIT_SYNC_USERNAME", "GIT_SYNC_PASSWORD")

_GIT = """\
set -e
export GIT_TERMINAL_PROMPT=0
case "$GIT_SYNC_BRANCH" in "") branch= ;; *) branch="--branch $GIT_SYNC_BRANCH" ;; esac
case "$GIT_SYNC_DEPTH" in ""|0) depth= ;; *) depth="--depth $GIT_SYNC_DEPTH" ;; esac
helper='!f() { echo "username=$GIT_SYNC_USERNAME"; echo "password=$GIT_SYNC_PASSWORD"; }; f'
if [ -n "$GIT_SYNC_PASSWORD" ]; then set -- -c credential.helper="$helper"; fi
rm -rf "/code/$GIT_SYNC_DEST"
git "$@" clone $branch $depth -- "$GIT_SYNC_REPO" "/code/$GIT_SYNC_DEST"
cd "/code/$GIT_SYNC_DEST"
if [ -n "$GIT_SYNC_REV" ]; then git checkout --quiet "$GIT_SYNC_REV"; fi
git log -1 --format='code is at commit %H'
"""
_RSYNC = 'rsync -a -v "$RSYNC_SOURCE" /code'
_UNPACK = """\
set -e
mkdir -p "/code/$CODE_NAME"
cat /uploaded/part-* | tar -xzf - -C "/code/$CODE_NAME"
"""


@dataclass(frozen=True, slots=True)
class CodeSync:
    """The source of the code."""

    mode: str
    """git, rsync or local; empty for none."""
    source: str = ""
    image: str = ""


def add_git_sync(flags: JobFlags, sync: CodeSync) -> tuple[JobFlags, list[Manifest]]:
    """Return the job with an init container that clones, and a Secret if the clone needs one."""
    source, from_source = _without_credentials(sync.source)
    variables = {each["name"]: each for each in flags.pod.environment}
    secret = from_source | {
        name: variables[name]["value"]
        for name in _CREDENTIALS
        if "value" in variables.get(name, {})
    }
    ours = {"GIT_SYNC_REPO": source, "GIT_SYNC_DEST": repository_name(source)}
    environment = [each for name, each in variables.items() if name not in {*secret, *ours}]
    environment += [
        {"name": name, "value": variables.get(name, {}).get("value", value)}
        for name, value in ours.items()
    ]
    secret_name = f"{flags.name}-code-sync"
    environment += [_from_secret(name, secret_name) for name in secret]
    init = _init_container(flags, sync.image or GIT_IMAGE, _GIT, environment)
    # The main container does not need the variables of the clone.
    others = [each for name, each in variables.items() if not name.startswith(_PREFIX)]
    job = replace(flags, pod=replace(flags.pod, environment=tuple(others)))
    return _add_code_volume(job, init), [_secret(flags, secret_name, secret)] if secret else []


def add_rsync(flags: JobFlags, sync: CodeSync) -> tuple[JobFlags, list[Manifest]]:
    """Return the job with an init container that copies by rsync."""
    environment = [*flags.pod.environment, {"name": "RSYNC_SOURCE", "value": sync.source}]
    return _add_code_volume(
        flags, _init_container(flags, sync.image or RSYNC_IMAGE, _RSYNC, environment)
    ), []


def add_upload(
    flags: JobFlags, sync: CodeSync, name: str, parts: list[bytes]
) -> tuple[JobFlags, list[Manifest]]:
    """Return the job with an init container that unpacks, and ConfigMaps with the packed code."""
    maps, sources = [], []
    for number, part in enumerate(parts):
        key, map_name = f"part-{number:03}", f"{flags.name}-code-{number}"
        content = base64.b64encode(part).decode()
        maps.append(
            owned_object(flags.name, {"apiVersion": "v1", "kind": "ConfigMap"}, map_name)
            | {"binaryData": {key: content}}
        )
        sources.append({"configMap": {"name": map_name}})
    uploaded: Mount = (
        {"name": "uploaded-code", "projected": {"sources": sources}},
        {"name": "uploaded-code", "mountPath": "/uploaded", "readOnly": True},
    )
    environment = [{"name": "CODE_NAME", "value": name}]
    init = _init_container(flags, sync.image or flags.pod.image, _UNPACK, environment)
    init["volumeMounts"].append(uploaded[1])
    job = _add_code_volume(flags, init)
    code = (*job.pod.code, (uploaded[0], {**uploaded[1]}))
    return replace(job, pod=replace(job.pod, code=code)), maps


def repository_name(source: str) -> str:
    """Return the folder that a clone of ``source`` creates."""
    path = urlsplit(source).path if "://" in source else source.rpartition(":")[2]
    return path.rstrip("/").rpartition("/")[2].removesuffix(".git") or "repository"


def _without_credentials(source: str) -> tuple[str, dict[str, str]]:
    """Remove user name and password from a URL; return both separately."""
    parts = urlsplit(source)
    if parts.scheme not in {"http", "https"} or parts.username is None:
        return source, {}
    found = {"GIT_SYNC_USERNAME": unquote(parts.username)}
    if parts.password is not None:
        found["GIT_SYNC_PASSWORD"] = unquote(parts.password)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=host)), found


def _from_secret(name: str, secret: str) -> Manifest:
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": name}}}


def _secret(flags: JobFlags, name: str, values: dict[str, str]) -> Manifest:
    encoded = {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
    head = {"apiVersion": "v1", "kind": "Secret"}
    return owned_object(flags.name, head, name) | {"type": "Opaque", "data": encoded}


def _init_container(
    flags: JobFlags, image: str, script: str, environment: list[Manifest]
) -> Manifest:
    amounts = {
        name: flags.pod.amounts[name] for name in ("cpu", "memory") if name in flags.pod.amounts
    }
    container: Manifest = {
        "name": INIT_CONTAINER,
        "image": image,
        "imagePullPolicy": flags.pod.pull_policy,
        "command": ["sh", "-c", script],
        "env": environment,
        "volumeMounts": [{"name": CODE_VOLUME, "mountPath": MOUNT_PATH}],
    }
    if amounts:
        container["resources"] = {"requests": amounts, "limits": dict(amounts)}
    return {key: value for key, value in container.items() if value}


def _add_code_volume(flags: JobFlags, init: Manifest) -> JobFlags:
    where = f"{flags.pod.working_dir.rstrip('/')}/code"
    code: Mount = ({"name": CODE_VOLUME, "emptyDir": {}}, {"name": CODE_VOLUME, "mountPath": where})
    pod = replace(
        flags.pod,
        code=(*flags.pod.code, code),
        init_containers=(*flags.pod.init_containers, init),
    )
    return replace(flags, pod=pod)
