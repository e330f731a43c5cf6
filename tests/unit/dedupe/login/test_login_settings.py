"""Claim: settings that make no login are refused by a sentence that names their variables."""

from pathlib import Path
from typing import Any

import pytest

from dedupe.login.settings import LoginSettings

FILE = Path("/run/secrets/file")
PLAIN: dict[str, Any] = {"security_protocol": "SASL_SSL", "sasl_username": "a", "sasl_password": "b"}
OAUTH = PLAIN | {"sasl_mechanism": "OAUTHBEARER", "oauth_token_url": "https://idp/token"}
TOKEN_FILE = {"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER"} | {
    "oauth_token_url": "file:///run/secrets/token"
}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"security_protocol": "SSL"},
        PLAIN,
        PLAIN | {"sasl_password": None, "sasl_password_file": FILE},
        OAUTH,
        OAUTH | {"oauth_extensions": "logicalCluster=lkc-1, identityPoolId=pool-2="},
        TOKEN_FILE,
        {"security_protocol": "SASL_SSL", "sasl_mechanism": "AWS_MSK_IAM"},
        {"security_protocol": "SSL", "ssl_cert_file": FILE},
        # what is not used breaks no rule
        {"oauth_token_url": "nonsense", "ssl_key_file": FILE},
    ],
)
def test_login_that_can_be_made_breaks_no_rule(settings: dict[str, Any]) -> None:
    assert list(LoginSettings(**settings).contradictions()) == []


@pytest.mark.parametrize(
    ("settings", "begins"),
    [
        (PLAIN | {"sasl_username": None}, "X_SASL_USERNAME and X_SASL_PASSWORD must be set when X_SEC"),
        (PLAIN | {"sasl_password": None}, "X_SASL_USERNAME and X_SASL_PASSWORD must be set when X_SEC"),
        (PLAIN | {"sasl_password_file": FILE}, "X_SASL_PASSWORD and X_SASL_PASSWORD_FILE must not both"),
        (OAUTH | {"sasl_password": None}, "X_SASL_USERNAME and X_SASL_PASSWORD must be set (the client's id"),
        (OAUTH | {"oauth_token_url": None}, "X_OAUTH_TOKEN_URL must be set when X_SASL_MECHANISM is OAUTH"),
        *(
            (OAUTH | {"oauth_token_url": url}, "X_OAUTH_TOKEN_URL must be set when")
            for url in (
                "idp/token",
                "https://",
                "https://idp:port/",
                "ftp://idp/",
                "https://idp/a b",
                "https://a:b@idp/token",
            )
        ),
        (TOKEN_FILE | {"oauth_token_url": "file://run/token"}, "X_OAUTH_TOKEN_URL must be set when"),
        (PLAIN | {"oauth_token_url": "https://idp/"}, "X_OAUTH_TOKEN_URL is used with X_SASL_MECHANISM=OAU"),
        *(
            (OAUTH | {"oauth_extensions": wrong}, "X_OAUTH_EXTENSIONS must be NAME=VALUE,NAME=VALUE")
            for wrong in ("a", "a=", "=b", "a-b=c", "a=b\x01c")
        ),
        ({"security_protocol": "SSL", "ssl_key_file": FILE}, "X_SSL_KEY_FILE needs X_SSL_CERT_FILE"),
        ({"security_protocol": "SSL", "ssl_key_password_file": FILE}, "X_SSL_KEY_PASSWORD_FILE needs X_SSL"),
    ],
)
def test_login_that_cannot_be_made_is_refused(settings: dict[str, Any], begins: str) -> None:
    sentences = list(LoginSettings(prefix="X_", **settings).contradictions())
    assert len(sentences) >= 1
    assert any(sentence.startswith(begins) for sentence in sentences), sentences


def test_secret_is_not_in_the_text_of_the_settings() -> None:
    assert "a secret" not in repr(LoginSettings(sasl_password="a secret"))
