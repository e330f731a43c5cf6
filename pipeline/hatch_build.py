"""
Builds the distribution of the jobs: the package `pipeline`, with the parts of the core that it needs inside.

The gateway's own distribution has the core as `dedupe`, and both may be installed side by side; so here these
parts are `pipeline.dedupe`, and imports say so.
"""

import re
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PARTS = ("__init__.py", "certificate.py", "file_signature.py", "login", "model")
"""What the jobs may import of the core: pyproject.toml's import contract forbids the rest."""
IMPORT = re.compile(r"^(\s*(?:from|import) )dedupe\b", flags=re.MULTILINE)
FILES = {".py", ".properties", ".xml"}
OWN = "hatch_build.py"


class PackageOfJobs(BuildHookInterface[Any]):
    """Gives wheel and sdist their files, as Hatchling calls it."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Name the files of the package, and of the sdist the package beside this file."""
        if version == "editable":
            return
        folder = Path(self.root)
        package = folder / "pipeline"  # of an sdist
        if not package.is_dir():
            self._written = tempfile.TemporaryDirectory(prefix="gateway-pipeline-")
            package = Path(self._written.name)
            write_package(folder, package)
        build_data["force_include"][str(package)] = "pipeline"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was written."""
        if written := getattr(self, "_written", None):
            written.cleanup()


def write_package(pipeline: Path, to: Path) -> None:
    """Write the package from the checkout that has the folder `pipeline`."""
    for source in pipeline.rglob("*"):
        if source.suffix in FILES and source.name != OWN:
            _write(source, to / source.relative_to(pipeline))
    core = pipeline.parent / "dedupe"
    for part in PARTS:
        for source in [core / part, *(core / part).rglob("*.py")]:
            if source.is_file():
                _write(source, to / "dedupe" / source.relative_to(core))


def _write(source: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_text(IMPORT.sub(r"\1pipeline.dedupe", source.read_text(encoding="utf-8")), encoding="utf-8")
