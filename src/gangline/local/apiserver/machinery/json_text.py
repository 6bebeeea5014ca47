"""Decoding JSON of clients without holding the interpreter lock for long.

One call of a C function holds the lock until it returns, so a thread that decodes a long text stops
the event loop as well: 20,000 ``managedFields`` take 30 ms, 99,000 numbers such as ``1.5e-300``
take 600 ms. Long texts are therefore read in slices. Between two slices, other threads run.
"""

from typing import Any, Literal, TypeAlias

import msgspec

__all__ = ["JSON_ERRORS", "Excess", "decode_json", "find_excess"]

Excess: TypeAlias = Literal["", "values", "depth"]
"""The limit that a text is certainly beyond; empty if there is none."""

SLICE_BYTES = 16 << 10
"""Text that is decoded in one call: 5 ms for the numbers that take longest."""
SCAN_BYTES = 64 << 10
"""Text that is scanned in one step."""
MAX_SLICED_DEPTH = 200
"""Levels that are taken apart. Deeper values are beyond any limit of this server."""
JSON_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""The exceptions of ``decode_json``."""

_decode = msgspec.json.Decoder().decode
_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_WHITESPACE = b" \t\r\n"


def decode_json(text: bytes) -> Any:
    """Decode JSON in slices of ``SLICE_BYTES``.

    Raises:
        JSON_ERRORS: it is not JSON, or is nested too deeply.
    """
    if len(text) <= SLICE_BYTES:
        return _decode(text)
    try:
        return _decode_long(text.lstrip(_WHITESPACE), 0)
    except msgspec.DecodeError as error:
        # The position in it is that within a slice.
        raise msgspec.DecodeError(str(error).partition(" (byte")[0]) from None


def _decode_long(text: bytes | msgspec.Raw, depth: int) -> Any:
    """Split a value into its members, which takes a twentieth of the time of decoding them."""
    if depth > MAX_SLICED_DEPTH:
        raise RecursionError("nested too deeply")
    first = bytes(memoryview(text)[:1])
    if first == b"{":
        members = _decode_object(text)
        return {
            name: _decode_long(part, depth + 1) if len(part) > SLICE_BYTES else _decode(part)
            for name, part in members.items()
        }
    if first == b"[":
        return [
            _decode_long(part, depth + 1) if len(part) > SLICE_BYTES else _decode(part)
            for part in _decode_list(text)
        ]
    return _decode(text)


def find_excess(text: bytes, max_values: int, max_depth: int) -> Excess:
    """Return ``values`` if JSON has more of them, each field and each element being one.

    Nothing is decoded: the punctuation outside of strings is counted. In n members of a list or an
    object there are n - 1 commas. ``depth`` is returned if the text has too many values, and is too
    deep where that was found; a deep text with few values is not. Text that is not JSON gets any
    answer.
    """
    if text.count(b",") + text.count(b"{") + text.count(b"[") < max_values:
        return ""
    count, depth, before, in_string, start = 1, 0, b"", False, 0
    while start < len(text):
        part = text[start : start + SCAN_BYTES]
        if (len(part) - len(part.rstrip(b"\\"))) % 2:  # ends within an escape
            part = text[start : start + SCAN_BYTES + 1]
        start += len(part)
        pieces = part.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        outside = b'"'.join(pieces[in_string::2]).translate(None, _WHITESPACE)
        in_string ^= len(pieces) % 2 == 0
        depth += outside.count(b"{") + outside.count(b"[")
        depth -= outside.count(b"}") + outside.count(b"]")
        outside = before + outside
        empty = outside.count(b"{}") + outside.count(b"[]")
        count += outside.count(b",") + outside.count(b"{") + outside.count(b"[") - empty
        before = outside[-1:] if not in_string else b'"'
        if before in (b",", b"{", b"["):
            count -= 1  # counted again with the next part
        if count > max_values:
            return "depth" if depth > max_depth else "values"
    return ""
