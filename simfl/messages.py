"""Everything that leaves a party, and everything that reaches one: the page an auditor reads.

The hub asks, a party replies; nothing else is ever sent. Replies say "Leaves the party". No message has a field for a
row, for a label of a row, or for XGBoost's statistics of a tree node (`sum_hessian`, `base_weights`, `loss_changes`),
and a test searches all bytes of a run for them. What does leave are sums, and a sum over one row is that row's: a
gradient that lands alone on a row of the builder, or alone in a leaf, gives its label away; a party of one row gives
its class away. Thresholds of a tree are single values of the builder's rows. docs/protections.md says which parameters
hide what.

Messages are typed, travel as MessagePack and are checked against these types when they arrive (`wire.py`); what does
not fit is refused.
"""

import sys
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from simfl.data.schema import Column
from simfl.params import Objective, Params

VERSION = 1  # of the protocol: parties of different versions refuse each other

Finite = Annotated[float, Meta(ge=-sys.float_info.max, le=sys.float_info.max)]  # neither NaN nor infinite
ClassLabel = bool | int | Finite | str
DType = Literal["u1", "u2", "u3", "u4", "u7", "u8", "i4", "i8", "f4", "f8"]  # kind and bytes

# What a message can make its receiver allocate beyond its own size: counts have limits, and arrays and lists are as
# long as their bytes. Whatever lies outside is refused when the message arrives.
MOST_CLASSES = 1000
Count = Annotated[int, Meta(ge=0, le=2**40)]
Features = Annotated[int, Meta(ge=1, le=2**24)]
NHashes = Annotated[int, Meta(ge=0, le=255)]
Neighbors = Annotated[int, Meta(ge=0, le=2**16)]
Nodes = Annotated[int, Meta(ge=1, le=2**28)]
Round = Annotated[int, Meta(ge=0, le=2**40)]
Seed = Annotated[int, Meta(ge=0)]
Exponent = Annotated[int, Meta(ge=-1000, le=1000)]
Parties = Annotated[int, Meta(ge=1, le=2**16)]
WordBytes = Literal[3, 4, 7, 8]  # of a gradient and a hessian summed onto a row (`privacy/words.py`)


class Array(msgspec.Struct, frozen=True):
    """Numbers as raw little-endian bytes."""

    dtype: DType
    shape: tuple[int, ...]
    data: bytes


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, tag=True):
    """The base of all messages. The name of the class travels along."""


# --- parts of messages -----------------------------------------------------------------------------------------------


class TreeStructure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which feature is compared with which threshold, breadth first. No values, no statistics."""

    n_nodes: Nodes
    inner: bytes  # one bit per node: 1 for a split, 0 for a leaf
    feature: Array  # per split: the feature's number, in the smallest type
    threshold: Array  # per split: smaller values go left
    default_left: bytes  # one bit per split: 1 if missing values go left
    by_level: bytes = b""  # one bit per split: 1 where a category is split by its levels; empty if nowhere
    goes_right: Array | None = None  # per such split one bit per level: 1 if it goes right


class Signed(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """A tree's builder signs it with the key of its certificate: nobody else can make one up.

    What is signed: the run, the round, the builder, the tree's number among its trees of the round, the structure, and
    the leaf values where the recipe takes the builder's.
    """

    round: Round
    builder: str
    signature: bytes
    certificate: bytes | None = None  # with the builder's first tree after a start; receivers remember it


class AdoptedTree(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A finished tree: the leaf values, and the structure unless the party has it already."""

    values: Array  # per leaf
    structure: TreeStructure | None
    signed: Signed | None = None  # beside the structure, where parties have certificates


# A few sums of numbers whose size nobody knows beforehand: as doubles; masked, as integers of 512 bits, eight words per
# number (`privacy/exact.py`).
SmallSums = Array


class Masking(msgspec.Struct, frozen=True, kw_only=True):
    """Hub to party: hide your sums under masks that cancel over these parties. Without it they are sent as they are.

    Masked numbers look random; only their sum over all these parties means something.
    """

    step: Round  # grows: no mask is used twice
    parties: list[str]


# --- the handshake ---------------------------------------------------------------------------------------------------


class Greet(Message, frozen=True, kw_only=True):
    """Hub to party, between machines: this is the study. Does your table fit it?"""

    version: int
    simfl: str
    run: str  # the name of the training: the same when it is resumed
    study: str  # the study file, as its author wrote it


class Greeting(Message, frozen=True, kw_only=True):
    """Leaves the party: what does not fit, and the versions of the installed packages."""

    problems: list[str]
    versions: dict[str, str]


class Describe(Message, frozen=True, kw_only=True):
    """Hub to party: describe your table, and set `validation_fraction` of its rows aside, drawn from `seed`."""

    version: int
    validation_fraction: Finite
    seed: Seed
    private: bool = False  # nothing is counted (joint with epsilon): the study declares columns, rows and classes


class Description(Message, frozen=True, kw_only=True):
    """Leaves the party: the form of its table, no content. With `private` the numbers of rows are zero."""

    n_rows: Count
    n_validation_rows: Count
    n_features: Features
    columns: list[Column] | None  # names, kinds and the levels of categories, where the table has names
    is_sparse: bool
    secret: bytes | None = None  # a digest of the secret that it shares with the other parties, if it has one


class Settle(Message, frozen=True, kw_only=True):
    """Hub to party: all parties agreed on these columns. Bring your columns and levels into this order."""

    columns: list[Column]


class Done(Message, frozen=True, kw_only=True):
    """Leaves the party: an acknowledgement, nothing else."""


# --- keys between parties, which the hub only passes on --------------------------------------------------------------


class SignedKey(msgspec.Struct, frozen=True, kw_only=True):
    """The public half of a key pair that a party drew for this training."""

    key: bytes
    signature: bytes | None = None  # by the party's certificate, where it has one
    certificate: bytes | None = None


class DrawKey(Message, frozen=True, kw_only=True):
    """Hub to party: draw a new key pair and send its public half."""


class PublicKey(Message, frozen=True, kw_only=True):
    """Leaves the party: the public half of a key pair that it has just drawn."""

    public: SignedKey
    has_secret: bool = False  # it knows the parties' common secret already, and can pass it on


class TakeKeys(Message, frozen=True, kw_only=True):
    """Hub to party: the public keys of all, and what the first party sealed for you. The first gets only the keys."""

    keys: dict[str, SignedKey]
    first: str
    sealed: bytes | None


class SealedSecret(Message, frozen=True, kw_only=True):
    """Leaves the party: from the first one, the common secret, encrypted for each other party; else nothing."""

    sealed: dict[str, bytes]


# --- stage 1: preprocessing ------------------------------------------------------------------------------------------


class SumFeatures(Message, frozen=True, kw_only=True):
    """Hub to party: sum up your features."""

    mask: Masking | None = None


class FeatureSums(Message, frozen=True, kw_only=True):
    """Leaves the party: for all features the number of values, then their sums, then the sums of their squares.

    A category has one 0/1 feature per level, so that its sums are how often each level occurs.
    """

    sums: SmallSums


class Hash(Message, frozen=True, kw_only=True):
    """Hub to party: hash your rows with functions of this seed, on this scale.

    Blind matching has no seed: the functions are drawn from the parties' secret, and the reply is `HiddenRows`.
    """

    seed: Seed | None
    n_hashes: NHashes
    bucket_width: Finite
    law: Literal["gaussian", "cauchy"]
    mean: Array
    deviation: Array


class Hashes(Message, frozen=True, kw_only=True):
    """Leaves the party: L hash values per row, minus `lowest` per hash function.

    In a rematch the leaves that a row fell into stand in for hash values, and `lowest` is zero.
    """

    round: Round
    lowest: Array
    values: Array


class Match(Message, frozen=True, kw_only=True):
    """Hub to party: the global tables. Find `n_neighbors` similar rows of every other party."""

    round: Round  # 0: stage 1, for all trainings; else a rematch, for the rest of this one
    seed: Seed
    n_neighbors: Neighbors
    max_candidates: int | None  # rows of each other party to compare a row with; None: all
    parties: list[str]  # all of them, in the common order
    bucket_values: list[Array]  # per table: the hash values that the bucket numbers stand for
    tables: dict[str, Array]  # per other party: the bucket numbers of its rows


class Matched(Message, frozen=True, kw_only=True):
    """Leaves the party: how similar its rows and their most similar rows are, on average, per other party."""

    equal_hashes: dict[str, Finite]
    most_uses: Count  # the largest number of its rows that resemble the same row


class HiddenRows(Message, frozen=True, kw_only=True):
    """Leaves the party, with blind matching: its rows in a private random order, hash values (or leaves) as names.

    Names are made with the parties' secret. They show which values are equal, and nothing else.
    """

    round: Round
    names: list[Array]  # per hash function: the names that occur, in the order of their numbers
    codes: Array  # per row and hash function: which of these
    ties: Array  # a name per row: decides among rows that are equally similar


class TakeSimilar(Message, frozen=True, kw_only=True):
    """Hub to party, with blind matching: the rows of each other party that resemble yours, in your order and theirs."""

    round: Round
    parties: list[str]  # all of them, in the common order
    n_rows: dict[str, Count]  # of each other party
    similar: dict[str, Array]


class Recall(Message, frozen=True, kw_only=True):
    """Hub to party: use the similar rows again that you kept of this round (0: those of stage 1)."""

    round: Round


class Recalled(Message, frozen=True, kw_only=True):
    """Leaves the party: whether it still had them."""

    found: bool


# --- stage 2: training -----------------------------------------------------------------------------------------------


class DescribeLabels(Message, frozen=True, kw_only=True):
    """Hub to party: which classes do your labels have?"""

    objective: Objective


class Classes(Message, frozen=True, kw_only=True):
    """Leaves the party: its classes; None for numbers."""

    classes: list[ClassLabel] | None


class SumLabels(Message, frozen=True, kw_only=True):
    """Hub to party: sum up the weight of each of these classes (or your labels), and the weight of all rows."""

    objective: Objective
    settings: dict[str, float | str] = {}  # of the objective
    classes: list[ClassLabel] | None
    mask: Masking | None = None


class LabelSums(Message, frozen=True, kw_only=True):
    """Leaves the party: the weight of each class (or the sum of its labels), and of all rows."""

    sums: SmallSums


class Start(Message, frozen=True, kw_only=True):
    """Hub to party: a training begins, from this start value."""

    params: Params
    seed: Seed
    classes: list[ClassLabel] | None
    base_margin: Annotated[list[Finite], Meta(min_length=1, max_length=MOST_CLASSES)]
    remember: NHashes  # for a rematch: keep the leaves of this many last trees
    warm_start: list[AdoptedTree] = []  # the trees of an earlier model that this training continues from
    n_parties: Parties = 1  # whose sums are added up


class Started(Message, frozen=True, kw_only=True):
    """Leaves the party: bounds of its sums, from which their resolution follows. Powers of two."""

    gradient: Finite  # no row's gradient can become larger
    hessian: Finite
    total_gradient: Finite  # nor can the sum over all rows
    total_hessian: Finite


class HashByTrees(Message, frozen=True, kw_only=True):
    """Hub to party: adopt the previous trees; into which leaves of the last `n_hashes` trees did your rows fall?"""

    round: Round
    previous: list[AdoptedTree]
    n_hashes: NHashes
    blind: bool = False  # reply with `HiddenRows`, not with `Hashes`


class Replay(Message, frozen=True, kw_only=True):
    """Hub to party: adopt these trees, round by round. So a training continues after an interruption."""

    rounds: list[list[AdoptedTree]]


class SumOntoRows(Message, frozen=True, kw_only=True):
    """Hub to party: adopt the previous trees, then sum your gradients onto the similar rows of the builder."""

    round: Round
    builder: str
    previous: list[AdoptedTree]
    exponents: tuple[Exponent, Exponent]  # the resolution of gradients and hessians, as powers of two
    word_bytes: WordBytes
    mask: Masking | None = None


class RowSums(Message, frozen=True, kw_only=True):
    """Leaves the party: per row of the builder the sums of the gradients and hessians of similar rows (masked).

    Both are in fixed point, in one word: see `privacy/words.py`.
    """

    round: Round
    sums: Array | None  # None where nothing is shared (n_neighbors=0)
    scores: SmallSums  # the metrics of the trees before


class Grow(Message, frozen=True, kw_only=True):
    """Hub to builder: adopt the previous trees, then grow the next with these sums of the other parties."""

    round: Round
    previous: list[AdoptedTree]
    sums: Array | None  # words, as in `RowSums`
    exponents: tuple[Exponent, Exponent]
    word_bytes: WordBytes
    mask: Masking | None = None  # the sums still carry the builder's masks


class Grown(Message, frozen=True, kw_only=True):
    """Leaves the builder: the trees. Values only where the recipe takes the builder's."""

    round: Round
    trees: list[TreeStructure]
    values: list[Array] | None
    scores: SmallSums
    signed: list[Signed] = []  # per tree, where the builder has a certificate


class SumPerLeaf(Message, frozen=True, kw_only=True):
    """Hub to party: sum up your gradients in each of these leaves."""

    round: Round
    trees: list[TreeStructure]
    exponents: tuple[Exponent, Exponent]
    mask: Masking | None = None
    signed: list[Signed] = []  # per tree, where the builder has a certificate


class LeafSums(Message, frozen=True, kw_only=True):
    """Leaves the party: per leaf the sum of the gradients of its rows, in fixed point (masked)."""

    round: Round
    gradients: list[Array]
    hessians: list[Array]


class Finish(Message, frozen=True, kw_only=True):
    """Hub to party: adopt the last trees; the training ends."""

    previous: list[AdoptedTree]
    mask: Masking | None = None


# What a party did to what it sent, and how often: `privacy/observed.py` reads it.
Fact = Annotated[
    str,
    Meta(
        pattern=r"^(names|hash values|trees|grown together|drawn trees|ids of rows"
        r"|(masked|plain|exact) sums"
        r"|own cut points"
        r"|(columns|hashes|min_group|epsilon) [0-9]{1,12}(\.[0-9]{1,12})?(e[+-]?[0-9]{1,2})?)\Z"
    ),
]


class Finished(Message, frozen=True, kw_only=True):
    """Leaves the party: the metrics after the last tree, and which protections it applied."""

    scores: SmallSums
    shown: dict[Fact, Count] = {}


# --- trees grown together (recipe="joint") ----------------------------------------------------------------------------
#
# The hub adds vectors of integers, and passes on what follows from their total. What the numbers mean (labels, counts,
# gradients per cell) only the parties know: every vector is masked, and so is the total.

Parts = list[Array]  # u1, u2, u4 and u8, added modulo their size; u8 of shape (n, 8): wide sums


class Kept(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What all parties decided together (labels, cut points, finished trees), for those who join later.

    The first party has encrypted it with a key from the parties' secret.
    """

    step: Round
    exchange: bytes  # a digest of the public keys under which the vectors were masked; empty where they were not
    by: str
    sealed: bytes
    signature: bytes | None = None  # of run, step and what is sealed, by the party's certificate, where it has one
    certificate: bytes | None = None


class Total(msgspec.Struct, frozen=True, kw_only=True):
    """What came out of an addition. Only the parties can read it."""

    step: Round
    exchange: bytes
    parts: Parts


class StartTogether(Message, frozen=True, kw_only=True):
    """Hub to party: trees are grown together by these parties, after what followed from earlier additions.

    With `masked` a vector looks random, and only the total over all these parties means something. It carries a mask
    that the hub does not know.
    """

    params: Params
    classes: list[ClassLabel] | None
    parties: list[str]  # who is present, in the common order
    masked: bool
    kept: list[Kept] = []
    warm_start: list[AdoptedTree] = []  # the trees of an earlier model that this training continues from
    base_score: list[Finite] = []  # of that model
    cuts_only: bool = False  # only agree on cut points, for later trainings


class Add(Message, frozen=True, kw_only=True):
    """Hub to party: this came out of the last addition; contribute to the next."""

    step: Round  # grows: no mask is used twice
    total: Total | None = None  # none in the first step after a start


class Addend(Message, frozen=True, kw_only=True, omit_defaults=True):
    """Leaves the party: its vector for this step (masked), and where it stands, which must be the same at all parties.

    `metrics` are sent only where nothing is masked.
    """

    step: Round
    parts: Parts  # none when the training is finished
    exchange: bytes  # a digest of the public keys that it was given; empty where nothing is masked
    digest: bytes  # of all that it has applied so far, with a key that the hub does not have
    name: str  # of the step, for people
    n_trees: Count  # rounds that are finished
    keep: bool = False  # something was decided that parties joining later will need
    kept: Kept | None = None  # that, from the first party
    finished: bool = False
    metrics: list[tuple[dict[str, Finite], dict[str, Finite]]] = []  # of new rounds: training and validation rows
    shown: dict[Fact, Count] = {}  # at the end: what it really did to what it sent (`privacy/observed.py`)


class SendModel(Message, frozen=True, kw_only=True):
    """Hub to party: seal the model for its receiver, who ordered the training. Without one the hub itself gets it."""

    receiver: SignedKey | None


class SealedModel(Message, frozen=True, kw_only=True):
    """Leaves the party: the model and the metrics of its trees, signed by this party, encrypted for the receiver."""

    sealed: bytes


# --- the end of a run ------------------------------------------------------------------------------------------------


class TakeModel(Message, frozen=True, kw_only=True):
    """Hub to party: this is the model, an XGBoost file, and how it came about.

    Trees that were grown together come without a model: every party has built it by itself.
    """

    model: bytes
    history: bytes
    record: bytes  # what the hub knows of the run, as JSON


Request = (
    Greet
    | Describe
    | Settle
    | DrawKey
    | TakeKeys
    | SumFeatures
    | Hash
    | Match
    | TakeSimilar
    | Recall
    | DescribeLabels
    | SumLabels
    | Start
    | Replay
    | HashByTrees
    | SumOntoRows
    | Grow
    | SumPerLeaf
    | Finish
    | StartTogether
    | Add
    | SendModel
    | TakeModel
)
Reply = (
    Greeting
    | Description
    | Done
    | PublicKey
    | SealedSecret
    | FeatureSums
    | Hashes
    | HiddenRows
    | Matched
    | Recalled
    | Classes
    | LabelSums
    | Started
    | RowSums
    | Grown
    | LeafSums
    | Finished
    | Addend
    | SealedModel
)
