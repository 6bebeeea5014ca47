"""Boolean options of a query, by Kubernetes' rule."""

import pytest

from gangline.local.apiserver.core.registry import Registry, ServedKind
from gangline.local.apiserver.core.request import ApiRequest, resolve_request, split_target
from gangline.local.query_options import boolean_option

TRUE = ("true", "True", "TRUE", "1", "yes", "t", "", "no", "00", "f", " false", "2")
FALSE = ("false", "False", "FALSE", "fAlSe", "0")


def test_an_absent_option_differs_from_a_false_one() -> None:
    assert boolean_option({"other": "true"}, "o") is None


def resolved(target: str) -> ApiRequest:
    registry = Registry()
    registry.add([ServedKind("", "v1", "Pod", "pods")])
    path, options = split_target(target)
    return resolve_request(registry, "GET", path, options)


@pytest.mark.parametrize(
    ("query", "verb"),
    [
        *[(f"watch={text.replace(' ', '%20')}", "watch") for text in TRUE],
        *[(f"watch={text}", "list") for text in FALSE],
        ("", "list"),
        ("watch", "watch"),
        ("Watch=true", "list"),
        ("watch=False&watch=True", "list"),
        ("watch=True&watch=False", "watch"),
    ],
)
def test_the_verb_of_a_request_follows_its_watch_option(query: str, verb: str) -> None:
    assert resolved(f"/api/v1/namespaces/default/pods?{query}").verb == verb
    assert resolved(f"/api/v1/watch/namespaces/default/pods?{query}").verb == "watch"
