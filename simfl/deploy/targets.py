"""Where it runs: the files for Docker, systemd and Kubernetes, from one set of templates.

They are about processes, ports and folders, and hold no key: every site makes its own with `simfl join`. Only the
Compose file, which is for trying a study out on one machine, has all keys made in one place.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, Literal

import jinja2
import msgspec

from simfl.data.sources import Source
from simfl.deploy.party_file import read_bytes
from simfl.deploy.study import Study, parse_study
from simfl.errors import StudyError
from simfl.storage import write_atomically

Target = Literal["docker", "systemd", "kubernetes"]
PYTHON: Final = "3.11"  # of the image: the version that the tests run on
UID: Final = 10001  # of the image's user
METRICS_PORT: Final = 9464
COMMAND: Final = "/opt/simfl/bin/simfl"  # where the units expect it
HUB: Final = "hub"  # the hub's name within the Compose network


@dataclass(frozen=True)
class PlacedParty:
    """A party and its table: the path at the host, and the name of the file in its container."""

    name: str
    data: str
    file: str


def write_files(target: Target, study_path: Path, folder: Path) -> list[Path]:
    """Write the files for a target into a folder, as they follow from the study. Returns them."""
    text = read_bytes(study_path).decode()
    study = parse_study(text, str(study_path))
    if target == "docker":
        files = for_docker(study, text, study_path.resolve().parent, folder.resolve())
    elif any(party.data for party in study.party):
        raise StudyError(
            f"{study_path} names the parties' files. That is for one machine (--for docker, --local-processes); where "
            "the data is belongs into each party's own party.toml."
        )
    else:
        files = for_systemd(study) if target == "systemd" else for_kubernetes(study, text)
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / name, content.encode())
    return [folder / name for name in files]


# --- Docker ----------------------------------------------------------------------------------------------------------


def for_docker(study: Study, text: str, at: Path, folder: Path) -> dict[str, str]:
    """A Dockerfile, and a Compose file of everybody. `at`: what the study's paths are relative to."""
    inside = in_containers(study, text)
    known = parse_study(inside)
    parties = [placed(party.name, party.data, at, folder) for party in study.party]
    source = _checkout()
    build = {"context": _relative(source, folder) if source else ".", "dockerfile": "Dockerfile"}
    files = {} if source else {"Dockerfile": dockerfile(), ".dockerignore": _render("docker/dockerignore")}
    files |= {"compose.yaml": _render("docker/compose.yaml", study=known, parties=parties, **build)}
    files |= {"study.toml": inside}
    return files | {f"parties/{p.name}.toml": _render("docker/party.toml", party=p) for p in parties}


def dockerfile(*, checkout: bool = False) -> str:
    """The image. `checkout`: of the sources beside it, with the locked versions; else of the published package."""
    return _render("docker/Dockerfile", checkout=checkout)


def placed(name: str, data: str | None, at: Path, folder: Path) -> PlacedParty:
    """Where a party's table is, seen from the Compose file. Without a word in the study: in a folder beside it."""
    if data is None:
        return PlacedParty(name, f"./data/{name}.csv", f"{name}.csv")
    path = Source(str(at / data)).path
    if path is None:
        raise StudyError(f"The data of {name!r} is no file: a container gets a file. Name one, or leave data out.")
    return PlacedParty(name, _relative(path.resolve(), folder), path.name)


def in_containers(study: Study, text: str) -> str:
    """The study without the parties' files, and with a host that containers can find: `localhost` is each of them."""
    text = re.sub(r"\A(#.*\n)+", "# Written by `simfl provision --for docker`.\n", text)
    text = re.sub(r"^data\s*=.*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r'^host(\s*=\s*)"localhost"', rf'host\1"{HUB}"', text, flags=re.MULTILINE)
    host = HUB if study.engine.host == "localhost" else study.engine.host
    plain = [msgspec.structs.replace(party, data=None) for party in study.party]
    wanted = msgspec.structs.replace(study, party=plain, engine=msgspec.structs.replace(study.engine, host=host))
    if parse_study(text) != wanted:
        raise StudyError('Set host = "hub" in [engine] of the study and leave out data = ... of its parties, by hand.')
    return text


def _checkout() -> Path | None:
    """The folder of the sources, where SimFL runs from one."""
    root = Path(__file__).resolve().parents[2]
    return root if (root / "requirements-image.lock").exists() and (root / "Dockerfile").exists() else None


def _relative(path: Path, folder: Path) -> str:
    found = os.path.relpath(path, folder)
    return found if found.startswith(".") else f"./{found}"


# --- systemd ---------------------------------------------------------------------------------------------------------


def for_systemd(study: Study, command: str = COMMAND) -> dict[str, str]:
    """A unit for the hub, one for a party, and the user that both run as."""
    roles = {"hub": ("the hub", "hub start kit"), "party": ("a party", "party start party.toml")}
    units = {
        f"simfl-{role}.service": _render("systemd/service", study=study, title=title, arguments=words, command=command)
        for role, (title, words) in roles.items()
    }
    return units | {"simfl.sysusers": _render("systemd/sysusers")}


# --- Kubernetes ------------------------------------------------------------------------------------------------------


def for_kubernetes(study: Study, text: str) -> dict[str, str]:
    """For the hub and for every party a folder for `kubectl apply -k`."""
    files: dict[str, str] = {}
    for name in ("hub", *study.parties):
        app, hub = f"simfl-{name.lower().replace('_', '-')}", name == "hub"
        words = "hub, start, kit" if hub else "party, start, party.toml"
        title = "The hub" if hub else f"The party {name}"
        own = ["study.toml"] if hub else ["study.toml", "party.toml"]
        facts: dict[str, Any] = {"study": study, "name": name, "app": app, "hub": hub, "title": title}
        files[f"{name}/site.yaml"] = _render("kubernetes/site.yaml", arguments=words, **facts)
        files[f"{name}/kustomization.yaml"] = _render("kubernetes/kustomization.yaml", app=app, files=", ".join(own))
        files[f"{name}/study.toml"] = text
        if not hub:
            party = PlacedParty(name, "", f"{name}.csv")
            files[f"{name}/party.toml"] = _render("kubernetes/party.toml", party=party)
    return files


def _render(template: str, /, **facts: object) -> str:
    """A template with the facts filled in; a fact that is missing is an error."""
    text = (resources.files("simfl.deploy") / "templates" / template).read_text(encoding="utf-8")
    environment = jinja2.Environment(  # noqa: S701 - these are no web pages, and names in a study are letters and digits
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    known: Mapping[str, object] = {"version": version("simfl"), "python": PYTHON, "uid": UID, "metrics": METRICS_PORT}
    return environment.from_string(text).render(**known, **facts)
