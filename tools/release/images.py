"""
Images, by buildah: built for this machine's architecture, listed, archived and pushed.

BUILDAH is the command, with options of its own if need be; BUILD_OPTIONS are those of `buildah build`.
"""

import os
import platform
import shlex

from tools.release.run import ROOT, Release

TARGETS = {"gateway": "gateway", "gateway-pipeline": "pipeline"}
"""Images, and the Dockerfile's stage of each."""

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def image_of(release: Release, name: str) -> str:
    """Return an image's name; without a registry it stays on this machine."""
    return f"{release.registry or 'localhost'}/{name}:{release.version}"


def build_image(release: Release, name: str) -> None:
    """Build an image, and write it as an OCI archive and its SBOM beside."""
    image = image_of(release, name)
    options = shlex.split(os.environ.get("BUILD_OPTIONS", ""))
    labels = ("--label", f"org.opencontainers.image.version={release.version}")
    times = ("--timestamp", release.env["SOURCE_DATE_EPOCH"])
    _buildah(release, "build", *options, *labels, *times, "--target", TARGETS[name], "--tag", image, ROOT)
    container = _buildah(release, "from", "--pull-never", image)
    try:
        told = _buildah(release, "run", container, "--", "/bin/cat", f"/usr/share/sbom/{name}.cdx.json")
    finally:
        _buildah(release, "rm", container)
    (release.out / f"{name}-{release.version}.cdx.json").write_text(f"{told}\n", encoding="utf-8")
    machine = ARCHITECTURES.get(platform.machine(), platform.machine())
    archive = release.out / f"{name}-{release.version}-linux-{machine}.oci.tar"
    _buildah(release, "push", image, f"oci-archive:{archive}:{image}")


def push_image(release: Release, name: str) -> str:
    """Push an image to the registry and return it with its digest."""
    image, told = image_of(release, name), release.stage / f"{name}.digest"
    tls = "--tls-verify=false" if release.is_plain_http else "--tls-verify"
    _buildah(release, "push", tls, "--digestfile", told, image, f"docker://{image}")
    return f"{image}@{told.read_text().strip()}"


def _buildah(release: Release, *words: object) -> str:
    return release.run(*shlex.split(os.environ.get("BUILDAH", "buildah")), *map(str, words))
