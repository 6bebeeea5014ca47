"""``hf://``: a repository of Hugging Face, by ``huggingface_hub``.

The commit is read first, and all files are those of that commit. The client continues files that
are not complete, repeats requests, and reads ``HF_ENDPOINT`` and the other variables that it knows.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from gangline.initializer.errors import InitializerError, TransientError
from gangline.initializer.files import Digest, SourceFile, check_path, select_paths
from gangline.initializer.settings import ACCESS_TOKEN, MODEL, InitializerSettings
from gangline.initializer.source import Listing

MODEL_FILES = (
    *("*.safetensors", "*.gguf", "*.json", "*.jinja", "*.txt", "*.md"),
    *("*.model", "*.tiktoken", "*.vocab", "LICENSE*", "*.py"),
)
"""Files of a model: weights without code, configuration, tokenizer, texts."""

_TRANSIENT_STATUS = {408, 425, 429}

T = TypeVar("T")


class HuggingFaceSource:
    """A repository of data or of a model."""

    def __init__(self, settings: InitializerSettings) -> None:
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        from huggingface_hub import HfApi

        self._settings = settings
        self._type = "model" if settings.step == MODEL else "dataset"
        self._api = HfApi(
            endpoint=settings.endpoint or None,
            token=settings.access_token or None,
            library_name="gangline",
        )

    def list_files(self) -> Listing:
        return self._guard(self._list)

    def fetch(self, file: SourceFile, listing: Listing, output: Path) -> None:
        def call() -> None:
            self._api.hf_hub_download(
                self._settings.source.location,
                file.path,
                repo_type=self._type,
                revision=listing.revision,
                local_dir=output,
                # The file that is there was found to be another one.
                force_download=(output / file.path).exists(),
            )

        self._guard(call)

    def _list(self) -> Listing:
        settings, source = self._settings, self._settings.source
        info = self._api.repo_info(
            source.location, revision=source.revision or None, repo_type=self._type
        )
        tree = self._api.list_repo_tree(
            source.location, recursive=True, revision=info.sha, repo_type=self._type
        )
        entries = {entry.path: entry for entry in tree if hasattr(entry, "size")}
        below = [path for path in entries if _is_below(path, source.path)]
        if not below:
            raise InitializerError(
                settings.uri_field, f"{settings.uri!r}: the repository has no files there"
            )
        allowed = MODEL_FILES if settings.step == MODEL else ()
        chosen = select_paths(below, settings.ignored, allowed)
        files = [_describe(check_path(path, settings.uri_field), entries[path]) for path in chosen]
        return Listing(files, str(info.sha or ""))

    def _guard(self, call: Callable[[], T]) -> T:
        """Call, and turn errors of the client into ours."""
        from huggingface_hub import errors

        settings = self._settings
        name = settings.source.location
        try:
            return call()
        except (InitializerError, TransientError):
            raise
        except errors.GatedRepoError as error:
            problem = f"the repository {name!r} asks for an agreement"
            remedy = "accept it on its page, and give the token of that account"
            raise InitializerError(settings.env_field(ACCESS_TOKEN), problem, remedy) from error
        except errors.RevisionNotFoundError as error:
            problem = f"{settings.uri!r}: there is no revision {settings.source.revision!r}"
            raise InitializerError(settings.uri_field, problem) from error
        except errors.RepositoryNotFoundError as error:
            problem = f"there is no {self._type} repository {name!r} for this account"
            remedy = f"check the name; a private one needs {ACCESS_TOKEN}"
            raise InitializerError(settings.uri_field, problem, remedy) from error
        except errors.HFValidationError as error:
            raise InitializerError(settings.uri_field, str(error)) from error
        except errors.HfHubHTTPError as error:
            status = getattr(error.response, "status_code", 0)
            text = f"{settings.uri!r}: the server answers {status}"
            if status in (401, 403):
                remedy = "give a token that may read the repository"
                raise InitializerError(settings.env_field(ACCESS_TOKEN), text, remedy) from error
            if 400 <= status < 500 and status not in _TRANSIENT_STATUS:
                raise InitializerError(settings.uri_field, text) from error
            raise TransientError(text) from error
        except OSError as error:
            # LocalEntryNotFoundError, which the client raises when no server answers, is one too;
            # its cause says why.
            if error.errno is not None:
                raise
            raise TransientError(_reason(error)) from error
        except errors.HTTPError as error:  # type: ignore[attr-defined] # httpx's, or httpx2's
            raise TransientError(_reason(error)) from error


def _reason(error: BaseException) -> str:
    cause: BaseException = error
    while (deeper := cause.__cause__ or cause.__context__) is not None:
        cause = deeper
    text = str(cause).partition("\n")[0]
    return f"{type(cause).__name__}: {text}" if text else type(cause).__name__


def _is_below(path: str, prefix: str) -> bool:
    return not prefix or path == prefix or path.startswith(f"{prefix}/")


def _describe(path: str, entry: Any) -> SourceFile:
    lfs = getattr(entry, "lfs", None)
    if lfs is not None:
        return SourceFile(path, lfs.size, Digest("sha256", lfs.sha256), lfs.sha256)
    blob = entry.blob_id
    return SourceFile(path, entry.size, Digest("git-sha1", blob) if blob else None, blob or "")
