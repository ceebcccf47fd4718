"""Stage 1 at the hub: a common scale, hash values from every party, and the similar rows. Done once, used often."""

import math
import time

import msgspec
import numpy as np

from simfl import messages as msg
from simfl import wire
from simfl.callbacks import logger
from simfl.data.schema import Schema
from simfl.hub.asking import ask_all, small_total
from simfl.hub.handshake import MaskSteps, agree_on_masks, describe, exchange_keys, fresh_seed, have_a_secret
from simfl.hub.matching import Matching
from simfl.params import Params, search_of
from simfl.preprocessing.expansion import Expansion
from simfl.preprocessing.scaling import Moments, Scale, common_scale
from simfl.preprocessing.similarity import Progress
from simfl.privacy.guard import check_hashes, n_hashes_of
from simfl.transport.base import Transport


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """What the hub knows after stage 1. The similar rows stay at the parties."""

    parties: list[str]
    n_rows: list[int]
    n_validation_rows: list[int]
    n_features: int
    schema: Schema | None  # where the columns have names
    seed: int
    params: Params
    protocol: int  # the version that found it
    n_hashes: int = 0
    bucket_width: float | None = None
    equal_hashes: dict[str, dict[str, float]] = {}  # party -> other party -> mean count of equal hash values
    most_uses: dict[str, int] = {}  # party -> the largest number of its rows that resemble the same row
    seconds: float = 0.0
    agreed: list[msg.Kept] = []  # on cut points, as the parties sealed it: trees grown together

    @property
    def rows(self) -> dict[str, int]:
        """The number of training rows of every party."""
        return dict(zip(self.parties, self.n_rows, strict=True))

    @property
    def has_similar_rows(self) -> bool:
        """Whether any were looked for."""
        return bool(self.most_uses)

    @property
    def expansion(self) -> Expansion:
        """How every party lays its columns out for hashing. The condition L < d counts the columns before that."""
        return Expansion(self.schema.n_levels if self.schema else np.zeros(self.n_features, dtype=np.int32))

    def matching(self, transport: Transport, seed: int, progress: Progress | None = None) -> Matching:
        """How similar rows are found among these parties."""
        return Matching(transport, search_of(self.params), seed, self.rows, progress)


def prepare(transport: Transport, params: Params, progress: Progress | None = None) -> Prepared:
    """Stage 1: find the similar rows. Done once, used by many trainings."""
    begun = time.perf_counter()
    seed = fresh_seed(params.random_state)
    described = describe(transport, params, seed)
    first = next(iter(described.values()))
    prepared = Prepared(
        parties=list(described),
        n_rows=[d.n_rows for d in described.values()],
        n_validation_rows=[d.n_validation_rows for d in described.values()],
        n_features=first.n_features,
        schema=Schema(tuple(first.columns)) if first.columns else None,
        seed=seed,
        params=params,
        protocol=msg.VERSION,
    )
    if len(described) > 1 and params.n_neighbors:
        masks = agree_on_masks(transport, params)
        if search_of(params).matching == "blind" and not masks.on and not have_a_secret(described):
            exchange_keys(transport)
        prepared = _find_similar_rows(transport, prepared, masks, progress)
    logger.info("stage 1 is done: %d parties, %d hash values per row", len(described), prepared.n_hashes)
    return msgspec.structs.replace(prepared, seconds=time.perf_counter() - begun)


def _find_similar_rows(
    transport: Transport, prepared: Prepared, masks: MaskSteps, progress: Progress | None
) -> Prepared:
    params = search_of(prepared.params)
    n_hashes = n_hashes_of(params, prepared.n_features)
    check_hashes(n_hashes, prepared.n_features, params.known_features)
    # Step 1: a common scale.
    scale = _scale(transport, prepared, masks)
    question = msg.Hash(
        seed=None if params.matching == "blind" else prepared.seed,
        n_hashes=n_hashes,
        bucket_width=params.bucket_width or scale.norm / 2 or 1.0,
        law=params.hash_law,
        mean=wire.pack(scale.mean),
        deviation=wire.pack(scale.deviation),
    )
    # Steps 2 and 3: every party hashes its rows, and the similar ones are found.
    found = prepared.matching(transport, prepared.seed, progress).find(question, prepared.parties)
    return msgspec.structs.replace(
        prepared,
        n_hashes=n_hashes,
        bucket_width=question.bucket_width,
        equal_hashes=found.equal_hashes,
        most_uses=found.most_uses,
    )


def _scale(transport: Transport, prepared: Prepared, masks: MaskSteps) -> Scale:
    params, expansion, n_rows = search_of(prepared.params), prepared.expansion, sum(prepared.n_rows)
    d = expansion.width
    if params.scale == "none" and params.bucket_width is not None:
        return Scale.none(d)
    found = _total_moments(transport, d, masks)
    if params.scale == "standard":
        return common_scale(found, n_rows, expansion.groups)
    return Scale(np.zeros(d), np.ones(d), math.sqrt(float(found.squares.sum()) / n_rows))


def _total_moments(transport: Transport, d: int, masks: MaskSteps) -> Moments:
    """The moments of d features over all parties."""
    replies = ask_all(transport, msg.SumFeatures(mask=masks.next()), msg.FeatureSums)
    sums = {party: reply.sums for party, reply in replies.items()}
    total = np.array(small_total(sums, 3 * d, masked=masks.on))
    return Moments(total[:d], total[d : 2 * d], total[2 * d :])
