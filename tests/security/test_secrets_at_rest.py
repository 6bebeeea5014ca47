"""No file of a running API server, and no backup of it, has a Secret in plain text."""

import asyncio
import base64
import tarfile
from pathlib import Path

from apiserver_process import refusal
from gangline.local.backups import create_backup
from gangline.local.directory import ClusterDirectory
from security.conftest import AttackedServer, attacked_server

MARKER = "a-password-that-must-not-be-found"
ENCODED = base64.b64encode(MARKER.encode())
SECRETS = "/api/v1/namespaces/default/secrets"


async def write_secrets(server: AttackedServer) -> None:
    """Create, change and delete Secrets, with the plain value in data and in an annotation."""
    for number in range(20):
        name = f"db-{number}"
        meta = {"name": name, "annotations": {"last-applied": MARKER}}
        data = {"password": ENCODED.decode()}
        status, _ = await server.request("POST", SECRETS, json={"metadata": meta, "data": data})
        assert status == 201
        patch = {"stringData": {"second": f"{MARKER}-{number}"}}
        headers = {"Content-Type": "application/merge-patch+json"}
        await server.request("PATCH", f"{SECRETS}/{name}", json=patch, headers=headers)
        if number % 3 == 0:
            await server.request("DELETE", f"{SECRETS}/{name}")


def files_with_marker(folder: Path) -> list[str]:
    found = [path for path in folder.rglob("*") if path.is_file()]
    return [
        path.name
        for path in found
        if any(text in path.read_bytes() for text in (MARKER.encode(), ENCODED, ENCODED[4:-4]))
    ]


async def test_state_log_and_backup_have_no_plain_secret(tmp_path: Path) -> None:
    home = ClusterDirectory(tmp_path)
    home.prepare()
    async with attacked_server(home.folder) as server:
        await write_secrets(server)
        assert files_with_marker(home.folder) == []
        status, _ = await server.request("GET", "/snapshot")
        assert status == 200
        assert (home.folder / "snapshot.db").stat().st_mode & 0o077 == 0
        assert files_with_marker(home.folder) == []
    assert files_with_marker(home.folder) == []


async def test_snapshot_needs_all_rights(attacked: AttackedServer) -> None:
    status, _ = await attacked.request("GET", "/snapshot", user="eve")
    assert status == 403
    assert not (attacked.data / "snapshot.db").exists()


async def test_backup_has_no_plain_secret(tmp_path: Path) -> None:
    home = ClusterDirectory(tmp_path / "home")
    home.prepare()
    async with attacked_server(home.folder) as server:
        await write_secrets(server)
    backup = await asyncio.to_thread(create_backup, home, tmp_path / "backup")
    assert backup.manifest.encrypted_with
    with tarfile.open(tmp_path / "backup") as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    assert files_with_marker(tmp_path / "unpacked") == []


async def test_plain_cluster_is_encrypted_when_a_key_is_given(tmp_path: Path) -> None:
    data, keys = tmp_path / "data", tmp_path / "keys"
    async with attacked_server(data) as server:
        pass
    # As an earlier version has left it: a state file without a key.
    (data / "encryption.key").unlink()
    async with attacked_server(data) as server:
        await write_secrets(server)
        assert files_with_marker(data) != []
    keys.write_text(f"key1:{base64.b64encode(b'1' * 32).decode()}\n")
    keys.chmod(0o600)
    async with attacked_server(data, "--encryption-key", str(keys)) as server:
        assert files_with_marker(data) == []
        status, found = await server.request("GET", f"{SECRETS}/db-1")
        assert status == 200
        assert found["data"]["password"] == ENCODED.decode()
    refused = await refusal(data)
    assert "is encrypted with key 'key1', but no key file is given" in refused
    keys.write_text(f"key1:{base64.b64encode(b'2' * 32).decode()}\n")
    refused = await refusal(data, "--encryption-key", str(keys))
    assert "does not decrypt with key 'key1'" in refused
    keys.chmod(0o644)
    assert "chmod 600" in await refusal(data, "--encryption-key", str(keys))
