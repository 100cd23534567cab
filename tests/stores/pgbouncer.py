"""A real PgBouncer before the shared server, for tests."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg

from perdure.testing.postgres import shared_server

__all__ = ["pooled_by_transaction"]

_SETTINGS = """
[databases]
postgres = host=127.0.0.1 port={server} user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 2
logfile = {folder}/log
"""


def find_pgbouncer(folder: Path) -> Path:
    """PgBouncer's binary: an installed one, or else that of Debian's package, unpacked into `folder`."""
    found = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    if found is not None:
        return Path(found)
    packages = "pgbouncer libc-ares2 libevent-2.1-7".split()
    subprocess.run(["apt-get", "download", *packages], cwd=folder, check=True, capture_output=True)
    for package in folder.glob("*.deb"):
        subprocess.run(["dpkg", "-x", package.name, "."], cwd=folder, check=True)
    return folder / "usr/sbin/pgbouncer"


@contextmanager
def pooled_by_transaction(tmp_path: Path) -> Iterator[str]:
    """The address of a PgBouncer that pools by transaction: two server sessions for all clients. `tmp_path` is a folder of
    the test's own."""
    binary = find_pgbouncer(tmp_path)
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = tmp_path / "settings.ini"
    settings.write_text(_SETTINGS.format(server=shared_server().port, port=port, folder=tmp_path))
    command = [str(binary), str(settings)]
    if os.geteuid() == 0:
        # It refuses root, and so it must be able to read and write what root made, and to get there.
        tmp_path.chmod(0o777)
        for folder in tmp_path.parents:
            if (mode := folder.stat().st_mode) & 0o005 != 0o005:
                folder.chmod(mode | 0o005)
        command = [command[0], "-u", "nobody", command[1]]
    libraries = {"LD_LIBRARY_PATH": f"{tmp_path}/usr/lib/x86_64-linux-gnu"}
    process = subprocess.Popen(
        command, env=os.environ | libraries, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    address = f"postgresql://postgres@127.0.0.1:{port}/postgres"
    for _ in range(3000):
        try:
            psycopg.connect(address).close()
            break
        except psycopg.OperationalError:
            assert process.poll() is None, (tmp_path / "log").read_text()
            time.sleep(0.02)
    try:
        yield address
    finally:
        process.terminate()
        process.wait()
