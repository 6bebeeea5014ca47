"""Collection: what the API server and the masters report becomes records of the history.

``job_digest`` and ``live_facts`` are pure: objects in, records out; the order in which they arrive
has no effect. ``measurements`` polls the metrics API, ``collector`` holds the watches,
``policy_config`` reads the policy. Imports ``facts``, ``kube`` and the structs of ``guard``.
"""
