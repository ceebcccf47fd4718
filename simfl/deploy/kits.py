"""Kits: the folder with a private key and a certificate that the hub, the submitter and every party start from.

A site makes its own key (`join`) and sends a request. The authority signs it (`sign_requests`). The site puts what
comes back beside its key (`accept`). To try things out, `provision` does all of this in one place.

FLARE's settings in a kit follow from the site's own copy of the study. They are closed further than FLARE leaves them:
a job brings no code, and may name SimFL's two endpoint classes, FLARE's two that run them, and nothing else.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from simfl.deploy import authority as ca
from simfl.deploy.authority import Authority, Site, sites_of
from simfl.errors import EngineError, FileError, SimFLError, StudyError
from simfl.privacy.certificates import REVOKED, check_revoked, is_revoked, name_of, read_revoked, role_of
from simfl.storage import private_folder, require_private, write_atomically

if TYPE_CHECKING:
    from simfl.deploy.study import Study

CONTROLLER = "nvflare.collab.runtime.controller.CollabController"
EXECUTOR = "nvflare.collab.runtime.executor.CollabExecutor"
ROOT = "rootCA.pem"
NEW_KEY = "`simfl join` makes a new one where there is none"


# --- at a site -------------------------------------------------------------------------------------------------------


def join(study: Study, name: str, kit: Path) -> bytes:
    """Write a kit that lacks a certificate, with a fresh key unless it has one; returns its request (CSR)."""
    request = _request(find_site(study, name), kit)
    _write_settings(study, {name: kit})
    return request


def _request(site: Site, kit: Path) -> bytes:
    file = private_folder(private_folder(kit) / "startup") / f"{site.stem}.key"
    if not file.exists():
        write_atomically(file, ca.key_text(ca.new_key(ca.SITE_BITS)), private=True)
    return ca.write_request(site, ca.read_key(file, NEW_KEY))


def accept(study: Study, name: str, kit: Path, signed: bytes) -> x509.Certificate:
    """Put what the authority has signed beside the key of this kit, if it fits; returns the root."""
    site, startup = find_site(study, name), kit / "startup"
    key = ca.read_key(startup / f"{site.stem}.key", NEW_KEY)
    try:
        own, root = x509.load_pem_x509_certificates(signed)
        revoked = x509.load_pem_x509_crl(signed)
        own.verify_directly_issued_by(root)
    except (ValueError, TypeError, InvalidSignature):
        raise FileError(f"What came back for {name!r} is damaged. Ask for it again.") from None
    if own.public_key() != key.public_key() or (name_of(own.subject), role_of(own)) != (site.subject, site.role):
        raise FileError(f"What came back is not for {name!r} and the key in {kit}. Send the request of this kit again.")
    _refuse_older(startup, root, check_revoked(revoked, root, kit))
    write_atomically(startup / f"{site.stem}.crt", ca.pem(own), private=True)
    write_atomically(startup / ROOT, ca.pem(root), private=True)
    write_atomically(startup / REVOKED, ca.pem(revoked), private=True)
    return root


def _refuse_older(startup: Path, root: x509.Certificate, revoked: x509.CertificateRevocationList) -> None:
    """A kit keeps its root, and never goes back to a list that lacks what was revoked since."""
    if (startup / ROOT).exists() and x509.load_pem_x509_certificate((startup / ROOT).read_bytes()) != root:
        raise FileError(
            f"What came back is signed by another root than {startup / ROOT}. If the study has really begun again with "
            f"a new root, remove that file and {REVOKED} first."
        )
    if (startup / REVOKED).exists() and ca.number_of(read_revoked(startup / REVOKED, root)) > ca.number_of(revoked):
        raise FileError(f"What came back is older than {startup / REVOKED}. Ask for the newest.")


def check_kit(kit: Path) -> None:
    """Refuse to start from a kit that others can read, that is not signed yet, or that is revoked."""
    startup = kit / "startup"
    require_private(startup, kit)
    stem = "server" if (startup / "fed_server.json").exists() else "client"
    try:
        own, root = (x509.load_pem_x509_certificate((startup / name).read_bytes()) for name in (f"{stem}.crt", ROOT))
    except (OSError, ValueError):
        raise FileError(f"{kit} has no certificate yet. `simfl join ... --signed FILE` puts it there.") from None
    if is_revoked(own, read_revoked(startup / REVOKED, root)):
        raise FileError(
            f"The certificate of {kit} is revoked. To ask for a new one, remove {startup / f'{stem}.key'} and run "
            "`simfl join`."
        )


def find_site(study: Study, name: str) -> Site:
    """The site of this name."""
    sites = sites_of(study)
    if name not in sites:
        raise StudyError(f"{name!r} has no part in the study; it has {', '.join(sites)}.")
    return sites[name]


# --- at the authority ------------------------------------------------------------------------------------------------


def open_authority(study: Study, folder: Path) -> Authority:
    """The authority of this study, which lies beside the kits."""
    return Authority(folder / ".authority" / study.name, study.name)


@dataclass(frozen=True)
class SignedRequests:
    """What became of the requests: the certificate in each file that was written, and why others were refused."""

    written: dict[Path, x509.Certificate] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)


def sign_requests(study: Study, folder: Path, requests: Path, renew: Collection[str] = ()) -> SignedRequests:
    """Sign the requests (NAME.csr) in a folder; what goes back to each site is written beside them, as NAME.pem."""
    found = sorted(requests.glob("*.csr"))
    if not found:
        raise FileError(f"There is no request (NAME.csr) in {requests}. `simfl join` writes one at every site.")
    authority, signed = open_authority(study, folder), SignedRequests()
    _check_renewed(authority, renew)
    for path in found:
        name, target = path.stem, path.with_suffix(".pem")
        try:
            signed.written[target] = authority.sign(find_site(study, name), path.read_bytes(), renew=name in renew)
        except SimFLError as error:
            signed.refused.append(str(error))
        else:
            write_atomically(target, authority.signed(name))
    return signed


def provision(study: Study, folder: Path, renew: Collection[str] = ()) -> dict[str, Path]:
    """To try things out: make all keys here and write all kits; returns those that are complete.

    Run again with more parties, the certificates of the others stay valid. Those named in `renew` get a new one.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    authority = open_authority(study, folder)
    _check_renewed(authority, renew)
    kits = {}
    for name, site in sites_of(study).items():
        kit = folder / name
        key = kit / "startup" / f"{site.stem}.key"
        if name in renew:
            key.unlink(missing_ok=True)
        elif authority.has_lost(name) or (authority.issued(name) and not key.exists()):
            continue  # revoked, or its key is elsewhere
        authority.sign(site, _request(site, kit), renew=name in renew)
        accept(study, name, kit, authority.signed(name))
        kits[name] = kit
    _write_settings(study, kits)
    return kits


def _check_renewed(authority: Authority, names: Collection[str]) -> None:
    missing = [name for name in names if not authority.issued(name)]
    if missing:
        raise EngineError(f"There is no certificate of {', '.join(missing)} to renew.")


def revoke(study: Study, folder: Path, name: str) -> list[Path]:
    """Revoke the certificates of a site; returns the kits in this folder, which have the new list already."""
    authority = open_authority(study, folder)
    authority.revoke(name)
    kits = [folder / site.name for site in sites_of(study).values() if (folder / site.name / "startup" / ROOT).exists()]
    for kit in kits:
        accept(study, kit.name, kit, authority.signed(kit.name))
    return kits


# --- FLARE's settings ------------------------------------------------------------------------------------------------


def _write_settings(study: Study, kits: Mapping[str, Path]) -> None:
    """Have FLARE write the settings of these sites, and close what it leaves open."""
    with _private_files(), tempfile.TemporaryDirectory() as folder:
        made = _have_written(study, Path(folder))
        for name, kit in kits.items():
            site = find_site(study, name)
            _restrict(made / site.subject / "local", is_hub=site.role == "hub")
            for part in ("startup", "local"):
                _copy_private(made / site.subject / part, kit / part)
            private_folder(kit / "transfer")


def _copy_private(source: Path, target: Path) -> None:
    shutil.copytree(source, private_folder(target), copy_function=shutil.copyfile, dirs_exist_ok=True)
    for path in target.rglob("*"):  # also what was there before
        path.chmod(0o700 if path.is_dir() else 0o600)


@contextlib.contextmanager
def _private_files() -> Iterator[None]:
    """What is written within is for the owner alone."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def _have_written(study: Study, folder: Path) -> Path:
    """Have FLARE write everybody's settings into this folder; returns the folder that they are in."""
    from nvflare.lighter.impl.static_file import StaticFileBuilder
    from nvflare.lighter.impl.workspace import WorkspaceBuilder
    from nvflare.lighter.provisioner import Provisioner

    builders = [WorkspaceBuilder(), StaticFileBuilder(config_folder="config", scheme="tcp")]
    with contextlib.redirect_stdout(io.StringIO()) as said:
        made = Provisioner(str(folder), builders).provision(_project(study)).get_result_location()
    if not made or not Path(made).exists():
        raise EngineError(f"FLARE could not write the settings of the kits: {said.getvalue().strip()}")
    return Path(made)


def _project(study: Study) -> Any:
    """The study as FLARE describes it."""
    from nvflare.lighter.entity import Project

    project, port = Project(name=study.name, description="SimFL"), study.engine.port
    for site in sites_of(study).values():
        if site.role == "hub":
            ports = {"fed_learn_port": port, "admin_port": port, "default_host": site.host}
            project.set_server(site.subject, "simfl", ports)
        elif site.role == "party":
            project.add_client(site.subject, "simfl", {})
        else:
            project.add_admin(site.subject, "simfl", {"role": site.role})
    return project


def _restrict(local: Path, *, is_hub: bool) -> None:
    """Close what FLARE leaves open: no code may come with a job, and only the submitter may start one."""
    if not (local / "authorization.json.default").exists():  # the submitter's kit runs nothing
        return
    from simfl.deploy.endpoints import CLASSES  # loads what trains; a hub or party that only starts does without

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
    authorization["permissions"] = {"submitter": allowed | refused}
    log["loggers"]["root"]["level"] = "WARNING"  # writing a line per message would be most of the work
    for name, content in zip(files, contents, strict=True):
        (local / f"{name}.json").write_text(json.dumps(content, indent=2))
