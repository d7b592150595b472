"""No test here asks the hub, and none leaves anything in the user's caches."""

import atexit
import os
import shutil
import tempfile

import pytest

_home = tempfile.mkdtemp(prefix="qkvlab-hf-")
atexit.register(shutil.rmtree, _home, ignore_errors=True)
os.environ["HF_HOME"] = _home  # read when datasets is imported, which no test module does at its head
os.environ["HF_HUB_OFFLINE"] = "1"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty user cache and no folder of the user's own; gives the cache's path."""
    from qkvlab.tasks import sources

    monkeypatch.setattr(sources, "cache_dir", lambda: tmp_path / "cache")
    monkeypatch.delenv("QKVLAB_DATA", raising=False)
    monkeypatch.setattr(sources, "_verified", {})
    return tmp_path / "cache"
