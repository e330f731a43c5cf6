"""The harness of the Python client, see clients/conformance/README.md."""

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "python"))
import gateway_client  # type: ignore[import-not-found,unused-ignore]


def main() -> None:
    """Do what each line says, and print a line."""
    client: Any = None
    for line in sys.stdin:
        command = json.loads(line)
        match command["do"]:
            case "open":
                client = gateway_client.Client(command["url"], command["key"], command["path"])
                answer: dict[str, Any] = {"client": client.client_id}
            case "track":
                answer = {"places": client.send_all(command["events"])}
            case "flush":
                answer = {"flushed": client.flush(command["timeoutMs"] / 1000)}
            case "close":
                answer = {"closed": client.close(command["timeoutMs"] / 1000)}
            case _:
                answer = {"letters": [{"code": it.code, "event": it.event} for it in client.dead_letters()]}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
