"""Formats of strings and numbers in schemas, each as a test of one value."""

import base64
import binascii
import ipaddress
import re
from collections.abc import Callable, Mapping
from datetime import date, datetime
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

_DATE_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)\Z")
_QUANTITY = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?\d+)?\Z")
_DURATION = re.compile(r"[+-]?(0|(\d+(\.\d*)?(ns|us|µs|ms|s|m|h|d|w|hours?|minutes?|days?) ?)+)\Z")
_EMAIL = re.compile(r"[^@\s]+@[^@\s]+\Z")
_HOST_NAME = re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?(\.[A-Za-z0-9-]+)*\Z")


def _parses(parse: Callable[[str], object]) -> Callable[[Any], bool]:
    def test(value: Any) -> bool:
        try:
            parse(value)
        except (ValueError, TypeError, binascii.Error):
            return False
        return True

    return test


def _matches(pattern: re.Pattern[str]) -> Callable[[Any], bool]:
    return lambda value: pattern.match(value) is not None


def _date_time(value: Any) -> bool:
    if not _DATE_TIME.match(value):
        return False
    try:
        datetime.fromisoformat(value.upper())
    except ValueError:
        return False
    return True


def _between(low: int, high: int) -> Callable[[Any], bool]:
    return lambda value: low <= value <= high


STRING_FORMATS: Mapping[str, Callable[[Any], bool]] = {
    "byte": _parses(lambda text: base64.b64decode(text, validate=True)),
    "cidr": _parses(ipaddress.ip_network),
    "date": _parses(date.fromisoformat),
    "date-time": _date_time,
    "duration": _matches(_DURATION),
    "email": _matches(_EMAIL),
    "hostname": _matches(_HOST_NAME),
    "ipv4": _parses(ipaddress.IPv4Address),
    "ipv6": _parses(ipaddress.IPv6Address),
    "quantity": _matches(_QUANTITY),
    "uri": lambda text: bool(urlsplit(text).scheme),
    "uuid": _parses(UUID),
}
"""Tests of strings by format name. A format that is not listed is not checked."""

NUMBER_FORMATS: Mapping[str, Callable[[Any], bool]] = {
    "int32": _between(-(2**31), 2**31 - 1),
    "int64": _between(-(2**63), 2**63 - 1),
    "uint32": _between(0, 2**32 - 1),
    "uint64": _between(0, 2**64 - 1),
}
"""Tests of numbers by format name."""
