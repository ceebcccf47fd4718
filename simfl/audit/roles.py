"""What each role sees, in words: the table that stands before the attacks."""

from simfl.audit.findings import Role, Setting

TREES = "all trees"
BLIND_HUB = "sizes of vectors, and who takes part"  # of trees grown together


def seen_by(setting: Setting) -> dict[str, str]:
    """Per role what it sees of the other parties in a setting."""
    if setting.matching is None:
        return {str(role): seen for role, seen in _together(setting).items()}
    found = _shared(setting) if setting.matching == "shared" else _blind(setting)
    return {str(role): seen for role, seen in found.items()} | {"outsider": f"{TREES}, with the model"}


def _shared(setting: Setting) -> dict[Role, str]:
    codes = "every row's hash values (and leaves, at a rematch)" if setting.rematch else "every row's hash values"
    sums = "" if setting.masked else "; each party's sums"
    return {
        "hub": f"form of every table, sums per feature; {codes}{sums}; {TREES}",
        "builder": f"{codes}; the sum of the others' gradients onto each of its rows; {TREES}",
        "other party": f"{codes}; {TREES}",
    }


def _blind(setting: Setting) -> dict[Role, str]:
    sums = "totals over all parties" if setting.masked else "each party's sums"
    return {
        "hub": f"form of every table; which hash values are equal, by names that mean nothing to it; {sums}; {TREES}",
        "builder": f"ids of similar foreign rows; the others' gradients, summed onto each of its rows; {TREES}",
        "other party": f"ids of the foreign rows that its own resemble; {TREES}",
    }


def _private() -> dict[Role, str]:
    """With epsilon trees are drawn, and all parties read the same noisy totals."""
    sums = "noisy counts of rows per cell of a column, and noisy sums of gradients per leaf"
    return {
        "hub": BLIND_HUB,
        "other party": f"totals only: {sums}; {TREES}",
        "submitter": f"the model: {TREES}, whose leaf values follow from noisy sums",
    }


def _together(setting: Setting) -> dict[Role, str]:
    if setting.epsilon is not None:
        return _private()
    noisy = ", with every party's noise" if setting.min_group > 1 else ""
    seen = "totals only: rows per cell of each column, sums of labels and metrics, sums of gradients up to each cut"
    found: dict[Role, str] = {"hub": BLIND_HUB, "other party": f"{seen}{noisy}; {TREES}"}
    if setting.parties > 2:
        found["two parties that collude"] = "what both see, without the rows and the noise of either"
    if setting.parties > 4:
        found["all parties but two"] = "what they all see: totals over the rows, and the noise, of two parties"
    return found | {"submitter": f"the model: {TREES}"}
