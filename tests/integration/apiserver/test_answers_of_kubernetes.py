"""The embedded API server answers as a real kube-apiserver: 300 generated requests to both.

Scripts outside this repository start the real one (``GANGLINE_REALKUBE`` names their folder). What
differs on purpose is a table in docs/apiserver.md, which this test reads: a difference without a
row fails.

Starting etcd and the real API server takes half a minute.
"""

import base64
import copy
import http.client
import json
import random
import re
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml

from apiserver_process import start
from integration.apiserver.generated_requests import (
    NAMESPACE,
    Generator,
    Json,
    Request,
    collection,
    valid_objects,
)
from integration.scheduler.kube_scheduler import PROGRAMS, SCRIPTS, start_servers, stop_servers

DOCUMENT = Path(__file__).parents[3] / "docs" / "apiserver.md"
TABLE = "## Differences from Kubernetes"
SEED, REQUESTS = 37, 300
TIMEOUT_S = 30
OLD_VERSIONS = {
    "autoscaling/v2": "autoscaling/v2beta2", "batch/v1": "batch/v1beta1",
    "policy/v1": "policy/v1beta1",
}  # fmt: skip
"""Versions of the same kinds in releases that do not serve the present ones."""
ASSIGNED = frozenset(
    {"creationTimestamp", "deletionTimestamp", "generation", "managedFields", "resourceVersion",
     "selfLink", "uid", "clusterIP", "clusterIPs", "nodePort", "healthCheckNodePort",
     "lastTransitionTime"}
)  # fmt: skip
"""Fields whose values each server chooses."""
UID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
Send = Callable[[Request], tuple[int, Json]]


@contextmanager
def connect(kubeconfig: Path, folder: Path) -> Iterator[Send]:
    """Yield a function that sends requests as the administrator of a cluster."""
    config = yaml.safe_load(kubeconfig.read_text())
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
    context = ssl.create_default_context(cadata=authority)
    files = [folder / f"{kubeconfig.stem}.{part}" for part in ("certificate", "key")]
    for file in files:
        file.write_bytes(base64.b64decode(user[f"client{file.suffix.replace('.', '-')}-data"]))
    context.load_cert_chain(*files)
    connection = http.client.HTTPSConnection(
        cluster["server"].removeprefix("https://"), context=context, timeout=TIMEOUT_S
    )

    def send(request: Request) -> tuple[int, Json]:
        body = None if request.body is None else json.dumps(request.body)
        headers = {"Content-Type": request.media, "Accept": "application/json"}
        try:
            connection.request(request.method, request.path, body, headers)
            response = connection.getresponse()
        except http.client.RemoteDisconnected:  # some patches end in a panic of release 1.20
            connection.close()
            return 500, {}
        text = response.read()
        try:
            return response.status, json.loads(text)
        except ValueError:
            return response.status, {"message": text.decode(errors="replace")}

    try:
        yield send
    finally:
        connection.close()


@contextmanager
def real_server(folder: Path) -> Iterator[Path]:
    folder.mkdir()
    try:
        yield start_servers(folder)
    finally:
        stop_servers(folder)


def old_version(send: Send, served: Mapping[str, Any]) -> Send:
    """Send requests in the versions that a server has; a kind's version is that of its path."""

    def translate(request: Request) -> tuple[int, Json]:
        path, body = request.path, request.body
        for new, old in OLD_VERSIONS.items():
            if path.startswith(f"/apis/{new}/") and not _is_served(served, path):
                path = path.replace(f"/apis/{new}/", f"/apis/{old}/", 1)
                if isinstance(body, dict) and body.get("apiVersion") == new:
                    body = {**body, "apiVersion": old}
        return send(Request(request.method, path, body, request.media, request.about))

    return translate


def _is_served(paths: Mapping[str, Any], path: str) -> bool:
    template = re.sub(r"/namespaces/[^/]+/", "/namespaces/{namespace}/", path.partition("?")[0])
    return re.sub(r"/base2?(?=$|/)", "/{name}", template) in paths


def definitions(document: Json) -> Json:
    """Return the schemas of an OpenAPI document, the old versions under their present names."""
    schemas = document["definitions"]
    present = {old: new for new, old in OLD_VERSIONS.items()}
    for schema in schemas.values():
        named = schema.get("x-kubernetes-group-version-kind", ())
        for entry in named if len(named) == 1 else ():
            new = present.get(f"{entry['group']}/{entry['version']}")
            if new and entry["kind"] != "JobTemplate":
                entry["version"] = new.rpartition("/")[2]
    return schemas


def differences(
    generator: Generator, base: Json, real: tuple[int, Json], ours: tuple[int, Json]
) -> set[str]:
    """Return where two answers differ."""
    (code, expected), (given, answer) = real, ours
    if max(code, given) < 400:
        pair = (_content(generator, base, expected), _content(generator, base, answer))
        return {re.sub(r"\[\d+\]", "", place) for place in _places(*pair, "")}
    expected_fields, fields = _fields(expected), _fields(answer)
    told = str(expected.get("message"))
    decoder = code == 500 or "patch" in expected_fields or "cannot be handled as" in told
    if decoder and given >= 400:
        return {"decoding"}
    if (code, expected.get("reason")) != (given, answer.get("reason")):
        return {f"{code} {given}"}
    return {f"cause {field}" for field in expected_fields ^ fields}


def _fields(status: Json) -> set[str]:
    causes = status.get("details", {}).get("causes", ())
    return {re.sub(r"\[[^]]*\]", "", cause.get("field", "")) for cause in causes}


def _content(generator: Generator, base: Json, obj: Json) -> Any:
    """Return what both servers must agree on: without assigned values, and without zero ones."""
    if str(obj.get("kind")).endswith("List"):
        return sorted(item["metadata"]["name"] for item in obj["items"]
                      if item["metadata"]["name"].startswith("base"))  # fmt: skip
    if obj.get("kind") != base["kind"]:
        return {"kind": obj.get("kind")}
    shown = generator.known(copy.deepcopy(obj), generator.schema_of(base))
    shown.pop("apiVersion", None)
    return _plain(json.loads(UID.sub("UID", json.dumps(shown))))


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    plain = {name: _plain(item) for name, item in value.items() if name not in ASSIGNED}
    return {name: item for name, item in plain.items() if item}


def _places(expected: Any, given: Any, path: str) -> Iterator[str]:
    if isinstance(expected, dict) and isinstance(given, dict):
        for name in {*expected, *given}:
            yield from _places(expected.get(name), given.get(name), f"{path}.{name}")
    elif isinstance(expected, list) and isinstance(given, list) and len(expected) == len(given):
        for index, pair in enumerate(zip(expected, given, strict=True)):
            yield from _places(*pair, f"{path}[{index}]")
    elif expected != given:
        yield path


def documented_differences() -> list[tuple[str, str]]:
    """Return kinds and places of the table in the documents; ``*`` stands for any text."""
    section = DOCUMENT.read_text().partition(TABLE)[2].partition("\n## ")[0]
    rows = [row.strip("|").split("|") for row in section.splitlines() if row.startswith("|")][2:]
    return [
        (kind.strip(), place.strip(" `"))
        for kinds, places, *_ in rows
        for kind in kinds.split(",")
        for place in places.split("`, `")
    ]


@pytest.mark.timeout(600)
@pytest.mark.skipif(
    not ((SCRIPTS / "up").exists() and (PROGRAMS / "kube-apiserver").exists()),
    reason="there is no real Kubernetes (GANGLINE_REALKUBE, KUBE_BIN)",
)
async def test_answers_differ_from_those_of_kubernetes_only_as_documented(tmp_path: Path) -> None:
    process = await start(tmp_path / "ours", "--durability", "process")
    try:
        with (
            connect(tmp_path / "ours" / "kubeconfig", tmp_path) as ours,
            real_server(tmp_path / "real") as kubeconfig,
            connect(kubeconfig, tmp_path) as send,
        ):
            document = send(Request("GET", "/openapi/v2"))[1]
            generator = Generator(definitions(document), random.Random(SEED))
            unknown = play(generator, old_version(send, document["paths"]), ours)
    finally:
        process.terminate()
        await process.wait()
    assert not unknown, "\n".join(unknown)


def play(generator: Generator, real: Send, ours: Send) -> list[str]:
    """Return the differences that are not documented."""
    allowed, unknown = documented_differences(), []
    objects = valid_objects()
    account = {"automountServiceAccountToken": False, "metadata": {"name": "default"}}
    for send in (real, ours):
        send(Request("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}}))
        path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts"
        send(Request("POST", path, {"apiVersion": "v1", "kind": "ServiceAccount"} | account))
        for obj in objects:
            code, answer = send(Request("POST", collection(obj), obj))
            assert code == 201, (obj["kind"], answer)
    paths = {collection(obj): obj for obj in objects}
    for request in generator.requests(REQUESTS):
        asked = request.path.partition("?")[0] + "/"
        base = paths[max((path for path in paths if asked.startswith(path + "/")), key=len)]
        answers = real(request), ours(request)
        for place in differences(generator, base, *answers):
            if not any(fnmatch(base["kind"], kind) and fnmatch(place, pattern)
                       for kind, pattern in allowed):  # fmt: skip
                messages = [str(answer.get("message"))[:300] for _, answer in answers]
                unknown.append(f"{base['kind']} | {place} | {request.about} | {messages}")
    return unknown
