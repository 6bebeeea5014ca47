"""Executes parsed templates."""

from collections.abc import Iterator, Mapping
from typing import Any

from gangline.deploy.template.functions import FUNCTIONS, to_text
from gangline.deploy.template.syntax import (
    Action,
    Block,
    Function,
    Literal,
    Node,
    Operand,
    Pipeline,
    Reference,
    TemplateError,
    Text,
)


class _Scope:
    """Variables of a block; those of the blocks around it can be read and assigned."""

    def __init__(self, outer: "_Scope | None" = None) -> None:
        self._outer = outer
        self._values: dict[str, Any] = {}

    def declare(self, name: str, value: Any) -> None:
        self._values[name] = value

    def assign(self, name: str, value: Any) -> None:
        self._find(name)._values[name] = value

    def __getitem__(self, name: str) -> Any:
        return self._find(name)._values[name]

    def _find(self, name: str) -> "_Scope":
        scope: _Scope | None = self
        while scope is not None:
            if name in scope._values:
                return scope
            scope = scope._outer
        raise TemplateError(f"the variable {name} is not declared")


class Renderer:
    """Executes templates that share definitions."""

    def __init__(self, definitions: Mapping[str, list[Node]]) -> None:
        self._definitions = definitions

    def render(self, nodes: list[Node], dot: Any) -> str:
        """Return the text of a template for ``dot``.

        Raises:
            TemplateError: the template called ``fail``, or cannot be executed.
        """
        scope = _Scope()
        scope.declare("$", dot)
        return "".join(self._execute(nodes, dot, scope))

    def _execute(self, nodes: list[Node], dot: Any, scope: _Scope) -> Iterator[str]:
        for node in nodes:
            match node:
                case Text():
                    yield node.text
                case Action():
                    value = self._evaluate(node.pipeline, dot, scope)
                    if not node.pipeline.variables:
                        yield to_text(value)
                case Block(keyword="range"):
                    yield from self._range(node, dot, scope)
                case Block():
                    inner = _Scope(scope)
                    value = self._evaluate(node.pipeline, dot, inner)
                    chosen = node.body if value else node.otherwise
                    moves = node.keyword == "with" and value
                    yield from self._execute(chosen, value if moves else dot, inner)

    def _range(self, block: Block, dot: Any, scope: _Scope) -> Iterator[str]:
        commands = Pipeline(block.pipeline.commands)
        items = self._evaluate(commands, dot, scope)
        pairs = sorted(items.items()) if isinstance(items, dict) else list(enumerate(items or ()))
        if not pairs:
            yield from self._execute(block.otherwise, dot, _Scope(scope))
        for pair in pairs:
            inner = _Scope(scope)
            names = block.pipeline.variables
            for name, value in zip(names, pair[2 - len(names) :], strict=False):
                inner.declare(name, value)
            yield from self._execute(block.body, pair[1], inner)

    def _evaluate(self, pipeline: Pipeline, dot: Any, scope: _Scope) -> Any:
        value: Any = None
        for number, command in enumerate(pipeline.commands):
            value = self._call(command, [value] if number else [], dot, scope)
        for name in pipeline.variables:
            (scope.declare if pipeline.declares else scope.assign)(name, value)
        return value

    def _call(self, command: tuple[Operand, ...], piped: list[Any], dot: Any, scope: _Scope) -> Any:
        head, *operands = command
        if isinstance(head, Function) and head.name in {"and", "or"}:
            return self._choose(head.name, operands, piped, dot, scope)
        arguments = [self._operand(operand, dot, scope) for operand in operands] + piped
        if isinstance(head, Function):
            return self._function(head.name, arguments)
        value = self._operand(head, dot, scope)
        if callable(value):
            return value(*arguments)
        if arguments:
            raise TemplateError(f"{head} is not a function")
        return value

    def _choose(
        self, name: str, operands: list[Operand], piped: list[Any], dot: Any, scope: _Scope
    ) -> Any:
        """Evaluate until one operand decides, and return that one."""
        value: Any = None
        for operand in operands:
            value = self._operand(operand, dot, scope)
            if bool(value) == (name == "or"):
                return value
        return piped[0] if piped else value

    def _function(self, name: str, arguments: list[Any]) -> Any:
        if name == "include":
            template, context = arguments
            if template not in self._definitions:
                raise TemplateError(f"there is no template {template!r}")
            return self.render(self._definitions[template], context)
        if name not in FUNCTIONS:
            raise TemplateError(f"the function {name!r} is not supported")
        return FUNCTIONS[name](*arguments)

    def _operand(self, operand: Operand, dot: Any, scope: _Scope) -> Any:
        match operand:
            case Literal():
                return operand.value
            case Function():
                return self._function(operand.name, [])
            case Reference(source=None):
                value = dot
            case Reference(source=str() as name):
                value = scope[name]
            case Reference(source=Pipeline() as pipeline):
                value = self._evaluate(pipeline, dot, _Scope(scope))
        for name in operand.fields:
            value = _field(value, name)
        return value


def _field(value: Any, name: str) -> Any:
    """Return an entry of a map, or an attribute of an object of Helm; nil if a map has none."""
    if isinstance(value, Mapping):
        return value.get(name)
    if value is None:
        raise TemplateError(f"nil has no field {name!r}")
    return getattr(value, name)
