"""Builds the image of deploy/Dockerfile without a container engine or a registry, and runs its processes.

buildah builds the image, on a base that debootstrap makes, since the tests pull nothing. A process of the image runs as a
container engine would start it, as far as the kernel alone can show it: on a read-only root with a writable /tmp, as the
user of the image, without capabilities, as the first process of its own process namespace, and in the network namespace of
its pod. Limits of memory and CPU, and filters of system calls, are not shown.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tests.deploy.manifests import ROOT

T = TypeVar("T")

TOOLS = ("buildah", "debootstrap", "unshare", "nsenter", "ip")
# Beside the servers of `make services`: the base is kept for the next run.
STORE = Path(os.environ.get("SERVICES_DIR", "/var/tmp/eventservice-services")) / "images"
BASE = "localhost/eventservice-base"
IMAGE = "localhost/eventservice-test"
# The base has Debian's certificates. Building needs those of this machine, which may be behind a proxy of its own.
CERTIFICATES = "/etc/ssl/certs"

# Some of the tools are in folders that only root has in its path, if at all.
VARIABLES = {**os.environ, "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"}

START = """
set -e
mount --bind "$IMAGE_ROOT" "$IMAGE_ROOT"
mount -t proc proc "$IMAGE_ROOT/proc"
mount --rbind /dev "$IMAGE_ROOT/dev"
mount -t tmpfs -o mode=1777 tmp "$IMAGE_ROOT/tmp"
[ -z "$DATA" ] || mount --bind "$DATA" "$IMAGE_ROOT/var/lib/eventservice"
mount -o remount,bind,ro "$IMAGE_ROOT"
exec chroot "$IMAGE_ROOT" setpriv --reuid="$IMAGE_UID" --regid="$IMAGE_GID" --clear-groups --no-new-privs --inh-caps=-all \
    --bounding-set=-all env --ignore-environment --chdir="$IMAGE_FOLDER" "$@"
"""


def find_missing_tools() -> list[str]:
    return [name for name in TOOLS if shutil.which(name, path=VARIABLES["PATH"]) is None]


def run_buildah(*arguments: str) -> str:
    """Run buildah on a storage of its own, and return what it printed. Raise RuntimeError with its errors."""
    storage = ["--storage-driver=vfs", f"--root={STORE / 'storage'}", f"--runroot={STORE / 'run'}"]
    done = subprocess.run(["buildah", *storage, *arguments], env=VARIABLES, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"buildah {' '.join(arguments)}: {done.stdout}{done.stderr}")
    return done.stdout.strip()


@contextmanager
def build_image() -> Iterator[Image]:
    """Build the image, and remove it at the end."""
    STORE.mkdir(parents=True, exist_ok=True)
    with (STORE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one build at a time
        # What a run has left that was killed.
        run_buildah("rm", "--all")
        run_buildah("rmi", "--prune")
        _make_base()
        run_buildah(
            "build", "--isolation=chroot", "--format=docker", "--layers=false", f"--build-arg=BASE={BASE}",
            f"--volume={CERTIFICATES}:{CERTIFICATES}:ro", f"--file={ROOT / 'deploy' / 'Dockerfile'}", f"--tag={IMAGE}", str(ROOT),
        )  # fmt: skip
        container = run_buildah("from", "--pull-never", IMAGE)
        try:
            root = Path(run_buildah("mount", container))
            config = json.loads(run_buildah("inspect", "--type=image", IMAGE))["Docker"]["config"]
            yield Image(root, config)
        finally:
            run_buildah("rm", container)
            run_buildah("rmi", "--force", IMAGE)


def _make_base() -> None:
    """Create the base image, unless an earlier run has."""
    if run_buildah("images", "--quiet", "--filter", f"reference={BASE}"):
        return
    folder = STORE / "base"
    shutil.rmtree(folder, ignore_errors=True)
    packages = "python3,python3-venv,ca-certificates"
    subprocess.run(
        ["debootstrap", "--variant=minbase", f"--include={packages}", "bookworm", folder],
        env=VARIABLES,
        check=True,
    )
    container = run_buildah("from", "scratch")
    run_buildah("add", "--quiet", container, str(folder), "/")
    run_buildah("commit", "--quiet", "--rm", container, BASE)
    shutil.rmtree(folder)


@dataclass(frozen=True)
class Image:
    root: Path
    config: dict[str, Any]

    @property
    def env(self) -> dict[str, str]:
        return dict(entry.split("=", 1) for entry in self.config["Env"])

    @property
    def command(self) -> list[str]:
        assert not self.config.get("Entrypoint")
        command: list[str] = self.config["Cmd"]
        return command

    @property
    def health_check(self) -> list[str]:
        kind, *command = self.config["Healthcheck"]["Test"]
        assert kind == "CMD"
        return list(command)


class Pod:
    """Processes of an image with a network of their own, of which only the loopback interface exists."""

    def __init__(self, image: Image, folder: Path, env: Mapping[str, str], data: Path | None = None) -> None:
        self._image, self._folder, self._env, self._data = image, folder, env, data
        self._pause = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "ip link set lo up && echo && exec sleep infinity"],
            env=VARIABLES,
            stdout=subprocess.PIPE,
        )
        assert self._pause.stdout
        with self._pause.stdout as ready:
            ready.readline()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._network = Path(f"/proc/{self._pause.pid}/ns/net")
        self._inside = ThreadPoolExecutor(1, initializer=self._join_network)

    def _join_network(self) -> None:
        """Move the calling thread into the network of the pod."""
        with self._network.open("rb") as namespace:
            failure = ctypes.CDLL(None).setns(namespace.fileno(), 0)
        assert not failure

    def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function whose sockets are in the network of the pod."""
        return self._inside.submit(function, *arguments).result()

    def start_beside(self, name: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start a process that is not of the image in the network of the pod."""
        return self._start(name, ["nsenter", f"--net={self._network}", *command], VARIABLES)

    def start(self, name: str, command: Sequence[str] = (), **env: str) -> subprocess.Popen[bytes]:
        """Start a container, with the image's command unless there is another. Its output is in the log `name`."""
        variables = {**self._image.env, **self._env, **env}
        user, _, group = self._image.config["User"].partition(":")
        names = {
            "IMAGE_ROOT": str(self._image.root),
            "IMAGE_UID": user,
            "IMAGE_GID": group,
            "IMAGE_FOLDER": self._image.config["WorkingDir"],
            "DATA": str(self._data or ""),
            "PATH": VARIABLES["PATH"],
        }
        assignments = [f"{name}={value}" for name, value in variables.items()]
        namespaces = [
            "nsenter",
            f"--net={self._network}",
            "unshare",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
        ]
        return self._start(
            name,
            [*namespaces, "sh", "-c", START, "sh", *assignments, *(command or self._image.command)],
            names,
        )

    def run(self, name: str, command: Sequence[str], **env: str) -> tuple[int, str]:
        """Run a container to its end. Return its exit status and its output."""
        process = self.start(name, command, **env)
        return process.wait(120), self.read_log(name)

    def stop(self, process: subprocess.Popen[bytes]) -> int:
        """Send SIGTERM to the first process of a container, as `docker stop` does, and return its exit status."""
        first = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        for pid in first:
            os.kill(int(pid), signal.SIGTERM)
        return process.wait(60)

    def read_log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text(errors="replace")

    def _start(self, name: str, argv: list[str], env: dict[str, str]) -> subprocess.Popen[bytes]:
        with (self._folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(argv, cwd=ROOT, env=env, stdout=log, stderr=log)
        self._processes.append(process)
        return process

    def close(self) -> None:
        for process in [*self._processes, self._pause]:
            process.kill()
            process.wait()
        self._inside.shutdown()
