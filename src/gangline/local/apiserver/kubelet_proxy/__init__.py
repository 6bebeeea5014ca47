"""Requests that end at a kubelet: logs, exec, attach and port-forward.

Order: ``client`` (address of a pod's kubelet), ``logs``, ``streams`` (WebSockets), ``spdy``
(framing), ``spdy_streams`` (exec and attach for old kubectl), ``port_forward``. May import:
``storage``, ``core``.
"""
