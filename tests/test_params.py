import inspect

import numpy as np
import pytest

import simfl
from simfl.errors import ParameterError, PrivacyError, UnknownParameterError
from simfl.params import (
    NAMES,
    PREPARE_NAMES,
    RECIPES,
    builder_bins,
    defaults,
    descriptions,
    prepare_params,
    train_params,
)


def test_a_recipe_has_values_of_its_own():
    similar, paper, joint = (train_params(recipe=recipe) for recipe in RECIPES)
    assert train_params() == similar
    assert (similar.n_neighbors, similar.matching, similar.min_group, similar.rematch) == (5, "blind", 1, 50)
    assert (paper.n_neighbors, paper.matching, paper.bucket_width, paper.leaf_values) == (1, "shared", 4.0, "builder")
    assert (joint.n_neighbors, joint.min_group, joint.leaf_values) == (0, 30, "global")


def test_a_recipe_leaves_what_is_given():
    given = prepare_params(recipe="paper", n_neighbors=7, bucket_width=1.5)
    assert (given.n_neighbors, given.bucket_width) == (7, 1.5)


def test_no_recipe_has_more_than_it_can_read():
    counts = {recipe: len({*struct.__struct_fields__} & {*NAMES}) + 1 for recipe, struct in RECIPES.items()}
    assert max(counts.values()) <= 35, counts
    assert len(NAMES) <= 45


@pytest.mark.parametrize(
    ("recipe", "given", "owners"),
    [
        ("joint", {"n_hashes": 5}, "recipe='similar' and recipe='paper' only"),
        ("joint", {"matching": "shared"}, "recipe='similar' and recipe='paper' only"),
        ("joint", {"n_neighbors": 0}, "recipe='similar' and recipe='paper' only"),
        ("joint", {"rematch": 10}, "recipe='similar' only"),
        ("paper", {"rematch": 10}, "recipe='similar' only"),
        ("similar", {"epsilon": 2.0}, "recipe='joint'"),
        ("paper", {"epsilon": 2.0, "rows": 40}, "recipe='joint'"),
        ("similar", {"rows": 40}, "recipe='joint'"),
        ("joint", {"rows": 40}, "recipe='joint' with epsilon only"),
    ],
)
def test_a_parameter_of_another_recipe_is_refused_with_the_recipes_name(halves, recipe, given, owners):
    name = next(iter(given))
    for refuses in (train_params, lambda **params: simfl.train(halves, **params)):
        with pytest.raises(ParameterError, match=f"^{name} is a parameter of {owners}.*[Ll]eave"):
            refuses(recipe=recipe, **given)


@pytest.mark.parametrize("name", ["leaf_values", "extra_depth", "label_spread"])
def test_what_a_training_settles_is_no_parameter(halves, name):
    with pytest.raises(UnknownParameterError, match=f"no parameter '{name}'"):
        simfl.train(halves, **{name: 1})


@pytest.mark.parametrize(
    ("door", "names"),
    [
        (simfl.train, NAMES),
        (simfl.prepare, PREPARE_NAMES),
        (simfl.SimFLClassifier, NAMES),
        (simfl.SimFLRegressor, NAMES),
        (simfl.SimFLSurvival, NAMES),
    ],
)
def test_signatures_list_every_parameter_with_its_default(door, names):
    listed = {n: p.default for n, p in inspect.signature(door).parameters.items() if n in NAMES}
    own = {"objective": None} if isinstance(door, type) else {"recipe": None} if door is simfl.train else {}
    assert [*listed] == [*names]
    assert listed == {name: defaults()[name] for name in names} | own


def test_zero_neighbors_are_a_choice_and_not_a_gap():
    assert prepare_params(n_neighbors=0).n_neighbors == 0


def test_every_parameter_has_a_description_and_a_default():
    assert set(descriptions()) == set(defaults()) == set(NAMES)
    assert all(text.strip() for text in descriptions().values())


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
        ("hash_law", "levy"),
    ],
)
def test_a_stage_1_value_out_of_range_is_refused_by_name(name, value):
    with pytest.raises(ParameterError, match=f"^{name}=.* is not possible"):
        prepare_params(**{name: value})


def test_a_wrong_choice_is_told_the_possible_ones():
    with pytest.raises(ParameterError, match=r"similar.*paper"):
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
        train_params(init_model="model.ubj")
