"""``Config``: canonical, hashable, plain data both ways."""

from __future__ import annotations

import hashlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from tilewright import Config
from tilewright.errors import InvalidProblem

INTEGERS = st.integers(1 - 2**63, 2**63 - 1)
CONFIG = Config.of("simt", {"tile_m": 64, "raster": "m", "group": 1})


def test_the_order_of_knobs_does_not_matter() -> None:
    other = Config.of("simt", {"group": 1, "tile_m": 64, "raster": "m"})
    assert other == CONFIG
    assert hash(other) == hash(CONFIG)
    assert other.digest == CONFIG.digest
    assert list(CONFIG) == ["group", "raster", "tile_m"]


def test_digest_is_of_the_canonical_json() -> None:
    text = '{"family":"simt","knobs":{"group":1,"raster":"m","tile_m":64}}'
    assert CONFIG.digest == hashlib.sha256(text.encode()).hexdigest()[:16]


def test_digest_tells_families_names_and_types_apart() -> None:
    configs = [
        CONFIG,
        Config.of("mma_sync", dict(CONFIG.knobs)),
        Config.of("simt", {**dict(CONFIG.knobs), "group": 2}),
        Config.of("simt", {**dict(CONFIG.knobs), "group": "1"}),
        Config.of("simt", {"tile_m": 64, "raster": "m"}),
    ]
    assert len({config.digest for config in configs}) == len(configs)


def test_values_by_name() -> None:
    assert CONFIG["tile_m"] == 64
    assert CONFIG["raster"] == "m"
    with pytest.raises(KeyError):
        CONFIG["stages"]


def test_text() -> None:
    assert str(CONFIG) == "simt(group=1, raster=m, tile_m=64)"


@pytest.mark.parametrize("value", [1.0, True, None, [1]])
def test_values_are_integers_or_names(value: object) -> None:
    message = r"^knob group of simt must be an integer or a name, got "
    with pytest.raises(InvalidProblem, match=message):
        Config.of("simt", {"group": value})  # type: ignore[dict-item]


def test_integers_have_64_bits() -> None:
    adapter = TypeAdapter(Config)
    for value in (2**63 - 1, 1 - 2**63):
        config = Config.of("simt", {"group": value})
        assert Config.from_dict(config.to_dict()) == adapter.validate_python(config.to_dict()) == config
    for value in (2**63, -(2**63), 10**400):
        plain = {"family": "simt", "knobs": {"group": value}}
        with pytest.raises(InvalidProblem, match=r"^knob group of simt must be in -9223"):
            Config.of("simt", {"group": value})
        with pytest.raises(ValueError, match=r"^knobs\.group: must be in -9223"):
            Config.from_dict(plain)
        with pytest.raises(ValidationError, match=r"knobs\.group"):
            adapter.validate_python(plain)


@settings(max_examples=100, deadline=None, database=None)
@given(st.text(), st.dictionaries(st.text(), INTEGERS | st.text(), max_size=8))
def test_round_trip_through_json(family: str, knobs: dict[str, int | str]) -> None:
    config = Config.of(family, knobs)
    again = Config.from_dict(json.loads(json.dumps(config.to_dict())))
    assert again == config
    assert again.digest == config.digest
