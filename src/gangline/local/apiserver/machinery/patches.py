"""JSON patch, JSON merge patch (RFC 6902, RFC 7396) and strategic merge patch.

A patch never changes its arguments, because a failed write must leave the stored object as it was.
The result shares no parts with the arguments, because the server changes it in place afterwards.

A strategic merge patch merges lists by key, as the schema describes. Its directives:

  ``$patch: replace | delete | merge``       for an object, or for an item of a keyed list
  ``$retainKeys: [names]``                   fields of an object to keep; others are removed
  ``$deleteFromPrimitiveList/FIELD: [...]``  members to remove from a list of scalars
  ``$setElementOrder/FIELD: [...]``          the order of a merged list

Lists without a merge strategy in the schema are replaced. A merged list has the order of the patch
first; other items keep the server's order (``order_elements``).
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeAlias

import jsonpatch
import jsonpointer
import msgspec

from gangline.local import limits
from gangline.local.apiserver.machinery.schema.nodes import Json, copy_json, field_schema


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
    """Apply a list of JSON patch operations. Raises PatchError: 400 if it is not a list of
    operations, 413 if it has too many operations or copies too much, 422 if an operation or a
    ``test`` does not fit the document.
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
    patched: Any = copy_json(document)
    left = limits.MAX_COPIED_BYTES
    for number, operation in enumerate(operations):
        # The library's messages print values, which may be secret.
        shown = f"operation {number} ({operation.get('op')} {operation.get('path')!r})"
        try:
            left -= _copied_bytes(patched, operation)
            if left < 0:
                message = f"the copies of the JSON patch exceed {limits.MAX_COPIED_BYTES} bytes"
                raise PatchError(message, 413, "RequestEntityTooLarge")
            patched = jsonpatch.apply_patch(patched, [operation], in_place=True)
        except jsonpatch.JsonPatchTestFailed:
            raise unprocessable_patch(
                f"{shown} of the JSON patch failed: the object has another value"
            ) from None
        except (jsonpatch.JsonPatchConflict, jsonpointer.JsonPointerException):
            raise unprocessable_patch(
                f"{shown} of the JSON patch does not fit the object: it has no such path"
            ) from None
        except (jsonpatch.JsonPatchException, TypeError, ValueError, KeyError) as error:
            detail = str(error) if isinstance(error, jsonpatch.InvalidJsonPatch) else "wrong type"
            raise PatchError(f"{shown} of the JSON patch is malformed: {detail}") from None
        except RecursionError:
            raise unprocessable_patch("the result of the JSON patch is nested too deeply") from None
    if not isinstance(patched, dict):
        raise unprocessable_patch("the result of the JSON patch is not an object")
    return patched


def _copied_bytes(document: Any, operation: Json) -> int:
    """Return the size of what a copy adds: each may double the document."""
    source = operation.get("from")
    if operation.get("op") != "copy" or not isinstance(source, str):
        return 0
    return len(msgspec.json.encode(jsonpointer.resolve_pointer(document, source, None)))


def merge_patch(document: Json, patch: Any) -> Json:
    """Apply a merge patch: values replace, null removes, objects merge, lists are replaced, where
    null is no item. Raises PatchError: the patch is not an object.
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
    if isinstance(patch, list):
        return [_merge(None, item) for item in patch if item is not None]
    if not isinstance(patch, dict):
        return patch
    before = document if isinstance(document, dict) else {}
    result = {name: copy_json(value) for name, value in before.items() if name not in patch}
    for name, value in patch.items():
        if value is not None:
            result[name] = _merge(before.get(name), value)
    return result


Identity: TypeAlias = Callable[[Any], Hashable]
"""Returns the merge key of a list item."""


def order_elements(
    merged: Sequence[Any],
    patch_order: Sequence[Any],
    server_order: Sequence[Any],
    identity: Identity,
) -> list[Any]:
    """Return ``merged`` with the patched items in the order of the patch, the others in server
    order.

    The two sequences are zipped. An item that only the server has comes first if it stood before
    the next patched item; otherwise the patched item comes first.
    """
    rank = {identity(item): place for place, item in reversed(list(enumerate(patch_order)))}
    place_before = {
        identity(item): place for place, item in reversed(list(enumerate(server_order)))
    }
    first = sorted(
        (item for item in merged if identity(item) in rank), key=lambda item: rank[identity(item)]
    )
    others = sorted(
        (item for item in merged if identity(item) not in rank),
        key=lambda item: place_before.get(identity(item), len(place_before)),
    )
    result: list[Any] = []
    waiting = iter(others)
    other = next(waiting, None)
    for item in first:
        here = place_before.get(identity(item))
        while other is not None and here is not None:
            if place_before.get(identity(other), here) >= here:
                break
            result.append(other)
            other = next(waiting, None)
        result.append(item)
    if other is not None:
        result += [other, *waiting]
    return result


PATCH_DIRECTIVE = "$patch"
RETAIN_DIRECTIVE = "$retainKeys"
DELETE_DIRECTIVE = "$deleteFromPrimitiveList/"
ORDER_DIRECTIVE = "$setElementOrder/"

_EMPTY: Json = {}


def strategic_merge_patch(document: Json, patch: Any, schema: Mapping[str, Any]) -> Json:
    """Apply a strategic merge patch to an object whose lists are described by ``schema``. Raises
    PatchError: the patch is not an object, or misuses a directive (400).
    """
    if not isinstance(patch, dict):
        raise PatchError("a strategic merge patch must be an object")
    merged: Json = copy_json(_merge_objects(document, patch, schema))
    return merged


def _merge_objects(original: Json, patch: Json, schema: Mapping[str, Any]) -> Json:
    directive = patch.get(PATCH_DIRECTIVE)
    if directive is not None:
        rest = {name: value for name, value in patch.items() if name != PATCH_DIRECTIVE}
        if directive == "replace":
            plain: Json = _strip_directives(rest)
            return plain
        if directive == "delete":
            return {}
        if directive != "merge":
            raise PatchError(f"Unknown patch type: {directive} in map: {_truncated(patch)}")
        patch = rest
    result = _apply_retain_keys(original, patch)
    _delete_from_lists(result, patch)
    for name, value in patch.items():
        if name.startswith("$"):
            continue
        if value is None:
            result.pop(name, None)
        else:
            child_schema = field_schema(schema, name)
            result[name] = _merge_values(result.get(name), value, child_schema, name)
    _apply_orders(original, result, patch, schema)
    return result


def _merge_values(original: Any, value: Any, schema: Mapping[str, Any], name: str) -> Any:
    strategies = str(schema.get("x-kubernetes-patch-strategy", "")).split(",")
    if isinstance(value, dict):
        if "replace" in strategies or not isinstance(original, dict):
            original = {}
        return _merge_objects(original, value, schema)
    if isinstance(value, list):
        if "merge" not in strategies:
            return _strip_directives(value)
        originals = original if isinstance(original, list) else []
        key = schema.get("x-kubernetes-patch-merge-key")
        return _merge_lists(originals, value, schema, key, name)
    return value


def _merge_lists(
    original: list[Any], patch: list[Any], schema: Mapping[str, Any], key: str | None, name: str
) -> list[Any]:
    if key is None:
        scalar = _scalar_identity(name)
        merged = list({scalar(item): item for item in (*original, *patch)}.values())
        return order_elements(merged, patch, original, scalar)
    identity = _identity(key, name)
    items, replace = _apply_list_directives(original, patch, key, name)
    if replace:
        return items
    child_schema = schema.get("items", _EMPTY)
    additions = [item for item in patch if not _is_directive(item)]
    for addition in additions if original else ():
        if isinstance(addition, dict) and key not in addition:
            shown = _truncated(addition)
            raise PatchError(f"map: {shown} does not contain declared merge key: {key}")
    # The merge key need not be unique (port 53 for TCP and for UDP): the patch merges into the
    # first of two equal keys, and both items stay.
    places = {identity(item): place for place, item in reversed(list(enumerate(items)))}
    for addition in additions:
        place = places.setdefault(identity(addition), len(items))
        if place == len(items):
            items.append({})
        items[place] = _merge_objects(items[place], addition, child_schema)
    return order_elements(items, additions, original, identity)


def _apply_list_directives(
    original: list[Any], patch: list[Any], key: str, name: str
) -> tuple[list[Any], bool]:
    """Execute the ``$patch`` items. Returns the remaining list, and whether it is final."""
    identity = _identity(key, name)
    directives = {str(item[PATCH_DIRECTIVE]) for item in patch if _is_directive(item)}
    if unknown := directives - {"replace", "delete"}:
        raise PatchError(f"Unknown patch type: {', '.join(unknown)} in the list {name}")
    if "replace" in directives:
        return _strip_directives([item for item in patch if not _is_directive(item)]), True
    deleted = {identity(item) for item in patch if _is_directive(item)}
    return [item for item in original if identity(item) not in deleted], False


def _identity(key: str, name: str) -> Identity:
    def identity(item: Any) -> Hashable:
        if not isinstance(item, dict):
            raise PatchError(f"the list {name} mixes objects and other values")
        value = item.get(key)
        return (type(value).__name__, str(value))

    return identity


def _scalar_identity(name: str) -> Identity:
    def identity(item: Any) -> Hashable:
        if isinstance(item, dict | list):
            raise PatchError(f"the list {name} holds {_truncated(item)}, which has no merge key")
        return (type(item).__name__, item)

    return identity


def _is_directive(item: Any) -> bool:
    return isinstance(item, dict) and PATCH_DIRECTIVE in item


def _apply_retain_keys(original: Json, patch: Json) -> Json:
    if RETAIN_DIRECTIVE not in patch:
        return dict(original)
    retain = patch[RETAIN_DIRECTIVE]
    if not isinstance(retain, list):
        raise PatchError(f"{RETAIN_DIRECTIVE} must be a list of field names")
    retained = {name for name in retain if isinstance(name, str)}
    given = [
        name for name, value in patch.items() if value is not None and not name.startswith("$")
    ]
    if strays := [name for name in given if name not in retained]:
        raise PatchError(f"{RETAIN_DIRECTIVE} does not name the patched fields {', '.join(strays)}")
    return {name: value for name, value in original.items() if name in retained}


def _delete_from_lists(result: Json, patch: Json) -> None:
    for directive, members in patch.items():
        if not directive.startswith(DELETE_DIRECTIVE):
            continue
        name = directive.removeprefix(DELETE_DIRECTIVE)
        if not isinstance(members, list):
            raise PatchError(f"{directive} must be a list")
        if isinstance(result.get(name), list):
            identity = _scalar_identity(name)
            removed = {identity(member) for member in members}
            result[name] = [
                item
                for item in result[name]
                if isinstance(item, dict | list) or identity(item) not in removed
            ]


def _apply_orders(original: Json, result: Json, patch: Json, schema: Mapping[str, Any]) -> None:
    for directive, order in patch.items():
        if not directive.startswith(ORDER_DIRECTIVE):
            continue
        name = directive.removeprefix(ORDER_DIRECTIVE)
        if not isinstance(order, list):
            raise PatchError(f"{directive} must be a list")
        items = result.get(name)
        if not isinstance(items, list):
            continue
        before = original.get(name)
        key = field_schema(schema, name).get("x-kubernetes-patch-merge-key")
        identity = _identity(key, name) if key else _scalar_identity(name)
        _check_order(patch.get(name), order, identity, name)
        before = before if isinstance(before, list) else []
        result[name] = order_elements(items, order, before, identity)


def _check_order(patched: Any, order: list[Any], identity: Identity, name: str) -> None:
    """Refuse a patch whose items are missing in its order, or are in another order."""
    if not isinstance(patched, list):
        return
    listed = iter([identity(item) for item in order])
    for item in patched:
        if not _is_directive(item) and identity(item) not in listed:
            raise PatchError(
                f"{ORDER_DIRECTIVE}{name} does not match the patched list at {_truncated(item)}"
            )


def _strip_directives(value: Any) -> Any:
    """Return a copy of a patch value without directives and nulls, for a field with nothing to
    merge.
    """
    if isinstance(value, dict):
        return {
            name: _strip_directives(child)
            for name, child in value.items()
            if child is not None and not name.startswith("$")
        }
    if isinstance(value, list):
        return [_strip_directives(item) for item in value]
    return value


def _truncated(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 100 else f"{text[:100]}…"
