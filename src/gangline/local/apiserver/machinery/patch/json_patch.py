"""JSON patch and JSON merge patch (RFC 6902, RFC 7396), and the errors of invalid ones.

A patch never changes its arguments, because a failed write must leave the stored object as it was.
The result shares no parts with the arguments, because the server changes it in place afterwards.
"""

from collections.abc import Sequence
from typing import Any

import jsonpatch
import jsonpointer
import msgspec

from gangline.local import limits
from gangline.local.apiserver.machinery.schema.nodes import Json, copy_json


class PatchError(Exception):
    """The patch cannot be applied. Carries the HTTP code, reason and message of the response."""

    def __init__(self, message: str, code: int = 400, reason: str = "BadRequest") -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.reason = reason


def unprocessable_patch(message: str) -> PatchError:
    """Return the error of a well-formed patch that does not fit the document."""
    return PatchError(message, 422, "Invalid")


def json_patch(document: Json, operations: Any) -> Json:
    """Apply a list of JSON patch operations.

    Raises:
        PatchError: 400 if it is not a list of operations, 413 if it has too many operations or
            copies too much, 422 if an operation or a ``test`` does not fit the document.
    """
    if not isinstance(operations, Sequence) or isinstance(operations, str):
        raise PatchError("a JSON patch must be a list of operations")
    if len(operations) > limits.MAX_PATCH_OPERATIONS:
        message = f"The allowed maximum operations in a JSON patch is {limits.MAX_PATCH_OPERATIONS}"
        detail = f"{message}, got {len(operations)}"
        raise PatchError(detail, 413, "RequestEntityTooLarge")
    for number, operation in enumerate(operations):
        if not isinstance(operation, dict):
            raise PatchError(f"operation {number} of the JSON patch is not an object")
    try:
        patched = _apply_operations(document, operations)
    except (jsonpatch.JsonPatchConflict, jsonpointer.JsonPointerException) as error:
        raise unprocessable_patch(f"the JSON patch does not fit the object: {error}") from error
    except jsonpatch.JsonPatchTestFailed as error:
        raise unprocessable_patch(f"a test of the JSON patch failed: {error}") from error
    except (jsonpatch.JsonPatchException, TypeError, ValueError) as error:
        raise PatchError(f"the JSON patch is malformed: {error}") from error
    except RecursionError:
        raise unprocessable_patch("the result of the JSON patch is nested too deeply") from None
    if not isinstance(patched, dict):
        raise unprocessable_patch("the result of the JSON patch is not an object")
    return patched


def _apply_operations(document: Json, operations: Sequence[Json]) -> Any:
    """Apply operations in turn. Copies are counted, since each may double the document."""
    if not any(operation.get("op") == "copy" for operation in operations):
        return jsonpatch.apply_patch(document, list(operations))
    patched: Any = copy_json(document)
    left = limits.MAX_COPIED_BYTES
    for operation in operations:
        source = operation.get("from")
        if operation.get("op") == "copy" and isinstance(source, str):
            left -= len(msgspec.json.encode(jsonpointer.resolve_pointer(patched, source, None)))
        if left < 0:
            message = f"the copies of the JSON patch exceed {limits.MAX_COPIED_BYTES} bytes"
            raise PatchError(message, 413, "RequestEntityTooLarge")
        patched = jsonpatch.apply_patch(patched, [operation], in_place=True)
    return patched


def merge_patch(document: Json, patch: Any) -> Json:
    """Apply a merge patch: values replace, null removes, objects merge, lists are replaced.

    Raises:
        PatchError: the patch is not an object.
    """
    if not isinstance(patch, dict):
        raise PatchError("a merge patch must be an object")
    merged: Json = _merge(document, patch)
    return merged


def json_equal(left: Any, right: Any) -> bool:
    """Compare two values as JSON, where ``true`` is not equal to ``1`` as it is in Python."""
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(json_equal(left[k], right[k]) for k in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(json_equal, left, right))
    return isinstance(left, bool) == isinstance(right, bool) and bool(left == right)


def _merge(document: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return copy_json(patch)
    before = document if isinstance(document, dict) else {}
    result = {name: copy_json(value) for name, value in before.items() if name not in patch}
    for name, value in patch.items():
        if value is not None:
            result[name] = _merge(before.get(name), value)
    return result
