"""Credentials that are missing, or slow to come. Those that are corrected or renewed while a process runs, as in a notebook, are used at the next request."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from raydense.errors import RefusedByStore, StorageError
from raydense.storage import bucket

# as obstore says where the environment has no keys, and this is no machine of Amazon's, or one whose service is slow
METADATA = "Error performing PUT http://169.254.169.254/latest/api/token in 2s, after 3 retries: error sending request"


@pytest.fixture(autouse=True)
def _of_the_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("AWS_", "GOOGLE_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))


@pytest.mark.parametrize(
    "name", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ROLE_ARN"]
)
def test_what_is_corrected_in_the_environment_is_used(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
        monkeypatch.setenv(variable, "wrong")
    before = bucket.client("s3", "b")
    assert bucket.client("s3", "b") is before
    monkeypatch.setenv(name, "right")
    assert bucket.client("s3", "b") is not before


def test_keys_that_a_tool_renews_in_the_file_of_a_profile_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "mine")
    file = tmp_path / "credentials"
    for key, written in (("old", 1), ("new", 2)):
        file.write_text(f"[mine]\naws_access_key_id = {key}\naws_secret_access_key = secret\n")
        os.utime(file, ns=(written, written))
        assert dict(bucket.client("s3", "b").config)["access_key_id"] == key
        assert [of for of in bucket._clients if of[1] == "b"] == [("s3", "b", os.getpid())], "the old one is gone"
    assert "secret" not in bucket._identity()


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses between the tries of a process that had no answer yet."""
    found: list[float] = []
    monkeypatch.setattr(bucket, "RETRIES", replace(bucket.RETRIES, now=lambda: sum(found), sleep=found.append))
    monkeypatch.setattr(bucket, "_answered", set())
    return found


def _slow(tries: int) -> str:
    """Asks a bucket whose credentials come from a service that does not answer so many times."""
    left = [tries]

    def ask() -> str:
        left[0] -= 1
        if left[0] >= 0:
            raise OSError(METADATA)
        return "answer"

    return bucket.patiently(ask, "s3://b/x")


def test_credentials_that_are_not_found_are_one_line_at_once(pauses: list[float]) -> None:
    """The region of a bucket is told without any."""
    bucket.patiently(lambda: "eu-west-1", "s3://b", signed=False)
    bucket.patiently(lambda: "answer", "s3://another/x")
    with pytest.raises(RefusedByStore, match=r"^s3://b/x: no credentials were found; give some in the environment"):
        _slow(1)
    assert pauses == []


def test_credentials_of_the_machine_that_are_slow_to_be_renewed_are_waited_for(pauses: list[float]) -> None:
    _slow(0)
    assert _slow(3) == "answer"
    assert len(pauses) == 3
    with pytest.raises(
        StorageError, match=r"^s3://b/x: the bucket's service failed for 1\d\d s \(the credentials of this machine could not be"
    ):
        _slow(10**6)
