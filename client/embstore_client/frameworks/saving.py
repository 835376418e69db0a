"""A checkpoint of the store and a file of a framework, under one label.

The file is written and synced first, under a unique name, which the metadata of the checkpoint
contains. The checkpoint is made last. If making the checkpoint fails, or the trainer is killed
before that, no checkpoint has the label, and a file that no checkpoint names may remain. A file is
removed together with its checkpoint: when a newer checkpoint pushes out or replaces that
checkpoint, or when a restore undoes that checkpoint. Only files that a checkpoint of this store has
named are removed.

**Replacing** a checkpoint must not lose both the old and the new one if the process is killed in
between. So the new one is first made as LABEL/replacing. Then the old checkpoint is dropped, and
the new one is made again under LABEL; this second checkpoint has little left to write.

    metadata    {name of the framework: name of the file}
"""

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import Any, BinaryIO, NamedTuple
from urllib.parse import quote

from embstore.choices import STAND_IN
from embstore.errors import (
    CapacityError,
    CheckpointExistsError,
    CheckpointNotFoundError,
    InvalidArgumentError,
    OutcomeUnknownError,
    PermissionDeniedError,
)
from embstore.handles.store import Store

_REFUSALS = (CapacityError, CheckpointExistsError, InvalidArgumentError, PermissionDeniedError)
"""Errors after which the checkpoint does not exist. After other errors the checkpoint may exist,
and then needs its file."""


Parts = Mapping[str, Any]
"""The other parts of a checkpoint, by name."""


class Saved(NamedTuple):
    """The contents of a file."""

    last_step: int
    """The place of the session: its last finished step."""
    load: Callable[[], Any]
    """Sets the parts to the saved values, or returns new parts with the saved values."""
    name: str = ""
    """The name of the file."""


class KeptFile(NamedTuple):
    """The files of a framework: their names, in the metadata of checkpoints and on disk, and their
    contents."""

    framework: str
    suffix: str
    writing: Callable[[Parts, int], Callable[[BinaryIO], object]]
    """Returns a function that writes parts and the session's place. Raises InvalidArgumentError if
    a part cannot be saved."""
    reading: Callable[[Path, str, Parts], Saved]
    """Returns the contents of a label's file for the given parts, without changing the parts.
    Raises InvalidArgumentError if the file has other parts."""

    def save(
        self,
        store: Store,
        label: str,
        parts: Parts,
        last_step: int,
        directory: str | os.PathLike[str],
        *,
        replace: bool = False,
        protect: bool = False,
    ) -> None:
        """Write a new file, and make a checkpoint that names it; `replace` and `protect` as in
        `StoreBacked.save`.

        Raises
        ------
        The errors of `writing` and `Store.checkpoint`. If the store has refused the checkpoint, the
        new file is removed. After any other error of `Store.checkpoint` the checkpoint may exist,
        so the file stays.
        """
        write = self.writing(parts, last_step)
        path = Path(directory, f"{quote(label, safe='')}-{token_hex(8)}{self.suffix}")
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with path.open("x+b") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            _sync_directory(path.parent)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        named = {self.framework: path.name}
        with self.removing(store, directory):
            try:
                if replace:
                    _replace(store, label, named)
                else:
                    store.checkpoint(label, named)
            except _REFUSALS as exc:
                if path.name not in self._names(store):
                    path.unlink()
                if isinstance(exc, CheckpointExistsError):
                    raise CheckpointExistsError(
                        f"a checkpoint {label!r} is kept already: give another label, or "
                        "save(..., replace=True), which takes the label from it"
                    ) from exc
                raise
        if protect:
            store.set_retention(label, "protected")

    @contextmanager
    def removing(self, store: Store, directory: str | os.PathLike[str]) -> Iterator[None]:
        """After the block, remove the files of those checkpoints that were dropped during the
        block."""
        before = self._names(store)
        yield
        for name in before - self._names(store):
            with suppress(OSError):
                Path(directory, name).unlink(missing_ok=True)

    def _names(self, store: Store) -> set[str]:
        """Return the names of the files of all kept checkpoints, except names that point outside
        the directory."""
        found = {kept.metadata.get(self.framework) for kept in store.checkpoints()}
        names = {name for name in found if isinstance(name, str)}
        return {name for name in names if name == Path(name).name and name.endswith(self.suffix)}

    def find(
        self, store: Store, label: str, parts: Parts, directory: str | os.PathLike[str]
    ) -> Saved:
        """Return the contents of a checkpoint's file for the parts; change nothing.

        Raises
        ------
        CheckpointNotFoundError : there is no checkpoint with this label.
        InvalidArgumentError : the checkpoint was not made by `save`, or has other parts.
        OSError : the file cannot be read.
        """
        metadata = {checkpoint.label: checkpoint.metadata for checkpoint in store.checkpoints()}
        if label not in metadata:
            kept = ", ".join(map(repr, metadata)) or "none"
            raise CheckpointNotFoundError(f"no checkpoint {label!r} is kept; kept are: {kept}")
        if self.framework not in metadata[label]:
            raise InvalidArgumentError(
                f"checkpoint {label!r}: expected one that `save` of {self.framework} has made"
            )
        path = Path(directory, metadata[label][self.framework])
        if not path.exists():
            raise FileNotFoundError(
                f"checkpoint {label!r}: expected the file {str(path)!r}, which save() made with "
                "it, and found none: give load() the directory= that save() was given"
            )
        return self.reading(path, label, parts)._replace(name=path.name)

    def check_same(self, store: Store, label: str, saved: Saved) -> None:
        """Raise OutcomeUnknownError if the label was saved again after `find` returned `saved`."""
        names = {kept.label: kept.metadata.get(self.framework) for kept in store.checkpoints()}
        if names.get(label) != saved.name:
            raise OutcomeUnknownError(
                f"checkpoint {label!r} was saved again, by another trainer, while load() waited: "
                "the tables are restored, and the parts are as before; call load() again"
            )


def check_parts(label: str, saved: Collection[str], given: Collection[str]) -> None:
    """Raise InvalidArgumentError if the parts to load are not the parts that were saved."""
    if set(saved) != set(given):
        raise InvalidArgumentError(
            f"checkpoint {label!r}: expected the parts {sorted(saved)}, found {sorted(given)}"
        )


def is_plain(value: Any) -> bool:
    """Return whether a value consists only of plain Python types, without tensors. An example is a
    dict of progress, {"epoch": 3}."""
    if isinstance(value, dict):
        return all(isinstance(name, str) for name in value) and all(map(is_plain, value.values()))
    if isinstance(value, list):
        return all(map(is_plain, value))
    return value is None or type(value) in (bool, int, float, str)


def filled(part: dict[str, Any], saved: Mapping[str, Any]) -> None:
    """Replace a dict's contents by the saved contents."""
    part.clear()
    part.update(saved)


def wrong_part(name: str, wanted: str, found: Any) -> InvalidArgumentError:
    """Return the error for a part that cannot be saved."""
    return InvalidArgumentError(
        f"expected {name} to have {wanted}, or to be a dict of plain Python values, which load "
        f"fills, as {name}={{'step': 3}}; found {type(found).__name__}"
    )


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _replace(store: Store, label: str, metadata: Mapping[str, str]) -> None:
    """Make a checkpoint. If another checkpoint has the label, the new one replaces it."""
    meanwhile = label + STAND_IN
    _drop(store, meanwhile)  # left by a trainer that was killed in this function
    if label in {kept.label for kept in store.checkpoints()}:
        store.checkpoint(meanwhile, metadata)
        _drop(store, label)
    store.checkpoint(label, metadata)
    _drop(store, meanwhile)


def _drop(store: Store, label: str) -> None:
    """Drop a checkpoint, even a protected one, if it exists."""
    for kept in store.checkpoints():
        if kept.label == label:
            if kept.protected:
                store.set_retention(label, "routine")
            store.set_retention(label, "dropped")
