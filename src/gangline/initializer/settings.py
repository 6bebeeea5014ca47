"""Settings of an initializer: upstream's variables, and OUTPUT_DIR."""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from gangline.api.jobs.training_runtime import WORKSPACE
from gangline.api.trainer.storage_uri import (
    SCHEMES,
    SOURCE_CLAIM_PATH,
    STORAGE_URI,
    StorageUri,
    StorageUriError,
    parse_storage_uri,
)
from gangline.initializer.errors import InitializerError

DATASET, MODEL = "dataset", "model"
STEPS = (DATASET, MODEL)
OUTPUT_DIR, IGNORE_PATTERNS = "OUTPUT_DIR", "IGNORE_PATTERNS"
ACCESS_TOKEN, ENDPOINT, REGION, ROLE_ARN = "ACCESS_TOKEN", "ENDPOINT", "REGION", "ROLE_ARN"
ACCESS_KEY_ID, SECRET_ACCESS_KEY = "ACCESS_KEY_ID", "SECRET_ACCESS_KEY"
PICKLED_WEIGHTS = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.msgpack", "*.h5")
"""Not fetched with a model: pickles run code when they are loaded, and the others are copies of the
same weights for other frameworks.
"""


class InitializerSettings(msgspec.Struct, frozen=True):
    """What an initializer fetches, where from, and where to."""

    step: str
    """``dataset`` or ``model``."""
    uri: str
    """The source as it was given."""
    source: StorageUri
    output: Path
    ignored: tuple[str, ...] = ()
    """Patterns of files that are not fetched."""
    access_token: str = ""
    endpoint: str = ""
    region: str = ""
    role: str = ""
    """Role that is assumed for requests to S3; empty: none."""
    access_key: str = ""
    secret_key: str = ""
    claim_path: Path = Path(SOURCE_CLAIM_PATH)

    @property
    def uri_field(self) -> str:
        """The field of the TrainJob that has the source, for messages."""
        return f"spec.initializer.{self.step}.storageUri"

    def env_field(self, name: str) -> str:
        """Return the field of a variable, for messages."""
        return f"spec.initializer.{self.step}.env[{name}]"


def read_settings(step: str, environment: Mapping[str, str]) -> InitializerSettings:
    """Read the settings of a step.

    Args:
        step: ``dataset`` or ``model``.
        environment: the variables of the process.

    Raises:
        InitializerError: a variable is missing or wrong.
    """
    uri_field = f"spec.initializer.{step}.storageUri ({STORAGE_URI})"

    def value(name: str) -> str:
        return environment.get(name, "").strip()

    uri = value(STORAGE_URI)
    if not uri:
        raise InitializerError(uri_field, "is missing", "give a source, such as hf://OWNER/NAME")
    try:
        source = parse_storage_uri(uri)
    except StorageUriError as error:
        shown = "" if "credentials" in str(error) else f"{uri!r} "
        raise InitializerError(uri_field, f"{shown}{error}", error.remedy) from None
    if not source.is_known:
        schemes = ", ".join(f"{scheme}://" for scheme in SCHEMES)
        raise InitializerError(
            uri_field, f"{uri!r} has a scheme that is not supported", f"use one of {schemes}"
        )
    output = Path(value(OUTPUT_DIR) or f"{WORKSPACE}/{step}")
    if not output.is_absolute():
        raise InitializerError(OUTPUT_DIR, f"{str(output)!r} is no absolute path")
    settings = InitializerSettings(
        step=step,
        uri=uri,
        source=source,
        output=output,
        ignored=_ignored(step, environment),
        access_token=value(ACCESS_TOKEN),
        endpoint=value(ENDPOINT).rstrip("/"),
        region=value(REGION),
        role=value(ROLE_ARN),
        access_key=value(ACCESS_KEY_ID),
        secret_key=value(SECRET_ACCESS_KEY),
    )
    _check(settings)
    return settings


def _check(settings: InitializerSettings) -> None:
    endpoint = settings.endpoint
    if endpoint and not endpoint.startswith(("http://", "https://")):
        field = settings.env_field(ENDPOINT)
        raise InitializerError(field, f"{endpoint!r} is no address", "give https://HOST[:PORT]")
    if bool(settings.access_key) != bool(settings.secret_key):
        given, missing = ACCESS_KEY_ID, SECRET_ACCESS_KEY
        if settings.secret_key:
            given, missing = missing, given
        raise InitializerError(
            settings.env_field(missing), f"is missing, but {given} is given", "give both"
        )


def _ignored(step: str, environment: Mapping[str, str]) -> tuple[str, ...]:
    written = environment.get(IGNORE_PATTERNS)
    if written is None:
        return PICKLED_WEIGHTS if step == MODEL else ()
    return tuple(pattern for part in written.split(",") if (pattern := part.strip()))
