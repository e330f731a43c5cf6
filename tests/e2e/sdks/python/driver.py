"""
Send events with segment-analytics-python or rudder-sdk-python, one batch a name, and wait for each batch.

Usage: driver.py PACKAGE HOST TIMEOUT_S EVENTS_PER_NAME NAME...
Prints as JSON the names of which the SDK gave up an event.
"""

import json
import sys
from importlib import import_module
from typing import Any


def main() -> None:
    package, host, timeout_s, events_per_name, *names = sys.argv[1:]
    given_up: set[str] = set()

    def on_error(_error: Exception, items: list[dict[str, Any]]) -> None:
        given_up.update(item["event"] for item in items)

    client = import_module(f"{package}.client").Client(
        "python",
        host=host,
        timeout=float(timeout_s),
        upload_size=int(events_per_name),
        on_error=on_error,
    )
    for name in names:
        for number in range(int(events_per_name)):
            client.track(user_id=f"user-{number}", event=name, properties={"n": number})
        client.flush()
    client.shutdown()
    print(json.dumps(sorted(given_up)))


if __name__ == "__main__":
    main()
