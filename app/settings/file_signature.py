"""Whether a file has changed since it was read."""

import os
from pathlib import Path
from typing import TypeAlias

Signature: TypeAlias = tuple[int, ...]


def signature_of(path: Path) -> Signature | None:
    """
    Return what changes when the file does, None if it cannot be looked at.

    Links are followed: it sees an edit in place, a rename over the file, and the swap of a directory
    link that Kubernetes does for a mounted Secret.
    """
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
