"""
`make release VERSION=x`: builds all that is published into dist/x, and pushes images and charts to REGISTRY.

What is built is what is committed: a tree with changes, a version that a file does not say, and a tag on
another commit are refused before anything is built.
"""

import argparse
import hashlib
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tools.release.charts import CHARTS, package_chart, push_chart
from tools.release.images import TARGETS, build_image, push_image
from tools.release.packages import build_javascript, build_kotlin, build_python
from tools.release.run import ROOT, Release, ReleaseError
from tools.release.sources import committed_at, problems, repository_problems

CHECKSUMS = "SHA256SUMS"
PUSHED = "pushed.txt"


def write_checksums(folder: Path) -> None:
    """Write the SHA-256 of every file of a folder, as `sha256sum --check` reads it."""
    lines = []
    for path in sorted(folder.iterdir()):
        if path.name != CHECKSUMS:
            with path.open("rb") as file:
                lines.append(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {path.name}\n")
    (folder / CHECKSUMS).write_text("".join(lines), encoding="utf-8")


def make(release: Release, images: Sequence[str], helm: Path) -> None:
    """Build everything, then push, then write checksums. Raises ReleaseError."""
    for say, build in (
        ("wheels and sdists", build_python),
        ("the JavaScript client", build_javascript),
        ("the Kotlin client", build_kotlin),
    ):
        print(f"Building {say} ...", flush=True)
        build(release)
    charts = [package_chart(release, name, helm) for name in CHARTS]
    for name in images:
        print(f"Building the image {name} ...", flush=True)
        build_image(release, name)
    if release.registry:
        print(f"Pushing to {release.registry} ...", flush=True)
        pushed = [push_image(release, name) for name in images]
        pushed += [push_chart(release, chart, helm) for chart in charts]
        (release.out / PUSHED).write_text("".join(f"{name}\n" for name in pushed), encoding="utf-8")
    write_checksums(release.out)


def main(words: Sequence[str] | None = None) -> int:
    """Make a release; 2 if it is refused, 1 if a step fails."""
    options = _options(words)
    refused = list(_refused(options))
    for sentence in refused:
        print(f"No release: {sentence}", file=sys.stderr)
    if refused:
        return 2
    out = options.out or ROOT / "dist" / options.version
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="release-") as stage:
        env = {
            "SOURCE_DATE_EPOCH": committed_at(ROOT),
            "PIP_BUILD_CONSTRAINT": str(ROOT / "constraints.txt"),
            "CARGO_TARGET_DIR": str(ROOT / "build" / "release" / "cargo"),
        }
        release = Release(options.version, out, Path(stage), options.registry, options.plain_http, env)
        try:
            make(release, options.images.split(","), options.helm)
        except ReleaseError as err:
            print(err, file=sys.stderr)
            return 1
    print(f"Version {options.version} is in {out}:", *sorted(path.name for path in out.iterdir()), sep="\n  ")
    return 0


def _refused(options: argparse.Namespace) -> Iterator[str]:
    yield from problems(ROOT, options.version)
    if not options.uncommitted:
        yield from repository_problems(ROOT, options.version)


def _options(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make release", description=__doc__)
    parser.add_argument("version")
    parser.add_argument("--registry", default="", help="of images and charts, with a path if it has one")
    parser.add_argument("--plain-http", action="store_true", help="the registry has no TLS")
    parser.add_argument("--images", default=",".join(TARGETS), help="those to build, separated by commas")
    parser.add_argument("--out", type=Path, help="folder of what is made, emptied first; dist/VERSION")
    parser.add_argument("--helm", type=Path, default=ROOT / "build" / "go" / "helm")
    parser.add_argument("--uncommitted", action="store_true", help="build a tree with changes, to try it")
    return parser.parse_args(words)


if __name__ == "__main__":
    sys.exit(main())
