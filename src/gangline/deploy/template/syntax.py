"""Parses the syntax of Go's text/template (https://pkg.go.dev/text/template) into a tree.

Supported are actions, comments, trim markers, variables, pipelines, parentheses, ``if``, ``range``,
``with``, ``define`` and all literals but complex numbers. ``template``, ``block``, ``break`` and
``continue`` are not.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class TemplateError(Exception):
    """A template is wrong, or refused the values with ``fail``."""


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant."""

    value: object


@dataclass(frozen=True, slots=True)
class Reference:
    """A field of dot (``variable`` is None), of a variable, or of a pipeline in parentheses."""

    source: "str | Pipeline | None"
    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Function:
    """The name of a function."""

    name: str


Operand = Literal | Reference | Function


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Commands, of which each receives the result of the one before as its last argument."""

    commands: tuple[tuple[Operand, ...], ...]
    variables: tuple[str, ...] = ()
    """Variables that take the result; two for the key and the element of a range."""
    declares: bool = False
    """True for ``:=``, which declares the variables; false for ``=``."""


@dataclass(frozen=True, slots=True)
class Text:
    """Text that is written as it is."""

    text: str


@dataclass(frozen=True, slots=True)
class Action:
    """A pipeline whose result is written, unless it is assigned."""

    pipeline: Pipeline


@dataclass(slots=True)
class Block:
    """``if``, ``with`` or ``range``."""

    keyword: str
    pipeline: Pipeline
    body: "list[Node]" = field(default_factory=list)
    otherwise: "list[Node]" = field(default_factory=list)


Node = Text | Action | Block


class _Token(NamedTuple):
    kind: str
    text: str


_ACTION = re.compile(r"\{\{(-\s)?(.*?)(\s-)?\}\}", re.DOTALL)
_COMMENT = re.compile(r"\{\{(-\s)?/\*.*?\*/(\s-)?\}\}", re.DOTALL)
_SPACE = " \t\r\n"
_TOKEN = re.compile(
    r"""
      (?P<space>\s+)
    | (?P<string>"(?:[^"\\\n]|\\.)*")
    | (?P<raw>`[^`]*`)
    | (?P<number>-?\d+(?:\.\d+)?)
    | (?P<assign>:=|=)
    | (?P<mark>[|(),])
    | (?P<name>[$.]?[A-Za-z_][A-Za-z0-9_]*|[$.])
    """,
    re.VERBOSE,
)
_CONSTANTS = {"true": True, "false": False, "nil": None}


def parse(text: str, definitions: dict[str, list[Node]]) -> list[Node]:
    """Return the nodes of a template; add its ``define`` blocks to ``definitions``.

    Raises:
        TemplateError: the text is not a template, or uses a statement that is not supported.
    """
    parser = _TreeParser(definitions)
    for part in _split(text):
        parser.add(part)
    return parser.finish()


def _split(text: str) -> Iterator[Text | list[_Token]]:
    """Yield texts and the tokens of actions, with white space trimmed at their markers."""
    position, trim = 0, False
    while position < len(text):
        start = text.find("{{", position)
        plain = text[position:] if start < 0 else text[position:start]
        if trim:
            plain = plain.lstrip(_SPACE)
        if start < 0:
            yield Text(plain)
            return
        comment = _COMMENT.match(text, start)
        inside = "" if comment else None
        end, before, after = (comment.end(), comment[1], comment[2]) if comment else (0, None, None)
        if inside is None:
            end, before, after, inside = _action(text, start)
        yield Text(plain.rstrip(_SPACE) if before else plain)
        if inside:
            yield list(_tokens(inside))
        position, trim = end, bool(after)


def _action(text: str, start: int) -> tuple[int, str | None, str | None, str]:
    """Find the end of an action: strings in it may contain braces."""
    position = start + 2
    while not text.startswith("}}", position):
        match = _TOKEN.match(text, position)
        if position >= len(text):
            raise TemplateError(f"an action is not closed: {text[start : start + 40]!r}")
        position = match.end() if match else position + 1
    match = _ACTION.fullmatch(text, start, position + 2)
    assert match is not None
    return position + 2, match[1], match[3], match[2]


def _tokens(text: str) -> Iterator[_Token]:
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise TemplateError(
                f"unexpected {text[position : position + 20]!r} in {text.strip()!r}"
            )
        position = match.end()
        yield _Token(str(match.lastgroup), match[0])


class _TreeParser:
    """Puts actions in the blocks that they belong to."""

    def __init__(self, definitions: dict[str, list[Node]]) -> None:
        self._definitions = definitions
        self._root: list[Node] = []
        self._open: list[tuple[str, list[Node], Block | None]] = [("", self._root, None)]

    def add(self, part: Text | list[_Token]) -> None:
        if isinstance(part, Text):
            if part.text:
                self._target.append(part)
            return
        tokens = [token for token in part if token.kind != "space"]
        if not tokens:
            return
        match tokens[0].text:
            case "if" | "with" | "range" as keyword:
                block = Block(keyword, _pipeline(part, skip=1))
                self._target.append(block)
                self._open.append((keyword, block.body, block))
            case "else":
                self._otherwise(part, tokens)
            case "end":
                self._close()
            case "define":
                nodes: list[Node] = []
                self._definitions[json.loads(tokens[1].text)] = nodes
                self._open.append(("define", nodes, None))
            case "template" | "block" | "break" | "continue" as keyword:
                raise TemplateError(f"{keyword!r} is not supported")
            case _:
                self._target.append(Action(_pipeline(part)))

    def finish(self) -> list[Node]:
        if len(self._open) > 1:
            raise TemplateError(f"{self._open[-1][0]!r} is not closed")
        return self._root

    @property
    def _target(self) -> list[Node]:
        return self._open[-1][1]

    def _otherwise(self, part: list[_Token], tokens: list[_Token]) -> None:
        keyword, _, block = self._open.pop()
        if block is None:
            raise TemplateError("'else' without 'if', 'with' or 'range'")
        if len(tokens) == 1:
            self._open.append((keyword, block.otherwise, block))
            return
        # "else if": a block of its own in the other branch, which the same "end" closes.
        inner = Block(tokens[1].text, _pipeline(part, skip=2))
        block.otherwise.append(inner)
        self._open.append((keyword, inner.body, inner))

    def _close(self) -> None:
        if len(self._open) == 1:
            raise TemplateError("'end' without a block")
        self._open.pop()


def _pipeline(tokens: Sequence[_Token], skip: int = 0) -> Pipeline:
    """Parse the tokens of an action after ``skip`` keywords."""
    words = 0
    rest = list(tokens)
    while words < skip or (rest and rest[0].kind == "space"):
        words += rest.pop(0).kind != "space"
    parser = _PipelineParser(rest)
    pipeline = parser.pipeline()
    if parser.token is not None:
        raise TemplateError(f"unexpected {parser.token.text!r}")
    return pipeline


class _PipelineParser:
    """Parses one pipeline. White space counts: ``.a .b`` are two operands, ``.a.b`` is one."""

    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._at = 0

    @property
    def token(self) -> _Token | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def pipeline(self) -> Pipeline:
        variables, declares = self._variables()
        commands = [self._command()]
        while self.token is not None and self.token.text == "|":
            self._at += 1
            commands.append(self._command())
        return Pipeline(tuple(commands), variables, declares)

    def _variables(self) -> tuple[tuple[str, ...], bool]:
        """Parse ``$x :=``, ``$x =`` or ``$key, $element :=`` if the pipeline begins so."""
        start, names = self._at, []
        while (token := self._skip_space()) and token.kind == "name" and token.text[0] == "$":
            names.append(token.text)
            self._at += 1
            after = self._skip_space()
            if after is not None and after.text == ",":
                self._at += 1
            elif after is not None and after.kind == "assign":
                self._at += 1
                return tuple(names), after.text == ":="
            else:
                break
        self._at = start
        return (), False

    def _skip_space(self) -> _Token | None:
        while self.token is not None and self.token.kind == "space":
            self._at += 1
        return self.token

    def _command(self) -> tuple[Operand, ...]:
        operands: list[Operand] = []
        while (token := self._skip_space()) is not None and token.text not in {"|", ")"}:
            operands.append(self._operand(token))
        if not operands:
            raise TemplateError("a command is missing")
        return tuple(operands)

    def _operand(self, token: _Token) -> Operand:
        self._at += 1
        match token.kind:
            case "string":
                return Literal(json.loads(token.text))
            case "raw":
                return Literal(token.text[1:-1])
            case "number":
                return Literal(float(token.text) if "." in token.text else int(token.text))
        if token.text == "(":
            inner = self.pipeline()
            if self.token is None or self.token.text != ")":
                raise TemplateError("a parenthesis is not closed")
            self._at += 1
            return Reference(inner, self._fields())
        if token.text == ".":
            return Reference(None, ())
        if token.text.startswith("."):
            return Reference(None, (token.text[1:], *self._fields()))
        if token.text.startswith("$"):
            return Reference(token.text, self._fields())
        if token.text in _CONSTANTS:
            return Literal(_CONSTANTS[token.text])
        if token.kind == "name":
            return Function(token.text)
        raise TemplateError(f"unexpected {token.text!r}")

    def _fields(self) -> tuple[str, ...]:
        """Parse the fields that follow without white space."""
        path = []
        while (token := self.token) is not None and token.kind == "name" and token.text[0] == ".":
            path.append(token.text[1:])
            self._at += 1
        return tuple(path)
