"""Requests that end at a kubelet: logs, exec, attach and port-forward.

Order: ``client`` (address of a pod's kubelet, logs), ``spdy`` (framing), ``streams`` (exec and
attach), ``port_forward``. May import: ``storage``, ``core``.
"""
