"""Claim: settings parse as people write them, contradictions are refused in plain sentences, secrets stay."""

import re
from pathlib import Path

import pytest

from app.auth.quotas import PRODUCTION_QUOTA, Quota
from app.build import build_ingress_limits
from app.settings.effective import REDACTED, effective
from app.settings.environment import refuse_unknown_variables
from app.settings.limits import BATCH_ROOM_BYTES, RECORD_MARGIN_BYTES
from app.settings.log import KafkaSettings, LogSettings
from app.settings.model import Settings
from app.settings.remaining import UnusableSettingError, remaining_settings
from app.settings.replaced import REPLACED
from app.settings.section import load, secret_file_variables, variables
from app.settings.units import format_duration, format_size, parse_duration, parse_size
from dedupe.model.clock import SystemClock
from dedupe.model.errors import ConfigurationError
from dedupe.partition.context import LaneTimes
from tests.support.settings import VARIABLES, kafka_config, make_settings, variable_of
from tests.support.settings_page import USUAL, every, usual

SECRET = "an identity secret of tests"
DAY = 86_400


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in (*VARIABLES, *secret_file_variables(Settings), "GATEWAY_ADMIN_URL"):
        monkeypatch.delenv(variable, raising=False)


def refusal(monkeypatch: pytest.MonkeyPatch, **variables: str) -> str:
    """Return what is said when these settings are read, on top of development mode."""
    for name, value in {"mode": "development", **variables}.items():
        monkeypatch.setenv(variable_of(name), value)
    with pytest.raises(ConfigurationError) as caught:
        load(Settings)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("7d", 604_800),
        ("24h", 86_400),
        ("30s", 30),
        ("1.5m", 90),
        ("200ms", 0.2),
        ("8", 8),
        (" 4.5 s", 4.5),
        (3, 3),
    ],
)
def test_duration_is_read(text: object, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("512MiB", 536_870_912),
        ("1GiB", 1 << 30),
        ("800 kib", 819_200),
        ("4096", 4096),
        (5, 5),
        ("1.5KiB", 1536),
    ],
)
def test_size_is_read(text: object, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "d", "7 days", "-1s", "1e3", "1MB", "\u0661s", True, None, [1], "9" * 400]
)
def test_other_quantities_are_refused(text: object) -> None:
    with pytest.raises(ValueError, match="must be"):
        parse_duration(text)
    with pytest.raises(ValueError, match="must be"):
        parse_size(text)


def test_fraction_of_a_byte_is_refused() -> None:
    with pytest.raises(ValueError, match="whole number"):
        parse_size("0.3b")


@pytest.mark.parametrize("text", ["7d", "90m", "4.5s", "0s", "100d"])
def test_duration_is_written_as_it_is_read(text: str) -> None:
    assert format_duration(parse_duration(text)) == text


@pytest.mark.parametrize("text", ["800KiB", "1GiB", "512MiB", "1000", "0"])
def test_size_is_written_as_it_is_read(text: str) -> None:
    assert format_size(parse_size(text)) == text


def test_defaults_are_those_of_the_design(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_MODE", "development")
    settings = load(Settings)
    assert (settings.log.kind, settings.gateway.host, settings.gateway.port, settings.admin.port) == (
        "sqlite",
        "127.0.0.1",
        8080,
        9090,
    )
    log = settings.log
    assert (log.topic, log.quarantine_topic, log.partitions) == ("events", "events.quarantine", 8)
    assert (settings.index.window, settings.index.retention) == (7 * DAY, 8 * DAY)
    limits = settings.limits
    assert (limits.body_bytes_max, limits.body_compressed_bytes_max) == (8 << 20, 4 << 20)
    assert (limits.request_events_max, limits.request_bytes_max) == (20_000, 16 << 20)
    assert (limits.event_bytes_max, limits.batch_bytes_max) == (800 << 10, 900 << 10)
    assert limits.queue_bytes_max == 32 << 20
    assert (limits.answer_timeout, limits.keep_alive) == (4.5, 620)


def test_limits_follow_one_another() -> None:
    large = make_settings(body_bytes_max="9MiB", event_bytes_max="2MiB", request_events_max="5000").limits
    assert (large.body_compressed_bytes_max, large.request_bytes_max) == (9 << 19, 9 << 21)
    assert large.batch_bytes_max == (2 << 20) + (100 << 10)
    small = make_settings(event_bytes_max="1KiB", request_events_max="1").limits
    assert small.batch_bytes_max == 256 << 10
    assert BATCH_ROOM_BYTES > RECORD_MARGIN_BYTES


def test_times_of_a_takeover_fit_together() -> None:
    takeover_s = kafka_config("").transaction_timeout_s
    make_settings(kafka_request_timeout=takeover_s - 0.1)
    with pytest.raises(ValueError, match="less than"):
        make_settings(kafka_request_timeout=takeover_s)
    assert LaneTimes().unseen_s >= takeover_s


def test_keys_have_quotas_in_production_only(tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text("- {key: k, source: web}\n")

    def quota_in(mode: str) -> Quota | None:
        settings = make_settings(mode=mode, write_keys_file=keys)
        guards = build_ingress_limits(settings, SystemClock(), index_files=0)
        allowance = guards.write_keys.source_of("k").allowance
        return allowance.quota if allowance else None

    assert quota_in("development") is None
    assert quota_in("production") == PRODUCTION_QUOTA
    assert not PRODUCTION_QUOTA.is_unlimited


def test_retention_and_lease_of_sessions_follow_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_MODE", "development")
    monkeypatch.setenv("GATEWAY_WINDOW", "40d")
    index = load(Settings).index
    assert (index.retention, index.session_lease) == (41 * DAY, 30 * DAY)


def test_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_MODE", "development")
    monkeypatch.setenv("GATEWAY_PORT", "")
    assert load(Settings).gateway.port == 8080


def test_names_to_ignore_are_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_MODE", "development")
    monkeypatch.setenv("GATEWAY_FINGERPRINT_IGNORE", "retryCount, attempt,")
    assert load(Settings).gateway.fingerprint_ignore == ("retryCount", "attempt")


def test_production_is_the_default_and_needs_secret_and_keys() -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(Settings)
    sentences = str(caught.value).splitlines()
    assert len(sentences) == 2
    assert sentences[0].startswith("GATEWAY_IDENTITY_SECRET must be set in production")
    assert sentences[1].startswith("GATEWAY_WRITE_KEYS_FILE must be set in production")


def test_production_with_secret_and_keys_starts_without_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_IDENTITY_SECRET", SECRET)
    monkeypatch.setenv("GATEWAY_WRITE_KEYS_FILE", "keys.yaml")
    settings = load(Settings)
    assert settings.gateway.mode == "production"
    assert settings.gateway.identity_key == SECRET.encode()
    assert list(settings.warnings()) == []


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "gateway.internal"])
def test_admin_port_that_others_reach_needs_a_token(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    monkeypatch.setenv("GATEWAY_IDENTITY_SECRET", SECRET)
    monkeypatch.setenv("GATEWAY_WRITE_KEYS_FILE", "keys.yaml")
    monkeypatch.setenv("GATEWAY_ADMIN_HOST", host)
    with pytest.raises(ConfigurationError, match="GATEWAY_ADMIN_TOKEN must be set in production"):
        load(Settings)
    monkeypatch.setenv("GATEWAY_MODE", "development")
    assert any("GATEWAY_ADMIN_TOKEN" in warning for warning in load(Settings).warnings())
    monkeypatch.setenv("GATEWAY_MODE", "production")
    monkeypatch.setenv("GATEWAY_ADMIN_TOKEN", "short")
    with pytest.raises(ConfigurationError) as caught:
        load(Settings)
    assert "short" not in str(caught.value).replace("too_short", "")
    monkeypatch.setenv("GATEWAY_ADMIN_TOKEN", "0123456789abcdef")
    assert "0123456789abcdef" not in repr(load(Settings))
    monkeypatch.setenv("GATEWAY_ADMIN_READ_TOKEN", "0123456789abcdef")
    with pytest.raises(ConfigurationError, match="GATEWAY_ADMIN_READ_TOKEN must differ"):
        load(Settings)
    monkeypatch.delenv("GATEWAY_ADMIN_TOKEN")
    assert load(Settings).admin.has_token


@pytest.mark.regression("A token that no request could show was accepted as a setting.")
@pytest.mark.parametrize("name", ["GATEWAY_ADMIN_TOKEN", "GATEWAY_ADMIN_READ_TOKEN"])
@pytest.mark.parametrize("token", ["0123456789abcdef\n", " 0123456789abcdef", "0123456789abcd\u00e9f"])
def test_token_that_no_header_can_have_is_refused_and_not_told(
    monkeypatch: pytest.MonkeyPatch, name: str, token: str
) -> None:
    monkeypatch.setenv(name, token)
    with pytest.raises(ConfigurationError, match=f"{name}.*printable ASCII") as refused:
        load(Settings)
    assert "0123456789" not in str(refused.value)


def test_development_warns_of_everything_it_lets_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_MODE", "development")
    settings = load(Settings)
    assert len(settings.gateway.identity_key) >= 16
    assert [warning.split(" ")[0] for warning in settings.warnings()] == [
        "GATEWAY_IDENTITY_SECRET",
        "GATEWAY_WRITE_KEYS_FILE",
    ]


@pytest.mark.parametrize("secret", ["fifteen bytes.", "x" * 65, "ü" * 33])
def test_secret_of_wrong_length_is_refused_without_showing_it(
    secret: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = refusal(monkeypatch, identity_secret=secret)
    assert message == f"GATEWAY_IDENTITY_SECRET must have 16 to 64 bytes, it has {len(secret.encode())}"


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        ({"window": "23h"}, "GATEWAY_WINDOW must be at least 24h"),
        ({"window": "7d", "retention": "7d"}, "GATEWAY_RETENTION (7d) must be at least GATEWAY_WINDOW (7d)"),
        ({"queue_bytes_max": "16MiB"}, "GATEWAY_QUEUE_BYTES_MAX (16MiB) must be at least"),
        ({"body_memory": "31MiB"}, "GATEWAY_BODY_MEMORY (31MiB) must be at least four times"),
        ({"fingerprint_ignore": "a,messageId"}, "GATEWAY_FINGERPRINT_IGNORE must not name messageId"),
        ({"port": "x"}, "GATEWAY_PORT: "),
        ({"window": "x"}, "GATEWAY_WINDOW: "),
        ({"mode": "test"}, "GATEWAY_MODE: "),
        ({"topic": "no spaces"}, "GATEWAY_TOPIC: "),
        ({"disk_free_min": "much"}, "GATEWAY_DISK_FREE_MIN: must be a size"),
        ({"log": "kafka"}, "GATEWAY_KAFKA_BOOTSTRAP_SERVERS must be set"),
        ({"peer_listen": "127.0.0.1:0"}, "GATEWAY_PEER_LISTEN needs GATEWAY_LOG=kafka"),
        ({"peer_listen": "7070"}, "GATEWAY_PEER_LISTEN: must be host:port"),
        ({"probe_listen": "0.0.0.0:70000"}, "GATEWAY_PROBE_LISTEN: must be host:port"),
        ({"kafka_request_timeout": "30s"}, "GATEWAY_KAFKA_REQUEST_TIMEOUT: "),
        ({"port": "x", "window": ""}, "GATEWAY_PORT: "),
        ({"peer_tls_cert_file": "cert.pem"}, "GATEWAY_PEER_TLS_CERT_FILE, GATEWAY_PEER_TLS_KEY_FILE and"),
        ({"worker_id": "a b"}, "GATEWAY_WORKER_ID: "),
    ],
)
def test_contradiction_is_refused_in_one_sentence(
    variables: dict[str, str], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = refusal(monkeypatch, **variables)
    assert message.startswith(sentence)
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        (
            {"answer_timeout": "8s"},
            "GATEWAY_ANSWER_TIMEOUT (8s) must be less than GATEWAY_KAFKA_REQUEST_TIMEOUT (8s)",
        ),
        (
            {"kafka_security_protocol": "SASL_SSL"},
            "GATEWAY_KAFKA_SASL_USERNAME and GATEWAY_KAFKA_SASL_PASSWORD",
        ),
    ],
)
def test_kafka_contradiction_is_refused(
    variables: dict[str, str], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = refusal(monkeypatch, log="kafka", kafka_bootstrap_servers="127.0.0.1:9092", **variables)
    assert message.startswith(sentence)


def test_reader_of_the_log_needs_only_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_PORT", "tcp://10.0.0.1:8080")
    monkeypatch.setenv("GATEWAY_TOPIC", "clicks")
    assert load(LogSettings).topic == "clicks"


def test_secrets_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_MODE", "development")
    monkeypatch.setenv("GATEWAY_IDENTITY_SECRET", SECRET)
    monkeypatch.setenv("GATEWAY_KAFKA_SASL_PASSWORD", "broker password")
    assert SECRET not in repr(load(Settings))
    assert "broker password" not in repr(load(Settings))


def test_known_and_foreign_variables_pass() -> None:
    refuse_unknown_variables({"GATEWAY_PORT": "8080", "GATEWAY_ADMIN_URL": "http://x", "PATH": "/bin"})


def test_unknown_variable_is_refused_with_the_likely_name() -> None:
    with pytest.raises(ConfigurationError, match=r"GATEWAY_PARTITION is not a setting.*GATEWAY_PARTITIONS"):
        refuse_unknown_variables({"GATEWAY_PARTITION": "4"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GATEWAY_PORT", "tcp://10.96.0.1:8080"),
        ("GATEWAY_SERVICE_HOST", "10.96.0.1"),
        ("GATEWAY_SERVICE_PORT_HTTP", "8080"),
        ("GATEWAY_PORT_8080_TCP_ADDR", "10.96.0.1"),
    ],
)
def test_kubernetes_service_link_is_named_as_the_cause(name: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} looks like a service link.*enableServiceLinks"):
        refuse_unknown_variables({name: value})


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("10.0.0.1:7070", "10.0.0.1", 7070), ("[fd00::1]:0", "fd00::1", 0), ("fd00::1:7070", "fd00::1", 7070)],
)
def test_address_to_listen_on_is_read(text: str, host: str, port: int) -> None:
    assert make_settings(peer_listen=text).group.peer_listen == (host, port)


def test_second_login_is_the_same_section_under_another_prefix() -> None:
    class InputKafkaSettings(KafkaSettings, alias_generator=variables("INPUT_KAFKA_")):
        """Input: another cluster."""

    told = {"GATEWAY_INPUT_KAFKA_SECURITY_PROTOCOL": "SASL_SSL", "GATEWAY_KAFKA_SASL_USERNAME": "other"}
    (sentence,) = InputKafkaSettings.model_validate(told).contradictions()
    assert sentence.startswith("GATEWAY_INPUT_KAFKA_SASL_USERNAME and GATEWAY_INPUT_KAFKA_SASL_PASSWORD must")


def test_replaced_setting_is_refused_with_what_replaces_it() -> None:
    assert not REPLACED.keys() & set(VARIABLES)
    for name, replacement in REPLACED.items():
        with pytest.raises(ConfigurationError) as refused:
            refuse_unknown_variables({name: "1"})
        assert str(refused.value) == f"{name} is no setting any more: {replacement}"
        assert set(re.findall(r"GATEWAY_[A-Z_]+", replacement)) <= set(VARIABLES)


def test_tables_have_every_setting_once() -> None:
    rows = re.findall(r"^\| `(GATEWAY_\w+)` \|", every(), flags=re.MULTILINE)
    assert sorted(rows) == sorted(VARIABLES)
    assert len(rows) <= 72
    assert "| `GATEWAY_WINDOW` | `7d` | duration |" in every()
    assert "| `GATEWAY_RETENTION` | window + 1d | duration |" in every()
    assert re.findall(r"^\| `(GATEWAY_\w+)` \|", usual(), flags=re.MULTILINE) == list(USUAL)


def test_effective_settings_say_where_they_come_from(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "mode": "production",
        "window": "48h",
        "identity_secret": SECRET,
        "write_keys_file": "/etc/keys.yaml",
        "trusted_proxies": "10.0.0.0/8, 192.168.1.7",
        "probe_listen": "0.0.0.0:9091",
        "admin_token": "",
    }.items():
        monkeypatch.setenv(variable_of(name), value)
    shown = {each.variable: (each.value, each.origin.value) for each in effective(load(Settings))}
    assert list(shown) == list(VARIABLES)
    assert SECRET not in str(shown)
    assert {variable.removeprefix("GATEWAY_").lower(): shown[variable] for variable in SHOWN} == {
        "window": ("2d", "environment"),
        "retention": ("3d", "derived"),
        "identity_secret": (REDACTED, "environment"),
        "admin_token": (None, "default"),
        "write_keys_file": ("/etc/keys.yaml", "environment"),
        "trusted_proxies": ("10.0.0.0/8,192.168.1.7/32", "environment"),
        "probe_listen": ("0.0.0.0:9091", "environment"),
        "answer_timeout": ("4.5s", "default"),
        "body_bytes_max": ("8MiB", "default"),
        "port": (8080, "default"),
        "standby": (True, "default"),
        "data_dir": ("data", "default"),
    }


SHOWN = [
    variable_of(name)
    for name in (
        "window",
        "retention",
        "identity_secret",
        "admin_token",
        "write_keys_file",
        "trusted_proxies",
        "probe_listen",
        "answer_timeout",
        "body_bytes_max",
        "port",
        "standby",
        "data_dir",
    )
]


@pytest.mark.parametrize("ends", ["", "\n", "\r\n"])
def test_a_secret_may_be_in_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ends: str) -> None:
    (tmp_path / "secret").write_bytes(f"{SECRET}{ends}".encode())
    monkeypatch.setenv("GATEWAY_MODE", "development")
    monkeypatch.setenv("GATEWAY_IDENTITY_SECRET_FILE", str(tmp_path / "secret"))
    refuse_unknown_variables()
    settings = load(Settings)
    assert settings.gateway.identity_key == SECRET.encode()
    (shown,) = [each for each in effective(settings) if each.variable == "GATEWAY_IDENTITY_SECRET"]
    assert (shown.value, shown.origin) == (REDACTED, "environment")


def test_every_secret_but_a_login_that_changes_may_be_in_a_file() -> None:
    assert list(secret_file_variables(Settings)) == [
        "GATEWAY_IDENTITY_SECRET_FILE",
        "GATEWAY_ADMIN_TOKEN_FILE",
        "GATEWAY_ADMIN_READ_TOKEN_FILE",
    ]


@pytest.mark.parametrize(
    ("content", "more", "says"),
    [
        (None, {}, "No such file or directory"),
        (b"", {}, "it is empty"),
        (b"\n", {}, "it is empty"),
        (b"\xff" * 20, {}, "it is no text in UTF-8"),
        (b"x" * 70_000, {}, "it has more than 65536 bytes"),
        (SECRET.encode(), {"identity_secret": SECRET}, "are both set"),
    ],
)
def test_a_file_without_its_secret_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes | None, more: dict[str, str], says: str
) -> None:
    path = tmp_path / "secret"
    if content is not None:
        path.write_bytes(content)
    said = refusal(monkeypatch, identity_secret_file=str(path), **more)
    assert "GATEWAY_IDENTITY_SECRET_FILE" in said
    assert says in said
    assert SECRET not in said
    remaining = remaining_settings()
    assert remaining.problems == said.splitlines()
    with pytest.raises(UnusableSettingError):
        _ = remaining.settings.gateway.identity_secret
