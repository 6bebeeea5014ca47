"""The address of a Brain that runs outside of the job's cluster."""

from urllib.parse import urlsplit


class BrainUrlError(ValueError):
    """The URL of a Brain cannot be used; the message gives the reason."""


def check_brain_url(url: str) -> str:
    """Return the URL without a final slash. Raises BrainUrlError: it is no URL of a web server."""
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname)
        is_valid = is_valid and (parts.port is None or parts.port > 0)
    except ValueError:
        is_valid = False
    if not is_valid:
        raise BrainUrlError(f"{url}: must be http://HOST:PORT or https://HOST:PORT")
    return url.rstrip("/")
