"""The commands of a consortium, as far as they go without a network."""

import json
import stat

import numpy as np
import pytest
from cryptography import x509
from typer.testing import CliRunner

from benchmarks.chaos import write_study
from simfl import messages as msg
from simfl.cli import app, main
from simfl.deploy import run as consortium
from simfl.deploy.study import read_study
from simfl.errors import EngineError, FileError, StudyError

run = CliRunner().invoke


@pytest.fixture
def study(tmp_path):
    consortium.init(tmp_path)
    (tmp_path / "north.csv").write_text("age,smoker,ward,outcome\n61,yes,surgery,1\n50,no,other,0\n")
    return tmp_path / "study.toml"


def test_init_writes_both_files_and_no_other(study, tmp_path):
    assert {path.name for path in tmp_path.glob("*.toml")} == {"study.toml", "party.toml"}
    with pytest.raises(FileError, match="left as it is"):
        consortium.init(tmp_path)


def test_check_tells_the_size_and_everything_that_will_leave(study):
    result = run(app, ["check", str(study), str(study.parent / "party.toml")])
    assert result.exit_code == 0, result.output
    assert "2 rows, 3 columns" in result.output
    assert "0 (1 rows), 1 (1 rows)" in result.output
    assert all(kind.__name__ in result.output for kind in msg.Reply.__args__)


def test_check_refuses_a_party_that_is_not_in_the_study(study):
    file = study.parent / "party.toml"
    file.write_text(file.read_text().replace('"north"', '"east"', 1))
    with pytest.raises(StudyError, match=r"'east'; the study has \['north', 'south'\]"):
        consortium.check(study, file)


def certificate(kit):
    name = "server.crt" if (kit / "startup" / "server.crt").exists() else "client.crt"
    return x509.load_pem_x509_certificate((kit / "startup" / name).read_bytes())


def common_name(kit):
    return certificate(kit).subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)[0].value


def test_provision_makes_one_identity_per_site(study):
    kits = consortium.provision(study, study.parent / "kits")
    assert set(kits) == {"hub", "submitter", "north", "south"}
    assert [common_name(kits[name]) for name in ("hub", "north", "south")] == ["localhost", "north", "south"]
    assert all(stat.S_IMODE(kit.stat().st_mode) == 0o700 for kit in kits.values())
    assert json.loads((kits["north"] / "startup" / "fed_client.json").read_text())["servers"][0]["service"] == {
        "target": "localhost:8002",
        "scheme": "tcp",
    }


def test_a_kit_allows_no_code_but_simfls_own(study):
    kits = consortium.provision(study, study.parent / "kits")
    for name in ("hub", "north"):
        resources = json.loads((kits[name] / "local" / "resources.json").read_text())
        ours = [c for c in resources["class_allow_list"] if not c.startswith("nvflare.collab.runtime.")]
        assert ours == ["simfl.deploy.endpoints.HubSite", "simfl.deploy.endpoints.PartySite"]
        assert resources["class_list_enforcement_mode"] == "enforce"
        rights = json.loads((kits[name] / "local" / "authorization.json").read_text())["permissions"]
        assert list(rights) == ["lead"]
        assert rights["lead"]["byoc"] == rights["lead"]["shell_commands"] == "none"


def test_a_new_party_leaves_the_others_kits_valid_and_renewing_changes_one(study):
    out = study.parent / "kits"
    before = {name: certificate(kit).serial_number for name, kit in consortium.provision(study, out).items()}
    study.write_text(study.read_text() + '[[party]]\nname = "west"\n')
    kits = consortium.provision(study, out)
    after = {name: certificate(kit).serial_number for name, kit in kits.items()}
    assert after.items() > before.items()
    assert common_name(kits["west"]) == "west"
    renewed = {n: certificate(k).serial_number for n, k in consortium.provision(study, out, ("south",)).items()}
    assert [name for name in after if renewed[name] != after[name]] == ["south"]
    with pytest.raises(EngineError, match="no certificate of nobody"):
        consortium.provision(study, out, ("nobody",))


def test_paths_in_a_shared_study_are_refused(study):
    study.write_text(study.read_text().replace("# data", "data"))
    with pytest.raises(StudyError, match="only for --local-processes"):
        consortium.train(study)


def test_trying_out_needs_the_files(study):
    with pytest.raises(StudyError, match="north, south"):
        consortium.train(study, local=True)


def test_without_a_kit_the_next_step_is_told(study):
    with pytest.raises(FileError, match="simfl provision"):
        consortium.train(study)


def test_resume_needs_a_training_of_the_same_study(study):
    with pytest.raises(FileError, match="no training to resume"):
        consortium.train(study, resume=True)
    folder, info = consortium._new(study, read_study(study), None, False)
    assert consortium._resumed(study, read_study(study), None) == (folder, info)
    study.write_text(study.read_text() + "\n# changed")
    with pytest.raises(StudyError, match="has changed since"):
        consortium.train(study, resume=True)


def test_a_run_folder_is_not_used_twice(study, tmp_path):
    consortium._new(study, read_study(study), tmp_path / "run", False)
    with pytest.raises(FileError, match="--resume"):
        consortium._new(study, read_study(study), tmp_path / "run", False)


@pytest.mark.parametrize(
    "command", [["hub", "start"], ["party", "start"], ["train"], ["provision"], ["init"], ["check"]]
)
def test_every_step_explains_itself(command):
    result = run(app, [*command, "--help"])
    assert result.exit_code == 0
    assert len(result.output) > 200


def test_what_is_not_a_kit_is_not_started(tmp_path, study):
    with pytest.raises(FileError, match="not a hub's kit"):
        consortium.run_hub(tmp_path)
    with pytest.raises(FileError, match="names no kit"):
        consortium.run_party(tmp_path / "party.toml")


def test_errors_at_the_command_line_are_sentences(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("sys.argv", ["simfl", "train", str(tmp_path / "none.toml")])
    with pytest.raises(SystemExit):
        main()
    assert "Error:" in capsys.readouterr().err


def test_init_takes_the_columns_of_a_table(tmp_path):
    table = tmp_path / "patients.csv"
    table.write_text("age,ward,smoker,died\n60,surgery,True,0\n71,medicine,False,1\n50,surgery,False,0\n")
    consortium.init(tmp_path, table, "died")
    study = read_study(tmp_path / "study.toml")
    assert study.label == "died"
    assert study.columns == {"age": "number", "ward": ["medicine", "surgery"], "smoker": "boolean"}


def test_check_rehearses_the_study_and_tells_which_protections_are_on(tmp_path):
    study = write_study(tmp_path, 30, 200)
    (tmp_path / "party.toml").write_text('name = "north"\ndata = "north.csv"\n')
    found = consortium.check(study, tmp_path / "party.toml").rehearsed
    assert {p.name for p in found.protections if p.on} >= {"Blind matching", "Masked sums"}
    assert {"HiddenRows", "RowSums", "LeafSums", "Grown"} <= set(found.sent)
    study.write_text(study.read_text().replace("rematch = 10", 'masked = false\nmatching = "shared"\nmin_group = 5'))
    result = run(app, ["check", str(study), str(tmp_path / "party.toml")])
    assert result.exit_code == 0, result.output
    shown = " ".join(result.output.split())
    assert "Masked sums off" in shown
    assert "Blind matching off" in shown
    assert "Small groups on" in shown


def test_a_party_of_one_class_is_checked_without_a_rehearsal(tmp_path):
    study = write_study(tmp_path, 30, 200)
    lines = (tmp_path / "north.csv").read_text().split("\n")
    one = [lines[0], *(line[:-1] + "1" for line in lines[1:] if line)]
    (tmp_path / "north.csv").write_text("\n".join(one) + "\n")
    (tmp_path / "party.toml").write_text('name = "north"\ndata = "north.csv"\n')
    found = consortium.check(study, tmp_path / "party.toml")
    assert found.classes == {"1": 200}
    assert found.rehearsed is None


def test_a_rare_class_takes_part_in_the_rehearsal():
    y = np.zeros(100_000, dtype=int)
    y[:10] = 1
    drawn = consortium._spread(y, classes=True)
    assert len(drawn) == consortium.REHEARSED_ROWS
    assert y[drawn].sum() >= 1
