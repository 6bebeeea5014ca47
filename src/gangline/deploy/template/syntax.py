"""Compiles Go's text/template (https://pkg.go.dev/text/template) into functions.

Supported are actions, comments, trim markers, variables, pipelines, parentheses, ``if``, ``range``,
``with``, ``define`` and all literals but complex numbers. ``template``, ``block``, ``break`` and
``continue`` are not.
"""

import json
import re
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from gangline.deploy.template.functions import FUNCTIONS, TemplateError, to_text

Scope: TypeAlias = ChainMap[str, Any]
"""Variables of a block, followed by those of the blocks around it."""
Expression: TypeAlias = Callable[[Any, Scope], Any]
"""Returns the value of an operand for dot and the variables."""
Command: TypeAlias = Callable[[Any, Scope, list[Any]], Any]
"""The same; its last argument is the result of the command before, if there is one."""
Node: TypeAlias = Callable[[Any, Scope], str]
"""Returns the text of a part of a template."""
Definitions: TypeAlias = dict[str, list[Node]]


class _Token(NamedTuple):
    kind: str
    text: str


_ACTION = re.compile(
    r"""
    \{\{ (?P<before>-\s)?
    (?P<code> /\*.*?\*/ | (?: "(?:[^"\\\n]|\\.)*" | `[^`]*` | [^"`}] | \}(?!\}) )*? )
    (?P<after>\s-)? \}\}
    """,
    re.DOTALL | re.VERBOSE,
)
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
_REFUSED = frozenset({"template", "block", "break", "continue"})


def render(nodes: list[Node], dot: Any) -> str:
    """Return the text of a template for ``dot``.

    Raises:
        TemplateError: the template called ``fail``, or cannot be executed.
    """
    return _write(nodes, dot, ChainMap({"$": dot}))


def _write(nodes: list[Node], dot: Any, scope: Scope) -> str:
    return "".join(node(dot, scope) for node in nodes)


def parse(text: str, definitions: Definitions) -> list[Node]:
    """Return the nodes of a template; add its ``define`` blocks to ``definitions``.

    Raises:
        TemplateError: the text is not a template, or uses a statement that is not supported.
    """
    root: list[Node] = []
    blocks: list[tuple[str, list[Node], _Block | None]] = [("", root, None)]
    for part in _split(text):
        keyword, target, block = blocks[-1]
        if isinstance(part, str):
            target.append(_constant(part))
            continue
        parser = _Parser(part, definitions)
        match parser.word(advance=False):
            case "if" | "with" | "range" as statement:
                parser.word()
                opened = _Block(statement, parser.complete())
                target.append(opened)
                blocks.append((statement, opened.body, opened))
            case "else":
                if block is None:
                    raise TemplateError("'else' without 'if', 'with' or 'range'")
                blocks[-1] = (keyword, *_other_branch(parser, block))
            case "end":
                if len(blocks) == 1:
                    raise TemplateError("'end' without a block")
                blocks.pop()
            case "define":
                parser.word()
                nodes = definitions[json.loads(parser.word())] = []
                blocks.append(("define", nodes, None))
            case statement if statement in _REFUSED:
                raise TemplateError(f"{statement!r} is not supported")
            case _:
                target.append(partial(_action, parser.complete()))
    if len(blocks) > 1:
        raise TemplateError(f"{blocks[-1][0]!r} is not closed")
    return root


def _other_branch(parser: "_Parser", block: "_Block") -> "tuple[list[Node], _Block]":
    """Return where the nodes after an ``else`` go, and the block that a further one belongs to."""
    parser.word()
    if not (statement := parser.word()):
        return block.otherwise, block
    # "else if": a block in the other branch, which the same "end" closes.
    inner = _Block(statement, parser.complete())
    block.otherwise.append(inner)
    return inner.body, inner


def _split(text: str) -> Iterator[str | list[_Token]]:
    """Yield texts and the tokens of actions, with white space trimmed at their markers."""
    position, trim = 0, False
    for match in _ACTION.finditer(text):
        plain = _plain(text[position : match.start()], trim)
        yield plain.rstrip(_SPACE) if match["before"] else plain
        code = match["code"]
        if code.strip() and not code.startswith("/*"):
            yield list(_tokens(code))
        position, trim = match.end(), bool(match["after"])
    yield _plain(text[position:], trim)


def _plain(text: str, trim: bool) -> str:
    if (start := text.find("{{")) >= 0:
        raise TemplateError(f"an action is not closed: {text[start : start + 40]!r}")
    return text.lstrip(_SPACE) if trim else text


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


@dataclass(slots=True)
class _Pipeline:
    """Commands, of which each receives the result of the one before as its last argument."""

    commands: list[Command]
    variables: tuple[str, ...] = ()
    """Variables that take the result; two for the key and the element of a range."""
    declares: bool = False
    """True for ``:=``, which declares the variables; false for ``=``."""

    def value(self, dot: Any, scope: Scope) -> Any:
        piped: list[Any] = []
        for command in self.commands:
            piped = [command(dot, scope, piped)]
        return piped[0]

    def __call__(self, dot: Any, scope: Scope) -> Any:
        value = self.value(dot, scope)
        for name in self.variables:
            holders = (names for names in scope.maps if self.declares or name in names)
            next(holders, scope.maps[0])[name] = value
        return value


@dataclass(slots=True)
class _Block:
    """``if``, ``with`` or ``range``."""

    keyword: str
    pipeline: _Pipeline
    body: list[Node] = field(default_factory=list)
    otherwise: list[Node] = field(default_factory=list)

    def __call__(self, dot: Any, scope: Scope) -> str:
        if self.keyword == "range":
            return self._repeated(dot, scope)
        inner = scope.new_child()
        value = self.pipeline(dot, inner)
        if not value:
            return _write(self.otherwise, dot, inner)
        return _write(self.body, value if self.keyword == "with" else dot, inner)

    def _repeated(self, dot: Any, scope: Scope) -> str:
        items = self.pipeline.value(dot, scope)
        pairs = sorted(items.items()) if isinstance(items, dict) else list(enumerate(items or ()))
        if not pairs:
            return _write(self.otherwise, dot, scope.new_child())
        names = self.pipeline.variables
        return "".join(
            _write(
                self.body,
                pair[1],
                scope.new_child(dict(zip(names, pair[2 - len(names) :], strict=False))),
            )
            for pair in pairs
        )


def _action(pipeline: _Pipeline, dot: Any, scope: Scope) -> str:
    """Write the result of a pipeline, unless it is assigned."""
    value = pipeline(dot, scope)
    return "" if pipeline.variables else to_text(value)


class _Parser:
    """Compiles one action. White space counts: ``.a .b`` are two operands, ``.a.b`` is one."""

    def __init__(self, tokens: list[_Token], definitions: Definitions) -> None:
        self._tokens = tokens
        self._definitions = definitions
        self._at = 0

    @property
    def _token(self) -> _Token | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def word(self, *, advance: bool = True) -> str:
        """Return the next token that is no space; empty at the end."""
        token = self._skip_space()
        self._at += advance and token is not None
        return token.text if token else ""

    def complete(self) -> _Pipeline:
        """Compile the rest of the action."""
        pipeline = self._pipeline()
        if self._token is not None:
            raise TemplateError(f"unexpected {self._token.text!r}")
        return pipeline

    def _pipeline(self) -> _Pipeline:
        variables, declares = self._variables()
        commands = [self._command()]
        while self._token is not None and self._token.text == "|":
            self._at += 1
            commands.append(self._command())
        return _Pipeline(commands, variables, declares)

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
        while self._token is not None and self._token.kind == "space":
            self._at += 1
        return self._token

    def _command(self) -> Command:
        head = self._skip_space()
        operands: list[Expression] = []
        while (token := self._skip_space()) is not None and token.text not in {"|", ")"}:
            operands.append(self._operand(token))
        if head is None or not operands:
            raise TemplateError("a command is missing")
        if not _is_function(head):
            return partial(_invoke, operands)
        if head.text in {"and", "or"}:
            return partial(_choose, head.text, operands[1:])
        return lambda dot, scope, piped: self._call(
            head.text, *(operand(dot, scope) for operand in operands[1:]), *piped
        )

    def _call(self, name: str, *arguments: Any) -> Any:
        if name == "include":
            template, context = arguments
            if template not in self._definitions:
                raise TemplateError(f"there is no template {template!r}")
            return render(self._definitions[template], context)
        if name not in FUNCTIONS:
            raise TemplateError(f"the function {name!r} is not supported")
        return FUNCTIONS[name](*arguments)

    def _operand(self, token: _Token) -> Expression:
        self._at += 1
        text = token.text
        match token.kind:
            case "string":
                return _constant(json.loads(text))
            case "raw":
                return _constant(text[1:-1])
            case "number":
                return _constant(float(text) if "." in text else int(text))
            case "name" if text in _CONSTANTS:
                return _constant(_CONSTANTS[text])
            case "name" if text == ".":
                return lambda dot, _: dot
            case "name" if text[0] == ".":
                return partial(_follow, lambda dot, _: dot, (text[1:], *self._fields()))
            case "name" if text[0] == "$":
                return partial(_follow, partial(_variable, text), self._fields())
            case "name":
                return lambda _dot, _scope: self._call(text)
        if text != "(":
            raise TemplateError(f"unexpected {text!r}")
        inner = self._pipeline()
        if self._token is None or self._token.text != ")":
            raise TemplateError("a parenthesis is not closed")
        self._at += 1
        return partial(_follow, lambda dot, scope: inner(dot, scope.new_child()), self._fields())

    def _fields(self) -> tuple[str, ...]:
        """Parse the fields that follow without white space."""
        path = []
        while (token := self._token) is not None and token.kind == "name" and token.text[0] == ".":
            path.append(token.text[1:])
            self._at += 1
        return tuple(path)


def _is_function(token: _Token) -> bool:
    return token.kind == "name" and token.text[0] not in ".$" and token.text not in _CONSTANTS


def _constant(value: Any) -> Expression:
    return lambda _dot, _scope: value


def _variable(name: str, _: Any, scope: Scope) -> Any:
    if name not in scope:
        raise TemplateError(f"the variable {name} is not declared")
    return scope[name]


def _follow(source: Expression, fields: tuple[str, ...], dot: Any, scope: Scope) -> Any:
    """Return an entry of a map, or an attribute of an object of Helm; nil if a map has none."""
    value = source(dot, scope)
    for name in fields:
        if value is None:
            raise TemplateError(f"nil has no field {name!r}")
        value = value.get(name) if isinstance(value, Mapping) else getattr(value, name)
    return value


def _invoke(operands: list[Expression], dot: Any, scope: Scope, piped: list[Any]) -> Any:
    value, *arguments = [operand(dot, scope) for operand in operands] + piped
    if callable(value):
        return value(*arguments)
    if arguments:
        raise TemplateError(f"{value!r} is not a function")
    return value


def _choose(name: str, operands: list[Expression], dot: Any, scope: Scope, piped: list[Any]) -> Any:
    """Evaluate until one operand of ``and`` or ``or`` decides, and return that one."""
    value: Any = None
    for operand in operands:
        value = operand(dot, scope)
        if bool(value) == (name == "or"):
            return value
    return piped[0] if piped else value
