"""The settings of the admin port."""

from typing import Annotated

from pydantic import AfterValidator, Field, SecretStr
from pydantic_settings import NoDecode

from app.config.group_settings import GroupSettings

TOKEN_MIN = 16


def _in_a_header(token: SecretStr) -> SecretStr:
    """Refuse a token that no request could show, such as one with the line end of the file that it was in."""
    text = token.get_secret_value()
    if not (text.isascii() and text.isprintable() and text == text.strip()):
        raise ValueError("must be of printable ASCII characters, with no blank or line end around them")
    return token


Token = Annotated[SecretStr, AfterValidator(_in_a_header)]


class AdminSettings(GroupSettings):
    """Where operators look, and who may."""

    admin_host: str = Field("127.0.0.1", description="address the admin port listens on; never a public one")
    admin_port: int = Field(9090, ge=0, le=65_535, description="admin port; 0 takes a free one")
    admin_token: Token | None = Field(
        None,
        min_length=TOKEN_MIN,
        description="what `Authorization: Bearer` must have on the admin port to read and to change, but for "
        f"`/livez`, `/readyz` and `/metrics`; at least {TOKEN_MIN} characters, and required in production "
        "unless it listens on loopback",
    )
    admin_read_token: Token | None = Field(
        None,
        min_length=TOKEN_MIN,
        description="another one, that may read, but for the content of events, and change nothing: for "
        "dashboards, audits and support",
    )
    admin_hosts: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="names, separated by commas, under which the admin port is asked, besides addresses, "
        "loopback names and `GATEWAY_ADMIN_HOST`; any other `Host` is refused",
    )
    probe_port: int | None = Field(
        None,
        ge=0,
        le=65_535,
        description="a port that has `/livez`, `/readyz` and `/metrics` and nothing else, so that the admin "
        "port can stay on loopback; 0 takes a free one, empty: the admin port alone has them",
    )
    probe_host: str = Field("127.0.0.1", description="address that port listens on")

    @property
    def has_admin_token(self) -> bool:
        """Whether the admin port asks for a token at all."""
        return self.admin_token is not None or self.admin_read_token is not None
