"""
An application that uses the Python client until it is killed, or has sent all.

Usage: python_driver.py URL FILE LIFE COUNT. Each event that is queued is printed at once, as JSON with
its place; its name is that of a fault, its number counts within this life.
"""

import itertools
import json
import sys
import time

from clients.python import gateway_client
from tests.support.fault_proxy import Fault

PACE_S = 0.005
FLUSH_S = 120.0


def main() -> None:
    url, path, life, count = sys.argv[1:]
    gateway_client.ANSWER_TIMEOUT_S = 1.0
    gateway_client.BACKOFF_S, gateway_client.BACKOFF_MAX_S = 0.05, 0.5
    names = itertools.cycle(Fault)
    with gateway_client.Client(url, "phone", path) as client:
        print(json.dumps({"client": client.client_id}), flush=True)
        for n in range(int(count)):
            place = client.track(next(names), properties={"life": int(life), "n": n})
            assert place is not None
            print(json.dumps(place._asdict()), flush=True)
            time.sleep(PACE_S)
        if not client.flush(FLUSH_S) or client.dead_letters():
            sys.exit(f"{client.waiting} events are left, {client.dead_letters()}")


if __name__ == "__main__":
    main()
