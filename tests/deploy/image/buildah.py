"""
Builds and starts images without a container engine: Debian's buildah, isolated by chroot alone.

What it stores is in a folder of its own under build, and nothing is asked of a registry: the official base is
stood in for by Debian and its Python (build/image/base.tar, see the Makefile).
"""

import json
import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "build" / "image"
BASE = "docker.io/library/python:3.11-slim"
TRUSTED = Path("/etc/ssl/certs/ca-certificates.crt")
JAVA_TRUSTED = Path("/etc/ssl/certs/java/cacerts")
JAVA_TRUSTED_INSIDE = "/run/trusted-by-java"  # the image's own Java writes where the host has it
MAY_CHANGE = ("proc", "sys", "dev", "data", "tmp", "run", "etc/hosts", "etc/resolv.conf", "etc/hostname")
TIMEOUT_S = 1500
START_TIMEOUT_S = 180.0


def command_of(*arguments: str | Path) -> list[str]:
    """Return the words of a command of buildah."""
    storage = ["--storage-driver", "vfs", "--root", str(FOLDER / "storage"), "--runroot", str(FOLDER / "run")]
    return ["buildah", *storage, *map(str, arguments)]


def options() -> list[str]:
    """Return the options of a build. The host's certificates are used, as it may have some of its own."""
    trusted = ["--volume", f"{TRUSTED}:{TRUSTED}:ro"]
    if JAVA_TRUSTED.exists():
        trusted += ["--volume", f"{JAVA_TRUSTED}:{JAVA_TRUSTED_INSIDE}:ro"]
        trusted += ["--build-arg", f"MAVEN_OPTS=-Djavax.net.ssl.trustStore={JAVA_TRUSTED_INSIDE}"]
    return ["--isolation", "chroot", "--pull-never", *trusted]


def buildah(*arguments: str | Path) -> str:
    """Run one command of buildah and return what it printed."""
    done = subprocess.run(
        command_of(*arguments), capture_output=True, text=True, timeout=TIMEOUT_S, check=False, cwd=ROOT
    )
    assert done.returncode == 0, f"buildah {arguments[0]}: {done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout.strip()


def has_image(name: str) -> bool:
    """Whether an image is stored."""
    done = subprocess.run(command_of("inspect", "--type", "image", name), capture_output=True, check=False)
    return done.returncode == 0


def make_base() -> None:
    """Store Debian with its Python under the official image's name."""
    if has_image(BASE):
        return
    container = buildah("from", "scratch")
    buildah("add", container, FOLDER / "base.tar", "/")
    buildah("config", "--env", "PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", container)
    buildah("commit", "--rm", container, BASE)


def build(target: str, name: str) -> None:
    """Build a stage of the Dockerfile."""
    buildah("bud", *options(), "--target", target, "--tag", name, ROOT)


def config(name: str) -> dict[str, Any]:
    """Return what an image says about itself."""
    document: dict[str, Any] = json.loads(buildah("inspect", "--type", "image", name))
    found: dict[str, Any] = document["OCIv1"]["config"]
    return found


@contextmanager
def container(name: str) -> Iterator[tuple[str, Path]]:
    """Make a container of an image; its name, and where its files are."""
    made = buildah("from", "--pull-never", name)
    try:
        yield made, Path(buildah("mount", made))
    finally:
        buildah("rm", made)


def size_of(folder: Path) -> int:
    """Return how many bytes the files under a folder have, each hard link once."""
    seen, total = set(), 0
    for path in folder.rglob("*"):
        found = path.lstat()
        if (found.st_dev, found.st_ino) not in seen and not path.is_dir():
            seen.add((found.st_dev, found.st_ino))
            total += found.st_size
    return total


def files_of(root: Path) -> dict[str, float]:
    """Return the files of a container that it must not change, and when each was written."""
    found = {}
    for path in root.rglob("*"):
        name = str(path.relative_to(root))
        if not name.startswith(MAY_CHANGE) and not path.is_dir():
            found[name] = path.lstat().st_mtime
    return found


def start(made: str, command: Sequence[str], *, env: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    """Start a command in a container, on the network of this machine."""
    options = [word for name, value in env.items() for word in ("--env", f"{name}={value}")]
    with log.open("wb") as output:
        return subprocess.Popen(
            command_of("run", "--isolation", "chroot", *options, made, "--", *command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=os.environ,
        )


def wait_until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until a container's gateway answers 200; fail with its log."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()
        try:
            if httpx.get(url).status_code == httpx.codes.OK:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise AssertionError(log.read_text())


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill whatever is left of a container's processes."""
    for child in psutil.Process(process.pid).children(recursive=True) if process.poll() is None else ():
        child.kill()
    if process.poll() is None:
        process.kill()
        process.wait()
