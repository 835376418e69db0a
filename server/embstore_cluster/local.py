"""Ray for a cluster: a running Ray, or one that is started on this machine.

The Ray of the caller's job is used, or the Ray at RAY_ADDRESS, or the Ray that runs on this
machine. If there is none, Ray is started (`ray start`). It keeps running when the command ends;
`stop` ends it.

Ray listens on all interfaces, and every client can run programs; Ray 2.60 has no setting to listen
on loopback only. Therefore a Ray that this module starts accepts calls only with a token. The token
is in a file that only the user who started Ray can read. The shards' own ports are on loopback.
"""

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic, sleep

import ray
from ray._raylet import AuthenticationTokenLoader, Config

from embstore.errors import DeadlineError, StoreClosedError
from embstore.storage.files import Files
from embstore_cluster.plan import NAMESPACE

_FILE, _TOKEN, _LOG, _FOLDER = "ray.json", "ray.token", "ray.log", "embstore-ray-"
_OBJECTS_BYTES = 100_000_000
"""The size of Ray's object store in bytes. The object store is not used, so this is about the
smallest possible size."""
_START_TIMEOUT_S = 120.0
_END_TIMEOUT_S = 90.0
_CONNECT_TIMEOUT_S = 5.0
_LOOK_S = 0.2
_GATE = 'read -r _ && exec "$@" </dev/null'
"""A shell command that waits for a line of input, and then becomes the given command. If the
shell's parent ends before the line arrives, the shell ends too."""


@dataclass(frozen=True)
class LocalRay:
    """A Ray that this module has started."""

    pid: int
    """The process id of `ray start`; Ray ends with that process."""
    began: int
    """The start time of that process, in system ticks; it is needed because another process may get
    the same id later."""
    address: str
    folder: str
    """The directory of Ray's sockets and logs. Its path is short, because the paths of sockets have
    to be short."""


def attach(data: Path, *, address: str | None, cpus: int | None) -> bool:
    """Connect to Ray; return whether this module has started that Ray.

    Parameters
    ----------
    address : address of the Ray to use. None: a running Ray
    cpus : number of CPUs of the Ray that is started if none is running. None: do not start Ray

    Raises
    ------
    StoreClosedError : no Ray is running, and it must not be started or did not start.
    """
    found = _own(data)
    if ray.is_initialized():
        return found is not None
    if found is not None:
        _wait_ready(data, found)  # the command that started it may have been killed
        _connect(found.address, data)
        return True
    address = address or os.environ.get("RAY_ADDRESS") or _of_machine()
    if address is None:
        if cpus is None:
            raise StoreClosedError(
                f"no Ray is running, neither of {data} nor of this machine: embstore cluster start "
                "starts one"
            )
        _connect(_start(data, cpus).address, data)
        return True
    try:
        _connect(address, None)
    except (ConnectionError, RuntimeError) as exc:
        raise StoreClosedError(f"no Ray answers: {exc}") from None
    return False


def end(data: Path) -> None:
    """End the Ray that this module has started, if there is one."""
    found = _own(data)
    if found is None:
        return
    ray.shutdown()
    with suppress(ProcessLookupError):
        os.kill(found.pid, signal.SIGTERM)
    until = monotonic() + _END_TIMEOUT_S
    while _began(found.pid) == found.began:
        if monotonic() > until:
            raise DeadlineError(f"Ray, process {found.pid}, has not ended")
        sleep(_LOOK_S)
    if Path(found.folder).name.startswith(_FOLDER):
        shutil.rmtree(found.folder, ignore_errors=True)
    for name in (_FILE, _TOKEN):
        (data / name).unlink(missing_ok=True)


def _connect(address: str, token_of: Path | None) -> None:
    if token_of is not None:
        os.environ |= _environment(token_of)
        Config.initialize("")  # Ray has read the environment when it was imported
        AuthenticationTokenLoader.instance().reset_cache()
    ray.init(
        address=address,
        namespace=NAMESPACE,
        logging_level="ERROR",
        log_to_driver=False,
    )


def _of_machine() -> str | None:
    """Return the address of the Ray that was started last on this machine, if it listens.

    `ray.init("auto")` could find this Ray too, but takes long to detect that no Ray listens.
    """
    folder = Path(os.environ.get("RAY_TMPDIR", "/tmp"), "ray")
    try:
        address = (folder / "ray_current_cluster").read_text().strip()
        host, _, port = address.rpartition(":")
        socket.create_connection((host, int(port)), _CONNECT_TIMEOUT_S).close()
    except (OSError, ValueError):
        return None
    return address


def _environment(data: Path) -> dict[str, str]:
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(data / _TOKEN)}


def _own(data: Path) -> LocalRay | None:
    """Return the running Ray that this module has started for this directory, or None."""
    try:
        found = LocalRay(**json.loads((data / _FILE).read_text()))
    except (OSError, ValueError, TypeError):
        return None
    return found if _began(found.pid) == found.began else None


def _began(pid: int) -> int | None:
    """Return the start time of a process, in system ticks. None: the process has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[19])


def _start(data: Path, cpus: int) -> LocalRay:
    """Start Ray, and return when it accepts calls."""
    files = Files(data)
    files.make_directory("")
    with closing(files.create(_TOKEN)) as token:
        os.fchmod(token.descriptor, 0o600)
        token.write(0, secrets.token_hex(32).encode())
    folder = tempfile.mkdtemp(prefix=_FOLDER)
    port, client_port = free_ports("127.0.0.1", 2)
    command = [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"),
        *("--port", str(port), "--ray-client-server-port", str(client_port)),
        *("--node-ip-address", "127.0.0.1", "--num-cpus", str(cpus), "--temp-dir", folder),
        *("--object-store-memory", str(_OBJECTS_BYTES)),
        *("--include-dashboard", "false", "--disable-usage-stats"),
    ]
    with closing(files.create(_LOG)) as log:
        process = subprocess.Popen(
            ["/bin/sh", "-c", _GATE, "sh", *command],
            stdin=subprocess.PIPE,
            stdout=log.descriptor,
            stderr=subprocess.STDOUT,
            env=os.environ | _environment(data),
            start_new_session=True,  # so that Ctrl-C here does not interrupt Ray
        )
    began = _began(process.pid)
    assert began is not None, "it is not waited for, so it is there, if only as a zombie"
    found = LocalRay(process.pid, began, f"127.0.0.1:{port}", folder)
    files.replace(_FILE, json.dumps(asdict(found)).encode())
    assert process.stdin is not None
    with process.stdin as gate:  # after the file is written, so that every Ray can be found
        gate.write(b"\n")
    try:
        _wait_ready(data, found)
    except BaseException:
        with suppress(ProcessLookupError):
            process.terminate()
        raise
    return found


def _wait_ready(data: Path, found: LocalRay) -> None:
    """Wait until the Ray that this module has started accepts calls. Raises StoreClosedError if Ray
    has ended, or takes too long."""
    until = monotonic() + _START_TIMEOUT_S
    while "ray.init(" not in (text := _log_of(data)):  # Ray logs this when it is ready
        if _began(found.pid) != found.began or monotonic() > until:
            raise StoreClosedError(f"Ray did not start:\n{text}")
        sleep(_LOOK_S)


def _log_of(data: Path) -> str:
    try:
        return (data / _LOG).read_text()
    except OSError as exc:
        raise StoreClosedError(f"cannot read {data / _LOG}: {exc.strerror}") from exc


def free_ports(host: str, count: int) -> list[int]:
    """Return unused ports on an address of this machine."""
    with ExitStack() as taken:
        sockets = [taken.enter_context(closing(socket.socket())) for _ in range(count)]
        for one in sockets:
            one.bind((host, 0))
        return [one.getsockname()[1] for one in sockets]
