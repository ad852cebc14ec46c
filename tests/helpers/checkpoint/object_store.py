"""An object store on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BUCKET = "bucket"


class Store:
    """A bucket of a server on this machine."""

    def __init__(self, client: Any) -> None:
        self.client = client

    def put(self, folder: Path, prefix: str) -> None:
        for path in folder.rglob("*"):
            if path.is_file():
                self.write(f"{prefix}/{path.relative_to(folder)}", path.read_bytes())

    def write(self, key: str, data: bytes) -> None:
        self.client.put_object(Bucket=BUCKET, Key=key, Body=data)

    def read(self, key: str) -> bytes:
        data: bytes = self.client.get_object(Bucket=BUCKET, Key=key)["Body"].read()
        return data

    def names(self, prefix: str) -> set[str]:
        found = self.client.list_objects_v2(Bucket=BUCKET, Prefix=f"{prefix}/")
        return {one["Key"].removeprefix(f"{prefix}/") for one in found.get("Contents", ())}

    def contents(self, prefix: str) -> dict[str, bytes]:
        return {name: self.read(f"{prefix}/{name}") for name in self.names(prefix)}

    def uploads(self) -> int:
        return len(self.client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", ()))


@pytest.fixture
def store(
    framework: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Store]:
    server = framework("moto.server").ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    boto3 = framework("boto3")
    framework("s3fs")
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    for name, value in {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_ENDPOINT_URL": url,
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    framework("fsspec").filesystem("s3").clear_instance_cache()
    client = boto3.client("s3", endpoint_url=url)
    # The servers of all tests share what they hold.
    framework("requests").post(f"{url}/moto-api/reset", timeout=10)
    client.create_bucket(Bucket=BUCKET)
    yield Store(client)
    server.stop()
