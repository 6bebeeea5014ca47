"""Authentication: which user a certificate or a token stands for."""

from pathlib import Path

import pytest

from gangline.local.apiserver.auth.authentication import ADMIN, Authenticator
from gangline.local.apiserver.core.request import ANONYMOUS
from gangline.local.apiserver.storage.store import ObjectStore


@pytest.fixture
def known(tmp_path: Path, store: ObjectStore) -> Authenticator:
    return Authenticator(tmp_path, store)


async def test_the_administrators_token_is_accepted_and_others_are_not(known: Authenticator):
    assert known.authenticate("", None) is ANONYMOUS
    assert known.authenticate(f"Bearer {known.admin_token}", None) == ADMIN
    for header in ("Bearer no", "Basic abc", "Bearer", "Bearer \udcff\udcfe", "Bearer é.é.é"):
        assert known.authenticate(header, None) is None


async def test_the_administrators_token_is_for_the_audience_of_the_server(known: Authenticator):
    assert known.authenticate_token(known.admin_token, ["vault"]) is None
    identity = known.authenticate_token(
        known.admin_token, ["vault", "https://kubernetes.default.svc"]
    )
    assert identity is not None
    assert identity.audiences == ("https://kubernetes.default.svc",)


async def test_certificates_name_user_and_groups(known: Authenticator):
    subject = ((("organizationName", "system:masters"),), (("commonName", "ann"),))
    user = known.authenticate("", {"subject": subject})
    assert user is not None
    assert (user.name, user.groups) == ("ann", ("system:masters", "system:authenticated"))


async def test_a_certificate_without_a_name_is_no_user(known: Authenticator):
    assert known.authenticate("", {"subject": ((("organizationName", "o"),),)}) is None
