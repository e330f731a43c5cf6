"""
The library that sent a request, by its User-Agent: one of a known list, or `other`.

The names are labels of metrics, so anything else a client may call itself is `other`.
"""

from collections.abc import Mapping

OTHER = "other"

_BY_PRODUCT = {
    name: name
    for name in (
        "analytics-android",
        "analytics-csharp",
        "analytics-go",
        "analytics-ios",
        "analytics-java",
        "analytics-kotlin",
        "analytics-node",
        "analytics-php",
        "analytics-python",
        "analytics-react-native",
        "analytics-ruby",
        "analytics-swift",
        "curl",
        "node",
    )
} | {
    "analytics-node-next": "analytics-node",
    "analytics.net": "analytics-csharp",
    "analyticsruby": "analytics-ruby",
    "dalvik": "android",  # RudderStack's Android SDK leaves the system's
    "mozilla": "browser",  # Analytics.js, and RudderStack's and Jitsu's for pages
    "okhttp": "android",  # React Native on Android
    "undici": "node",
}
"""The library by the product in its User-Agent, in lower case."""

_APPLE = b"CFNetwork/"
"""In the User-Agent of apps on iOS whose SDK leaves the system's: the product is the app's name."""

LIBRARIES = frozenset(_BY_PRODUCT.values()) | {"ios", OTHER}
"""All names."""

PRODUCT_BYTES_MAX = 64


def library_of(headers: Mapping[bytes, bytes]) -> str:
    """Return the name of the library that sent these headers (names in lower case)."""
    agent = headers.get(b"user-agent", b"")
    product = agent[:PRODUCT_BYTES_MAX].partition(b"/")[0].partition(b" ")[0]
    name = _BY_PRODUCT.get(product.decode("ascii", "replace").lower())
    return name or ("ios" if _APPLE in agent else OTHER)
