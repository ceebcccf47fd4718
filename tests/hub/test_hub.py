"""Both stages end to end, through the public doors and through transports made for the purpose."""

import numpy as np
import pytest
import xgboost as xgb
from scipy import sparse

import simfl
from simfl import messages as msg
from simfl.errors import DataError, FileError, ParameterError, PrivacyError
from simfl.hub.precision import Precision, neighbors_of, ordinary
from simfl.params import train_params
from simfl.privacy.words import FORMS, most_steps
from simfl.transport.local import LocalTransport
from tests.wire import (
    bits,
    by_party,
    metrics,
    model_bits,
    parties,
    recorded,
    row_sums,
    rows,
    sessions,
    similar_rows,
    train,
    under_training,
)

QUICK = {"n_trees": 6, "max_depth": 3, "random_state": 0}


def same(one, other):
    return model_bits(one) == model_bits(other)


# --- one party is XGBoost --------------------------------------------------------------------------------------------

TARGETS = {
    "binary:logistic": lambda X, y: y,
    "multi:softprob": lambda X, y: np.digitize(X[:, 0], [-0.7, 0.1, 0.9]),
    "reg:squarederror": lambda X, y: X[:, 0] * 3 + X[:, 1] ** 2,
}


@pytest.mark.parametrize("recipe", ["similar", "paper"])
@pytest.mark.parametrize("objective", TARGETS)
def test_one_party_is_plain_boosting(objective, recipe):
    X, y = rows(500, 3)
    X[::7, 1] = np.nan
    y = TARGETS[objective](np.nan_to_num(X), y)
    model = simfl.train([simfl.Party("only", X, y)], objective=objective, recipe=recipe, n_trees=40, max_depth=6)
    params = {"objective": objective, "max_depth": 6, "learning_rate": 0.1, "nthread": 1}
    if objective == "multi:softprob":
        params["num_class"] = 4
    theirs = xgb.train(params, xgb.QuantileDMatrix(X, y), 40).predict(xgb.DMatrix(X), output_margin=True)
    if objective == "multi:softprob":  # XGBoost's own start value of several classes is rounded otherwise
        assert np.abs(model.margins(X) - theirs).max() < 1e-5
    else:
        assert (model.margins(X) == theirs).all()


def test_one_party_with_weights_and_sparse_rows_is_plain_boosting():
    rng = np.random.default_rng(0)
    X = sparse.random(400, 20, density=0.3, format="csr", dtype=np.float32, random_state=0)
    y = (np.asarray(X.sum(axis=1)).ravel() > 3).astype(int)
    w = rng.integers(1, 4, 400).astype(np.float32)
    model = simfl.train([simfl.Party("only", X, y, sample_weight=w)], n_trees=50, base_score=0.4)
    data = xgb.QuantileDMatrix(X, y, weight=w)
    params = {"objective": "binary:logistic", "max_depth": 6, "learning_rate": 0.1, "base_score": 0.4}
    theirs = xgb.train(params, data, 50).predict(xgb.DMatrix(X), output_margin=True)
    assert np.abs(model.margins(X) - theirs).max() < 1e-4


# --- the same seed gives the same model ------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_model_bit_for_bit():
    assert same(simfl.train(parties(80, 50, 60), **QUICK), simfl.train(parties(80, 50, 60), **QUICK))
    assert not same(
        simfl.train(parties(80, 50, 60), **QUICK), simfl.train(parties(80, 50, 60), **{**QUICK, "random_state": 1})
    )


def test_threads_change_no_bit():
    assert same(
        simfl.train(parties(80, 50, 60), n_jobs=1, **QUICK), simfl.train(parties(80, 50, 60), n_jobs=3, **QUICK)
    )


class Shuffled(LocalTransport):
    """Asks the parties, and hands out their replies, in another order."""

    def ask_all(self, messages):
        backwards = dict(reversed(messages.items()))
        return super().ask_all(backwards)


@pytest.mark.parametrize("recipe", ["similar", "paper"])
def test_the_result_does_not_depend_on_the_order_in_which_parties_reply(recipe):
    one, other = (
        train(kind(sessions(parties(40, 50, 60, 30), secret=0)), recipe=recipe, **QUICK)
        for kind in (LocalTransport, Shuffled)
    )
    assert bits(one) == bits(other)
    assert metrics(one) == metrics(other)


# --- preparation -----------------------------------------------------------------------------------------------------


def test_training_from_a_preparation_equals_training_from_scratch():
    ready = simfl.prepare(parties(80, 50), n_hashes=4, random_state=0)
    for depth in (2, 4):
        scratch = simfl.train(parties(80, 50), n_hashes=4, random_state=0, n_trees=6, max_depth=depth)
        assert same(simfl.train(ready, n_trees=6, max_depth=depth), scratch)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_a_saved_preparation_trains_the_same_model(tmp_path, kind):
    members = parties(80, 50)
    if kind == "sparse":
        members = [simfl.Party(p.name, sparse.csr_matrix(p.rows.X), p.rows.y) for p in members]
    ready = simfl.prepare(members, validation_fraction=0.2, random_state=0)
    ready.save(tmp_path / "ready")
    again = simfl.Preparation.load(tmp_path / "ready", members)
    assert same(simfl.train(ready, **QUICK), simfl.train(again, **QUICK))
    assert not [p for p in tmp_path.iterdir() if p.name != "ready"]


def test_a_saved_preparation_holds_no_row(tmp_path):
    members = parties(80, 50)
    simfl.prepare(members, random_state=0).save(tmp_path / "ready")
    stored = b"".join(p.read_bytes() for p in (tmp_path / "ready").iterdir())
    for party in members:
        assert not any(row.tobytes() in stored for row in party.rows.X[:, :2])


def test_a_preparation_is_refused_for_other_tables(tmp_path):
    simfl.prepare(parties(80, 50), random_state=0).save(tmp_path / "ready")
    with pytest.raises(FileError, match=r"party 'p1'.*Prepare again: simfl\.prepare"):
        simfl.Preparation.load(tmp_path / "ready", parties(80, 51))
    with pytest.raises(DataError, match="of the parties"):
        simfl.Preparation.load(tmp_path / "ready", parties(80))
    with pytest.raises(FileError, match="no preparation"):
        simfl.Preparation.load(tmp_path / "elsewhere", parties(80, 50))


def test_saving_over_something_else_destroys_nothing(tmp_path):
    precious = tmp_path / "thesis"
    precious.mkdir()
    (precious / "chapter.txt").write_text("words")
    ready = simfl.prepare(parties(30, 30), random_state=0)
    with pytest.raises(FileError, match="left as it is"):
        ready.save(precious)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis"]
    ready.save(tmp_path / "ready")
    ready.save(tmp_path / "ready")  # an older preparation is replaced


def test_two_preparations_of_the_same_parties_do_not_disturb_each_other():
    members = parties(80, 50)
    first = simfl.prepare(members, n_hashes=5, random_state=0)
    before = simfl.train(first, **QUICK)
    simfl.train(simfl.prepare(members, n_hashes=1, random_state=9), n_trees=3)
    assert same(simfl.train(first, **QUICK), before)


def test_as_many_hashes_as_features_are_refused():
    with pytest.raises(PrivacyError, match="n_hashes=5 or fewer"):
        simfl.prepare(parties(30, 30), n_hashes=6)
    simfl.prepare(parties(30, 30), n_hashes=6, known_features=None)


@pytest.mark.parametrize("more", [{"hash_law": "cauchy"}, {"n_neighbors": 3}, {"recipe": "paper"}])
def test_every_way_of_hashing_trains(more):
    model = simfl.train(parties(80, 50), **QUICK, **more)
    assert model.history[-1].train["logloss"] < 0.65


# --- the main loop ---------------------------------------------------------------------------------------------------


def test_every_gradient_lands_exactly_once_at_the_builder():
    members = parties(40, 50, 60)
    seen = recorded(members)
    train(seen, objective="reg:squarederror", n_trees=1, base_score=0.0, random_state=0)
    labels = {party.name: party.rows.y.astype(float) for party in members}
    sums = [hop for hop in seen.log if isinstance(hop[2], msg.RowSums)]
    assert sorted(party for party, _, _ in sums) == ["p1", "p2"]
    for party, message, reply in sums:
        g, h = row_sums(reply.sums, message)
        assert g.sum() == pytest.approx(-labels[party].sum(), abs=1e-6)
        assert h.sum() == len(labels[party])


def test_identical_rows_find_each_other():
    X, y = rows(60, 0)
    order = np.random.default_rng(0).permutation(60)
    members = [simfl.Party("a", X, y), simfl.Party("b", X[order], y[order])]
    ready = simfl.prepare(members, n_neighbors=1, bucket_width=0.05, matching="shared", random_state=0)
    similar = {name: similar_rows(session) for name, session in ready.transport.handlers.items()}
    assert (order[similar["a"]["b"][:, 0]] == np.arange(60)).all()
    assert (similar["b"]["a"][:, 0] == order).all()
    assert ready.about.equal_hashes["a"]["b"] == ready.about.n_hashes


def test_parties_with_identical_rows_train_as_one():
    # Every gradient finds its own row, so the builder sees exactly twice its gradients: plain boosting, lambda halved.
    X, y = rows(200, 0)
    members = [simfl.Party("a", X, y), simfl.Party("b", X, y)]
    model = simfl.train(
        members, recipe="paper", bucket_width=0.05, n_trees=20, reg_lambda=2.0, min_child_weight=2.0, random_state=0
    )
    alone = simfl.train([simfl.Party("a", X, y)], n_trees=20, reg_lambda=1.0, min_child_weight=1.0)
    assert np.abs(model.margins(X) - alone.margins(X)).max() < 1e-3


def test_turns_go_round():
    model = simfl.train(parties(30, 30, 30), **QUICK)
    assert [r.builder for r in model.history] == ["p0", "p1", "p2"] * 2


def test_multiclass_grows_a_tree_per_class_in_every_round():
    members = [
        simfl.Party(f"p{i}", X, np.digitize(X[:, 0], [-0.5, 0.5]))
        for i, (X, _) in enumerate([rows(90, 0), rows(70, 1)])
    ]
    model = simfl.train(members, objective="multi:softprob", **QUICK)
    assert model.n_trees == 6
    assert len(model.booster.get_dump()) == 18
    X, _ = rows(300, 9)
    assert model.predict_proba(X).sum(axis=1) == pytest.approx(1)
    assert (model.predict(X) == np.digitize(X[:, 0], [-0.5, 0.5])).mean() > 0.9


def test_a_party_may_lack_classes():
    X, _ = rows(120, 0)
    y = np.digitize(X[:, 0], [-0.5, 0.5])
    members = [simfl.Party("low", X[y < 2], y[y < 2]), simfl.Party("high", X[y > 0], y[y > 0])]
    model = simfl.train(members, objective="multi:softprob", **QUICK)
    assert model.classes.tolist() == [0, 1, 2]


@pytest.mark.parametrize("recipe", ["similar", "paper"])
def test_a_party_with_one_class_or_a_single_row_takes_part(recipe):
    X, y = rows(100, 0)
    members = [simfl.Party("many", X, y), simfl.Party("ill", X[y == 1], y[y == 1]), simfl.Party("one", X[:1], y[:1])]
    model = simfl.train(members, recipe=recipe, **QUICK)
    assert {r.builder for r in model.history} == {"many", "ill", "one"}
    assert np.isfinite(model.margins(X)).all()


def test_the_start_value_is_the_label_mean_of_all_parties():
    import json

    members = parties(80, 50)
    y = np.concatenate([p.rows.y for p in members])
    saved = json.loads(simfl.train(members, **QUICK).booster.save_raw("json"))
    score = saved["learner"]["learner_model_param"]["base_score"].strip("[]")
    assert float(score) == pytest.approx(y.mean(), abs=1e-6)


def test_sample_weights_count():
    X, y = rows(150, 0)
    light = simfl.Party("a", X, y, sample_weight=np.where(y == 1, 1e-3, 1.0))
    model = simfl.train([light, simfl.Party("b", *rows(20, 1))], n_trees=30, random_state=0)
    assert model.predict_proba(X)[:, 1].mean() < 0.3


def test_missing_values_are_no_obstacle():
    X, y = rows(200, 0)
    X[np.random.default_rng(0).random(X.shape) < 0.2] = np.nan
    model = simfl.train([simfl.Party("a", X[:120], y[:120]), simfl.Party("b", X[120:], y[120:])], **QUICK)
    assert np.isfinite(model.margins(X)).all()
    assert model.history[-1].train["logloss"] < 0.65


def test_the_last_record_tells_the_model_itself():
    members = parties(80, 50)
    model = simfl.train(members, **QUICK)
    p = np.concatenate([model.predict_proba(m.rows.X)[:, 1] for m in members])
    y = np.concatenate([m.rows.y for m in members])
    loss = -np.mean(np.where(y == 1, np.log(p), np.log(1 - p)))
    assert len(model.history) == 6
    assert model.history[-1].train["logloss"] == pytest.approx(loss, abs=1e-5)
    assert all(r.seconds > 0 and r.bytes > 0 for r in model.history)


@pytest.mark.parametrize("matching", ["blind", "shared"])
def test_similar_rows_are_found_again_by_the_trees(matching):
    seen = recorded(parties(60, 50, 40))
    train(seen, matching=matching, random_state=0, n_trees=20, max_depth=3, rematch=4)
    asked = [question for question, _ in by_party(seen.log)["p0"]]
    assert [m.round for m in asked if isinstance(m, msg.HashByTrees)] == [4, 8, 16]
    assert [m.round for m in asked if isinstance(m, msg.Match | msg.TakeSimilar)] == [0, 4, 8, 16]


def test_a_rematch_lasts_for_one_training_only():
    ready = simfl.prepare(parties(60, 50), random_state=0)

    def kept():
        sessions = ready.transport.handlers.values()
        return [ids.tolist() for session in sessions for ids in similar_rows(session).values()]

    before = kept()
    one, other = (simfl.train(ready, n_trees=10, max_depth=3, rematch=2) for _ in range(2))
    assert same(one, other)
    assert kept() == before
    assert not same(one, simfl.train(ready, n_trees=10, max_depth=3, rematch=0))


def test_rows_in_the_same_leaves_resemble_each_other():
    # Only the first feature counts. Hashes of nine features hardly see it, the trees see nothing else.
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 9)).astype(np.float32)
    y = X[:, 0] * 3
    members = [simfl.Party("a", X[:300], y[:300]), simfl.Party("b", X[300:], y[300:])]
    transport = LocalTransport(sessions(members))
    distances = []

    class Watch(simfl.Callback):
        def after_tree(self, record):
            run = under_training(transport.handlers["a"])
            if run:  # it is over when the last scores come in
                distances.append(np.abs(X[:300, 0][:, None] - X[300:, 0][run.similar.rows["b"].unpacked()]).mean())

    params = {"objective": "reg:squarederror", "n_trees": 12, "max_depth": 3, "rematch": 8}
    train(transport, callbacks=[Watch()], matching="shared", random_state=0, **params)
    assert distances[9] < 0.3 * distances[0]


def test_a_rematch_after_the_first_tree_works():
    assert simfl.train(parties(60, 50), n_trees=5, max_depth=3, rematch=1, random_state=0).n_trees == 5


# --- validation and early stopping -----------------------------------------------------------------------------------


def test_validation_rows_are_watched_and_not_trained_on():
    X, y = rows(200, 0)
    held = (X[150:], y[150:])
    model = simfl.train(
        [simfl.Party("a", X[:80], y[:80], validation=held), simfl.Party("b", X[80:150], y[80:150])], **QUICK
    )
    p = model.predict_proba(held[0])[:, 1]
    loss = -np.mean(np.where(held[1] == 1, np.log(p), np.log(1 - p)))
    assert model.history[-1].validation["logloss"] == pytest.approx(loss, abs=1e-5)


def test_each_party_sets_a_share_aside():
    ready = simfl.prepare(parties(100, 50, 1), validation_fraction=0.2, random_state=0)
    assert ready.about.n_rows == [80, 40, 1]
    assert ready.about.n_validation_rows == [20, 10, 0]


def test_early_stopping_keeps_the_best_trees():
    rng = np.random.default_rng(0)
    members = [simfl.Party(n, rng.normal(size=(80, 5)), rng.integers(0, 2, 80)) for n in "ab"]  # nothing to learn
    model = simfl.train(
        members, n_trees=200, validation_fraction=0.3, early_stopping_rounds=5, random_state=0, learning_rate=0.5
    )
    losses = [r.validation["logloss"] for r in model.history]
    assert len(losses) < 200
    assert model.n_trees == int(np.argmin(losses)) + 1
    assert len(losses) == model.n_trees + 5


def test_early_stopping_without_validation_rows_is_refused():
    with pytest.raises(ParameterError, match="validation_fraction"):
        simfl.train(parties(30, 30), early_stopping_rounds=3)


def test_a_callback_sees_every_tree_and_can_stop():
    class Stop(simfl.Callback):
        seen = 0

        def after_tree(self, record):
            self.seen += 1
            return record.round == 3

    stop = Stop()
    model = simfl.train(parties(30, 30), n_trees=50, callbacks=[stop], random_state=0)
    assert stop.seen == len(model.history) == model.n_trees == 4


def test_traffic_is_counted_as_it_travels():
    model = simfl.train(parties(80, 50), **QUICK)
    sent = model.traffic["p1"]["sent"]
    assert sent["HiddenRows"] > 50 * 5
    assert 3 * 80 * 3 < sent["RowSums"] < 3 * 80 * 5  # three of six trees are built by the other, 3 bytes per row of it
    assert model.n_bytes == sum(n for p in model.traffic.values() for w in p.values() for n in w.values())
    ready = simfl.prepare(parties(80, 50), random_state=0)
    assert "HiddenRows" not in simfl.train(ready, **QUICK).traffic["p1"]["sent"]


def test_a_preparation_of_one_recipe_is_refused_for_the_other():
    ready = simfl.prepare(parties(30, 30), random_state=0)
    with pytest.raises(ParameterError, match="prepared with recipe='similar'"):
        simfl.train(ready, recipe="paper")


def test_dense_and_sparse_parties_do_not_mix():
    X, y = rows(30, 0)
    with pytest.raises(DataError, match=r"'thin'.*sparse"):
        simfl.train([simfl.Party("a", X, y), simfl.Party("thin", sparse.csr_matrix(X), y)])


def test_a_training_can_have_its_own_number_of_threads():
    ready = simfl.prepare(parties(60, 50), random_state=0, n_jobs=2)
    one = simfl.train(ready, n_jobs=1, **QUICK)
    assert ready.transport.n_jobs == 1
    assert same(one, simfl.train(ready, n_jobs=3, **QUICK))


def test_the_default_leaves_out_columns_that_are_known_or_follow_from_others():
    assert simfl.prepare(parties(30, 30), known_features=3, random_state=0).about.n_hashes == 2
    assert simfl.prepare(parties(30, 30), known_features=None, random_state=0).about.n_hashes == 5
    with pytest.raises(PrivacyError, match="n_hashes=2 or fewer"):
        simfl.prepare(parties(30, 30), known_features=3, n_hashes=3)


def test_callbacks_are_told_of_the_end_also_after_an_error():
    class Fragile(simfl.Callback):
        ended = False

        def after_tree(self, record):
            raise RuntimeError("broken")

        def after_training(self, history):
            self.ended = True

    fragile = Fragile()
    with pytest.raises(RuntimeError, match="broken"):
        simfl.train(parties(30, 30), n_trees=5, callbacks=[fragile], random_state=0)
    assert fragile.ended


def test_one_feature_with_hashing_insisted_on():
    members = [simfl.Party(n, *rows(30, i, d=3)) for i, n in enumerate("ab")]
    members = [simfl.Party(m.name, m.rows.X[:, :1], m.rows.y) for m in members]
    assert simfl.train(members, known_features=None, **QUICK).n_trees == 6


def test_a_column_that_does_not_vary_does_no_harm(table, labels):
    flat = np.column_stack([table, np.full(len(table), 7.0), np.zeros(len(table))])
    members = [simfl.Party("a", flat[:30], labels[:30]), simfl.Party("b", flat[30:], labels[30:])]
    assert simfl.train(members, **QUICK).n_trees == 6


def announced(n_parties):
    total = {"total_gradient": 1024.0, "total_hessian": 256.0}
    return {f"p{i}": msg.Started(gradient=1.0, hessian=0.25, **total) for i in range(n_parties)}


@pytest.mark.parametrize(
    ("n_parties", "uses", "word_bytes"), [(2, 40, 3), (10, 80, 3), (10, 150, 4), (10, 2000, 8), (50, 80, 4)]
)
def test_sums_that_only_find_splits_take_as_many_bytes_as_keep_ordinary_rows_visible(n_parties, uses, word_bytes):
    started = announced(n_parties)
    usual = ordinary(started, dict.fromkeys(started, 1000), train_params())
    assert usual == (1.0, 0.25)
    found = Precision(started, ordinary=usual, neighbors=dict.fromkeys(started, 5)).onto_rows(
        dict.fromkeys(started, uses)
    )
    assert found.word_bytes == word_bytes
    assert found.exponents[0] <= -4
    assert found.exponents[1] <= -4


def test_a_builder_with_few_rows_gets_the_whole_sums():
    """All rows of "b" draw one of the three rows of "a": on average 333 land on each, and there is room for them."""
    started = {name: announced(1)["p0"] for name in ("a", "b")}
    usual = ordinary(started, {"a": 3, "b": 1000}, train_params())
    precision = Precision(started, ordinary=usual, neighbors=neighbors_of({"a": 3, "b": 1000}, 5))
    (_, unit), word_bytes = precision.onto_rows({"a": 15, "b": 1000})
    _, most = most_steps(FORMS[word_bytes], 2)
    assert most * 2.0**unit >= 0.25 * (333 + 2 * 333**0.5)


@pytest.mark.parametrize(("weight", "word_bytes"), [(1.0, 3), (8.0, 4), (64.0, 7)])
def test_rows_of_little_weight_stay_visible_beside_heavy_ones(weight, word_bytes):
    heavy = msg.Started(gradient=weight, hessian=0.25 * weight, total_gradient=1024.0, total_hessian=256.0)
    started = announced(2) | {"heavy": heavy}  # one row of it
    usual = ordinary(started, dict.fromkeys(started, 1000), train_params())
    found = Precision(started, ordinary=usual, neighbors=dict.fromkeys(started, 5)).onto_rows(
        dict.fromkeys(started, 40)
    )
    assert found.word_bytes == word_bytes
    assert found.exponents[0] <= -4


@pytest.mark.parametrize("params", [{"recipe": "paper"}, {"leaf_values": "builder"}, {"objective": "reg:squarederror"}])
def test_sums_are_exact_where_more_than_splits_depends_on_them(params):
    seen = recorded(regression(60, 50) if "objective" in params else parties(60, 50))
    train(seen, n_trees=2, random_state=0, **params)
    words = {m.word_bytes for _, m, _ in seen.log if isinstance(m, msg.SumOntoRows)}
    assert words <= {7, 8}


def regression(*sizes):
    return [simfl.Party(p.name, p.rows.X, p.rows.X[:, 0] * 3.0) for p in parties(*sizes)]


@pytest.mark.parametrize("more", [{}, {"matching": "shared"}, {"min_group": 2}])
def test_what_is_rounded_at_random_is_the_same_in_every_run(more):
    """Blind matching shuffles the rows differently in every run: that decides nothing."""
    members = parties(200, 150, 100)
    settings = {"n_trees": 8, "rematch": 3, "random_state": 0, **more}
    one = simfl.train(members, **settings)
    assert model_bits(simfl.train(members, **settings)) == model_bits(one)
    assert model_bits(simfl.train(members, masked=True, **settings)) == model_bits(one)


@pytest.mark.parametrize(("uses", "word_bytes"), [(40, 7), (5000, 8)])
def test_hessians_take_three_bytes_only_while_that_is_fine_enough(uses, word_bytes):
    started = {
        f"p{i}": msg.Started(gradient=2.0, hessian=0.5, total_gradient=1e5, total_hessian=1e5) for i in range(10)
    }
    found = Precision(started).onto_rows(dict.fromkeys(started, uses))
    assert found.word_bytes == word_bytes
    assert 2.0 ** found.exponents[1] <= 0.5 * 2**-10  # small hessians do not vanish
