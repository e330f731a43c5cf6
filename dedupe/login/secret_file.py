"""Secrets in files."""

from pathlib import Path

from dedupe.login.errors import LoginError

SECRET_BYTES_MAX = 1024 * 1024


def read_secret(path: Path, name: str) -> str:
    """
    Return the text of a file without the line break behind it.

    Args:
        path: of the file.
        name: what the file is to the operator, such as its variable.

    Raises:
        LoginError: it cannot be read, is empty, or no text.
    """
    try:
        with path.open("rb") as file:
            text = file.read(SECRET_BYTES_MAX).decode().rstrip("\r\n")
    except OSError as err:
        raise LoginError(f"{name} ({path}) cannot be read: {err.strerror}") from err
    except UnicodeDecodeError:
        raise LoginError(f"{name} ({path}) is no text in UTF-8") from None
    if not text:
        raise LoginError(f"{name} ({path}) is empty")
    return text
