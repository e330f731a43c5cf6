"""Kafka's own command line tools, as documents name them: `kafka-acls.sh ...`."""

import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.support.kafka import LIBS, LOG_CONFIG
from tests.support.waiting import PATIENCE_S

TOOLS = {
    "kafka-acls.sh": "org.apache.kafka.tools.AclCommand",
    "kafka-configs.sh": "kafka.admin.ConfigCommand",
    "kafka-console-consumer.sh": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-features.sh": "org.apache.kafka.tools.FeatureCommand",
    "kafka-get-offsets.sh": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-topics.sh": "org.apache.kafka.tools.TopicCommand",
    "kafka-transactions.sh": "org.apache.kafka.tools.TransactionsCommand",
}
"""What each script starts."""


def run_tool(line: str, bootstrap_servers: str, *, libs: Path = LIBS) -> str:
    """
    Run a line of a document and return what it prints.

    What follows `--bootstrap-server` in the line is replaced by the address of the test's broker.
    """
    tool, *arguments = shlex.split(line, comments=True)
    arguments[arguments.index("--bootstrap-server") + 1] = bootstrap_servers
    java = shutil.which("java")
    assert java is not None
    jvm = [java, "-XX:TieredStopAtLevel=1", f"-Dlog4j2.configurationFile={LOG_CONFIG}", "-cp", f"{libs}/*"]
    done = subprocess.run(
        [*jvm, TOOLS[tool], *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def lines_of(text: str, variables: Mapping[str, str] | None = None) -> list[str]:
    """Return the commands of a shell block, each on one line, with its variables filled in."""
    joined = text.replace("\\\n", " ")
    for name, value in (variables or {}).items():
        joined = joined.replace(f"${name}", value)
    return [
        line.strip() for line in joined.splitlines() if line.strip() and not line.lstrip().startswith("#")
    ]
