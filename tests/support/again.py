"""
Tells of tests that passed only when they ran again, in a run that allows that (`--reruns 1`: `make test`).

Tests against real servers share their machine with others, so one may fail that passes alone. Such a failure
is a bug all the same: it is shown whole, and a run with more than AGAIN_MAX of them fails.
"""

import pytest
from _pytest.terminal import TerminalReporter

AGAIN_MAX = 3


def _failed_first(config: pytest.Config) -> list[pytest.TestReport]:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    return [] if reporter is None else reporter.stats.get("rerun", [])


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if len(_failed_first(session.config)) > AGAIN_MAX and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    if failed_first := _failed_first(terminalreporter.config):
        terminalreporter.section(f"{len(failed_first)} ran again, at most {AGAIN_MAX} may: each is a bug")
    for report in failed_first:
        terminalreporter.write_sep("_", report.nodeid)
        terminalreporter.line(report.longreprtext)
