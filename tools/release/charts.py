"""Charts, as archives and as artefacts of an OCI registry."""

import re
import shutil
from pathlib import Path

from tools.release.run import ROOT, Release

CHARTS = {"gateway": "gateway", "pipeline": "gateway-pipeline"}
"""Charts, which are named as their folders, and the image that each installs."""


def package_chart(release: Release, name: str, helm: Path) -> Path:
    """Write a chart's archive; one for a registry installs the image that is there."""
    folder = release.stage / "charts" / name
    shutil.copytree(ROOT / "helm" / name, folder)
    if release.registry:
        name_image(folder / "values.yaml", release.registry, CHARTS[name])
    release.run(helm, "package", folder, "--destination", release.out)
    return release.out / f"{name}-{release.version}.tgz"


def name_image(values: Path, registry: str, image: str) -> None:
    """Set the defaults of `image.registry` and `image.repository`."""
    text = values.read_text(encoding="utf-8")
    (block,) = re.findall(r"^image:\n(?:(?:  .*)?\n)+", text, flags=re.MULTILINE)
    host, _, path = f"{registry}/{image}".partition("/")
    named = block.replace('  registry: ""\n', f"  registry: {host}\n").replace(
        f"  repository: {image}\n", f"  repository: {path}\n"
    )
    for line in (f"  registry: {host}\n", f"  repository: {path}\n"):
        assert line in named, f"{values} has no place for it: {line}"
    values.write_text(text.replace(block, named), encoding="utf-8")


def push_chart(release: Release, archive: Path, helm: Path) -> str:
    """Push a chart's archive and return its name with its digest."""
    plain = ("--plain-http",) if release.is_plain_http else ()
    # What Helm says of a push goes to stderr.
    command = '"$@" 2>&1'
    told = release.run(
        "/bin/sh", "-c", command, "helm", helm, "push", archive, f"oci://{release.registry}/charts", *plain
    )
    (digest,) = re.findall(r"sha256:[0-9a-f]{64}", told)
    name = archive.name.removesuffix(f"-{release.version}.tgz")
    return f"oci://{release.registry}/charts/{name}:{release.version}@{digest}"
