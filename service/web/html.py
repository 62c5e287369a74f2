"""The templates: every value is escaped, and every number gets its unit and its age in one place."""

from __future__ import annotations

import functools
import math
from datetime import UTC, datetime
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from service.web.assets import assets

_UNKNOWN = "unknown"
_AGES = ((86400 * 365.25, "year"), (86400 * 30.44, "month"), (86400, "day"), (3600, "hour"), (60, "minute"))
_SCALES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_LONGEST = 300  # characters of a text that others wrote, before it is cut


@functools.cache
def environment() -> Environment:
    """The templates of the page."""
    found = Environment(
        loader=PackageLoader("service.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= {
        "micros": micros,
        "seconds": seconds,
        "ratio": ratio,
        "age": age,
        "number": number,
        "scaled": scaled,
        "clip": clip,
    }
    found.globals |= {"asset": _asset, "asset_text": _asset_text}
    return found


def page(template: str, **values: Any) -> str:
    """The HTML of a template."""
    return environment().get_template(template).render(**values)


def _asset(name: str) -> str:
    return assets()[name].url


def _asset_text(name: str) -> Markup:
    """A script or style of ours within a page that stands alone."""
    return Markup(assets()[name].text.replace("</", "<\\/"))  # not from a request


def micros(value: float | None) -> str:
    """Microseconds with three significant digits or more, and their unit."""
    if value is None:
        return _UNKNOWN
    return f"{value:,.0f} µs" if value >= 1000 else f"{value:.4g} µs"


def seconds(value: float | None) -> str:
    """Seconds in the unit that people would choose."""
    if value is None:
        return _UNKNOWN
    if value < 1:
        return f"{value * 1e3:.3g} ms"
    for size, name in ((3600, "h"), (60, "min")):
        if value >= size:
            return f"{value / size:.1f} {name}"
    return f"{value:.3g} s"


def ratio(value: float | None) -> str:
    """A ratio, which has no unit."""
    return _UNKNOWN if value is None else f"{value:.3f}"


def number(value: float | None, unit: str = "") -> str:
    """A number with three digits or all before the point, and its unit."""
    if value is None or not math.isfinite(value):
        return _UNKNOWN
    text = f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.3g}"
    return f"{text} {unit}".rstrip()


def scaled(value: float | None, unit: str) -> str:
    """A number with a prefix of thousands: ``1.34 TFLOP/s``."""
    if value is None:
        return _UNKNOWN
    size, prefix = next((one for one in _SCALES if abs(value) >= one[0]), (1.0, ""))
    return f"{value / size:.3g} {prefix}{unit}"


def age(when: datetime | None) -> Markup:
    """How long ago that was; the exact time is the title."""
    if when is None:
        return Markup("never")
    past = (datetime.now(UTC) - when).total_seconds()
    size, name = next((one for one in _AGES if past >= one[0]), (1.0, "second"))
    count = max(0, int(past / size))
    ago = f"{count} {name}{'' if count == 1 else 's'} ago"
    exact = when.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return Markup('<time datetime="{}" title="{}">{}</time>').format(when.isoformat(), exact, ago)


def clip(text: object, most: int = _LONGEST) -> str:
    """The beginning of a text that others wrote, with what would turn or hide letters made visible."""
    whole = str(text)
    shown = (one if one.isprintable() else f"\\u{ord(one):04x}" for one in whole[:most])
    return "".join(shown) + (" …" if len(whole) > most else "")
