"""Refuses unknown GATEWAY_* variables, such as misspelt ones."""

import difflib
import os
import re
from collections.abc import Mapping

from app.settings.model import Settings
from app.settings.replaced import REPLACED
from app.settings.section import PREFIX, secret_file_variables, settings_of
from dedupe.model.errors import ConfigurationError

CLIENT_VARIABLES = frozenset({"GATEWAY_ADMIN_URL", "GATEWAY_URL", "GATEWAY_WRITE_KEY"})
"""Variables of command line clients: `serve` ignores them instead of refusing to start."""

_LINK_VALUE = re.compile(r"(tcp|udp|sctp)://")
_LINK_NAME = re.compile(r"_SERVICE_(HOST|PORT)(_|$)|_PORT_\d+_(TCP|UDP|SCTP)(_|$)")


def refuse_unknown_variables(environment: Mapping[str, str] = os.environ) -> None:
    """Raise ConfigurationError for unknown GATEWAY_* variables, one sentence each."""
    known = CLIENT_VARIABLES.union(
        (setting.variable for setting in settings_of(Settings)), secret_file_variables(Settings)
    )
    problems = []
    for name, value in sorted(environment.items()):
        upper = name.upper()
        if not upper.startswith(PREFIX):
            continue
        if _LINK_VALUE.match(value) or (upper not in known and _LINK_NAME.search(upper)):
            problems.append(
                f"{name} looks like a service link of Kubernetes, not a setting: a Service named gateway "
                "injects such variables; set enableServiceLinks: false in the pod"
            )
        elif upper in REPLACED:
            problems.append(f"{name} is no setting any more: {REPLACED[upper]}")
        elif upper not in known:
            close = difflib.get_close_matches(upper, known, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            problems.append(f"{name} is not a setting of the gateway{hint}")
    if problems:
        raise ConfigurationError("\n".join(problems))
