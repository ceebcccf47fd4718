import msgspec
import numpy as np
import pytest

import simfl
from simfl.errors import ParameterError, PrivacyError, UnknownParameterError
from simfl.params import NAMES, RECIPES, builder_bins, defaults, descriptions, prepare_params, split, train_params


@pytest.mark.parametrize("recipe", list(RECIPES))
def test_a_recipe_fills_in_what_is_not_given(recipe):
    filled = {
        **msgspec.structs.asdict(prepare_params(recipe=recipe)),
        **msgspec.structs.asdict(train_params(recipe=recipe)),
    }
    assert {name: filled[name] for name in RECIPES[recipe]} == RECIPES[recipe]


def test_a_recipe_leaves_what_is_given():
    stage1 = prepare_params(recipe="paper", n_neighbors=7, bucket_width=1.5, scale="standard")
    assert (stage1.n_neighbors, stage1.bucket_width, stage1.scale) == (7, 1.5, "standard")
    assert train_params(recipe="paper", leaf_values="global").leaf_values == "global"


@pytest.mark.parametrize("params", [{}, {"n_neighbors": 2}])
def test_default_is_another_name_of_similar(params):
    default, similar = prepare_params(**params), prepare_params(recipe="similar", **params)
    assert msgspec.structs.replace(similar, recipe="default") == default
    assert msgspec.structs.replace(train_params(recipe="similar"), recipe="default") == train_params()


def test_joint_has_values_of_its_own():
    stage1, stage2 = prepare_params(recipe="joint"), train_params(recipe="joint")
    assert (stage1.n_neighbors, stage2.min_group, stage2.leaf_values) == (0, 30, "global")
    assert stage2.count_epsilon == 0.1


@pytest.mark.parametrize(
    "given",
    [{"n_hashes": 5}, {"matching": "shared"}, {"n_neighbors": 2}, {"scale": "none"}],
)
def test_joint_refuses_what_belongs_to_a_search(given):
    with pytest.raises(ParameterError, match="not available with recipe='joint': no similar rows"):
        prepare_params(recipe="joint", **given)


@pytest.mark.parametrize(
    "given",
    [
        {"rematch": 10},
        {"leaf_values": "builder"},
    ],
)
def test_joint_refuses_what_belongs_to_a_builder(given):
    with pytest.raises(ParameterError, match=f"^{next(iter(given))}=.* is not available with recipe='joint'"):
        train_params(recipe="joint", **given)


@pytest.mark.parametrize("recipe", ["default", "similar", "paper"])
def test_a_knob_of_joint_is_refused_elsewhere(recipe):
    with pytest.raises(ParameterError, match=r"is a parameter of recipe='joint' only\. Leave it out"):
        train_params(recipe=recipe, count_epsilon=1.0)


@pytest.mark.parametrize("recipe", ["default", "similar", "paper"])
def test_epsilon_is_refused_elsewhere(recipe):
    said = (
        "epsilon is a parameter of recipe='joint': there everything that leaves a party is differentially private. "
        "Set recipe='joint', or leave epsilon out."
    )
    rng = np.random.default_rng(0)
    parties = [simfl.Party(name, rng.normal(size=(20, 3)), np.arange(20) % 2) for name in "ab"]
    for refuses in (prepare_params, train_params, lambda **given: simfl.train(parties, **given)):
        with pytest.raises(ParameterError) as refused:
            refuses(recipe=recipe, epsilon=2.0)
        assert str(refused.value) == said
    with pytest.raises(ParameterError) as refused:
        train_params(recipe=recipe, epsilon=2.0, rows=40)  # what goes with it is not named first
    assert str(refused.value) == said


def test_zero_neighbors_are_a_choice_and_not_a_gap():
    assert prepare_params(n_neighbors=0).n_neighbors == 0


def test_every_parameter_has_a_description_and_a_default():
    assert set(descriptions()) == set(defaults()) == set(NAMES)
    assert all(text.strip() for text in descriptions().values())


def test_parameters_of_both_stages_have_one_default():
    shared = set(prepare_params().__struct_fields__) & set(train_params().__struct_fields__)
    assert shared == {"recipe", "masked", "epsilon", "random_state", "n_jobs"}
    assert all(getattr(prepare_params(), name) == getattr(train_params(), name) for name in shared)


def test_the_parameters_are_sorted_by_stage():
    first, second = split({"n_hashes": 3, "n_trees": 5, "random_state": 1})
    assert first == {"n_hashes": 3, "random_state": 1}
    assert second == {"n_trees": 5, "random_state": 1}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n_trees", 0),
        ("n_trees", 2.5),
        ("n_trees", "ten"),
        ("n_trees", True),
        ("n_trees", None),
        ("learning_rate", 0),
        ("learning_rate", float("nan")),
        ("max_depth", -1),
        ("subsample", 0),
        ("subsample", 1.01),
        ("colsample_bytree", 0),
        ("max_bin", 1),
        ("reg_lambda", -1),
        ("min_child_weight", -0.1),
        ("early_stopping_rounds", 0),
        ("objective", "rank:ndcg"),
        ("leaf_values", "mean"),
        ("recipe", "papre"),
        ("random_state", -1),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(name, value):
    with pytest.raises(ParameterError, match=f"^{name}=.* is not possible"):
        train_params(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n_hashes", 0),
        ("n_hashes", 256),
        ("bucket_width", 0),
        ("bucket_width", -4.0),
        ("n_neighbors", -1),
        ("known_features", -1),
        ("validation_fraction", 1.0),
        ("validation_fraction", -0.1),
        ("scale", "minmax"),
        ("hash_law", "levy"),
    ],
)
def test_a_stage_1_value_out_of_range_is_refused_by_name(name, value):
    with pytest.raises(ParameterError, match=f"^{name}=.* is not possible"):
        prepare_params(**{name: value})


def test_a_wrong_choice_is_told_the_possible_ones():
    with pytest.raises(ParameterError, match=r"default.*paper"):
        train_params(recipe="papre")


@pytest.mark.parametrize("name", ["learning_rate", "reg_lambda", "gamma", "base_score"])
def test_an_infinite_parameter_is_refused(halves, name):
    with pytest.raises(ParameterError, match=name):
        simfl.train(halves, n_trees=1, objective="reg:squarederror", callbacks=[], **{name: float("inf")})


def test_an_infinite_bucket_width_is_refused(halves):
    with pytest.raises(ParameterError, match="bucket_width"):
        simfl.train(halves, n_trees=1, callbacks=[], bucket_width=float("inf"))


def test_a_seed_too_large_to_send_is_refused(halves):
    with pytest.raises(ParameterError, match="random_state"):
        simfl.train(halves, n_trees=1, callbacks=[], random_state=2**70)


def test_an_unknown_parameter_suggests_the_near_one(halves):
    with pytest.raises(UnknownParameterError, match=r"'n_tree'.*Did you mean 'n_trees'"):
        simfl.train(halves, n_tree=3)


def test_an_unknown_parameter_with_nothing_near_lists_the_known(halves):
    with pytest.raises(UnknownParameterError, match=r"'qqqqqq'.*n_trees"):
        simfl.train(halves, qqqqqq=3)


def test_an_unknown_parameter_is_a_type_error_as_in_python(halves):
    with pytest.raises(TypeError):
        simfl.train(halves, n_tree=3)


def test_numpy_scalars_are_accepted():
    checked = train_params(n_trees=np.int64(3), learning_rate=np.float32(0.5), random_state=np.uint32(4))
    assert (checked.n_trees, checked.learning_rate, checked.random_state) == (3, 0.5, 4)
    assert prepare_params(masked=np.bool_(True)).masked is True


@pytest.mark.parametrize("draw", [np.random.RandomState, np.random.default_rng])
def test_a_generator_as_random_state_gives_a_seed(draw):
    seeds = [train_params(random_state=draw(3)).random_state for _ in range(2)]
    assert seeds[0] == seeds[1] >= 0


def test_a_stage_1_parameter_is_refused_after_stage_1(halves):
    ready = simfl.prepare(halves, random_state=0)
    with pytest.raises(ParameterError, match=r"'n_hashes' belongs to simfl\.prepare \(stage 1\)"):
        simfl.train(ready, n_hashes=3)


def test_a_stage_2_parameter_given_to_prepare_is_sent_to_train(halves):
    with pytest.raises(ParameterError, match=r"'n_trees'.*simfl\.train"):
        simfl.prepare(halves, n_trees=3)


def test_a_preparation_keeps_its_recipe(halves):
    ready = simfl.prepare(halves, recipe="paper", random_state=0)
    from_ready = simfl.train(ready, n_trees=3, random_state=0, callbacks=[])
    at_once = simfl.train(halves, recipe="paper", n_trees=3, random_state=0, callbacks=[])
    assert from_ready.booster.get_dump() == at_once.booster.get_dump()


def test_as_many_hashes_as_features_are_refused(halves):
    with pytest.raises(PrivacyError, match=r"n_hashes=5 with 5 features.*n_hashes=4 or fewer"):
        simfl.prepare(halves, n_hashes=5)


def test_early_stopping_without_validation_rows_says_how_to_get_some(halves):
    with pytest.raises(ParameterError, match=r"validation_fraction=0\.2"):
        simfl.train(halves, early_stopping_rounds=2)


@pytest.mark.parametrize(
    ("typed", "meant"), [("eta", "learning_rate"), ("n_estimators", "n_trees"), ("n_hash", "n_hashes")]
)
def test_words_of_xgboost_and_scikit_learn_lead_to_ours(typed, meant):
    with pytest.raises(UnknownParameterError, match=f"no parameter '{typed}'. Did you mean '{meant}'"):
        simfl.SimFLClassifier(**{typed: 5})


def test_every_door_documents_its_parameters():
    for door in (simfl.train, simfl.SimFLClassifier, simfl.SimFLRegressor):
        assert all(f"    {name} (default" in door.__doc__ for name in ("n_trees", "n_neighbors", "rematch"))
    assert "n_hashes (default None)" in simfl.prepare.__doc__
    assert "n_trees" not in simfl.prepare.__doc__


@pytest.mark.parametrize(
    ("n_parties", "rows_each", "given", "bins"),
    [
        (1, 1_000, {}, 256),  # one party is XGBoost
        (2, 1_000, {}, 128),
        (10, 50_000, {}, 128),
        (2, 50_001, {}, 64),
        (10, 1_000, {"recipe": "paper"}, 256),
    ],
)
def test_builders_bins_follow_from_parties_and_rows(n_parties, rows_each, given, bins):
    assert builder_bins(train_params(**given), n_parties, n_parties * rows_each) == bins


def test_a_study_that_would_continue_from_a_model_learns_where_that_works():
    with pytest.raises(UnknownParameterError, match="between machines a training begins from nothing"):
        split({"init_model": "model.ubj"})
