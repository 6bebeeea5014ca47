"""Encryption at rest: the format, the associated data, several keys, and unusable key files."""

import base64
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from gangline.local.apiserver.storage.encryption import (
    GENERATED_FILE,
    EncryptionKeyError,
    EncryptionKeys,
    load_keys,
    parse_keys,
)

OLD, NEW = b"o" * 32, b"n" * 32
BODY = b'{"data":{"password":"cGFzcw=="}}'


def keys(**named: bytes) -> EncryptionKeys:
    return EncryptionKeys(named, "/keys")


def key_line(name: str, key: bytes) -> str:
    return f"{name}:{base64.b64encode(key).decode()}\n"


def key_file(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def test_value_has_the_format_of_kubernetes_and_any_aes_gcm_decrypts_it() -> None:
    stored = keys(key1=OLD).encrypt("secrets.", "default/db", BODY)
    assert stored.startswith(b"k8s:enc:aesgcm:v1:key1:")
    sealed = stored.removeprefix(b"k8s:enc:aesgcm:v1:key1:")
    plain = AESGCM(OLD).decrypt(sealed[:12], sealed[12:], b"/registry/secrets./default/db")
    assert plain == BODY


def test_equal_values_are_stored_differently() -> None:
    one = keys(key1=OLD)
    assert one.encrypt("secrets.", "a", BODY) != one.encrypt("secrets.", "a", BODY)


def test_value_copied_to_another_object_does_not_decrypt() -> None:
    stored = keys(key1=OLD).encrypt("secrets.", "team-a/db", BODY)
    with pytest.raises(EncryptionKeyError, match=r"team-b/db.*was changed"):
        keys(key1=OLD).decrypt("secrets.", "team-b/db", stored)


def test_other_kinds_and_plain_values_are_unchanged() -> None:
    assert keys(key1=OLD).encrypt("configmaps.", "a", BODY) == BODY
    assert keys(key1=OLD).decrypt("secrets.", "a", BODY) == BODY
    assert EncryptionKeys.none().encrypt("secrets.", "a", BODY) == BODY


def test_first_key_encrypts_and_all_keys_decrypt() -> None:
    before = keys(old=OLD).encrypt("secrets.", "a", BODY)
    both = keys(new=NEW, old=OLD)
    after = both.encrypt("secrets.", "a", BODY)
    assert both.decrypt("secrets.", "a", before) == both.decrypt("secrets.", "a", after) == BODY
    assert not both.is_current("secrets.", before)
    assert not both.is_current("secrets.", BODY)
    assert both.is_current("secrets.", after)


@pytest.mark.parametrize(
    ("reader", "message"),
    [
        pytest.param(EncryptionKeys.none(), r"key 'old', but no key file is given", id="no key"),
        pytest.param(keys(new=NEW), r"key 'old', but /keys has new", id="another name"),
        pytest.param(keys(old=NEW), r"does not decrypt with key 'old' of /keys", id="other bytes"),
    ],
)
def test_missing_or_wrong_key_is_named(reader: EncryptionKeys, message: str) -> None:
    stored = keys(old=OLD).encrypt("secrets.", "default/db", BODY)
    with pytest.raises(EncryptionKeyError, match=message):
        reader.decrypt("secrets.", "default/db", stored)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("", "holds no key", id="empty"),
        pytest.param("# only a comment\n", "holds no key", id="comment"),
        pytest.param("key1:c2hvcnQ=\n", "line 1: not a key", id="short key"),
        pytest.param("key1:!!!\n", "line 1: not a key", id="no base64"),
        pytest.param("a b" + key_line("", OLD), "line 1: not a key", id="bad name"),
        pytest.param(key_line("a", OLD) + key_line("a", NEW), "line 2: key 'a' exists", id="twice"),
    ],
)
def test_malformed_key_files_are_refused_with_the_line(text: str, message: str) -> None:
    with pytest.raises(EncryptionKeyError, match=message):
        parse_keys(text, "keys")


def test_key_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = key_file(tmp_path / "keys", key_line("a", OLD), 0o640)
    with pytest.raises(EncryptionKeyError, match="chmod 600"):
        load_keys(tmp_path, path, new_cluster=True)


def test_new_cluster_gets_a_private_key_and_keeps_it(tmp_path: Path) -> None:
    first = load_keys(tmp_path, None, new_cluster=True)
    assert (tmp_path / GENERATED_FILE).stat().st_mode & 0o777 == 0o600
    assert load_keys(tmp_path, None, new_cluster=False).keys == first.keys


def test_cluster_from_before_encryption_gets_no_key(tmp_path: Path) -> None:
    assert not load_keys(tmp_path, None, new_cluster=False)
    assert not (tmp_path / GENERATED_FILE).exists()


def test_key_of_the_user_comes_before_the_generated_one(tmp_path: Path) -> None:
    generated = load_keys(tmp_path, None, new_cluster=True)
    path = key_file(tmp_path / "keys", key_line("mine", NEW))
    both = load_keys(tmp_path, path, new_cluster=False)
    assert list(both.keys) == ["mine", generated.primary]


def test_different_keys_of_one_name_are_refused(tmp_path: Path) -> None:
    key_file(tmp_path / GENERATED_FILE, key_line("a", OLD))
    path = key_file(tmp_path / "keys", key_line("a", NEW))
    with pytest.raises(EncryptionKeyError, match="different keys named 'a'"):
        load_keys(tmp_path, path, new_cluster=False)
