"""One party lies. The run ends with an error that names it where that can be known, never silently with a ruined model.

Every lie is told by a real party, whose replies are changed on their way to the hub.
"""

import msgspec
import numpy as np
import pytest

import simfl
from simfl import messages as msg
from simfl import wire
from simfl.errors import DataError, ProtocolError
from simfl.hub.precision import ROUNDING, Precision
from simfl.transport.local import LocalTransport
from tests.wire import Between, Playback, bits, parties, rows, sessions, settled, train

PARAMS = {"n_trees": 3, "max_depth": 2, "random_state": 1, "rematch": 0}
replace = msgspec.structs.replace


def regression():
    return made(lambda name, X, y: simfl.Party(name, X, X[:, 0] + y))


def made(party):
    """Three parties, each made of its name, rows and labels."""
    return [party(f"p{i}", *rows(n, i)) for i, n in enumerate((40, 30, 30))]


def run(kind, lie, who="p1", members=None, **params):
    """A training in which one party's replies of a kind are changed."""

    def reply(message):
        return lie(message) if isinstance(message, kind) else message

    handlers = [
        Between(session, reply=reply) if session.name == who else session
        for session in sessions(members or parties(40, 30, 30), secret=1)
    ]
    return train(LocalTransport(handlers, 1), **PARAMS | params)


def honest(message):
    return message


# --- bounds ----------------------------------------------------------------------------------------------------------

BOUNDS = {
    "a gradient of 2 ** 1000": {"gradient": 2.0**1000, "total_gradient": 2.0**1000},
    "a total of 2 ** 1000": {"total_gradient": 2.0**1000},
    "hessians of 2 ** 1000": {"hessian": 2.0**1000, "total_hessian": 2.0**1000},
    "more than its rows can have": {"total_hessian": 2.0**20},
    "a gradient that does not belong to the hessian": {"gradient": 2.0**30, "total_gradient": 2.0**34},
    "less for all rows than for one": {"total_gradient": 0.5},
    "no power of two": {"gradient": 1.9, "hessian": 0.475},
}


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("what", BOUNDS)
def test_bounds_must_be_possible(what, masked):
    with pytest.raises(ProtocolError, match=r"Party 'p1' sent an invalid message: .*bound"):
        run(msg.Started, lambda r: replace(r, **BOUNDS[what]), masked=masked)


@pytest.mark.parametrize("masked", [False, True])
def test_bounds_that_leave_the_others_no_digits_are_refused(masked):
    """A weight of 1e12 is possible; but beside such sums all others would be rounded to nothing."""
    scale = 2.0**39

    def lie(reply):
        return msg.Started(**{name: scale * value for name, value in msgspec.structs.asdict(reply).items()})

    with pytest.raises(DataError, match=r"Party 'p1' announced .* would be lost\. Check the labels"):
        run(msg.Started, lie, masked=masked)


def test_the_bounds_of_a_regression_leave_the_others_their_digits():
    def lie(reply):
        return replace(reply, gradient=2.0**60, total_gradient=2.0**64)

    with pytest.raises(DataError, match="Party 'p1' announced"):
        run(msg.Started, lie, members=regression(), objective="reg:squarederror")
    with pytest.raises(ProtocolError, match=r"Party 'p1' .* a bound of .* for one row"):
        run(msg.Started, lambda r: replace(r, gradient=2.0**1000), members=regression(), objective="reg:squarederror")


@pytest.mark.parametrize("masked", [False, True])
def test_no_more_rows_than_a_party_has_resemble_the_same_row(masked):
    with pytest.raises(ProtocolError, match=r"Party 'p1' .*1099511627776 of its rows like the same row, where 150 is"):
        run(msg.Matched, lambda r: replace(r, most_uses=2**40), matching="shared", masked=masked)


def test_similar_rows_are_of_the_other_parties():
    with pytest.raises(ProtocolError, match=r"Party 'p1' .*similar rows of"):
        run(msg.Matched, lambda r: replace(r, equal_hashes={"nobody": 1.0}), matching="shared")


# --- labels ----------------------------------------------------------------------------------------------------------


def label_sums(*numbers):
    return lambda r: replace(r, sums=wire.pack(np.array(numbers, dtype=np.float64)))


@pytest.mark.parametrize("sums", [(0, 10**40, 10**40), (-5, 35, 30), (3, 4, 30), (0, 0, 0)])
def test_label_sums_must_be_possible(sums):
    with pytest.raises(ProtocolError, match=r"Party 'p1' .*label sums of .* for 30 rows"):
        run(msg.LabelSums, label_sums(*sums))


def test_masked_label_sums_must_be_possible_in_total():
    def lie(reply):
        masked = wire.unpack_wide(reply.sums, 3)
        return replace(reply, sums=wire.pack_wide([masked[0], *((m + (10**40 << 224)) % 2**512 for m in masked[1:])]))

    with pytest.raises(DataError, match="label sums over all parties are not possible"):
        run(msg.LabelSums, lie, masked=True)


def test_label_sums_of_a_regression_must_be_possible():
    with pytest.raises(ProtocolError, match=r"Party 'p1' .*label sums of"):
        run(msg.LabelSums, label_sums(10**25, 30), members=regression(), objective="reg:squarederror")


# --- sums onto rows --------------------------------------------------------------------------------------------------


def without_sums(reply):
    return replace(reply, sums=None)


@pytest.mark.parametrize("params", [{}, {"masked": True}])
def test_every_party_sums_onto_the_rows_of_every_builder(params):
    with pytest.raises(ProtocolError, match=r"Party 'p1' .*no sums onto the rows of 'p0'"):
        run(msg.RowSums, without_sums, **params)


def test_two_parties_cannot_leave_each_other_out_either():
    with pytest.raises(ProtocolError, match=r"Party 'p1' .*no sums onto the rows of 'p0'"):
        run(msg.RowSums, without_sums, members=parties(40, 30), masked=True)


def test_sums_that_nobody_asked_for_are_refused():
    def lie(reply):
        return replace(reply, sums=wire.pack(np.zeros((40, 1))))

    with pytest.raises(ProtocolError, match=r"Party 'p1' .*'p0', which nobody asked for"):
        run(msg.RowSums, lie, n_neighbors=0)


def test_the_liar_is_named_and_not_the_party_after_it():
    """The first reply that came does not decide which shape the others must have."""

    def lie(reply):
        sums = reply.sums
        return replace(reply, sums=replace(sums, shape=(1, 1), data=sums.data[: int(sums.dtype[1])]))

    with pytest.raises(ProtocolError, match="Party 'p0' sent an invalid message: An array"):
        run(msg.RowSums, lie, who="p0")


@pytest.mark.parametrize("word", [b"\xff\xff\x7f", b"\x00\x00\x80", b"\xff\x07\x00"])  # gradients, and a hessian
def test_sums_onto_rows_stay_within_their_bounds(word):
    def lie(reply):
        return replace(reply, sums=replace(reply.sums, data=word * (len(reply.sums.data) // 3)))

    with pytest.raises(ProtocolError, match=r"Party 'p1' .*sums onto rows beyond the bounds"):
        run(msg.RowSums, lie)


def test_no_hessian_is_below_zero_where_none_can_be():
    def lie(reply):
        return replace(reply, sums=replace(reply.sums, data=b"\xff" * len(reply.sums.data)))

    with pytest.raises(ProtocolError, match=r"Party 'p1' .*sums onto rows beyond the bounds"):
        run(msg.RowSums, lie, recipe="paper")


# --- leaves ----------------------------------------------------------------------------------------------------------


def leaf_sums(field, number):
    def lie(reply):
        return replace(reply, **{field: [wire.pack(np.full(a.shape, number)) for a in getattr(reply, field)]})

    return lie


@pytest.mark.parametrize("field", ["gradients", "hessians"])
@pytest.mark.parametrize("number", [2**62, -(2**62)])
def test_sums_per_leaf_stay_within_what_was_announced(field, number):
    with pytest.raises(ProtocolError, match=f"Party 'p1' sent an invalid message: {field} in a leaf"):
        run(msg.LeafSums, leaf_sums(field, np.int64(number)))


@pytest.mark.parametrize("field", ["gradients", "hessians"])
def test_masked_sums_per_leaf_stay_within_what_all_announced(field):
    """Masks hide who lied, not that somebody did."""
    with pytest.raises(ProtocolError, match=r"sums per leaf of all parties are not possible in round \d.*masks hide"):
        run(msg.LeafSums, leaf_sums(field, np.int64(2**62)), masked=True)


VALUED = {"leaf_values": "builder", "extra_depth": 0}


@pytest.mark.parametrize("value", [1e30, -1e30, 1e4])
@pytest.mark.parametrize("params", [{}, {"masked": True}, {"max_delta_step": 1.0}])
def test_leaf_values_of_a_builder_are_bounded(value, params):
    def lie(reply):
        return replace(reply, values=[wire.pack(np.full(a.shape, value, dtype=np.float32)) for a in reply.values])

    with pytest.raises(ProtocolError, match=r"Party 'p1' .*a leaf value of 1e\+\d+, where .* is possible|10000, where"):
        run(msg.Grown, lie, **VALUED | params)


def test_leaf_values_of_a_regression_are_bounded():
    def lie(reply):
        return replace(reply, values=[wire.pack(np.full(a.shape, 1e6, dtype=np.float32)) for a in reply.values])

    with pytest.raises(ProtocolError, match=r"Party 'p1' .*a leaf value of 1e\+06.*the training diverges: lower"):
        run(msg.Grown, lie, members=regression(), objective="reg:squarederror", **VALUED)


def test_the_bound_of_leaf_values_of_a_regression_is_as_wide_as_it_says():
    """Residuals of up to 0.5, rows of weight one: each value that is allowed lets the next one be twice as large."""
    started = msg.Started(gradient=8.0, hessian=1.0, total_gradient=256.0, total_hessian=32.0)
    precision = Precision({"p0": started, "p1": started})
    steps = settled(objective="reg:squarederror", learning_rate=1.0, leaf_values="builder", extra_depth=0)
    assert precision.most_leaf_value(steps, 0.0) == ROUNDING * 256 * 0.5
    assert precision.most_leaf_value(steps, 120.0) == ROUNDING * 128
    assert precision.most_leaf_value(steps, 1000.0) == ROUNDING * 1008
    assert precision.most_leaf_value(replace(steps, max_delta_step=2.0), 1000.0) == ROUNDING * 2


def test_hessians_of_light_rows_vanish_before_their_gradients():
    """Why leaf values of a regression are not held to a mean of residuals."""
    started = msg.Started(gradient=16.0, hessian=1.0, total_gradient=512.0, total_hessian=32.0)  # residuals of one
    found = Precision({"p0": started, "p1": started}).onto_rows({"p0": 4, "p1": 4})
    light = 2.0 ** (found.exponents[1] - 2)  # the weight of a row, and its gradient
    assert (round(light / 2.0 ** found.exponents[1]), round(light / 2.0 ** found.exponents[0])) == (0, 4)


# --- honest runs -----------------------------------------------------------------------------------------------------

EXTREME = {
    "no penalties": {"reg_lambda": 0.0, "min_child_weight": 0.0, "learning_rate": 1.0, **VALUED},
    "large steps": {"learning_rate": 50.0, **VALUED},
    "large steps and exact sums": {"learning_rate": 50.0},
    "small groups": {"min_group": 5},
    "masked": {"masked": True},
}


@pytest.mark.parametrize("what", EXTREME)
def test_honest_parties_are_not_refused(what):
    assert len(bits(run(msg.Started, honest, n_trees=20, **EXTREME[what]))) == 2


def contrary(n_parties=4, n=60):
    """Parties that pull to opposite sides."""
    rng = np.random.default_rng(0)
    tables = [(rng.normal(size=(n, 3)).astype(np.float32), rng.normal(size=n)) for _ in range(n_parties)]
    return [simfl.Party(f"p{i}", X, (X[:, 0] * (-1) ** i + noise / 2 > 0) * 1.0) for i, (X, noise) in enumerate(tables)]


def test_honest_parties_whose_training_diverges_are_not_refused():
    """As with the paper's settings: whole steps of squared errors, where parties differ."""
    steps = {"objective": "reg:squarederror", "learning_rate": 1.0, "base_score": 0.5, "max_depth": 6}
    model = simfl.baselines.tfl(contrary(), callbacks=[], recipe="paper", n_trees=300, random_state=0, **steps)
    leaves = model.booster.trees_to_dataframe().query("Feature == 'Leaf'")
    assert (model.n_trees, leaves.Gain.abs().max() > 200) == (300, True)


@pytest.mark.parametrize("weight", [1e-6, 1e12])
def test_honest_weights_are_not_refused(weight):
    members = made(lambda name, X, y: simfl.Party(name, X, y, sample_weight=np.full(len(y), weight)))
    for more in ({}, VALUED):
        training = run(msg.Started, honest, members=members, **more)
        assert len(training.rounds) == PARAMS["n_trees"]


# --- the handshake ---------------------------------------------------------------------------------------------------


def test_the_handshake_is_answered_with_what_was_asked_for():
    pytest.importorskip("nvflare")
    from simfl.deploy.opening import handshake
    from simfl.deploy.orders import Order
    from simfl.deploy.study import parse_study

    text = 'name = "s"\nlabel = "y"\n' + "".join(f'[[party]]\nname = "p{i}"\n' for i in (0, 1))
    greeting, form = msg.Greeting(problems=[], versions={}), sessions(parties(30))[0].handle
    honest = [
        greeting,
        form(msg.Describe(version=msg.VERSION, validation_fraction=0.0, seed=1)),
        msg.Classes(classes=[0, 1]),
    ]
    for place, belongs in enumerate(("Greeting", "Description", "Classes")):
        lie = [*honest[:place], msg.Done(), *honest[place + 1 :]]
        transport = LocalTransport([Playback("p0", honest), Playback("p1", lie)], 1)
        with pytest.raises(ProtocolError, match=f"'p1' sent Done where {belongs} belongs"):
            handshake(transport, parse_study(text), Order(run="r", study=text, seed=1))
