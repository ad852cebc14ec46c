"""Repositories of the Hugging Face Hub: what names one, and one commit of a folder."""

from __future__ import annotations

import errno
import os
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from castwise._core import likely_names
from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint.files.entry_names import check_name
from castwise.checkpoint.files.paths import checked_path
from castwise.checkpoint.files.remote import HUB, PACKAGES, Store, is_hub, is_remote, remote_path
from castwise.text.wording import parenthesis

# `org/name`: neither begins with a dot, a dash or an underscore, as paths and options may.
_NAME = r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*"
# `models/org/name@revision`, of which only the name must be there.
_REPOSITORY = rf"(?:models/)?(?P<name>{_NAME})(?:@(?P<revision>[^/]+))?/?"
# A repository of any kind, and what is in it.
_CACHED = (
    rf"(?:(?P<kind>models|datasets|spaces)/)?(?P<name>{_NAME})"
    r"(?:@(?P<revision>refs/(?:convert|pr)/[^/]+|[^/]+))?(?:/(?P<rest>.*))?"
)
_OFFLINE = "the Hub is offline for this process (HF_HUB_OFFLINE, or TRANSFORMERS_OFFLINE)"
# What may be a URL, as a `Path` has it: with a slash less.
_SPELLED = r"(?a)(?P<scheme>\w+):/*(?P<rest>[^/].*)"
# A revision or a file of a repository, of which `hub_path` takes neither.
_OF_HUB = rf"{_NAME}(?:@[^/]+|/[^/]+\.\w+)"

_BRANCH = "main"
# What every repository of the Hub has, and says which files are large.
_ATTRIBUTES = ".gitattributes"


def hub_path(path: Path) -> Path | None:
    """Return the path of the repository of the Hub that a relative path names, or None."""
    # A path `org/name` names a repository if this machine has neither it nor a folder `org`.
    name = path.as_posix()
    if re.fullmatch(_NAME, name) is None or os.path.lexists(path) or path.parent.is_dir():
        return None
    if find_spec("huggingface_hub") is None or find_spec("upath") is None:
        remedy = "for a model of the Hugging Face Hub: pip install 'castwise[hf]'"
        raise FileNotFoundError(errno.ENOENT, f"{os.strerror(errno.ENOENT)}; {remedy}", name)
    return remote_path(f"{HUB}://{name}")


def offline_source(path: Path) -> Path:
    """Return where the Hub's cache has what a path of the Hub names; the path itself if online."""
    remote: Any = path
    if not is_hub(path) or not _is_offline():
        return path
    from huggingface_hub import snapshot_download  # noqa: PLC0415  (optional)

    if (match := re.fullmatch(_CACHED, remote.path)) is not None:
        kind, revision = match["kind"], match["revision"]
        with suppress(OSError, ValueError):  # of the library: nothing is there, or a bad name
            folder = snapshot_download(
                match["name"],
                repo_type=kind and kind.removesuffix("s"),
                revision=revision and unquote(revision),
                local_files_only=True,
            )
            target = Path(folder, *filter(None, (match["rest"] or "").split("/")))
            if target.exists() and ".." not in target.parts:
                return target
    name = match["name"] if match is not None else "org/name"
    raise FileNotFoundError(
        errno.ENOENT,
        f"{_OFFLINE}, and its cache on this machine does not have this; download it first (hf "
        f"download {name}), or unset HF_HUB_OFFLINE",
        str(path),
    )


def _is_offline() -> bool:
    """Return True if the library of the Hub was told not to ask it."""
    from huggingface_hub import constants  # noqa: PLC0415  (optional)

    return bool(constants.HF_HUB_OFFLINE)


def absent_file(path: Path) -> FileNotFoundError:
    """Return the error of a source at which there is nothing, or nothing that may be read."""
    hint = ""
    if is_hub(path):
        hint = "; check the name, and your rights: hf auth login, or HF_TOKEN"
    elif not is_remote(path) and path.is_symlink():
        hint = f"; it is a link to {path.readlink()}"
    elif not is_remote(path):
        url, name = _spelled_url(path), path.as_posix()
        if url is None and re.fullmatch(_OF_HUB, name) is not None and not path.parent.is_dir():
            url = f"{HUB}://{name}"
        meant = url or _neighbor(path)
        hint = "" if meant is None else f"; did you mean {meant}?"
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT) + hint, str(path))


def _neighbor(path: Path) -> Path | None:
    """Return what lies beside a path, under the name that is spelled most like its own, or None."""
    try:
        names = os.listdir(path.parent)
    except OSError:  # the folder is missing, too
        return None
    # Of other names, which are no text, none is a spelling.
    names = sorted(name for name in names if name.isprintable())
    # Names of equal suffixes are compared without these, which make any two alike.
    spellings = {name.removesuffix(path.suffix).replace(".", "-"): name for name in names}
    stem = path.stem.replace(".", "-")
    likely = likely_names(stem, [*spellings]) if path.name.isprintable() else None
    return path.with_name(spellings[likely[0]]) if likely else None


def _spelled_url(path: Path) -> str | None:
    """Return the URL that a path spells with too few slashes, or None."""
    match = re.fullmatch(_SPELLED, path.as_posix())
    if match is None or match["scheme"].lower() not in PACKAGES:
        return None
    return f"{match['scheme'].lower()}://{match['rest']}"


def target_path(path: str | os.PathLike[str], argument: str = "path") -> Path:
    """Return the path of a checkpoint to write, as `checked_path`."""
    target = checked_path(path, argument)
    if not is_remote(target) and _spelled_url(target) and not target.parent.is_dir():
        raise absent_file(target)
    return target


class HubRepository:
    """A repository of models, to which a whole folder is pushed as one commit."""

    def __init__(self, path: Path) -> None:
        store: Any = path
        match = re.fullmatch(_REPOSITORY, store.path)
        if match is None:
            raise CheckpointError(
                f"{path} is not a repository of models; give one, as hf://org/name, or a branch "
                "of it, as hf://org/name@branch"
            )
        from huggingface_hub import HfApi  # noqa: PLC0415  (optional)

        self.path = path
        self.name: str = match["name"]
        self._revision: str = match["revision"] or _BRANCH
        api = HfApi(endpoint=store.fs.endpoint, token=store.fs.token)
        self._api: Any = Store(api, str(path))
        self._exists = False
        self._head: str | None = None
        self._old_files: list[str] = []

    @classmethod
    def of_file(cls, path: Path) -> HubRepository | None:
        """Return the repository of a checkpoint on the Hub; None for a path elsewhere."""
        if not is_hub(path):
            return None
        remote: Any = path
        match = re.match(_REPOSITORY, remote.path)
        root = match[0].rstrip("/") if match else ""
        repository = remote_path(f"{HUB}://{root}") if root else None
        return None if repository is None else cls(repository)

    def commit(self) -> str:
        head: str = self._api.repo_info(self.name, revision=self._revision).sha
        return head

    def prepare(self, *, overwrite: bool) -> None:
        """Refuse before the work what would be refused after it, and note what is there."""
        if _is_offline():
            raise OSError(
                errno.ENETUNREACH,
                f"{_OFFLINE}, so nothing can be pushed; unset it, or write to this machine",
                str(self.path),
            )
        self._api.whoami()
        self._exists = self._api.repo_exists(self.name)
        if not self._exists or not self._api.revision_exists(self.name, self._revision):
            if self._exists or self._revision != _BRANCH:
                raise CheckpointError(f"{self.path}: there is no such branch; make it first")
            return
        info = self._api.repo_info(self.name, revision=self._revision)
        self._head = info.sha
        files = [file.rfilename for file in info.siblings or ()]
        self._old_files = [file for file in files if file != _ATTRIBUTES]
        for file in self._old_files:
            check_name(file, f"{self.path} lists", is_path=True)
        if self._old_files and not overwrite:
            raise CheckpointError(
                f"{self.path} has files; choose another name, or allow them to be replaced "
                + parenthesis("overwrite", True)
            )

    def validate(self, card: Any, path: Path) -> None:  # noqa: ANN401  (a RepoCard)
        """Refuse a card, read from `path`, whose metadata the Hub would refuse after the work."""
        try:
            Store(card, str(self.path)).validate()
        except OSError as error:
            if not isinstance(error.__cause__, ValueError):
                raise
            reason = " ".join(str(error.__cause__).split())
            raise CheckpointError(
                f"{path}, which becomes the model card, is refused by the Hub: {reason}; mend it, "
                "or leave it out " + parenthesis("exclude", path.name)
            ) from error

    def upload_command(self, folder: Path) -> str:
        words = ["hf", "upload", self.name, str(folder)]
        if self._revision != _BRANCH:
            words[2:2] = ["--revision", self._revision]
        return shlex.join(words)

    def push(self, folder: Path, title: str) -> None:
        """Replace all that the branch holds by the files of a folder, in one commit."""
        # The repository is made if it is not there. Files that others have changed since `prepare`
        # are not replaced.
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete  # noqa: PLC0415  (optional)

        if not self._exists:
            self._api.create_repo(self.name)
        paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
        files = {path.relative_to(folder).as_posix(): path for path in paths}
        for name in files:
            check_name(name, f"{folder} has", is_path=True)
        operations = [
            *(CommitOperationAdd(name, str(path)) for name, path in files.items()),
            *(CommitOperationDelete(name) for name in self._old_files if name not in files),
        ]
        with _bars_on_terminals():
            self._api.create_commit(
                self.name,
                operations,
                commit_message=title,
                revision=self._revision,
                parent_commit=self._head,
            )


@contextmanager
def _bars_on_terminals() -> Iterator[None]:
    """Let the library of the Hub draw its progress bars on a terminal only."""
    from huggingface_hub import utils  # noqa: PLC0415  (optional)

    is_right = sys.stderr.isatty() or utils.are_progress_bars_disabled()
    if not is_right:
        utils.disable_progress_bars()
    try:
        yield
    finally:
        if not is_right:
            utils.enable_progress_bars()
