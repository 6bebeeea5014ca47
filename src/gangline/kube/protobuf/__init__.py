"""Objects of built-in kinds from Kubernetes' protobuf encoding. No I/O.

Order: ``scalars`` (texts, times and other small messages), ``layout`` (which fields of a message a
struct reads), ``reader`` (messages into structs), ``framing`` (lists in parts, frames of a watch,
statuses). Importing ``scalars`` imports the package ``protobuf`` (40 ms): it is done when
the first response in this encoding arrives. Imports ``kube.errors``.
"""
