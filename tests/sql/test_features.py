"""Features are read off the gold; one line per case in tests/fixtures/features.txt."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nl2sql.sql.features import FEATURES, UNKNOWN, features

FIXTURE = Path(__file__).parent.parent / "fixtures" / "features.txt"
CASES = [line.split(" ||| ") for line in FIXTURE.read_text("utf-8").splitlines() if line and not line.startswith("#")]


@pytest.mark.parametrize(("sql", "values"), CASES, ids=[sql for sql, _ in CASES])
def test_features_of(sql, values):
    assert features(sql) == dict(zip(FEATURES, values.split(), strict=True))


@settings(max_examples=30)
@given(st.text(max_size=60))
def test_every_text_has_a_known_value_for_every_feature(text):
    found = features(text)
    assert found.keys() == FEATURES.keys()
    assert all(value in (*FEATURES[name], UNKNOWN) for name, value in found.items())
