"""Packages of languages: Python's wheels and sdists, npm's tarball, a jar with its pom."""

import shutil
import xml.etree.ElementTree as ET

from tools.release.run import ROOT, Release

BUILD = ROOT / "build" / "release" / "bin" / "python"
PYTHON_PROJECTS = (".", "pipeline", "native", "clients/python")
NODE_MODULES = ROOT / "tests" / "e2e" / "clients" / "javascript" / "node_modules"
JAVASCRIPT = ROOT / "clients" / "javascript"
KOTLIN = ROOT / "clients" / "kotlin" / "pom.xml"


def build_python(release: Release) -> None:
    """Build wheel and sdist of the gateway, the Spark jobs, the native module and the client."""
    for project in PYTHON_PROJECTS:
        release.run(BUILD, "-m", "build", "--outdir", release.out, ROOT / project)


def build_javascript(release: Release) -> None:
    """Build the JavaScript client as npm would."""
    folder = release.stage / "javascript"
    shutil.copytree(JAVASCRIPT, folder, ignore=shutil.ignore_patterns("node_modules", "dist"))
    (folder / "node_modules").symlink_to(NODE_MODULES)
    release.run("node", "build.mjs", "--dist", cwd=folder)
    release.run("npm", "pack", "--ignore-scripts", "--silent", "--pack-destination", release.out, cwd=folder)


def build_kotlin(release: Release) -> None:
    """Build the Kotlin client's jar, and put its pom beside it, which names what it needs."""
    folder = release.stage / "kotlin"
    quiet = ("--batch-mode", "--quiet", "-Dstyle.color=never", "-Dkotlin.compiler.daemon=false")
    release.run("mvn", *quiet, f"-Dbuild.to={folder}", "--file", KOTLIN, "package")
    pom = {child.tag.rpartition("}")[2]: child.text for child in ET.parse(KOTLIN).getroot()}
    name = f"{pom['artifactId']}-{pom['version']}"
    shutil.copy(folder / f"{name}.jar", release.out)
    shutil.copy(KOTLIN, release.out / f"{name}.pom")
