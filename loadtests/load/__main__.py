"""
Starts locust: without its web page unless --web is set, and against a gateway on this machine unless --host
is another. Other options are locust's and those of loadtests/load/options.py.

    .venv/bin/python -m loadtests.load --load-profile retry_storm --processes 2
    .venv/bin/python -m loadtests.load --web
    .venv/bin/python -m loadtests.load --worker --master-host 10.0.0.7
"""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOST = "http://127.0.0.1:8080"
REPORT = Path("build") / "load" / "report.html"


def command(arguments: list[str]) -> list[str]:
    """Return the command that runs locust."""
    words = [argument for argument in arguments if argument != "--web"]
    named = {word.partition("=")[0] for word in words}
    if not named & {"--host", "-H"}:
        words += ["--host", HOST]
    if "--worker" not in named:
        words += ["--only-summary"]
        if "--html" not in named:
            words += ["--html", str(REPORT)]
        if "--web" not in arguments and "--headless" not in named:
            words += ["--headless"]
    return [sys.executable, "-m", "locust", "-f", str(ROOT / "loadtests" / "locustfile.py"), *words]


def main() -> None:
    """Become locust."""
    words = command(sys.argv[1:])
    os.execve(words[0], words, os.environ | {"PYTHONPATH": str(ROOT)})


if __name__ == "__main__":
    main()
