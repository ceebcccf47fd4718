import logging

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_diabetes, load_iris

import simfl
from simfl import integrations
from simfl.callbacks import LogLines, ProgressBar, default_callbacks
from simfl.errors import DataError, FileError, SimFLError


def test_mlflow_keeps_parameters_and_rounds(halves, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed: pip install 'simfl[mlflow]'")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    model = simfl.train(halves, n_trees=3, random_state=0, callbacks=[integrations.MLflow("a run")])
    assert mlflow.active_run() is None
    run = mlflow.last_active_run()
    assert run.info.run_name == "a run"
    assert run.data.params["max_depth"] == "6"
    assert run.data.params["parties"] == "a, b"
    told = mlflow.MlflowClient().get_metric_history(run.info.run_id, "train_logloss")
    assert [m.value for m in told] == pytest.approx([record.train["logloss"] for record in model.history])


def models():
    rng = np.random.default_rng(0)
    X, y = load_iris(return_X_y=True)
    X = X.astype(np.float32)
    X[rng.random(X.shape) < 0.1] = np.nan
    yield pytest.param(X, (y > 0).astype(int), "binary:logistic", id="binary")
    yield pytest.param(X, y, "multi:softprob", id="classes")
    X, y = load_diabetes(return_X_y=True)
    yield pytest.param(X.astype(np.float32), y, "reg:squarederror", id="numbers")


@pytest.mark.parametrize(("X", "y", "objective"), list(models()))
def test_onnx_predicts_the_same(X, y, objective, tmp_path):
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install 'simfl[onnx]'")
    frame = pd.DataFrame(X, columns=[f"column {i}" for i in range(X.shape[1])])
    parties = [simfl.Party(name, frame[i::2], y[i::2]) for i, name in enumerate("ab")]
    model = simfl.train(parties, objective=objective, n_trees=15, random_state=0)
    path = integrations.to_onnx(model, tmp_path / "m.onnx")
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    told = session.run(None, {"X": X})
    if objective == "reg:squarederror":
        np.testing.assert_allclose(told[0][:, 0], model.predict(frame), rtol=1e-5)
    else:
        np.testing.assert_allclose(told[1], model.predict_proba(frame), atol=1e-6)
        np.testing.assert_array_equal(told[0], model.predict(frame))
    assert model.feature_names[0] == "column 0"


def test_what_onnx_cannot_hold_is_told(tmp_path, halves):
    party = simfl.Party("a", pd.DataFrame({"ward": ["a", "b"] * 10, "n": range(20)}), [0, 1, 1, 0] * 5)
    with pytest.raises(DataError, match=r"categories \(ward\)"):
        integrations.to_onnx(simfl.train([party], n_trees=1), tmp_path / "m.onnx")
    with pytest.raises(FileError, match=r"must end in \.onnx"):
        integrations.to_onnx(simfl.train(halves, n_trees=1), tmp_path / "m.bin")


def test_a_missing_extra_says_what_to_install():
    with pytest.raises(SimFLError, match=r'pip install "simfl\[mlflow\]"'):
        integrations._import("a_package_that_does_not_exist", "mlflow")


def test_verbose_is_silence_a_bar_or_lines():
    assert default_callbacks(0) == []
    assert isinstance(default_callbacks(1)[0], ProgressBar)
    assert isinstance(default_callbacks(2)[0], LogLines)


def test_the_logger_tells_every_tree(halves, caplog):
    with caplog.at_level(logging.INFO, logger="simfl"):
        simfl.train(halves, n_trees=3, random_state=0, verbose=2)
    assert {record.name for record in caplog.records} == {"simfl"}
    assert sum("built by" in record.message for record in caplog.records) == 3
    assert "[2] train logloss" in caplog.text


def test_the_package_is_silent_by_default(halves, capsys):
    simfl.train(halves, n_trees=2)
    simfl.SimFLClassifier(n_trees=2).fit(np.eye(8), [0, 1] * 4)
    assert capsys.readouterr() == ("", "")
