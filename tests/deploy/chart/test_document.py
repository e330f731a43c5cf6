"""Claim: what docs/kubernetes.md and the chart's README tell people to install is what helm can install."""

import shlex

import pytest

from tests.deploy.chart.helm import CHART, PIPELINE, ROOT, HelmError, helm
from tests.support.documents import blocks_of

DOCUMENTS = (ROOT / "docs" / "kubernetes.md", CHART / "README.md", PIPELINE / "README.md")
MINE = ("--set", "secrets.existingSecret=gateway,kafka.bootstrapServers=kafka:9093")


def installs() -> list[list[str]]:
    lines = [
        line
        for document in DOCUMENTS
        for block in blocks_of(document, "sh")
        for line in block.replace("\\\n", " ").splitlines()
    ]
    found = [shlex.split(line, comments=True) for line in lines]
    return [words for words in found if words[:2] in (["helm", "install"], ["helm", "upgrade"])]


@pytest.mark.parametrize("words", installs(), ids=" ".join)
def test_documented_command_renders(words: list[str]) -> None:
    options = [str(ROOT / word) if word.startswith("helm/") else word for word in words[2:]]
    if "my-values.yaml" in options:
        place = options.index("my-values.yaml")
        options[place - 1 : place + 1] = MINE
    if "--reset-then-reuse-values" in options:
        options.remove("--reset-then-reuse-values")
        options += ["--values", str(CHART / "profiles" / "development.yaml")]
    assert "kind: " in helm("template", *options)


def test_documents_show_some() -> None:
    assert len(installs()) >= 5


def test_a_command_without_kafka_fails() -> None:
    with pytest.raises(HelmError, match="kafka"):
        helm("template", "events", CHART)
