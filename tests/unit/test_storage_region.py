"""The region of a bucket, which a network may not be able to look up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raydense.errors import StorageError
from raydense.storage import bucket


def test_where_the_region_cannot_be_looked_up_the_line_says_how_to_give_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a subnet that reaches the bucket's own region alone."""

    def unreachable(name: str) -> str:
        raise OSError(f"When resolving region for bucket '{name}': AWS Error NETWORK_CONNECTION during HeadBucket operation: curlCode: 28")

    monkeypatch.setattr("pyarrow.fs.resolve_s3_region", unreachable)
    monkeypatch.setattr(bucket, "RETRIES", replace(bucket.RETRIES, patience_s=0.01))
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(StorageError, match=r"^s3://there: the bucket's service failed .*; or set AWS_REGION to the bucket's region"):
        bucket.region_of("there")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    assert bucket.region_of("there") == "eu-west-1"
