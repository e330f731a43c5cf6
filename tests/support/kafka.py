"""
A real Apache Kafka for tests: one process, broker and controller in one, on loopback.

It can be stopped, killed, frozen and started again on the same ports and data, which is
what fault tests need. `python -m tests.support.kafka --port 9092` runs one by hand.
"""

import argparse
import asyncio
import os
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, Self

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic, RecordsToDelete
from aiokafka.errors import for_code

from tests.support.processes import HOST, free_port, is_free, kill_when_parent_dies
from tests.support.waiting import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build"
LIBS = BUILD / "kafka" / "libs"
LOG_CONFIG = ROOT / "tests" / "support" / "kafka_broker" / "log4j2.properties"
CLASSES = BUILD / "kafka" / "classes.jsa"
"""What tests/support/kafka_classes.py leaves: the broker's classes as the JVM maps them."""

# 22 characters of base64url, as Kafka wants them: "gateway-tests-01".
CLUSTER_ID = "Z2F0ZXdheS10ZXN0cy0wMQ"

# A clean stop takes about 0.4 s; a broker that hangs is killed after this.
STOP_TIMEOUT_S = 60.0
POLL_INTERVAL_S = 0.05
# What an answer may take to a question that is asked again.
PROBE_TIMEOUT_S = 10.0
LOG_TAIL_LINES = 40

# The quick compiler and the small collector: the start is a third faster, and a second core stays free.
# The archive halves what is left; one of another JVM or of other jars is no use, and passed over.
QUICK_START_FLAGS = (
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    "-Xlog:cds=off",
    "-Xlog:cds+dynamic=off",
    *([f"-XX:SharedArchiveFile={CLASSES}"] if CLASSES.exists() else []),
)

Properties = Mapping[str, str]


def libs_of(release: str) -> Path:
    """Return the folder of another release's jars, e.g. of "3.6" (tools/setup.mk)."""
    return BUILD / f"kafka-{release}" / "libs"


_formatted: dict[tuple[str, ...], dict[str, bytes]] = {}
"""The files of a new data folder, by what they were made with."""

FORMATTED_BY = ("node.id", "process.roles")
"""Properties that a new data folder follows from; the others are the broker's at each start."""


class KafkaBrokerError(Exception):
    """The broker could not be started or did not do what it was told."""


class KafkaBroker:
    """
    A single-node Kafka in KRaft mode whose process the test controls.

    Not thread-safe, and every method blocks: in an `async` test the event loop stands still
    meanwhile (`asyncio.to_thread` avoids that). The process also ends when the parent dies,
    however it dies.
    """

    def __init__(
        self,
        folder: Path,
        *,
        port: int | None = None,
        properties: Properties | None = None,
        listeners: Mapping[str, int] | None = None,
        format_options: Sequence[str] = (),
        jvm_flags: Sequence[str] = QUICK_START_FLAGS,
        libs: Path = LIBS,
    ) -> None:
        """
        Choose ports; nothing is started yet.

        Args:
            folder: holds data, configuration and log; a second broker on it finds the first one's data.
            port: for clients; None takes a free one, which then stays for all restarts.
            properties: additions to the broker's configuration, which they override.
            listeners: ports of further ones, by their security protocols.
            format_options: what a new data folder is made with, as Kafka's storage tool takes it.
            jvm_flags: memory and start-up flags of the JVM.
            libs: the jars, which are of one release.
        """
        self.folder = folder
        self.port = port if port is not None else free_port()
        self.log_path = folder / "broker.log"
        self._config_path = folder / "broker.properties"
        self._properties = dict(properties or {})
        self._listeners = {"PLAINTEXT": self.port, **(listeners or {})}
        self._format_options = tuple(format_options)
        self._jvm_flags = tuple(jvm_flags)
        self._libs = libs
        self._controller_port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap_servers(self) -> str:
        return f"{HOST}:{self.port}"

    def joined_by(self, folder: Path, *, node_id: int, properties: Properties | None = None) -> "KafkaBroker":
        """
        Return one more broker of this one's cluster, not started yet; this one stays the controller.

        Args:
            folder: its own.
            node_id: likewise.
            properties: what it has otherwise than this one.
        """
        port = free_port()
        own = {
            "process.roles": "broker",
            "node.id": str(node_id),
            "controller.quorum.voters": f"1@{HOST}:{self._controller_port}",
            "listeners": f"PLAINTEXT://{HOST}:{port}",
            **(properties or {}),
        }
        return KafkaBroker(folder, port=port, properties=self._properties | own, libs=self._libs)

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        return self._running_process().pid

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """
        Format the data folder if it is new, start the broker and wait until it serves metadata.

        Raises:
            KafkaBrokerError: no Java, no jars, or no answer in time; nothing is left running.
        """
        if self.is_running:
            raise KafkaBrokerError("the broker is already running")
        self._reap()
        command = self._java_command()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._config_path.write_text(self._configuration())
        self._format(command)
        try:
            self._process = self._spawn([*command, "kafka.Kafka", str(self._config_path)])
            self._watcher = kill_when_parent_dies(self._process.pid)
            self._wait_until_ready(self._process)
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """End the broker cleanly, or with SIGKILL if it takes too long; no-op if it does not run."""
        if self._process is not None and self.is_running:
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._reap()

    def kill(self) -> None:
        """End the broker at once, as a crash of the process would; no-op if it does not run."""
        if self._process is not None and self.is_running:
            self._process.kill()
        self._reap()

    def freeze(self) -> None:
        """Stop the process in its tracks: connections stay open, nothing answers."""
        process = self._running_process()
        process.send_signal(signal.SIGSTOP)
        # The signal is sent before it has taken effect: wait for that, but leave an exit for Popen.
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def thaw(self) -> None:
        """Let a frozen broker go on."""
        self._running_process().send_signal(signal.SIGCONT)

    def wait(self) -> int:
        """Block until the broker ends by itself, and return its exit code."""
        return self._running_process().wait()

    def log_tail(self) -> str:
        """The last lines the broker logged."""
        if not self.log_path.exists():
            return "(no log)"
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:])

    def _running_process(self) -> subprocess.Popen[bytes]:
        if self._process is None or not self.is_running:
            raise KafkaBrokerError("the broker is not running")
        return self._process

    def _java_command(self) -> list[str]:
        java = shutil.which("java")
        if java is None:
            raise KafkaBrokerError("Java 17 or newer is needed for a Kafka broker: run `make test` once")
        if not any(self._libs.glob("kafka_*.jar")):
            raise KafkaBrokerError("the Kafka jars are missing: run `make test` once or `make kafka`")
        return [java, *self._jvm_flags, f"-Dlog4j2.configurationFile={LOG_CONFIG}", "-cp", f"{self._libs}/*"]

    def _configuration(self) -> str:
        listeners = [f"{protocol}://{HOST}:{port}" for protocol, port in self._listeners.items()]
        controller = f"CONTROLLER://{HOST}:{self._controller_port}"
        properties = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{HOST}:{self._controller_port}",
            "listeners": ",".join([*listeners, controller]),
            "advertised.listeners": ",".join(listeners),
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "log.dirs": str(self.folder / "data"),
            "auto.create.topics.enable": "false",
            "group.initial.rebalance.delay.ms": "0",
            # One broker can hold one replica; few partitions make the first use of each topic quick.
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "4",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            # After a kill, the controller refuses the restarted broker until the dead one's session
            # is over: 9 s by default.
            "broker.session.timeout.ms": "3000",
            "broker.heartbeat.interval.ms": "300",
            # The controller of an idle cluster writes twice a second otherwise: a third of what it takes.
            "metadata.max.idle.interval.ms": "10000",
            # Its default is a quarter of this broker's heap.
            "log.cleaner.dedupe.buffer.size": "4194304",
            **self._properties,
        }
        return "".join(f"{name}={value}\n" for name, value in properties.items())

    def _format(self, command: Sequence[str]) -> None:
        """Make a new data folder, or a copy of one that was made before: it costs a JVM."""
        data = self.folder / "data"
        if (data / "meta.properties").exists():
            return
        kind = (
            str(self._libs),
            *self._format_options,
            *(self._properties.get(name, "") for name in FORMATTED_BY),
        )
        if kind not in _formatted:
            self._run_format(command)
            _formatted[kind] = {file.name: file.read_bytes() for file in data.iterdir()}
        data.mkdir(exist_ok=True)
        for name, content in _formatted[kind].items():
            (data / name).write_bytes(content)

    def _run_format(self, command: Sequence[str]) -> None:
        tool = ["kafka.tools.StorageTool", "format", "--cluster-id", CLUSTER_ID]
        with self.log_path.open("ab") as log:
            result = subprocess.run(
                [*command, *tool, "--config", str(self._config_path), *self._format_options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                timeout=PATIENCE_S,
                check=False,
            )
        if result.returncode != 0:
            raise KafkaBrokerError(f"the data folder could not be formatted:\n{self.log_tail()}")

    def _spawn(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        with self.log_path.open("ab") as log:
            # Its own session: Ctrl-C goes to the test run, which then stops the broker in order.
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not _serves_metadata(self.port):
            if process.poll() is not None:
                raise KafkaBrokerError(f"the broker ended with {process.returncode}:\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise KafkaBrokerError(f"no answer within {PATIENCE_S:.0f} s:\n{self.log_tail()}")
            time.sleep(POLL_INTERVAL_S)

    def _reap(self) -> None:
        if self._process is not None:
            self._process.wait()
            self._process = None
        if self._watcher is not None:
            self._watcher.kill()
            self._watcher.communicate()
            self._watcher = None


async def create_topic(
    bootstrap_servers: str,
    name: str,
    *,
    partitions: int = 1,
    replication_factor: int = 1,
    configs: Properties | None = None,
) -> None:
    """
    Create a topic and wait until every partition has a leader that clients can find.

    Raises:
        aiokafka.errors.KafkaError: the broker refused it, or does not answer.
        TimeoutError: it was created, but has no leader in time.
    """
    new_topic = NewTopic(name, partitions, replication_factor, topic_configs=dict(configs or {}))
    async with _admin(bootstrap_servers) as admin:
        response: Any = await admin.create_topics([new_topic])
        _raise_for_topic_errors(response.topic_errors)
        async with asyncio.timeout(PATIENCE_S):
            while not _has_leaders((await admin.describe_topics([name]))[0], partitions):
                await asyncio.sleep(POLL_INTERVAL_S)


async def delete_topics(bootstrap_servers: str, names: Sequence[str]) -> None:
    """
    Delete topics; when it returns, their data may still be on the disk for a while.

    Raises:
        aiokafka.errors.KafkaError: the broker refused one, or does not answer.
    """
    async with _admin(bootstrap_servers) as admin:
        response: Any = await admin.delete_topics(list(names))
        _raise_for_topic_errors(response.topic_error_codes)


async def delete_records(bootstrap_servers: str, topic: str, first_kept: Mapping[int, int]) -> None:
    """
    Delete what lies before these offsets, by partition, as retention does.

    Raises:
        aiokafka.errors.KafkaError: the broker refused it, or does not answer.
    """
    wanted = {TopicPartition(topic, p): RecordsToDelete(offset) for p, offset in first_kept.items()}
    async with _admin(bootstrap_servers) as admin:
        await admin.delete_records(wanted)


@asynccontextmanager
async def _admin(bootstrap_servers: str) -> AsyncIterator[AIOKafkaAdminClient]:
    client = AIOKafkaAdminClient(bootstrap_servers=bootstrap_servers)
    try:
        await client.start()
        yield client
    finally:
        await client.close()


def _raise_for_topic_errors(errors: Iterable[tuple[Any, ...]]) -> None:
    for name, code, *message in errors:
        if code != 0:
            raise for_code(code)(f"{name}: {message}")


def _has_leaders(description: Mapping[str, Any], partitions: int) -> bool:
    found = description["partitions"]
    return len(found) == partitions and all(p["error_code"] == 0 and p["leader"] >= 0 for p in found)


def _serves_metadata(port: int) -> bool:
    """Whether a Metadata request (version 1, no topics) is answered with at least one live broker."""
    client_id = b"tests"
    request = struct.pack(f">hhih{len(client_id)}si", 3, 1, 0, len(client_id), client_id, 0)
    try:
        with socket.create_connection((HOST, port), timeout=PROBE_TIMEOUT_S) as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            with connection.makefile("rb") as stream:
                reply = stream.read(12)
    except OSError:
        return False
    if len(reply) < 12:
        return False
    _size, _correlation_id, live_brokers = struct.unpack(">iii", reply)
    return bool(live_brokers >= 1)


def _exit_on_signal(_signum: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(0)


def main() -> None:
    """Run one broker with throw-away data until a signal comes."""
    parser = argparse.ArgumentParser(description="Run a throw-away Kafka on loopback until Ctrl-C.")
    parser.add_argument("--port", type=int, default=9092, help="where clients connect")
    port: int = parser.parse_args().port
    if not is_free(port):
        raise SystemExit(f"Port {port} of {HOST} is taken: stop what uses it or choose another --port.")
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, _exit_on_signal)
    with tempfile.TemporaryDirectory(prefix="gateway-kafka-") as folder:
        broker = KafkaBroker(Path(folder), port=port, jvm_flags=["-Xmx1g"])
        print(f"Starting Kafka on {broker.bootstrap_servers} ...", flush=True)
        try:
            with broker:
                _print_usage(broker)
                exit_code = broker.wait()
                raise KafkaBrokerError(f"the broker ended with {exit_code}:\n{broker.log_tail()}")
        except KafkaBrokerError as err:
            raise SystemExit(f"Kafka failed: {err}") from err


def _print_usage(broker: KafkaBroker) -> None:
    print("Kafka is ready. In a second terminal:\n")
    print(f"  GATEWAY_LOG=kafka GATEWAY_KAFKA_BOOTSTRAP_SERVERS={broker.bootstrap_servers} make run\n")
    print(f"Its log: {broker.log_path}. Ctrl-C stops it and removes its data.", flush=True)


if __name__ == "__main__":
    main()
