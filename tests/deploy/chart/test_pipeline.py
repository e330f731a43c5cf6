"""
Claim: the jobs' chart starts jobs that exist, with options that they have, in pods of the restricted
profile; what contradicts itself fails with one sentence.
"""

from typing import Any

import pytest
import typer.main

from pipeline.cli import app
from pipeline.runtime.erasures import KEY_VARIABLE, LIST_VARIABLE
from tests.deploy.chart.helm import PIPELINE, HelmError, helm, only, render_pipeline, values
from tests.deploy.chart.schemas import validate

SOURCE = {"kafka__bootstrapServers": "kafka:9092"}
LOGIN = SOURCE | {
    "kafka__securityProtocol": "SASL_SSL",
    "kafka__sasl__username": "jobs",
    "kafka__sasl__existingSecret": "kafka",
}
AUTHORITY = {"kafka__tls__caSecret": "ca"}
DEEP = {"audit__deep": True, "audit__stats": "http://gateway:9090", "audit__existingSecret": "gateway"}
MIRROR = {
    "global__imageRegistry": "mirror.example.com:5000",
    "global__imagePullSecrets": ["mirror"],
    "imagePullSecrets": [{"name": "own"}],
    "image__registry": "registry.example.com",
}
LAKE = {"archive__out": "s3a://lake/events"}
SECRET_KEY = {
    "name": "AWS_SECRET_ACCESS_KEY",
    "valueFrom": {"secretKeyRef": {"name": "lake", "key": "secret"}},
}
STORE = LAKE | {
    "extraEnv": [{"name": "AWS_REGION", "value": "eu-central-1"}, SECRET_KEY],
    "serviceAccount__create": True,
    "serviceAccount__annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/lake"},
}
SECRETS = {"envFrom": [{"secretRef": {"name": "lake"}}]}
TOKENS = {
    "kafka__sasl__mechanism": "OAUTHBEARER",
    "kafka__sasl__oauth__tokenUrl": "https://login.example.com/token",
    "kafka__sasl__oauth__scope": "kafka",
}
KEY = {"erasures__existingSecret": "erasures", "erasures__secretKey": "hmac"}
ERASURES = KEY | {"erasures__path": "s3a://lake/erasures"}
CLAIM = KEY | {"erasures__path": "/erasures/list", "erasures__existingClaim": "erased"}
KEY_FILE = "/etc/gateway/erasures/hmac"
MATRIX: dict[str, dict[str, Any]] = {
    "plain": SOURCE,
    "login": LOGIN | AUTHORITY,
    "deep": LOGIN | DEEP,
    "parquet": SOURCE | {"archive__format": "parquet", "audit__enabled": False},
    "apache": LOGIN | LAKE | {"archive__operator": "apache"},
    "kubeflow": LOGIN | LAKE | {"archive__operator": "kubeflow"},
    "apache from a mirror": LOGIN | LAKE | MIRROR | {"archive__operator": "apache"},
    "kubeflow from a mirror": LOGIN | LAKE | MIRROR | {"archive__operator": "kubeflow"},
    "store": LOGIN | TOKENS | STORE | SECRETS,
    "store, apache": LOGIN | STORE | {"archive__operator": "apache"},
    "store, kubeflow": LOGIN | STORE | SECRETS | {"archive__operator": "kubeflow"},
    "erasures in a volume": SOURCE | CLAIM,
    "erasures": SOURCE | STORE | ERASURES,
    "erasures, apache": SOURCE | STORE | ERASURES | {"archive__operator": "apache"},
    "erasures, kubeflow": SOURCE | STORE | ERASURES | {"archive__operator": "kubeflow"},
    "placed": SOURCE | {"nodeSelector": {"a": "b"}, "tolerations": [{"operator": "Exists"}]},
}


@pytest.fixture(params=MATRIX)
def manifests(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    return render_pipeline(**MATRIX[request.param])


def told_to(words: list[str]) -> dict[str, Any]:
    """Return what a job is told by these arguments, or fail as it would."""
    commands: Any = typer.main.get_command(app)
    found: dict[str, Any] = commands.get_command(None, words[0]).make_context(words[0], words[1:]).params
    return found


def arguments_of(manifest: dict[str, Any]) -> list[str]:
    spec = manifest["spec"]
    if manifest["kind"] == "CronJob":
        (container,) = spec["jobTemplate"]["spec"]["template"]["spec"]["containers"]
        return [str(word) for word in container["args"]]
    return [str(word) for word in spec.get("driverArgs") or spec["arguments"]]


@pytest.mark.parametrize("version", ["1.30", "1.37"])
def test_manifests_are_valid(version: str, manifests: list[dict[str, Any]]) -> None:
    for manifest in manifests:
        validate(manifest, version)


def test_jobs_exist_and_have_these_options(manifests: list[dict[str, Any]]) -> None:
    jobs = [manifest for manifest in manifests if manifest["kind"] in ("CronJob", "SparkApplication")]
    assert jobs
    for manifest in jobs:
        words = arguments_of(manifest)
        told = told_to(words)
        assert str(told["source"]) == "kafka://kafka:9092/events"
        if words[0] == "archive":
            assert told["once"] == (manifest["kind"] == "CronJob")


def test_pods_run_under_the_restricted_profile(manifests: list[dict[str, Any]]) -> None:
    for manifest in manifests:
        if manifest["kind"] != "CronJob":
            continue
        assert manifest["spec"]["concurrencyPolicy"] == "Forbid"
        pod = manifest["spec"]["jobTemplate"]["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        (container,) = pod["containers"]
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert {mount["name"] for mount in container["volumeMounts"]} == {
            volume["name"] for volume in pod["volumes"]
        }


def test_audit_knows_the_gateways_secrets() -> None:
    audit = only(render_pipeline(**LOGIN, **DEEP), "CronJob", "events-pipeline-audit")
    (container,) = audit["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    env = {item["name"]: item for item in container["env"]}
    assert env["ADMIN_TOKEN"]["valueFrom"]["secretKeyRef"] == {"name": "gateway", "key": "admin-token"}
    assert env["GATEWAY_IDENTITY_SECRET"]["valueFrom"]["secretKeyRef"]["key"] == "identity-secret"
    assert env["GATEWAY_KAFKA_SASL_PASSWORD"]["valueFrom"]["secretKeyRef"]["name"] == "kafka"
    told = told_to(container["args"])
    assert (told["deep"], told["admin_token"]) == (True, "$(ADMIN_TOKEN)")


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({}, "kafka.bootstrapServers is needed"),
        (SOURCE | {"kafka__securityProtocol": "SASL_SSL"}, "needs kafka.sasl.username"),
        (SOURCE | {"kafka__sasl__existingSecret": "s"}, "kafka.sasl.existingSecret is not used with"),
        (SOURCE | AUTHORITY, "kafka.tls is not used with"),
        (SOURCE | {"audit__deep": True}, "need audit.existingSecret"),
        (SOURCE | {"archive__operator": "apache"}, "they cannot share /data"),
        (SOURCE | {"archive__enabled": False, "audit__enabled": False}, "there is nothing to install"),
        (LOGIN | AUTHORITY | LAKE | {"archive__operator": "apache"}, "reaches scheduled jobs alone"),
        (SOURCE | STORE | SECRETS | {"archive__operator": "apache"}, "name each variable in extraEnv"),
        (
            SOURCE
            | LAKE
            | {"archive__operator": "apache", "extraEnv": [{"name": "A", "valueFrom": {"fieldRef": {}}}]},
            "extraEnv: A: with archive.operator: apache",
        ),
        (SOURCE | {"serviceAccount__annotations": {"a": "b"}}, "that serviceAccount.create makes"),
        (SOURCE | KEY, "erasures.path and erasures.existingSecret need each other"),
        (SOURCE | {"erasures__path": "/data/list"}, "erasures.path and erasures.existingSecret need each"),
        (SOURCE | KEY | {"erasures__path": "/erasures"}, "existingClaim and an erasures.path below"),
        (SOURCE | ERASURES | {"erasures__existingClaim": "a"}, "existingClaim and an erasures.path below"),
        (SOURCE | KEY | {"erasures__path": "/tmp/list"}, "at '/erasures/path'"),
        (SOURCE | LAKE | CLAIM | {"archive__operator": "apache"}, "cannot share a volume: set erasures.path"),
        (SOURCE | {"archive__format": "csv"}, "at '/archive/format'"),
        (SOURCE | {"achive": {}}, "additional properties 'achive' not allowed"),
    ],
)
def test_contradiction_fails_with_one_sentence(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(HelmError) as caught:
        render_pipeline(**settings)
    assert sentence in str(caught.value)


def test_a_mirror_has_the_image_and_its_secrets_are_named() -> None:
    image = "mirror.example.com:5000/gateway-pipeline:"
    for job in render_pipeline(**SOURCE, **MIRROR):
        if job["kind"] == "CronJob":
            pod = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
            assert pod["imagePullSecrets"] == [{"name": "mirror"}, {"name": "own"}]
            assert pod["containers"][0]["image"].startswith(image)
    apache = only(render_pipeline(**MATRIX["apache from a mirror"]), "SparkApplication")["spec"]["sparkConf"]
    assert apache["spark.kubernetes.container.image"].startswith(image)
    assert apache["spark.kubernetes.container.image.pullSecrets"] == "mirror,own"
    kubeflow = only(render_pipeline(**MATRIX["kubeflow from a mirror"]), "SparkApplication")["spec"]
    assert kubeflow["image"].startswith(image)
    assert kubeflow["imagePullSecrets"] == ["mirror", "own"]


def test_a_store_is_reached_by_variables_secrets_and_a_role() -> None:
    made = render_pipeline(**MATRIX["store"])
    account = only(made, "ServiceAccount")
    assert account["metadata"]["annotations"] == STORE["serviceAccount__annotations"]
    for job in ("archive", "audit"):
        template = only(made, "CronJob", f"events-pipeline-{job}")["spec"]["jobTemplate"]["spec"]["template"]
        (container,) = template["spec"]["containers"]
        names = [variable["name"] for variable in container["env"]]
        assert template["spec"]["serviceAccountName"] == account["metadata"]["name"] == "events-pipeline"
        assert container["env"][:2] == STORE["extraEnv"]
        assert container["envFrom"] == SECRETS["envFrom"]
        assert {"GATEWAY_KAFKA_OAUTH_TOKEN_URL", "GATEWAY_KAFKA_OAUTH_SCOPE"} <= {*names}


def test_an_operators_pods_reach_the_store_too() -> None:
    apache = only(render_pipeline(**MATRIX["store, apache"]), "SparkApplication")["spec"]["sparkConf"]
    for role, plain in (("driver", "kubernetes.driverEnv"), ("executor", "executorEnv")):
        assert apache[f"spark.{plain}.AWS_REGION"] == "eu-central-1"
        assert apache[f"spark.kubernetes.{role}.secretKeyRef.AWS_SECRET_ACCESS_KEY"] == "lake:secret"
    executors = "spark.kubernetes.authenticate.executor.serviceAccountName"
    assert apache[executors] == "events-pipeline"
    kubeflow = only(render_pipeline(**MATRIX["store, kubeflow"]), "SparkApplication")["spec"]
    for role in ("driver", "executor"):
        assert kubeflow[role]["env"][:2] == STORE["extraEnv"]
        assert kubeflow[role]["envFrom"] == SECRETS["envFrom"]
    assert (kubeflow["driver"]["serviceAccount"], kubeflow["executor"]["serviceAccount"]) == (
        "spark",
        "events-pipeline",
    )


@pytest.mark.parametrize("name", ["erasures", "erasures in a volume"])
def test_each_scheduled_job_has_the_list_of_erasures_and_its_key(name: str) -> None:
    settings = MATRIX[name]
    for job in ("archive", "audit"):
        cron = only(render_pipeline(**settings), "CronJob", f"events-pipeline-{job}")
        pod = cron["spec"]["jobTemplate"]["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        env = {item["name"]: item.get("value") for item in container["env"]}
        assert (env[LIST_VARIABLE], env[KEY_VARIABLE]) == (settings["erasures__path"], KEY_FILE)
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
        assert volumes["erasures-key"]["secret"] == {
            "secretName": "erasures",
            "items": [{"key": "hmac", "path": "hmac"}],
        }
        assert mounts["erasures-key"]["mountPath"] == "/etc/gateway/erasures"
        claim = volumes.get("erasures", {}).get("persistentVolumeClaim")
        if name == "erasures in a volume":
            assert (claim, mounts["erasures"]["mountPath"]) == (
                {"claimName": "erased", "readOnly": True},
                "/erasures",
            )
        else:
            assert claim is None


def test_an_operators_driver_has_the_list_of_erasures_and_its_key() -> None:
    wanted = {LIST_VARIABLE: "s3a://lake/erasures", KEY_VARIABLE: KEY_FILE}
    apache = only(render_pipeline(**MATRIX["erasures, apache"]), "SparkApplication")["spec"]["sparkConf"]
    assert apache["spark.kubernetes.driver.secrets.erasures"] == "/etc/gateway/erasures"
    assert {name: apache[f"spark.kubernetes.driverEnv.{name}"] for name in wanted} == wanted
    kubeflow = only(render_pipeline(**MATRIX["erasures, kubeflow"]), "SparkApplication")["spec"]["driver"]
    assert kubeflow["secrets"] == [
        {"name": "erasures", "path": "/etc/gateway/erasures", "secretType": "Generic"}
    ]
    assert wanted.items() <= {item["name"]: item.get("value") for item in kubeflow["env"]}.items()


def test_without_a_list_nothing_names_one() -> None:
    assert "ERASURE" not in str(render_pipeline(**SOURCE)).upper()


def test_lint_finds_nothing() -> None:
    assert "0 chart(s) failed" in helm("lint", "--strict", PIPELINE, *values(**SOURCE))
