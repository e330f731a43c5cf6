"""
Traffic against a gateway, for locust: `make load`, or

    .venv/bin/python -m loadtests.load --load-profile spike --seconds 120

The profile has the kinds and numbers of clients (loadtests/load/profiles.py), which check every answer. At
the end receipts are compared with the log. The exit code is 1 if a limit was violated.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import gevent
from locust import LoadTestShape, User, events
from locust.env import Environment
from locust.rpc import Message
from locust.runners import STATE_MISSING, MasterRunner, WorkerRunner

from loadtests.load import clients, session_phone, vandal
from loadtests.load.division import Division
from loadtests.load.options import Options, add_options
from loadtests.load.profiles import PROFILES, clients_at
from loadtests.load.run import RUN
from loadtests.load.sample import Compared, LogUnreadableError, is_log_known, stored_events
from loadtests.load.verdict import as_text, figures_of, summary_of

Server, ImpatientServer, Phone = clients.Server, clients.ImpatientServer, clients.Phone
SessionPhone, Vandal = session_phone.SessionPhone, vandal.Vandal

SPAWN_PER_S = 100.0
STOP_TIMEOUT_S = 30.0
LAST_REPORT_S = 30.0
"""What a worker may take for its last report, once its clients have stopped."""

DIVISION = Division()


class ProfileShape(LoadTestShape):
    """Follows the profile, and ends the run."""

    def tick(self) -> tuple[int, float, list[type[User]] | None] | None:
        """Return how many clients there are now, and which."""
        assert self.runner is not None
        options = Options.of(self.runner.environment.parsed_options)
        profile, second = PROFILES[options.load_profile], time.perf_counter() - self.start_time
        if profile.divides and second > options.seconds / 2:
            DIVISION.begin()
        count = clients_at(profile, second, seconds=options.seconds, basic=options.clients)
        kinds: list[type[User]] = [globals()[name] for name in profile.clients]
        return None if count is None else (count, SPAWN_PER_S, kinds)


def _prepare(environment: Environment, **_: Any) -> None:
    environment.stop_timeout = STOP_TIMEOUT_S
    options = Options.of(environment.parsed_options)
    host = environment.host
    if host and not options.no_log and not is_log_known(host, os.environ):
        sys.exit("say where the gateway's log is, by GATEWAY_LOG=kafka and its settings, or give --no-log")
    if "Vandal" in PROFILES[options.load_profile].clients:
        vandal.corpus()


def _begin(environment: Environment, **_: Any) -> None:
    runner = environment.runner
    workers = {worker.id for worker in runner.clients.all} if isinstance(runner, MasterRunner) else set()
    RUN.begin(Options.of(environment.parsed_options), workers)


def _end(environment: Environment, **_: Any) -> None:
    """Have workers quit, and wait for their last reports; locust alone would wait for half a second."""
    RUN.is_over = True
    runner, options = environment.runner, environment.parsed_options
    if isinstance(runner, MasterRunner) and options is not None and options.headless:
        for worker in runner.clients.all:
            runner.server.send_to_client(Message("quit", None, worker.id))
        until = time.monotonic() + STOP_TIMEOUT_S + LAST_REPORT_S
        while _unheard_of(runner) and time.monotonic() < until:
            gevent.sleep(0.05)


def _unheard_of(runner: MasterRunner) -> set[str]:
    """Return the workers whose last reports are still to be expected."""
    return RUN.unheard & {worker.id for worker in runner.clients.all if worker.state != STATE_MISSING}


def _report(data: dict[str, Any], **_: Any) -> None:
    data["gateway_load"] = RUN.report()


def _take_report(client_id: str, data: dict[str, Any], **_: Any) -> None:
    RUN.take_report(client_id, data["gateway_load"])


def _judge(environment: Environment, **_: Any) -> None:
    """Print the results, in the process that has all of them."""
    if isinstance(environment.runner, WorkerRunner):
        return
    options = Options.of(environment.parsed_options)
    stats, RUN.cpu_s = environment.stats, RUN.cpu_s + RUN.lap_cpu_s()
    seconds = max(0.0, (stats.last_request_timestamp or 0) - stats.start_time)
    undivided = DIVISION.problems() if PROFILES[options.load_profile].divides else []
    compared, unreadable = _compared(options)
    summary = summary_of(
        options,
        figures_of(stats.entries.values()),
        compared,
        seconds=seconds,
        cpu_s=RUN.cpu_s,
        events=RUN.events,
    )
    summary["broken"] += [*undivided, *unreadable]
    if RUN.unheard:
        summary["broken"].append(f"the last figures of {len(RUN.unheard)} of the workers did not arrive")
    print(as_text(summary), flush=True)
    if options.summary:
        Path(options.summary).parent.mkdir(parents=True, exist_ok=True)
        Path(options.summary).write_text(json.dumps(summary, indent=1) + "\n")
    if summary["broken"]:
        environment.process_exit_code = 1
    elif environment.process_exit_code is None:
        environment.process_exit_code = 0


def _compared(options: Options) -> tuple[Compared | None, list[str]]:
    if options.no_log:
        return None, []
    began = time.monotonic()
    RUN.sample.close()
    try:
        compared = RUN.sample.compare(stored_events())
    except LogUnreadableError as err:
        return None, [f"the log could not be read: {err}"]
    print(f"read the log in {time.monotonic() - began:.0f} s", file=sys.stderr)
    return compared, []


events.init_command_line_parser.add_listener(add_options)
events.init.add_listener(_prepare)
events.test_start.add_listener(_begin)
events.test_stop.add_listener(_end)
events.report_to_master.add_listener(_report)
events.worker_report.add_listener(_take_report)
events.quitting.add_listener(_judge)
