"""
Prints what an image holds as CycloneDX JSON: Python's packages of an environment, what their own lists name,
such as the crates of the native module, and Debian's packages.

    python3 deploy/sbom.py /venv [NAME]

Needs nothing but Python, so that the image's own build can run it.
"""

import hashlib
import json
import platform
import subprocess
import sys
import uuid
from collections.abc import Iterator
from email.message import Message
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any
from urllib.parse import quote


def main() -> None:
    """Print the document."""
    environment = Path(sys.argv[1])
    name = sys.argv[2] if len(sys.argv) > 2 else "gateway"
    found = {str(component["purl"]): component for component in (*python_packages(environment), *_debian())}
    components = [found[purl] for purl in sorted(found)]
    assert components, "an image without packages"
    digest = hashlib.sha256(json.dumps(components).encode()).hexdigest()
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        # Named after what it lists, so that the same packages give the same bytes.
        "serialNumber": f"urn:uuid:{uuid.UUID(hex=digest[:32], version=4)}",
        "version": 1,
        "metadata": {"component": {"type": "container", "name": name, "bom-ref": name}},
        "components": components,
    }
    print(json.dumps(document, indent=1))


def python_packages(environment: Path) -> Iterator[dict[str, Any]]:
    """Yield the packages of an environment, and the libraries within them."""
    folders = [str(path) for path in environment.glob("lib/python3.*/site-packages")]
    for distribution in distributions(path=folders):
        name, version = distribution.metadata["Name"], distribution.version
        component = _component(name, version, f"pkg:pypi/{name.lower().replace('_', '-')}@{quote(version)}")
        if spdx := _license(distribution):
            component["licenses"] = [{"license": {"name": spdx}}]
        yield component
        yield from bundled(distribution)
    yield _component("python", platform.python_version(), f"pkg:generic/python@{platform.python_version()}")


def bundled(distribution: Distribution) -> Iterator[dict[str, Any]]:
    """Yield what a wheel lists in documents of its own (PEP 770), but for what only its build needed."""
    for file in distribution.files or ():
        if file.parent.name != "sboms" or file.suffix != ".json":
            continue
        document = json.loads(Path(str(file.locate())).read_text(encoding="utf-8"))
        for told in document.get("components", ()):
            if told.get("scope") == "excluded" or "version" not in told or "purl" not in told:
                continue
            component = _component(told["name"], told["version"], told["purl"])
            if licenses := told.get("licenses"):
                component["licenses"] = licenses
            yield component


def _license(distribution: Distribution) -> str | None:
    metadata: Message = distribution.metadata  # type: ignore[assignment]
    told = metadata.get("License-Expression") or metadata.get("License") or ""
    return str(told).splitlines()[0][:100] if told else None


def _debian() -> Iterator[dict[str, Any]]:
    told = subprocess.run(
        ["dpkg-query", "--show", "--showformat", r"${Package} ${Version} ${Architecture}\n"],
        capture_output=True,
        text=True,
        check=True,
    )
    for line in told.stdout.splitlines():
        name, version, architecture = line.split()
        purl = f"pkg:deb/debian/{quote(name)}@{quote(version)}?arch={architecture}"
        yield _component(name, version, purl)


def _component(name: str, version: str, purl: str) -> dict[str, Any]:
    return {"type": "library", "name": name, "version": version, "purl": purl, "bom-ref": purl}


if __name__ == "__main__":
    main()
