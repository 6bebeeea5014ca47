"""Limits on what one client may send, in one place.

The server shares its process and its event loop with controllers, scheduler and kubelets, so a
request must not occupy the loop for long, however it is written. Each constant states its unit and
the counterpart in Kubernetes; "none" means that Kubernetes relies on its larger process instead.
A request above a limit is refused with a Status (400, 413, 414 or 431), or its connection is
closed if it has no valid request yet.
"""

MIB = 1 << 20

# One HTTP request.
MAX_BODY_BYTES = 3 * MIB
"""Bytes of a body. Kubernetes: ``MaxRequestBodyBytes``, 3 MiB."""
MAX_LINE_BYTES = 32 << 10
"""Bytes of the request line, and of each header. Kubernetes: 1 MiB for all headers together."""
MAX_HEADERS = 128
"""Number of headers. Kubernetes: only their total size."""
MAX_HEADER_BYTES = 128 << 10
"""Bytes of all headers together. Kubernetes: 1 MiB (``http.DefaultMaxHeaderBytes``)."""
MAX_PARAMETERS = 1000
"""Number of parameters of a query. Kubernetes: none. Each argument of ``kubectl exec`` is one."""
MAX_ACCEPTED_TYPES = 100
"""Number of media types in ``Accept`` that are read. Kubernetes: none. kubectl sends three."""
HEADER_TIMEOUT_S = 10.0
"""Seconds from the first byte of a request to the end of its headers, and from the start of a
connection to its first request. Kubernetes: ``ReadHeaderTimeout``, 32 s.
"""
TLS_HANDSHAKE_TIMEOUT_S = 10.0
"""Seconds of a TLS handshake. Kubernetes: 10 s."""
BODY_TIMEOUT_S = 30.0
"""Seconds from the end of the headers to the end of the body. Kubernetes: 60 s for the complete
request (``--request-timeout``).
"""
IDLE_TIMEOUT_S = 90.0
"""Seconds without a request after which a connection is closed. Kubernetes: ``IdleTimeout``, 90 s.
"""

MAX_UNAUTHENTICATED = 1024
"""Open connections without a request that had valid credentials. Kubernetes: none."""
MAX_UNAUTHENTICATED_PER_PEER = 512
"""The same, of one address, or of one user of this machine over loopback. Kubernetes: none."""

# One document: a body in JSON, YAML or protobuf.
MAX_DEPTH = 100
"""Levels of nested objects and lists. Kubernetes: 10,000 in JSON, 32 to 100 in protobuf."""
MAX_VALUES = 100_000
"""Number of values, counting each element of a list and each field. Kubernetes: none; its limit of
1.5 MiB for a stored object is applied as well.
"""
MAX_YAML_VALUES = 20_000
"""Number of values in YAML, where aliases count as what they stand for: reading YAML takes twenty
times as long as JSON, which all usual clients send. Kubernetes: bounded aliases.
"""
MAX_OBJECT_BYTES = MIB + MIB // 2
"""Bytes of a stored object in JSON. Kubernetes: the limit of an etcd request, 1.5 MiB."""
MIN_INTEGER, MAX_INTEGER = -(1 << 63), (1 << 64) - 1
"""The range of integers. Kubernetes: int64, and float64 outside of it."""

MAX_CAUSES = 200
"""Errors of fields in one response, which is otherwise many times the request. Kubernetes: none."""
MAX_PATH_SEGMENT_CHARS = 400
"""Characters of one key in the path of an error. The longest valid key of a label has 317."""

MAX_PERIOD_S = 10 * 365 * 86400
"""Seconds of a grace period, toleration or watch; longer ones count as ten years, because sums with
the present time have a range. Kubernetes: none; 292 years overflow.
"""

# Patches.
MAX_PATCH_OPERATIONS = 10_000
"""Operations of one JSON patch. Kubernetes: 10,000."""
MAX_COPIED_BYTES = 3 * MIB
"""Bytes of all copies of one JSON patch. Kubernetes: 3 MiB."""

# Custom resource definitions.
MAX_PATTERN_CHARS = 10_000
"""Characters of a ``pattern``. Kubernetes: only the size of compiled repetitions."""
MAX_PATTERN_MEMORY_BYTES = 8 * MIB
"""Bytes of a compiled ``pattern`` with its cache: the default of RE2."""
MAX_PATTERN_STEPS = 100_000_000
"""Instructions of a compiled ``pattern`` times characters of a text, each at most 5 ns; a longer
text is refused. Kubernetes: none.
"""

# Lists and watches.
MAX_SELECTOR_TERMS = 100
"""Terms of a label or field selector: each object of a list is compared with all of them.
Kubernetes: the size of the headers.
"""
MAX_SELECTOR_VALUES = 1000
"""Terms and their listed values of a label or field selector. Kubernetes: as above."""
MAX_CONTINUE_CHARS = 4096
"""Characters of a ``continue`` token. Kubernetes: the size of the headers."""

# Streams: exec, attach, port-forward.
MAX_MESSAGE_BYTES = 4 * MIB
"""Bytes of a WebSocket message, after inflation. Kubernetes: 32 MiB."""
MAX_SPDY_FRAME_BYTES = 1 * MIB
"""Bytes of a SPDY frame. Kubernetes: 16 MiB, the limit of the format; its clients send 32 KiB."""
MAX_SPDY_HEADER_BYTES = 64 << 10
"""Bytes of the headers of a SPDY stream, after inflation. Kubernetes (spdystream): 16 MiB."""
MAX_SPDY_HEADERS = 100
"""Number of headers of a SPDY stream. Kubernetes (spdystream): 1000."""
MAX_SPDY_STREAMS = 1000
"""Open streams of a SPDY connection: two for each forwarded connection. Kubernetes: none."""
MAX_UNSENT_BYTES = 16 * MIB
"""Bytes that wait for a client of a stream that does not read, until it is disconnected."""
