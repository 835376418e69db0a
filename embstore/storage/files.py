"""Every file operation of the store, under one root directory.

No other module of embstore opens, writes, renames or removes a file. Therefore a test can replace
all file operations by a subclass. The subclass can record the operations, and rebuild the directory
as it may look after a power cut at any operation. It can refuse an operation, as a full or broken
disk does. And it can stop the process at an operation, by name.

If the system refuses an operation for lack of space (disk, quota, file size), the operation raises
CapacityError; else StorageError. Both errors name the file. Paths are relative to the root, with
'/' between their parts.

**Links.** The root can be a symbolic link. Below the root no link is followed: each folder of a
path is opened by itself (`openat`, `O_NOFOLLOW`), and a new file never overwrites another
(`O_EXCL`). Therefore, if somebody puts a link into the directory, no file elsewhere is changed
through it.

**Removal.** Only the store's own files are removed from a folder (`own_names.py`).
"""

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embstore.errors import CapacityError, StorageError, StoreInUseError
from embstore.host.descriptors import SPARE
from embstore.host.maps import map_file
from embstore.storage.file_errors import IS_LINK, named_errors
from embstore.storage.own_names import is_own

_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW


def _open_at(name: str, flags: int, folder: int | None, mode: int = 0o644) -> int:
    """Open a file of a folder, or of the working directory. The call does not wait if the file is a
    pipe."""
    flags |= os.O_CLOEXEC | os.O_NONBLOCK
    try:
        return SPARE.having(lambda: os.open(name, flags, mode, dir_fd=folder))
    except NotADirectoryError:
        if stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise OSError(errno.ELOOP, IS_LINK, name) from None
        raise


class File:
    """One open file.

    Positions and lengths are in bytes.
    """

    def __init__(self, owner: "Files", path: str, descriptor: int) -> None:
        self._owner = owner
        self.path = path
        self.descriptor = descriptor

    def _named(self, tried: str, *, final: bool = False) -> AbstractContextManager[None]:
        return named_errors(self._owner.root, self.path, tried, final=final)

    @property
    def size(self) -> int:
        """Length of the file in bytes."""
        return os.fstat(self.descriptor).st_size

    def read(self, offset: int, length: int) -> bytes:
        """Return `length` bytes from `offset`, or fewer at the end of the file."""
        with self._named("read"):
            pieces, left = [self._owner._read(self, offset, length)], length
            while pieces[-1] and (left := left - len(pieces[-1])):  # one call reads 2 GiB at most
                pieces.append(self._owner._read(self, offset + length - left, left))
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def will_read(self, offset: int, length: int) -> None:
        """Advise the system to read bytes that will be needed soon."""
        os.posix_fadvise(self.descriptor, offset, length, os.POSIX_FADV_WILLNEED)

    def was_read(self, offset: int, length: int) -> None:
        """Advise the system to drop bytes that were read from its page cache, unless they are
        mapped."""
        os.posix_fadvise(self.descriptor, offset, length, os.POSIX_FADV_DONTNEED)

    def write(self, offset: int, data: memoryview | bytes) -> None:
        """Write all of `data` at `offset`."""
        with self._named("write"):
            self._owner._write(self, offset, memoryview(data).cast("B"))

    def allocate(self, offset: int, length: int) -> None:
        """Allocate bytes on the disk, so that writing them cannot fail for lack of space."""
        with self._named("allocate"):
            self._owner._allocate(self, offset, length)

    def truncate(self, length: int) -> None:
        """Shorten or (sparsely) extend the file to `length`."""
        with self._named("set the length of"):
            self._owner._truncate(self, length)

    def sync(self) -> None:
        """Return once all writes are on the disk.

        A failure is final: a later call must not report success for these writes.
        """
        with self._named("sync", final=True):
            self._owner._sync(self)

    def map(self, length: int) -> NDArray[np.uint8]:
        """Map the first `length` bytes for reading; later writes are visible in the map.

        The system is advised that access is random.
        """
        with self._named("map"):
            return self._owner._map(self, length)

    def close(self) -> None:
        """Close the descriptor; maps made from it stay valid. Closing twice is harmless."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class Lock:
    """Locks of a file and its directory. They end when the process that took them closes them, even
    if a forked child still has them open."""

    def __init__(self) -> None:
        self.descriptors: list[int] = []
        """Descriptors of the lock file and of its directory."""
        self._process = os.getpid()
        self._is_closed = False
        SPARE.begin()

    def is_of(self, directory: Path) -> bool:
        """Return whether a directory is the locked directory itself, and not a copy that has
        replaced it. Always true once the lock is released. Any thread."""
        try:
            return all(
                os.path.samestat(os.stat(directory), os.fstat(one)) for one in self.descriptors[-1:]
            )
        except OSError:
            return False

    def close(self) -> None:
        """Release the locks. Closing twice is harmless."""
        if self._is_closed:
            return
        self._is_closed = True
        SPARE.end()
        while self.descriptors:
            descriptor = self.descriptors.pop()
            if os.getpid() == self._process:
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)


class Files:
    """The file operations of one store, rooted at a directory.

    The underscored methods are the system calls that change or read something: a fault-injecting
    subclass overrides them. One class has them all, because a test replaces all of them at once.
    """

    def __init__(self, root: str | os.PathLike[str], below: str = "") -> None:
        """`below` is a path in `root`; no link is followed from `root` on."""
        self._base = Path(root).absolute()
        self._below = below
        self.root = self._base / below

    def _named(self, path: str, tried: str, *, final: bool = False) -> AbstractContextManager[None]:
        return named_errors(self.root, path, tried, final=final)

    def path(self, path: str) -> str:
        """Return the absolute path of a relative path."""
        return str(self.root / path) if path else str(self.root)

    def exists(self, path: str) -> bool:
        """Return whether a file, directory or link exists at a path."""
        return self._mode(path) is not None

    def is_directory(self, path: str) -> bool:
        """Return whether a directory exists at a path."""
        return stat.S_ISDIR(self._mode(path) or 0)

    def is_file(self, path: str) -> bool:
        """Return whether a regular file exists at a path."""
        return stat.S_ISREG(self._mode(path) or 0)

    def _mode(self, path: str) -> int | None:
        """Return the type and the permissions of a path; None if it does not exist."""
        with self._named(path, "look at"):
            try:
                parts = self._parts(path)
                with self._at(parts) as (name, folder):
                    return os.stat(name, dir_fd=folder, follow_symlinks=not parts).st_mode
            except (FileNotFoundError, NotADirectoryError):
                return None

    def _parts(self, path: str) -> list[str]:
        return [part for part in f"{self._below}/{path}".split("/") if part]

    @contextmanager
    def _at(self, parts: list[str]) -> Iterator[tuple[str, int | None]]:
        """Yield the two arguments by which a system call finds a path: its last part and the
        descriptor of its folder; or an absolute path and None."""
        first, *others = parts or [""]
        *folders, name = [str(self._base / first), *others]
        descriptor: int | None = None
        try:
            for folder in folders:
                opened = _open_at(folder, _FOLDER, descriptor)
                if descriptor is not None:
                    os.close(descriptor)
                descriptor = opened
            yield name, descriptor
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def _open(self, path: str, flags: int) -> int:
        parts = self._parts(path)
        with self._at(parts) as (name, folder):
            return _open_at(name, flags | (os.O_NOFOLLOW if parts else 0), folder)

    def is_writable(self, path: str) -> bool:
        """Return whether this process can make files in a directory."""
        return os.access(self.path(path), os.W_OK | os.X_OK, effective_ids=True)

    @property
    def is_read_only(self) -> bool:
        """Whether the root is on a read-only file system."""
        with self._named("", "look at"):
            return bool(os.statvfs(self.root).f_flag & os.ST_RDONLY)

    @property
    def is_open_to_others(self) -> bool:
        """Whether accounts other than this one and root can change the root, judged by its owner
        and by its permissions for all users."""
        with self._named("", "look at"):
            found = os.stat(self.root)
        is_ours = os.geteuid() in (0, found.st_uid) or found.st_uid == 0
        return bool(found.st_mode & stat.S_IWOTH) or not is_ours

    def room_bytes(self) -> int:
        """Return the number of bytes that this user can still write, according to the file
        system."""
        with self._named("", "look at"):
            found = os.statvfs(self.root)
        if found.f_files and not found.f_ffree:
            return 0  # no file can be made
        return found.f_frsize * (found.f_bavail if os.geteuid() else found.f_bfree)

    def identity(self, path: str) -> tuple[int, int]:
        """Return the numbers of a file's device and inode, which together identify the file among
        all existing files."""
        with self._named(path, "look at"), self._at(self._parts(path)) as (name, folder):
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
            return found.st_dev, found.st_ino

    def is_named(self, file: File) -> bool:
        """Return whether an open file still has its name: it was neither removed nor replaced."""
        try:
            found = os.stat(self.path(file.path))
        except OSError:
            return False
        return os.path.samestat(found, os.fstat(file.descriptor))

    def list(self, path: str) -> list[str]:
        """Return the sorted names in a directory; empty if it does not exist."""
        return sorted(self.inodes(path))

    def inodes(self, path: str) -> dict[str, int]:
        """Return the names in a directory with their inode numbers; empty if it does not exist. A
        file that replaces another under the same name has another inode number."""
        with self._named(path, "list"):
            try:
                descriptor = self._open(path, os.O_RDONLY | os.O_DIRECTORY)
            except FileNotFoundError:
                return {}
            try:
                with SPARE.having(lambda: os.scandir(descriptor)) as entries:
                    return {entry.name: entry.inode() for entry in entries}
            finally:
                os.close(descriptor)

    def read_all(self, path: str) -> bytes:
        """Return a whole small file."""
        with self._named(path, "read"):
            with os.fdopen(self._open(path, os.O_RDONLY), "rb") as file:
                return file.read()

    def open(self, path: str, *, write: bool = False) -> File:
        """Open an existing file."""
        with self._named(path, "open"):
            descriptor = self._open(path, os.O_RDWR if write else os.O_RDONLY)
            # Headers and indexes are read at scattered offsets: readahead would read a MB for each.
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
            return File(self, path, descriptor)

    def create(self, path: str) -> File:
        """Make a new, empty file; an existing file of that name is replaced."""
        with self._named(path, "make"):
            return File(self, path, self._create(path))

    def replace(self, path: str, content: bytes) -> None:
        """Replace the content of `path` by a synced file and a rename, so that it is replaced
        wholly or not at all."""
        new = f"{path}.new"
        with closing(self.create(new)) as file:
            file.write(0, content)
            file.sync()
        self.rename(new, path)
        self.sync_directory(os.path.dirname(path))
        SPARE.fill()

    def make_directory(self, path: str) -> None:
        """Make a directory and its parents, durably; it may exist already."""
        if self.exists(path):
            return
        with self._named(path, "make the directory"):
            self._make_directory(path)
        while path:
            path = os.path.dirname(path)
            self.sync_directory(path)
        for depth in range(1 + len(self._parts(""))):
            self.sync_directory("/".join([".."] * (depth + 1)))

    @contextmanager
    def made(self) -> Iterator[None]:
        """Make the root directory and its missing parents. If the block fails, remove them again,
        unless they contain files."""
        with self._named("", "look at"):
            missing = [path for path in (self.root, *self.root.parents) if not path.exists()]
        self.make_directory("")
        try:
            yield
        except BaseException:
            with suppress(OSError):
                for path in missing:
                    os.rmdir(path)
            raise

    def rename(self, source: str, target: str) -> None:
        """Give a file another name; an existing file of that name is replaced."""
        with self._named(target, f"rename {source} to"):
            self._rename(source, target)

    def link(self, source: "Files", name: str, target: str) -> None:
        """Give a file of `source` a second name here; the name must not exist yet."""
        with self._named(target, f"link {name} to"):
            self._link(source, name, target)

    def remove(self, path: str) -> None:
        """Remove a file; it may be missing already."""
        with self._named(path, "remove"):
            self._remove(path)

    def remove_directory(self, path: str) -> None:
        """Remove the store's own files from a directory; remove the directory, too, unless it
        contains other files. It may be missing already."""
        paths = [f"{path}/{name}" for name in self.list(path)]
        own = list(filter(is_own, paths))
        for one in own:
            self.remove(one)
        with self._named(path, "remove"):
            if len(own) == len(paths) and self.exists(path):
                self._remove_directory(path)

    def discard(self, path: str, *, directory: bool = False) -> None:
        """Remove a file that no catalogue names. If the disk refuses, the next opening of the store
        removes it."""
        with suppress(StorageError, CapacityError):
            self.remove_directory(path) if directory else self.remove(path)

    def sync_directory(self, path: str) -> None:
        """Return once the names in a directory are on the disk."""
        with self._named(path, "sync", final=True):
            self._sync_directory(path)

    def reached(self, point: str) -> None:
        """Do nothing. This method is called at named points between operations; a test overrides it
        to stop the process at such a point.
        """

    def lock(self, path: str, *, shared: bool) -> Lock:
        """Lock a file and the root directory until the returned lock is closed. The file is made if
        necessary.

        The root is locked too because a lock file loses its effect when somebody removes it. Not
        every network file system can lock directories, so a failure to do so is ignored.
        """
        lock = Lock()
        try:
            for name, flags in ((path, os.O_CREAT), ("", os.O_DIRECTORY)):
                with self._named(name, "lock"):
                    descriptor = self._open(name, flags | os.O_RDONLY)
                    lock.descriptors.append(descriptor)
                    self._flock(descriptor, shared=shared, is_needed=bool(name))
        except BaseException:
            lock.close()
            raise
        return lock

    def _flock(self, descriptor: int, *, shared: bool, is_needed: bool) -> None:
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except OSError as exc:
            if exc.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                if is_needed:
                    raise
                return
            raise StoreInUseError(
                f"{self.root} is in use by another store "
                f"({'a writer' if shared else 'a reader or writer'}); "
                "close it first"
            ) from exc

    def _read(self, file: File, offset: int, length: int) -> bytes:
        return os.pread(file.descriptor, length, offset)

    def _map(self, file: File, length: int) -> NDArray[np.uint8]:
        return map_file(file.descriptor, length)

    def _write(self, file: File, offset: int, data: memoryview) -> None:
        while len(data):
            written = os.pwrite(file.descriptor, data, offset)
            data, offset = data[written:], offset + written

    def _allocate(self, file: File, offset: int, length: int) -> None:
        os.posix_fallocate(file.descriptor, offset, length)

    def _truncate(self, file: File, length: int) -> None:
        os.ftruncate(file.descriptor, length)

    def _sync(self, file: File) -> None:
        os.fdatasync(file.descriptor)  # includes the length, and all else that reading needs

    def _create(self, path: str) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
        try:
            return self._open(path, flags)
        except FileExistsError:
            Files._remove(self, path)  # a leftover; if it is a link, only the link is removed
            return self._open(path, flags)

    def _make_directory(self, path: str) -> None:
        os.makedirs(self._base, exist_ok=True)
        parts = self._parts(path)
        for depth in range(len(parts)):
            with self._at(parts[: depth + 1]) as (name, folder), suppress(FileExistsError):
                os.mkdir(name, dir_fd=folder)

    def _rename(self, source: str, target: str) -> None:
        with self._at(self._parts(source)) as (old, at), self._at(self._parts(target)) as (new, to):
            os.rename(old, new, src_dir_fd=at, dst_dir_fd=to)

    def _link(self, source: "Files", name: str, target: str) -> None:
        with (
            source._at(source._parts(name)) as (old, at),
            self._at(self._parts(target)) as (new, to),
        ):
            os.link(old, new, src_dir_fd=at, dst_dir_fd=to, follow_symlinks=False)

    def _remove(self, path: str) -> None:
        with suppress(FileNotFoundError), self._at(self._parts(path)) as (name, folder):
            os.unlink(name, dir_fd=folder)

    def _remove_directory(self, path: str) -> None:
        with self._at(self._parts(path)) as (name, folder):
            os.rmdir(name, dir_fd=folder)

    def _sync_directory(self, path: str) -> None:
        descriptor = self._open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
