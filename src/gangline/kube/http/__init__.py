"""HTTP/1.1 to an API server: requests as plain data, connections, retries.

``transport`` is the entry point. It sends plain requests over ``connections``, streams and
WebSockets through aiohttp (``streams``). Imports ``kube.config``.
"""
