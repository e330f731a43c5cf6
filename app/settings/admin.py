"""The settings of the admin port."""

from typing import Annotated

from pydantic import AfterValidator, Field, SecretStr

from app.settings.networks import ListenAddress, Names
from app.settings.section import Section, variables

TOKEN_MIN = 16


def _in_a_header(token: SecretStr) -> SecretStr:
    """Refuse a token that no header can have, such as one with a line end."""
    text = token.get_secret_value()
    if not (text.isascii() and text.isprintable() and text == text.strip()):
        raise ValueError("must be of printable ASCII characters, with no blank or line end around them")
    return token


Token = Annotated[SecretStr, AfterValidator(_in_a_header)]


class AdminSettings(Section, alias_generator=variables("ADMIN_")):
    """Admin: where operators look, and who may."""

    host: str = Field("127.0.0.1", description="Address that the admin port listens on; never a public one.")
    port: int = Field(9090, ge=0, le=65_535, description="Admin port; 0 takes a free one.")
    token: Token | None = Field(
        None,
        min_length=TOKEN_MIN,
        description="Token that a request to the admin port shows as `Authorization: Bearer` to read and to "
        f"change; `/livez`, `/readyz` and `/metrics` need none. At least {TOKEN_MIN} characters; required in "
        "production unless the port listens on loopback.",
    )
    read_token: Token | None = Field(
        None,
        min_length=TOKEN_MIN,
        description="Token that may read, but not the content of events, and change nothing: for dashboards, "
        "audits and support.",
    )
    hosts: Names = Field(
        (),
        description="Names, separated by commas, under which the admin port is asked, besides addresses, "
        "loopback names and `GATEWAY_ADMIN_HOST`; any other `Host` is refused.",
    )
    probe_listen: ListenAddress | None = Field(
        None,
        alias="GATEWAY_PROBE_LISTEN",
        description="Address and port, as `host:port`, that has `/livez`, `/readyz` and `/metrics` alone, so "
        "that the admin port can stay on loopback; port 0 takes a free one.",
    )

    @property
    def has_token(self) -> bool:
        """Whether the admin port requires a token."""
        return self.token is not None or self.read_token is not None
