"""Whether a file has changed since it was read."""

import os
from pathlib import Path
from typing import TypeAlias

Signature: TypeAlias = tuple[int, ...]


def signature_of(path: Path) -> Signature | None:
    """
    Return a value that changes with the file, None if it cannot be read.

    It follows links, and detects an edit, a rename over the file, and the swap of a directory link by which
    Kubernetes updates a mounted Secret.
    """
    try:
        stat = os.stat(path)
    except OSError:
        return None
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns
