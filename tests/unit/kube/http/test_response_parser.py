"""HTTP responses: parsed correctly for every segmentation, or an error."""

import gzip
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.kube.http.connections import HttpResponse, MalformedResponse, ResponseParser

STATED = b"HTTP/1.1 201 Created\r\nContent-Type: a/b\r\ncontent-length:  5 \r\n\r\nhello"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    b'3\r\nhel\r\n2;note="x"\r\nlo\r\n00\r\n\r\n'
)
TRAILED = CHUNKED[:-2] + b"Checksum: 1\r\nOther: 2\r\n\r\n"
FOREWORD = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + STATED
NO_REASON = b"HTTP/1.1 200 \r\nContent-Length: 5\r\n\r\nhello"
EMPTY = b"HTTP/1.1 204 No Content\r\n\r\n"


def read(*pieces: bytes) -> HttpResponse:
    """The answer in these pieces, the last of which completes it."""
    reader = ResponseParser()
    for piece in pieces[:-1]:
        assert reader.feed(piece) is None
    answer = reader.feed(pieces[-1])
    assert answer is not None
    return answer


@pytest.mark.parametrize(
    ("message", "code", "body"),
    [
        pytest.param(STATED, 201, b"hello", id="of stated length"),
        pytest.param(CHUNKED, 200, b"hello", id="in chunks"),
        pytest.param(TRAILED, 200, b"hello", id="in chunks with a trailer"),
        pytest.param(FOREWORD, 201, b"hello", id="after early hints"),
        pytest.param(NO_REASON, 200, b"hello", id="without a reason"),
        pytest.param(EMPTY, 204, b"", id="without a body"),
    ],
)
@given(cuts=st.lists(st.integers(0, 140), max_size=6))
def test_an_answer_is_read_however_it_is_cut(message, code, body, cuts):
    marks = sorted({0, *(cut for cut in cuts if cut < len(message)), len(message)})
    pieces = [message[start:end] for start, end in pairwise(marks)]
    answer = read(*pieces)
    assert (answer.code, answer.body, answer.keep_alive) == (code, body, True)


def test_headers_are_found_by_their_names_in_lower_case():
    assert read(STATED).headers == {"content-type": "a/b", "content-length": "5"}


def test_a_body_without_length_ends_with_the_connection():
    reader = ResponseParser()
    assert reader.feed(b"HTTP/1.1 502 Bad Gateway\r\n\r\n<html>") is None
    assert reader.feed(b"</html>") is None
    assert reader.end() == HttpResponse(502, {}, b"<html></html>", False)


@pytest.mark.parametrize("message", [STATED, CHUNKED, FOREWORD])
def test_an_answer_that_breaks_off_is_none(message):
    for cut in range(len(message)):
        reader = ResponseParser()
        assert reader.feed(message[:cut]) is None
        assert reader.end() is None


@pytest.mark.parametrize(
    "message",
    [
        STATED.replace(b"\r\n\r\n", b"\r\nConnection: Close\r\n\r\n"),
        STATED.replace(b"HTTP/1.1", b"HTTP/1.0"),
        STATED + b"HTTP/1.1 200 OK",
    ],
    ids=["it says so", "an old version", "more than was asked for"],
)
def test_a_connection_is_not_used_again_when(message):
    answer = read(message)
    assert (answer.body, answer.keep_alive) == (b"hello", False)


@pytest.mark.parametrize(
    "nonsense",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno header\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: b\r\n folded: c\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length : 1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1_0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n",
        CHUNKED.replace(b"3\r\nhel", b"3\r\nhell"),
        CHUNKED.replace(b"3\r\nhel", b"-3\r\nhel"),
        CHUNKED.replace(b"3\r\nhel", b"\r\nhel"),
        CHUNKED.replace(b"3\r\nhel", b"x" * 5000),
        b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 20_000,
        CHUNKED[:-2] + b"A: b\r\n" * 20_000,
    ],
)
def test_what_is_no_answer_is_refused(nonsense):
    with pytest.raises(MalformedResponse):
        ResponseParser().feed(nonsense)


def test_a_packed_body_is_unpacked():
    assert HttpResponse(
        200, {"content-encoding": "gzip"}, gzip.compress(b"x" * 9), True
    ).decompressed() == (b"x" * 9)
    assert HttpResponse(200, {}, b"x", True).decompressed() == b"x"


@pytest.mark.parametrize("encoding", ["gzip", "br"])
def test_a_body_that_cannot_be_unpacked_is_refused(encoding):
    with pytest.raises(MalformedResponse, match=r"encoding|decompressed"):
        HttpResponse(200, {"content-encoding": encoding}, b"x", True).decompressed()
