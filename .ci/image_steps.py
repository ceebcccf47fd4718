"""Plays the Dockerfile and the Compose file of the four hospitals without Docker, on a Linux machine where one is root.

The base image is this machine's own file system, under an overlay that takes every write: nothing stays. In it the
instructions of the Dockerfile run one by one, as they are. Then the services of examples/heart/docker/compose.yaml run
with their own commands, mounts and users, each with a read-only file system, until the training is done. What this does
not show: that Docker's own base image, network and volumes do the same.

    python .ci/image_steps.py            # some minutes; ends with the sizes of the image and of the model
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
COMPOSE = ROOT / "examples" / "heart" / "docker" / "compose.yaml"


def run(*words: object) -> None:
    """Run a command of this machine."""
    subprocess.run([str(word) for word in words], check=True)


class Image:
    """A file system, and what the instructions of a Dockerfile set beside it."""

    def __init__(self, home: Path) -> None:
        self.root, self.upper = home / "merged", home / "upper"
        self.variables: dict[str, str] = {}
        self.folder, self.user = "/", "0:0"
        self.entry: list[str] = []
        for name in ("upper", "work", "merged"):
            (home / name).mkdir()
        layers = f"lowerdir=/,upperdir={self.upper},workdir={home / 'work'}"
        run("mount", "-t", "overlay", "overlay", "-o", layers, self.root)
        run("mount", "-t", "proc", "proc", self.root / "proc")
        run("mount", "--rbind", "/dev", self.root / "dev")
        for folder in [Path(sys.base_prefix), *Path(sys.base_prefix).parents]:  # a base image's Python is for everybody
            inside = self.root / folder.relative_to("/")
            inside.chmod(inside.stat().st_mode | 0o055)

    def build(self, dockerfile: str) -> None:
        """Follow the instructions."""
        for line in re.sub(r"\\\n\s*", "", dockerfile).splitlines():
            if line and not line.startswith("#"):
                print(f"> {line}", flush=True)
                self._follow(*line.split(maxsplit=1))

    def _follow(self, word: str, rest: str) -> None:
        match word:
            case "FROM":  # both stages are the same file system here
                kept = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
                self.variables = {"PATH": f"{sys.base_prefix}/bin:/usr/sbin:/usr/bin:/sbin:/bin", **kept}
                self.folder, self.user = "/", "0:0"
            case "WORKDIR":
                self.folder = rest
                (self.root / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
            case "RUN":
                subprocess.run(self.command("sh", "-c", rest), env=self.variables, check=True)
            case "COPY" if not rest.startswith("--from="):  # what an earlier stage made is here already
                self._copy(*rest.split())
            case "ENV":
                pairs = (pair.split("=", 1) for pair in shlex.split(rest))
                self.variables |= {name: value.replace("$PATH", self.variables["PATH"]) for name, value in pairs}
            case "USER":
                self.user = rest
            case "ENTRYPOINT":
                self.entry = json.loads(rest)

    def _copy(self, *words: str) -> None:
        for name in words[:-1]:
            source, target = ROOT / name, self.root / self.folder.lstrip("/") / words[-1]
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, target / source.name)

    def command(self, *words: str) -> list[str]:
        """A command within the image, by its user and in its folder."""
        inside = ["sh", "-c", 'cd "$0" && exec "$@"', self.folder, *words]
        return ["chroot", f"--userspec={self.user}", str(self.root), *inside]


class Services:
    """The services of a Compose file, each with its own view of the file system."""

    def __init__(self, image: Image, compose: dict[str, Any], home: Path) -> None:
        self.image, self.services, self.volumes = image, compose["services"], home / "volumes"
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        hosts = (image.root / "etc" / "hosts").read_text()
        aliases = " ".join(a for s in self.services.values() for a in _aliases(s))
        (image.root / "etc" / "hosts").write_text(f"{hosts}\n127.0.0.1 {aliases}\n")

    def start(self, name: str) -> subprocess.Popen[bytes]:
        """Start a service in a mount namespace of its own."""
        service, root = self.services[name], self.image.root
        lines = [f"mount -t tmpfs tmpfs {root}/tmp"]
        for source, target, read_only in map(self._mount, service["volumes"]):
            inside = root / target.lstrip("/")
            make = f"mkdir -p {inside}" if source.is_dir() else f"mkdir -p {inside.parent} && touch {inside}"
            lines += [make, f"mount --bind {source} {inside}"]
            lines += [f"mount -o remount,ro,bind {inside}"] if read_only else []
        lines += [f"chmod 1777 {root}/tmp", f"mount -o remount,ro,bind {root}", 'exec "$@"']
        words = self.image.command(*self.image.entry, *service["command"])
        script = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", "\n".join(lines), name, *words]
        print(f"> {name}: simfl {shlex.join(service['command'])}", flush=True)
        self.running[name] = subprocess.Popen(script, env=self.image.variables)
        return self.running[name]

    def _mount(self, given: Any) -> tuple[Path, str, bool]:
        """What is mounted, where, and whether it is for reading only."""
        if isinstance(given, dict):
            return self._volume(given["source"]) / given["volume"]["subpath"], given["target"], False
        source, target, *options = given.split(":")
        here = (COMPOSE.parent / source).resolve() if source.startswith(".") else self._volume(source)
        return here, target, "ro" in options

    def _volume(self, name: str) -> Path:
        """A named volume; a new one belongs to whoever has its place in the image."""
        path = self.volumes / name
        if not path.exists():
            path.mkdir(parents=True)
            os.chown(path, *map(int, self.image.user.split(":")))
            path.chmod(0o700)
        return path

    def stop(self) -> None:
        """End all."""
        for process in self.running.values():
            process.terminate()
        for process in self.running.values():
            process.wait(60)


def _aliases(service: dict[str, Any]) -> list[str]:
    networks = service["networks"]
    return [a for n in networks.values() for a in n["aliases"]] if isinstance(networks, dict) else []


def play(services: Services) -> Path:
    """What `docker compose up` does: the services in the order that `depends_on` asks for. Returns the model."""
    if services.start("kits").wait(300) != 0:
        sys.exit("the kits were not made")
    services.start("hub")
    port = int(services.services["hub"]["command"][-1])
    for _ in range(120):
        try:
            urllib.request.urlopen(f"http://localhost:{port}/readyz", timeout=5).close()
            break
        except OSError:
            time.sleep(1)
    for name in services.services.keys() - {"kits", "hub", "submitter"}:
        services.start(name)
    if services.start("submitter").wait(900) != 0:
        sys.exit("the training failed")
    return next((services.volumes / "runs-submitter").glob("*/model.ubj"))


def main() -> None:
    """Build and play."""
    if os.geteuid() != 0 or sys.platform != "linux":
        sys.exit("Only root on Linux can mount. Nothing was run.")
    if "--inside" not in sys.argv:
        home = tempfile.mkdtemp(prefix="simfl-image-")
        words = ["unshare", "--mount", "--propagation", "private", sys.executable, __file__, "--inside", home]
        status = subprocess.run(words).returncode
        shutil.rmtree(home, ignore_errors=True)
        sys.exit(status)
    home = Path(sys.argv[-1])
    home.chmod(0o755)
    image = Image(home)
    image.build((ROOT / "Dockerfile").read_text())
    size = sum(p.lstat().st_size for p in (image.upper / "opt" / "simfl").rglob("*") if p.is_file())
    services = Services(image, yaml.safe_load(COMPOSE.read_text()), home)
    try:
        model = play(services)
        print(f"The image adds {size / 1e6:.0f} MB to its base. The model: {model.stat().st_size:,} bytes.")
    finally:
        services.stop()


if __name__ == "__main__":
    main()
