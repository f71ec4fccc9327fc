import pytest

from probes import fresh_models


@pytest.fixture
def few_fresh_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tail of 200 is enough for most tests; test_fresh_heads.py has a thousand."""
    monkeypatch.setattr(fresh_models, "_DRAWS", 200)
