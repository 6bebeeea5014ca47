r"""``-o jsonpath=TEMPLATE``: the part of kubectl's templates that looks values up.

``{.items[*].name}`` is replaced by the values at the path, ``{"\n"}`` by the text.
"""

import json
import re
from typing import Any

import click

_PART = re.compile(r"\{([^{}]*)\}|([^{}]+)")


def render_template(template: str, value: Any) -> str:
    """Return a template with its paths replaced by the values at them.

    Raises:
        BadParameter: the template is invalid.
    """
    from gangline.api.jsonpath import JSONPath, JSONPathError

    text = template if "{" in template else f"{{{template}}}"
    if "".join(values.group(0) for values in _PART.finditer(text)) != text:
        raise _wrong(template, "braces do not match")
    parts: list[str] = []
    for path, literal in _PART.findall(text):
        if literal:
            parts.append(literal)
        elif path.startswith('"'):
            parts.append(_parse_literal(template, path))
        else:
            try:
                values = JSONPath(path.removeprefix("$")).find(value)
            except JSONPathError as error:
                raise _wrong(template, str(error)) from error
            parts.append(" ".join(_text(item) for item in values))
    return "".join(parts)


def _parse_literal(template: str, written: str) -> str:
    try:
        return str(json.loads(written))
    except json.JSONDecodeError:
        raise _wrong(template, f"{written} is not a text in double quotes") from None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _wrong(template: str, problem: str) -> click.BadParameter:
    return click.BadParameter(
        f"{template!r}: {problem}; write a path such as {{.items[*].name}}",
        param_hint="-o jsonpath",
    )
