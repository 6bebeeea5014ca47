"""Go templates by the rules of https://pkg.go.dev/text/template."""

from typing import Any

import pytest

from gangline.deploy.template import syntax
from gangline.deploy.template.functions import TemplateError


def render(text: str, dot: Any = None) -> str:
    return syntax.render(syntax.parse(text, {}), dot)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a {{ 1 }} b", "a 1 b"),
        ("a {{- 1 -}} b", "a1b"),
        ("a\n{{- /* }} */ -}}\n b", "ab"),
        ("{{ `{{ x }}` }}", "{{ x }}"),
        ('{{ "}}\\"" }}', '}}"'),
        ("{{ if false }}1{{ else if 0 }}2{{ else }}3{{ end }}", "3"),
        ("{{ with .a }}{{ .b }}{{ else }}none{{ end }}", "1"),
        ("{{ with .none }}{{ .b }}{{ else }}none{{ end }}", "none"),
        ("{{ range .list }}{{ . }},{{ end }}", "x,y,"),
        ("{{ range $i, $x := .list }}{{ $i }}{{ $x }}{{ end }}", "0x1y"),
        ("{{ range $k, $v := .map }}{{ $k }}{{ $v }}{{ end }}", "a1b2"),
        ("{{ range .none }}{{ else }}empty{{ end }}", "empty"),
        ("{{ $x := 1 }}{{ if true }}{{ $x = 2 }}{{ end }}{{ $x }}", "2"),
        ("{{ $x := 1 }}{{ if true }}{{ $x := 2 }}{{ end }}{{ $x }}", "1"),
        ("{{ range .list }}{{ $.a.b }}{{ end }}", "11"),
        ("{{ (get . `a`).b }}", "1"),
        ("{{ .missing }}", ""),
        ("{{ and .a.b 0 2 }}{{ or 0 `` 3 }}", "03"),
        ("{{ `a` | printf `%s-%q` `b` }}", 'b-"a"'),
        ('{{ define "f" }}<{{ . }}>{{ end }}{{ include "f" 7 }}', "<7>"),
        ("{{ not (eq 1 1 | and true) }}", "false"),
        ("{{ .list | toJson }}", '["x","y"]'),
        ("{{ index .list 1 }}{{ index . `a` `b` }}", "y1"),
        ("{{ mul 2 3 }}{{ hasSuffix `b` `ab` }}", "6true"),
        ("{{ with lookup `v1` `Pod` `n` `p` }}1{{ else }}none{{ end }}", "none"),
        ("k: {{ .map | toYaml | nindent 2 }}", "k: \n  a: 1\n  b: 2"),
    ],
)
def test_text_is_that_of_go(text: str, expected: str) -> None:
    dot = {"a": {"b": 1}, "list": ["x", "y"], "map": {"b": 2, "a": 1}}
    assert render(text, dot) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{{ if true }}", "'if' is not closed"),
        ("{{ end }}", "without a block"),
        ("{{ else }}", "'else' without"),
        ("{{ (1 }}", "parenthesis"),
        ("{{ $x }}", "not declared"),
        ("{{ nope 1 }}", "'nope' is not supported"),
        ("{{ break }}", "'break' is not supported"),
        ("{{ .a.b }}", "no field 'b'"),
        ('{{ include "f" . }}', "no template 'f'"),
        ("{{ . }}", "use toYaml"),
        ("{{ fail `because` }}", "because"),
        ("{{ 1 ", "not closed"),
    ],
)
def test_mistakes_are_named(text: str, message: str) -> None:
    with pytest.raises(TemplateError, match=message):
        render(text, {})


def test_merge_keeps_what_is_there() -> None:
    text = "{{ merge (dict `a` 1 `b` (dict `c` 2)) . | toJson }}"
    assert render(text, {"a": 9, "b": {"d": 3}, "e": 4}) == '{"a":1,"b":{"c":2,"d":3},"e":4}'
