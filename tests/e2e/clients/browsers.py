"""Chromium, Firefox and WebKit behind one small interface, each with a fresh profile."""

import json
import os
import shutil
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import httpx
from playwright.sync_api import BrowserContext, Error, sync_playwright

from tests.e2e.sdks.browser_sdks import CHROMIUM, PATIENCE_MS
from tests.support.processes import HOST, free_port, http_server, kill_when_parent_dies
from tests.support.waiting import PATIENCE_S

POLL_INTERVAL_S = 0.05
TIMEOUTS = {"script": int(PATIENCE_MS), "pageLoad": int(PATIENCE_MS)}
RUN = (
    "const [done] = arguments;"
    "Promise.resolve({}).then((value) => done(value ?? null), (err) => done(`${err}`))"
)


class Browser(ABC):
    """A browser, and a tab of it that is in use."""

    @abstractmethod
    def visit(self, url: str) -> None:
        """Go to a page and wait until it is loaded, or has been left by what it does itself."""

    @abstractmethod
    def run(self, expression: str) -> Any:
        """Return what an expression, or its promise, comes to. Raises LookupError if its page is left."""

    @abstractmethod
    def back(self) -> None:
        """Go back in the history."""

    @abstractmethod
    def open_tab(self) -> None:
        """Open a tab, and use it."""

    @abstractmethod
    def close_tab(self) -> None:
        """Close the tab in use, and use the one that was opened before it."""

    def wait_until(self, expression: str, *, timeout_s: float = PATIENCE_S) -> None:
        """Wait until an expression is true, on this page or one that follows it."""
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            try:
                if self.run(expression) is True:
                    return
            except LookupError:
                pass
            time.sleep(POLL_INTERVAL_S)
        raise TimeoutError(expression)


class _Chromium(Browser):
    def __init__(self, context: BrowserContext) -> None:
        self._context = context
        self._pages = [context.new_page()]

    def visit(self, url: str) -> None:
        try:
            self._pages[-1].goto(url)
        except Error as err:
            if "interrupted by another navigation" not in err.message:
                raise

    def run(self, expression: str) -> Any:
        try:
            return self._pages[-1].evaluate(expression)
        except Error as err:
            raise LookupError(str(err)) from err

    def back(self) -> None:
        self._pages[-1].go_back()

    def open_tab(self) -> None:
        self._pages.append(self._context.new_page())

    def close_tab(self) -> None:
        self._pages.pop().close()


class _WebDriver(Browser):
    """A browser that is steered by W3C's commands, however these are sent to it."""

    def __init__(self, command: Callable[[str, dict[str, Any]], Any], tab: str) -> None:
        """`command` sends one by name, and returns its value or raises LookupError."""
        self._command = command
        self._tabs = [tab]

    def visit(self, url: str) -> None:
        self._command("Navigate", {"url": url})

    def run(self, expression: str) -> Any:
        return self._command("ExecuteAsyncScript", {"script": RUN.replace("{}", expression, 1), "args": []})

    def back(self) -> None:
        self._command("Back", {})

    def open_tab(self) -> None:
        self._tabs.append(self._command("NewWindow", {"type": "tab"})["handle"])
        self._command("SwitchToWindow", {"handle": self._tabs[-1]})

    def close_tab(self) -> None:
        self._command("CloseWindow", {})
        self._tabs.pop()
        self._command("SwitchToWindow", {"handle": self._tabs[-1]})


@contextmanager
def chromium(folder: Path) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            folder / "profile", executable_path=shutil.which("chromium"), args=CHROMIUM, timeout=PATIENCE_MS
        )
        context.set_default_timeout(PATIENCE_MS)
        yield _Chromium(context)
        context.close()


@contextmanager
def firefox(folder: Path) -> Iterator[Browser]:
    """Firefox, by its own protocol: frames of a length and JSON, [0, number, command, parameters]."""
    port = free_port()
    profile = folder / "profile"
    profile.mkdir()
    (profile / "user.js").write_text(f'user_pref("marionette.port", {port});\n')
    command = ["firefox-esr", "--headless", "--marionette", "--no-remote", "--profile", str(profile)]
    with (
        _process(command, folder, {"HOME": str(folder)}),
        _connected(port) as connection,
        connection.makefile("rb") as answers,
    ):

        def read() -> Any:
            length = b""
            while (digit := answers.read(1)) not in {b":", b""}:
                length += digit
            return json.loads(answers.read(int(length)))

        def command_of(name: str, parameters: dict[str, Any]) -> Any:
            frame = json.dumps([0, 1, f"WebDriver:{name}", parameters]).encode()
            connection.sendall(b"%d:%b" % (len(frame), frame))
            _, _, error, value = read()
            if error:
                raise LookupError(error["message"])
            return value["value"] if isinstance(value, dict) and value.keys() == {"value"} else value

        read()
        command_of("NewSession", {})
        command_of("SetTimeouts", TIMEOUTS)
        yield _WebDriver(command_of, command_of("GetWindowHandle", {}))


WEBKIT_PATHS = {
    "SetTimeouts": ("POST", "/timeouts"),
    "Navigate": ("POST", "/url"),
    "ExecuteAsyncScript": ("POST", "/execute/async"),
    "Back": ("POST", "/back"),
    "NewWindow": ("POST", "/window/new"),
    "SwitchToWindow": ("POST", "/window"),
    "CloseWindow": ("DELETE", "/window"),
    "GetWindowHandle": ("GET", "/window"),
}


@contextmanager
def webkit(folder: Path) -> Iterator[Browser]:
    """WebKitGTK's MiniBrowser, which needs a display."""
    port = free_port()
    url = f"http://{HOST}:{port}"
    with (
        _display(folder) as display,
        http_server(
            ["WebKitWebDriver", f"--port={port}"],
            folder / "driver.log",
            greet=lambda: httpx.get(f"{url}/status"),
            env=os.environ | {"DISPLAY": display, "HOME": str(folder)},
        ),
        httpx.Client() as http,
    ):
        begun = http.post(f"{url}/session", json={"capabilities": {}}).raise_for_status().json()
        session = f"{url}/session/{begun['value']['sessionId']}"

        def command(name: str, parameters: dict[str, Any]) -> Any:
            method, path = WEBKIT_PATHS[name]
            answer = http.request(method, session + path, json=parameters if method == "POST" else None)
            if answer.is_error:
                raise LookupError(answer.text)
            return answer.json()["value"]

        command("SetTimeouts", TIMEOUTS)
        yield _WebDriver(command, command("GetWindowHandle", {}))
        http.delete(session)


BROWSERS: dict[str, Callable[[Path], AbstractContextManager[Browser]]] = {
    "chromium": chromium,
    "firefox": firefox,
    "webkit": webkit,
}


@contextmanager
def _process(command: Sequence[str], folder: Path, env: dict[str, str]) -> Iterator[None]:
    """Run a process, and end it with all that it started."""
    with (folder / f"{command[0]}.log").open("wb") as out:
        process = subprocess.Popen(
            command, env=os.environ | env, stdin=subprocess.DEVNULL, stdout=out, stderr=out
        )
    observer = kill_when_parent_dies(process.pid)
    try:
        yield
    finally:
        process.terminate()
        process.wait(PATIENCE_S)
        observer.kill()
        observer.communicate()


@contextmanager
def _display(folder: Path) -> Iterator[str]:
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    with (folder / "xvfb.log").open("wb") as out:
        process = subprocess.Popen(
            ["Xvfb", "-displayfd", str(writing), "-nolisten", "tcp"],
            pass_fds=[writing],
            stdout=out,
            stderr=out,
        )
    os.close(writing)
    observer = kill_when_parent_dies(process.pid)
    try:
        with os.fdopen(reading) as number:
            yield f":{number.readline().strip()}"
    finally:
        for ended in (process, observer):
            ended.terminate()
            ended.wait(PATIENCE_S)
            ended.communicate()


@contextmanager
def _connected(port: int) -> Iterator[socket.socket]:
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            with socket.create_connection((HOST, port)) as connection:
                yield connection
                return
        except ConnectionRefusedError:
            if time.monotonic() > end:
                raise
        time.sleep(POLL_INTERVAL_S)
