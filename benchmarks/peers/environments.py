"""The peers' own environments: made once, by this command, under runs/environments/."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks import cells

FOLDER = cells.ROOT / "runs" / "environments"


class NotInstallable(Exception):  # noqa: N818 - it is a fact about a peer, not an error of ours
    """A peer that could not be installed, with the installer's own words."""


@dataclass(frozen=True)
class Environment:
    """What is installed, and what its programs find in their environment variables."""

    name: str
    version: str
    packages: tuple[str, ...]
    without_dependencies: tuple[str, ...] = ()
    debian: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()

    @property
    def folder(self) -> Path:
        """Where it lies."""
        return FOLDER / self.name

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "venv" / "bin" / "python"

    def spelled(self) -> dict[str, str]:
        """Environment variables for its programs."""
        libraries = self.folder / "debian" / "usr" / "lib"
        found = {"LD_LIBRARY_PATH": ":".join(str(p) for p in [*libraries.glob("*-linux-gnu"), libraries])}
        return os.environ | dict(self.variables) | (found if self.debian else {}) | {"PYTHONPATH": ""}

    def make(self) -> None:
        """Install it, unless that was done before."""
        wanted = repr((self.packages, self.without_dependencies, self.debian))
        marker = self.folder / "installed"
        if marker.exists() and marker.read_text() == wanted:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        _run([sys.executable, "-m", "venv", "--clear", str(self.folder / "venv")])
        pip = [str(self.python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        if self.without_dependencies:
            _run([*pip, "--no-deps", *self.without_dependencies])
        _run([*pip, *self.packages])
        for package in self.debian:
            _unpack(package, self.folder / "debian")
        marker.write_text(wanted)


def _unpack(package: str, target: Path) -> None:
    """A Debian package's files, without installing it: no rights are needed."""
    target.mkdir(parents=True, exist_ok=True)
    for old in target.glob("*.deb"):
        old.unlink()
    _run(["apt-get", "download", package], cwd=target)
    for file in target.glob("*.deb"):
        _run(["dpkg-deb", "-x", str(file), str(target)])


def _run(command: list[str], cwd: Path | None = None) -> None:
    try:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=1200)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInstallable(f"{command[0]}: {error}") from None
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        raise NotInstallable(f"{' '.join(command[:4])} ...: {said[-1]}")


XGBOOST = "3.2.0"
FLOWER = Environment(
    "flower",
    "flwr 1.41.0",
    ("flwr==1.41.0", f"xgboost-cpu=={XGBOOST}", "scipy"),
    variables=(("FLWR_TELEMETRY_ENABLED", "0"), ("FLWR_LOG_LEVEL", "ERROR")),
)
# The full wheel alone has the federated plugin; the GPU library that it asks for is never loaded here.
PLUGIN = Environment("plugin", f"xgboost {XGBOOST}", ("numpy", "scipy"), without_dependencies=(f"xgboost=={XGBOOST}",))
FEDTREE = Environment(
    "fedtree", "fedtree 1.0.5", ("fedtree==1.0.5", "scikit-learn", "scipy", "numpy"), debian=("libntl44", "libgf2x3")
)
