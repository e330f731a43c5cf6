"""The settings of the gateway, the units they are written in, and the data folder."""

from app.config.data_dir import check_format, holders_of, index_path, locked, refuse_lost_log, sqlite_path
from app.config.effective import effective
from app.config.environment import refuse_unknown_variables
from app.config.file_signature import signature_of
from app.config.log_settings import LogSettings
from app.config.networks import Network, is_address, is_loopback_name
from app.config.remaining import UnusableSettingError, remaining_settings
from app.config.section import load
from app.config.settings import Settings
from app.config.units import DAY, KIB, Bytes, Seconds, format_duration, format_size, parse_duration
from app.config.version import VERSION

__all__ = [
    "DAY",
    "KIB",
    "VERSION",
    "Bytes",
    "LogSettings",
    "Network",
    "Seconds",
    "Settings",
    "UnusableSettingError",
    "check_format",
    "effective",
    "format_duration",
    "format_size",
    "holders_of",
    "index_path",
    "is_address",
    "is_loopback_name",
    "load",
    "locked",
    "parse_duration",
    "refuse_lost_log",
    "refuse_unknown_variables",
    "remaining_settings",
    "signature_of",
    "sqlite_path",
]
