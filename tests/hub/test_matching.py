"""Blind matching: the same similar rows as the shared mode, from names that mean nothing to the hub."""

import numpy as np
import pytest
from msgspec.structs import replace
from scipy import stats

import simfl
from simfl import hub, wire
from simfl import messages as msg
from simfl.errors import DataError, PrivacyError, ProtocolError
from simfl.params import SearchParams, prepare_params
from simfl.preprocessing.lsh import HashFamily
from simfl.privacy.keys import Keys
from simfl.privacy.tokens import secret_of
from simfl.transport.local import LocalTransport
from tests.wire import Between, model_bits, parties, places, recorded, rows, sessions, similar_rows, train

DESCRIBE = msg.Describe(version=msg.VERSION, validation_fraction=0.0, seed=0)


def similar_pairs(ready):
    """Every party's similar rows as row numbers of the others."""
    order = {name: places(session) for name, session in ready.transport.handlers.items()}
    return {
        (name, other): ids if order[other] is None else order[other][ids]
        for name, session in ready.transport.handlers.items()
        for other, ids in similar_rows(session).items()
    }


@pytest.mark.parametrize("few", [0, 40])
@pytest.mark.parametrize("more", [{}, {"hash_law": "cauchy"}, {"n_neighbors": 1}])
def test_blind_and_shared_find_the_same_similar_rows(more, few, monkeypatch):
    monkeypatch.setattr(SearchParams, "max_candidates", few)
    members = parties(300, 200, 700)  # few hash values: thousands of ties
    more = {"n_hashes": 3, "random_state": 7} | more
    blind, shared = (similar_pairs(simfl.prepare(members, matching=m, **more)) for m in ("blind", "shared"))
    assert blind.keys() == shared.keys()
    for pair, found in shared.items():
        np.testing.assert_array_equal(blind[pair], found)


def test_blind_and_shared_train_the_same_model_also_after_a_rematch():
    more = {"n_trees": 12, "rematch": 3, "max_depth": 3, "random_state": 3}
    blind, shared = (simfl.train(parties(120, 90, 70), matching=m, **more) for m in ("blind", "shared"))
    assert model_bits(blind) == model_bits(shared)
    assert [r.train for r in blind.history] == [r.train for r in shared.history]


def test_the_hub_says_how_alike_rows_are_as_the_parties_would():
    one, other = (simfl.prepare(parties(80, 60, 50), matching=m, random_state=0).about for m in ("blind", "shared"))
    assert one.equal_hashes == other.equal_hashes
    assert one.most_uses == other.most_uses


def test_a_saved_preparation_trains_the_same_model_without_a_seed(tmp_path):
    members = parties(80, 60)
    ready = simfl.prepare(members)
    ready.save(tmp_path / "ready")
    again = simfl.Preparation.load(tmp_path / "ready", members)
    more = {"n_trees": 8, "max_depth": 3, "rematch": 3}
    assert model_bits(simfl.train(ready, **more)) == model_bits(simfl.train(again, **more))


# --- what the hub sees -----------------------------------------------------------------------------------------------


def test_the_hub_learns_neither_the_secret_nor_the_directions():
    seen = recorded(parties(60, 50, 40))
    hub.prepare(seen, prepare_params(random_state=5))
    held = {p.secret for p in seen.handlers.values()}
    assert len(held) == 1
    secret = held.pop()
    assert secret != secret_of(5)
    assert secret not in seen.bytes
    assert [m.seed for _, m, _ in seen.log if isinstance(m, msg.Hash)] == [None] * 3
    again = recorded(parties(60, 50, 40))
    hub.prepare(again, prepare_params(random_state=5))
    assert again.handlers["p0"].secret != secret


def test_names_and_order_of_the_rows_change_from_run_to_run():
    def hidden():
        seen = recorded(parties(60, 50))
        hub.prepare(seen, prepare_params(random_state=5))
        return seen.replies(msg.HiddenRows)["p0"]

    one, other = hidden(), hidden()
    assert one.names[0].data != other.names[0].data
    assert one.ties.data != other.ties.data
    assert one.codes.data != other.codes.data


def test_the_order_of_the_rows_is_private_even_to_those_who_know_the_secret():
    members = parties(400, 50)
    orders = []
    for _ in range(2):
        ready = simfl.prepare(members, random_state=0)
        orders.append(places(ready.transport.handlers["p0"]))
    assert sorted(orders[0].tolist()) == list(range(400))
    assert abs(stats.spearmanr(*orders).statistic) < 0.2
    assert abs(stats.spearmanr(orders[0], np.arange(400)).statistic) < 0.2


def test_the_hub_sees_which_values_are_equal_and_no_more(monkeypatch):
    monkeypatch.setattr(SearchParams, "scale", "none")
    seen = recorded(parties(200, 50), secret=9)
    hub.prepare(seen, prepare_params(bucket_width=1.5))
    reply, party = seen.replies(msg.HiddenRows)["p0"], seen.handlers["p0"]
    family = HashFamily.draw(9, 5, 6, 1.5)
    true = np.floor((party.party.rows.X.astype(float) @ family.directions.T + family.offsets) / 1.5)[places(party)]
    codes = wire.unpack(reply.codes, "u1", (200, 5))
    for h in range(5):
        np.testing.assert_array_equal(np.equal.outer(true[:, h], true[:, h]), np.equal.outer(codes[:, h], codes[:, h]))


def test_no_party_is_sent_anything_of_another_but_ids():
    seen = recorded(parties(60, 50, 40))
    train(seen, random_state=5, n_trees=7, max_depth=3, rematch=3)
    assert not seen.questions(msg.Match)
    (taken,) = (m for p, m, _ in seen.log if isinstance(m, msg.TakeSimilar) and p == "p0" and m.round == 3)
    assert {o: a.shape for o, a in taken.similar.items()} == {"p1": (60, 5), "p2": (60, 5)}


def test_the_preparation_costs_at_most_a_quarter_of_the_papers_bytes():
    seen = recorded(parties(3000, 3000), n_jobs=2)
    hub.prepare(seen, prepare_params(random_state=0, n_hashes=5))
    matched = [len(wire.encode(m)) for _, m, _ in seen.log if isinstance(m, msg.TakeSimilar)]
    hidden = [len(wire.encode(r)) for r in seen.replies(msg.HiddenRows).values()]
    paper = 8 * 2 * 6000 * 5
    assert sum(matched) + sum(hidden) < 1.2 * paper / 4  # five hashes are few: eight and more stay below a quarter
    X, y = rows(6000, 0, d=12)
    seen = recorded([simfl.Party("a", X[:3000], y[:3000]), simfl.Party("b", X[3000:], y[3000:])], n_jobs=2)
    hub.prepare(seen, prepare_params(random_state=0))
    assert seen.traffic.total < 8 * 2 * 6000 * 11 / 4


# --- what is refused -------------------------------------------------------------------------------------------------


def test_parties_with_different_secrets_are_refused():
    members = [sessions([member], secret=n)[0] for member, n in zip(parties(30, 30, 30), (1, 1, 2), strict=True)]
    with pytest.raises(DataError, match=r"another common secret than 'p0'.*\['p2'\]"):
        hub.prepare(LocalTransport(members), prepare_params())


def test_a_hub_that_puts_itself_between_parties_is_found_out(identities):
    def forge(message):
        if not isinstance(message, msg.TakeKeys):
            return message
        forged = replace(message.keys["p1"], key=Keys("p1").public)
        return replace(message, keys=message.keys | {"p1": forged})

    hub.prepare(LocalTransport(sessions(parties(30, 30), identity=identities)), prepare_params())
    first, second = sessions(parties(30, 30), identity=identities)
    with pytest.raises(PrivacyError, match="'p1' is refused"):
        hub.prepare(LocalTransport([Between(first, question=forge), second]), prepare_params())


def test_ids_beyond_the_rows_of_the_other_are_refused():
    (party,) = sessions(parties(30), secret=0)
    scale = {"mean": wire.pack(np.zeros(6)), "deviation": wire.pack(np.ones(6))}
    ask = msg.Hash(seed=None, n_hashes=3, bucket_width=1.0, law="gaussian", **scale)
    party.handle(DESCRIBE)
    party.handle(ask)
    ids = wire.pack(np.full((30, 1), 9, np.uint8))
    with pytest.raises(ProtocolError, match="none of another party's 9 rows"):
        party.handle(msg.TakeSimilar(round=0, parties=["p0", "p1"], n_rows={"p1": 9}, similar={"p1": ids}))


def test_a_party_without_a_secret_hides_nothing():
    scale = {"mean": wire.pack(np.zeros(6)), "deviation": wire.pack(np.ones(6))}
    (party,) = sessions(parties(30))
    party.handle(DESCRIBE)
    with pytest.raises(ProtocolError, match="before it shared a secret"):
        party.handle(msg.Hash(seed=None, n_hashes=3, bucket_width=1.0, law="gaussian", **scale))
