import pytest

from simfl.errors import PrivacyError
from simfl.privacy.guard import check_hashes, default_hashes


def test_fewer_hashes_than_features_are_accepted():
    check_hashes(7, 8)


def test_as_many_hashes_as_features_are_refused_with_the_next_step():
    with pytest.raises(PrivacyError, match=r"n_hashes=8 with 8 features.*n_hashes=7 or fewer.*known_features=None"):
        check_hashes(8, 8)


def test_what_an_attacker_knows_counts():
    check_hashes(5, 8, known_features=2)
    with pytest.raises(PrivacyError, match="of which 2 are known"):
        check_hashes(6, 8, known_features=2)


def test_the_caller_can_insist():
    check_hashes(99, 8, known_features=None)


def test_one_feature_leaves_no_hash():
    with pytest.raises(PrivacyError, match="n_neighbors=0"):
        check_hashes(1, 1)


def test_the_default_is_the_papers():
    assert [default_hashes(d) for d in (123, 41, 40, 9, 2)] == [40, 40, 39, 8, 1]
