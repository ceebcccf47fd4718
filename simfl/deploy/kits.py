"""Kits: the folder with a private key and a certificate that the hub, the submitter and every party start from.

FLARE's provisioning makes the certificates; they are signed by a root of the study's own. A kit is then closed further
than FLARE leaves it: a job brings no code, and may name SimFL's two endpoint classes and nothing else.
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from simfl.deploy.endpoints import CLASSES
from simfl.deploy.study import Study
from simfl.errors import EngineError

CONTROLLER = "nvflare.collab.runtime.controller.CollabController"
EXECUTOR = "nvflare.collab.runtime.executor.CollabExecutor"
ROOT_DAYS = 3650  # how long the root certificate is valid; those that it signs are valid for 360 days
SUBMITTER = "submitter@simfl.org"  # FLARE requires an address; nothing is ever sent to it


def provision(study: Study, folder: Path, renew: Sequence[str] = ()) -> dict[str, Path]:
    """Write the kits of the hub, the submitter and every party; returns their folders.

    Run again with more parties, the certificates of the others stay valid. Those named in `renew` get a new one.
    """
    names = {"hub": study.engine.host, "submitter": SUBMITTER} | {party: party for party in study.parties}
    authority = folder / ".authority"
    _forget(authority / study.name / "state" / "cert.json", [names.get(name, name) for name in renew])
    made = _make_certificates(study, authority)
    kits = {name: folder / name for name in names}
    for name, kit in kits.items():
        source = made / names[name]
        _restrict(source / "local", is_hub=name == "hub")
        kit.mkdir(parents=True, exist_ok=True)
        for part in ("startup", "local"):
            shutil.rmtree(kit / part, ignore_errors=True)
            shutil.copytree(source / part, kit / part)
        (kit / "transfer").mkdir(exist_ok=True)
        kit.chmod(0o700)
    shutil.rmtree(made)
    return kits


def _forget(state: Path, names: Sequence[str]) -> None:
    """Forget the certificates of these names, so that new ones are made."""
    if names and state.exists():
        known = json.loads(state.read_text())
        missing = [name for name in names if name not in known]
        if missing:
            raise EngineError(f"There is no certificate of {', '.join(missing)} to renew.")
        state.write_text(json.dumps({key: value for key, value in known.items() if key not in names}))


def _make_certificates(study: Study, authority: Path) -> Path:
    """Have FLARE make its kits; returns the folder that they are in."""
    from nvflare.lighter.entity import Project
    from nvflare.lighter.impl.cert import CertBuilder
    from nvflare.lighter.impl.signature import SignatureBuilder
    from nvflare.lighter.impl.static_file import StaticFileBuilder
    from nvflare.lighter.impl.workspace import WorkspaceBuilder
    from nvflare.lighter.provisioner import Provisioner

    project = Project(name=study.name, description="SimFL")
    port = study.engine.port
    project.set_server(study.engine.host, "simfl", {"fed_learn_port": port, "admin_port": port})
    for party in study.parties:
        project.add_client(party, "simfl", {})
    project.add_admin(SUBMITTER, "simfl", {"role": "lead"})
    files = StaticFileBuilder(config_folder="config", scheme="tcp")
    builders = [WorkspaceBuilder(), files, CertBuilder(ROOT_DAYS), SignatureBuilder()]
    with contextlib.redirect_stdout(io.StringIO()):
        made = Provisioner(str(authority), builders).provision(project).get_result_location()
    if not made or not Path(made).exists():
        raise EngineError(f"The kits could not be written to {authority.parent}.")
    return Path(made)


def _restrict(local: Path, *, is_hub: bool) -> None:
    """Close what FLARE leaves open: no code may come with a job, and only the submitter may start one."""
    if not (local / "authorization.json.default").exists():  # the submitter's kit runs nothing
        return
    files = ("resources", "authorization", "log_config")
    contents = [json.loads((local / f"{name}.json.default").read_text()) for name in files]
    resources, authorization, log = contents
    resources["class_allow_list"] = [*CLASSES, CONTROLLER, EXECUTOR]
    resources["allow_log_streaming"] = False
    if is_hub:
        for component in resources["components"]:
            if component["id"] == "job_scheduler":
                component["args"] |= {"min_schedule_interval": 1.0, "max_schedule_interval": 5.0}
    allowed = dict.fromkeys(("submit_job", "manage_job", "download_job", "view", "app_command"), "any")
    refused = dict.fromkeys(("byoc", "shell_commands", "clone_job", "operate"), "none")
    authorization["permissions"] = {"lead": allowed | refused}
    log["loggers"]["root"]["level"] = "WARNING"  # writing a line per message would be most of the work
    for name, content in zip(files, contents, strict=True):
        (local / f"{name}.json").write_text(json.dumps(content, indent=2))
