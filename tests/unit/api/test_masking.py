"""What is secret in manifests and lines, and what is not."""

import pytest

from gangline.api.masking import MASK, mask_lines, mask_manifest, secret_values


@pytest.mark.parametrize(
    ("line", "masked"),
    [
        ("HF_TOKEN=abcdef123", f"HF_TOKEN={MASK}"),
        ('{"access_token": "abcdef"}', f'{{"access_token": "{MASK}"}}'),
        ("run --api-key abcdef --lr 1", f"run --api-key {MASK} --lr 1"),
        ("postgres://ann:pw1@db/x", f"postgres://{MASK}@db/x"),
        ("Authorization: Bearer abcdefghij", f"Authorization: Bearer {MASK}"),
        ("login hf_abcdefghijklmnopqrst ok", f"login {MASK} ok"),
        ("the value s3cret-value is used", f"the value {MASK} is used"),
    ],
)
def test_credential_in_a_line_is_masked(line: str, masked: str) -> None:
    assert mask_lines([line], {"s3cret-value"}) == [masked]


@pytest.mark.parametrize(
    "line",
    ["max_tokens=100000 lr=0.1", "tokenizer: bert-base", "key = value", "step 5 loss 0.25", ""],
)
def test_line_without_a_credential_stays(line: str) -> None:
    assert mask_lines([line]) == [line]


def test_private_key_is_masked_with_its_lines() -> None:
    body = "A" * 64
    key = ["-----BEGIN RSA PRIVATE KEY-----", body, body, "-----END RSA PRIVATE KEY-----"]
    assert mask_lines(["before", *key, "after"]) == ["before", MASK, "after"]


def test_manifest_is_masked_by_names_and_by_the_values_of_its_secret_variables() -> None:
    manifest = {
        "metadata": {"name": "x", "managedFields": [1], "resourceVersion": "7"},
        "spec": {
            "args": ["--token", "abcdef", "--epochs", "3", "echo abcdef123"],
            "env": [
                {"name": "WANDB_API_KEY", "value": "abcdef123"},
                {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "t"}}},
                {"name": "EPOCHS", "value": "3"},
            ],
        },
    }
    assert secret_values(manifest) == {"abcdef123"}
    assert mask_manifest(manifest) == {
        "metadata": {"name": "x"},
        "spec": {
            "args": ["--token", MASK, "--epochs", "3", f"echo {MASK}"],
            "env": [
                {"name": "WANDB_API_KEY", "value": MASK},
                {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "t"}}},
                {"name": "EPOCHS", "value": "3"},
            ],
        },
    }
