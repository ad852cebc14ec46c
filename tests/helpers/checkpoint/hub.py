"""A server on this machine with the calls of the Hugging Face Hub that castwise makes.

Paths, headers, codes and the forms of answers are those that huggingface_hub sends and expects;
what it is not sent here, such as pull requests and Xet's own storage, is missing.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import ModuleType
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import peers
import pytest

TOKEN = "hf_of_this_machine"  # noqa: S105  (of the server below)
USER = "user"
LFS_SUFFIXES = (".safetensors", ".bin", ".gguf", ".npz")


@dataclass
class Commit:
    """One commit: its hash, what it says, and all files."""

    oid: str
    message: str
    files: dict[str, bytes]


@dataclass
class Repository:
    """The commits of each branch, the last one last."""

    branches: dict[str, list[Commit]] = field(default_factory=dict)

    def commit(self, branch: str, message: str, files: dict[str, bytes]) -> Commit:
        commits = self.branches.setdefault(branch, [])
        parent = commits[-1].oid if commits else ""
        names = sorted((name, hashlib.sha1(data).hexdigest()) for name, data in files.items())  # noqa: S324
        oid = hashlib.sha1(f"{parent}{message}{names}".encode()).hexdigest()  # noqa: S324
        commits.append(Commit(oid, message, files))
        return commits[-1]

    def at(self, revision: str) -> Commit | None:
        for name, commits in self.branches.items():
            if name == revision:
                return commits[-1]
            for commit in commits:
                if commit.oid == revision:
                    return commit
        return None


class Hub:
    """Repositories by their names, large files by their hashes, and what was asked for."""

    def __init__(self, server: ThreadingHTTPServer) -> None:
        self.url = f"http://127.0.0.1:{server.server_port}"
        self.repositories: dict[str, Repository] = {}
        self.large: dict[str, bytes] = {}
        self.names: dict[str, str] = {}  # of large files that were asked for, by their hashes
        self.requests: list[tuple[str, str]] = []
        self.bytes_read: dict[str, int] = {}
        self.private: set[str] = set()
        self.gated: set[str] = set()
        self.read_only: set[str] = set()
        self.refuses_commits = False
        self.on_commit: Callable[[], object] = lambda: None

    def put(self, name: str, files: dict[str, bytes], branch: str = "main") -> str:
        if name not in self.repositories:
            self.repositories[name] = Repository()
            self.repositories[name].commit("main", "initial commit", {".gitattributes": b""})
        repository = self.repositories[name]
        return repository.commit(branch, "put", {".gitattributes": b"", **files}).oid

    def files(self, name: str, branch: str = "main") -> dict[str, bytes]:
        return dict(self.repositories[name].branches[branch][-1].files)

    def messages(self, name: str, branch: str = "main") -> list[str]:
        return [commit.message for commit in self.repositories[name].branches[branch]]


class _Refusal(Exception):  # noqa: N818
    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        self._answer(self._get)

    def do_HEAD(self) -> None:
        self._answer(self._get)

    def do_POST(self) -> None:
        self._answer(self._post)

    def do_PUT(self) -> None:
        self._answer(self._put)

    def _answer(self, call: Callable[[list[str]], None]) -> None:
        url = urlsplit(self.path)
        self.query = parse_qs(url.query)
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.hub.requests.append((self.command, url.path))
        try:
            call([unquote(part) for part in url.path.strip("/").split("/")])
        except _Refusal as refusal:
            headers = {"X-Error-Code": refusal.code, "X-Error-Message": str(refusal)}
            self._send({"error": str(refusal)}, refusal.status, headers)

    def _send(
        self, value: object, status: int = 200, headers: dict[str, str] | None = None
    ) -> None:
        is_bytes = isinstance(value, bytes)
        data = value if is_bytes else json.dumps(value).encode()
        assert isinstance(data, bytes)
        self.send_response(status)
        given = {"Content-Type": "application/octet-stream" if is_bytes else "application/json"}
        for name, text in {**given, "Content-Length": str(len(data)), **(headers or {})}.items():
            if text:
                self.send_header(name, text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    @property
    def _is_user(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def _repository(self, name: str, *, writes: bool = False) -> Repository:
        found = self.hub.repositories.get(name)
        if found is None or (name in self.hub.private and not self._is_user):
            if self._is_user:
                raise _Refusal(404, "RepoNotFound", "Repository not found")
            raise _Refusal(401, "RepoNotFound", "Invalid username or password.")
        if writes and not self._is_user:
            raise _Refusal(401, "", "Invalid username or password.")
        if writes and name in self.hub.read_only:
            raise _Refusal(403, "", "You don't have the required permissions")
        return found

    def _commit(self, name: str, revision: str, *, writes: bool = False) -> Commit:
        commit = self._repository(name, writes=writes).at(revision)
        if commit is None:
            raise _Refusal(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return commit

    def _entry(self, path: str, data: bytes) -> dict[str, Any]:
        blob = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()  # noqa: S324
        entry: dict[str, Any] = {"type": "file", "oid": blob, "size": len(data), "path": path}
        if path.endswith(LFS_SUFFIXES):
            digest = hashlib.sha256(data).hexdigest()
            entry["lfs"] = {"oid": digest, "size": len(data), "pointerSize": 134}
        return entry

    def _get(self, parts: list[str]) -> None:
        match parts:
            case ["api", "whoami-v2"]:
                if not self._is_user:
                    raise _Refusal(401, "", "Invalid username or password.")
                self._send({"type": "user", "name": USER, "orgs": [], "auth": {}})
            case ["api", "models", owner, name]:
                self._info(f"{owner}/{name}", "main")
            case ["api", "models", owner, name, "revision", revision]:
                self._info(f"{owner}/{name}", revision)
            case ["api", "models", owner, name, "tree", revision, *path]:
                self._tree(f"{owner}/{name}", revision, "/".join(path))
            case ["cdn", digest]:
                self._range(self.hub.large[digest], {"ETag": f'"{digest}"'}, self.hub.names[digest])
            case [owner, name, "resolve", revision, *path]:
                self._resolve(f"{owner}/{name}", revision, "/".join(path))
            case _:
                raise _Refusal(404, "", f"the server of the tests does not know {self.path}")

    def _info(self, name: str, revision: str) -> None:
        commit = self._commit(name, revision)
        siblings = [{"rfilename": path} for path in sorted(commit.files)]
        private = name in self.hub.private
        names = {"_id": name, "id": name, "modelId": name, "author": name.split("/", maxsplit=1)[0]}
        flags = {"private": private, "gated": False, "disabled": False, "downloads": 0, "likes": 0}
        self._send({**names, **flags, "sha": commit.oid, "tags": [], "siblings": siblings})

    def _tree(self, name: str, revision: str, path: str) -> None:
        files = self._commit(name, revision).files
        prefix = f"{path}/" if path else ""
        inside = {file: data for file, data in files.items() if file.startswith(prefix)}
        if path and not inside:
            raise _Refusal(404, "EntryNotFound", f"{path} does not exist on {revision!r}")
        entries: dict[str, dict[str, Any]] = {}
        for file, data in sorted(inside.items()):
            folders = file.removeprefix(prefix).split("/")[:-1]
            for count in range(1, len(folders) + 1):
                folder = prefix + "/".join(folders[:count])
                oid = hashlib.sha1(folder.encode()).hexdigest()  # noqa: S324
                entries[folder] = {"type": "directory", "oid": oid, "size": 0, "path": folder}
            entries[file] = self._entry(file, data)
        is_recursive = self.query.get("recursive", ["false"])[0].lower() in {"true", "1"}
        self._send(
            [
                entry
                for entry_path, entry in entries.items()
                if is_recursive or "/" not in entry_path.removeprefix(prefix)
            ]
        )

    def _resolve(self, name: str, revision: str, path: str) -> None:
        commit = self._commit(name, revision)
        if name in self.hub.gated:
            raise _Refusal(403, "GatedRepo", f"Access to model {name} is restricted")
        data = commit.files.get(path)
        if data is None:
            raise _Refusal(404, "EntryNotFound", "Entry not found")
        entry = self._entry(path, data)
        headers = {"X-Repo-Commit": commit.oid, "ETag": f'"{entry["oid"]}"'}
        if "lfs" not in entry:
            self._range(data, headers, f"{name}/{path}")
            return
        digest = entry["lfs"]["oid"]
        self.hub.large[digest] = data
        linked = {"X-Linked-Size": str(len(data)), "X-Linked-ETag": f'"{digest}"'}
        self.hub.names[digest] = f"{name}/{path}"
        # On another host, as the Hub's: its library goes there for contents only.
        host = self.hub.url.replace("127.0.0.1", "localhost")
        location = {"Location": f"{host}/cdn/{digest}"}
        self._send(b"", 302, {**headers, **linked, **location})

    def _range(self, data: bytes, headers: dict[str, str], name: str) -> None:
        asked = self.headers.get("Range")
        status, body = 200, data
        headers = {**headers, "Accept-Ranges": "bytes"}
        if asked:
            first, _, last = asked.removeprefix("bytes=").partition("-")
            begin, end = int(first), min(int(last or len(data)), len(data) - 1) + 1
            if begin >= len(data):
                self._send(b"", 416, {"Content-Range": f"bytes */{len(data)}"})
                return
            status, body = 206, data[begin:end]
            headers["Content-Range"] = f"bytes {begin}-{end - 1}/{len(data)}"
        if self.command == "GET":
            self.hub.bytes_read[name] = self.hub.bytes_read.get(name, 0) + len(body)
        self._send(body, status, headers)

    def _post(self, parts: list[str]) -> None:
        match parts:
            case ["api", "validate-yaml"]:
                self._validate(json.loads(self.body)["content"])
            case ["api", "repos", "create"]:
                self._create(json.loads(self.body))
            case ["api", "models", owner, name, "paths-info", revision]:
                files = self._commit(f"{owner}/{name}", revision).files
                paths = parse_qs(self.body.decode()).get("paths", [])
                self._send([self._entry(path, files[path]) for path in paths if path in files])
            case ["api", "models", owner, name, "preupload", revision]:
                self._commit(f"{owner}/{name}", revision, writes=True)
                modes = [
                    {
                        "path": file["path"],
                        "uploadMode": "lfs" if file["path"].endswith(LFS_SUFFIXES) else "regular",
                        "shouldIgnore": False,
                    }
                    for file in json.loads(self.body)["files"]
                ]
                self._send({"files": modes})
            case [owner, name, "info", "lfs", "objects", "batch"]:
                self._repository(f"{owner}/{name.removesuffix('.git')}", writes=True)
                objects = [self._lfs_object(each) for each in json.loads(self.body)["objects"]]
                self._send({"transfer": "basic", "objects": objects})
            case ["lfs", "verify"]:
                about = json.loads(self.body)
                assert len(self.hub.large[about["oid"]]) == about["size"]
                self._send({})
            case ["api", "models", owner, name, "commit", revision]:
                self._receive(f"{owner}/{name}", revision)
            case _:
                raise _Refusal(404, "", f"the server of the tests does not know {self.path}")

    def _validate(self, card: str) -> None:
        yaml = peers.framework("yaml")
        try:
            metadata = yaml.safe_load(card.split("---\n")[1])
        except yaml.YAMLError as error:
            raise _Refusal(400, "", f"Invalid metadata in README.md: {error}") from None
        known = {"adapter", "merge", "quantized", "finetune", None}
        if metadata.get("base_model_relation") not in known:
            raise _Refusal(400, "", "Invalid metadata in README.md: base_model_relation")
        self._send({"errors": [], "warnings": []})

    def _create(self, asked: dict[str, Any]) -> None:
        if not self._is_user:
            raise _Refusal(401, "", "Invalid username or password.")
        name = f"{asked.get('organization') or USER}/{asked['name']}"
        if asked.get("organization") not in {None, USER, "org"}:
            raise _Refusal(403, "", "You don't have the rights to create a model here")
        if name in self.hub.repositories:
            raise _Refusal(409, "", "You already created this model repo")
        repository = self.hub.repositories[name] = Repository()
        repository.commit("main", "initial commit", {".gitattributes": b""})
        self._send({"url": f"{self.hub.url}/{name}", "name": name, "id": name})

    def _lfs_object(self, asked: dict[str, Any]) -> dict[str, Any]:
        about = {"oid": asked["oid"], "size": asked["size"]}
        if asked["oid"] in self.hub.large:
            return about  # it is there, so nothing is uploaded
        return {
            **about,
            "actions": {
                "upload": {"href": f"{self.hub.url}/lfs/{asked['oid']}", "header": {}},
                "verify": {"href": f"{self.hub.url}/lfs/verify", "header": {}},
            },
        }

    def _put(self, parts: list[str]) -> None:
        digest = hashlib.sha256(self.body).hexdigest()
        if parts != ["lfs", digest]:
            raise _Refusal(400, "", "the content does not have the hash of its name")
        self.hub.large[digest] = self.body
        self._send(b"")

    def _receive(self, name: str, branch: str) -> None:
        repository = self._repository(name, writes=True)
        head = self._commit(name, branch)
        self.hub.on_commit()
        if self.hub.refuses_commits:
            raise _Refusal(403, "", "storage quota exceeded")
        files = dict(head.files)
        summary = ""
        for line in self.body.splitlines():
            key, value = (item := json.loads(line))["key"], item["value"]
            if key == "header":
                summary = value["summary"]
                if value.get("parentCommit", head.oid) != head.oid:
                    raise _Refusal(412, "", "A commit has happened since. Please refresh")
            elif key == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif key == "lfsFile":
                files[value["path"]] = self.hub.large[value["oid"]]
            elif key == "deletedFile":
                del files[value["path"]]
            elif key == "deletedFolder":
                prefix = f"{value['path'].rstrip('/')}/"
                files = {path: data for path, data in files.items() if not path.startswith(prefix)}
            else:
                raise _Refusal(400, "", f"unknown key {key}")
        commit = repository.commit(branch, summary, files)
        url = f"{self.hub.url}/{name}/commit/{commit.oid}"
        self._send({"success": True, "commitOid": commit.oid, "commitUrl": url})


@pytest.fixture
def hub(framework: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub, empty, to which this process and those it starts are logged in."""
    handler = type("Handler", (_Handler,), {})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    hub = Hub(server)
    handler.hub = hub  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    constants = framework("huggingface_hub.constants")
    framework("upath")
    # What huggingface_hub has read of the environment when it was imported.
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, hub.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    for name, value in {
        "HF_ENDPOINT": hub.url,
        "HF_TOKEN": TOKEN,
        "HF_HUB_DISABLE_XET": "1",
        "NO_PROXY": "127.0.0.1,localhost",
    }.items():
        monkeypatch.setenv(name, value)
    framework("fsspec").get_filesystem_class("hf").clear_instance_cache()
    yield hub
    server.shutdown()
    server.server_close()
    thread.join()
