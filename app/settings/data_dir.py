"""
The data folder: its lock, for one gateway at a time, and its format version.

The lock is an flock of an open file: it ends with the process, also with one that is killed.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dedupe.model.errors import ConfigurationError

FORMAT_VERSION = 1
FORMAT_FILE = "FORMAT"
LOCK_FILE = "LOCK"


def sqlite_path(data_dir: Path) -> Path:
    """Return the path of the embedded log."""
    return data_dir / "log.sqlite"


def index_path(data_dir: Path) -> Path:
    """Return the folder of the dedupe indexes, which can be rebuilt from the log."""
    return data_dir / "index"


def refuse_lost_log(data_dir: Path) -> None:
    """
    Raise ConfigurationError if the embedded log is missing or empty, but has an index.

    Otherwise the gateway would begin a new log, and accept retries of its events as new.
    """
    log, index = sqlite_path(data_dir), index_path(data_dir)
    if (log.exists() and log.stat().st_size) or not any(index.glob("*/*")):
        return
    raise ConfigurationError(
        f"{log} is {'empty' if log.exists() else 'missing'}, but {index} remembers its events: restore it "
        f"from a backup, and delete the {log.name}-wal and {log.name}-shm that are left here, which would "
        f"damage it; or, to abandon its events and begin a new log, delete {index}, too"
    )


@contextmanager
def locked(data_dir: Path) -> Iterator[None]:
    """
    Lock the data folder, which is created if it is missing.

    Raises:
        ConfigurationError: it cannot be used, is used by another gateway, or is of a newer format.
    """
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        lock = os.open(data_dir / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as err:
        raise ConfigurationError(f"data folder {data_dir} cannot be used: {err.strerror}") from err
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigurationError(
                f"data folder {data_dir} is in use by another gateway; set GATEWAY_DATA_DIR to another one"
            ) from None
        check_format(data_dir)
        _write_format(data_dir)
        yield
    finally:
        os.close(lock)


def check_format(data_dir: Path) -> None:
    """Raise ConfigurationError if a newer gateway created the folder; a missing folder is accepted."""
    try:
        text = (data_dir / FORMAT_FILE).read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return
    except (OSError, ValueError):
        text = ""
    if not text.isdigit():
        raise ConfigurationError(f"{data_dir / FORMAT_FILE} has no format version")
    if int(text) > FORMAT_VERSION:
        raise ConfigurationError(
            f"data folder {data_dir} has format {text}, this gateway knows up to {FORMAT_VERSION}: "
            "start the newer version that created it"
        )


def _write_format(data_dir: Path) -> None:
    """Write the version once, atomically."""
    path = data_dir / FORMAT_FILE
    if path.exists():
        return
    draft = path.with_suffix(".new")
    with draft.open("w", encoding="ascii") as file:
        file.write(f"{FORMAT_VERSION}\n")
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def holders_of(data_dir: Path) -> list[int]:
    """Return the processes that lock the data folder, as far as the kernel reports them."""
    try:
        lock = (data_dir / LOCK_FILE).stat()
        locks = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:
        return []
    device = f"{os.major(lock.st_dev):02x}:{os.minor(lock.st_dev):02x}:{lock.st_ino}"
    # "1: FLOCK  ADVISORY  WRITE 4711 08:01:123456 0 EOF"
    fields = [line.split() for line in locks]
    return [int(words[4]) for words in fields if words[1] == "FLOCK" and words[5] == device]
