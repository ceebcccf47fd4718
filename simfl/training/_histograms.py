# mypy: allow-untyped-defs, allow-untyped-calls
"""Kernels of `histograms`: a tree from packed gradients, depth first, and the best split of a node.

Offsets are unsigned where it counts: for signed ones Numba tests each for a count from the end.
"""

import numpy as np
from numba import njit

from simfl.training._early import fetch_early

LEAF = -1
FEW = -1  # a node of few rows has no histogram
LEAST_GAIN = 1e-6  # as in XGBoost: what gains less is noise
LOW_HALF = 0xFFFFFFFF  # of a packed pair: h; g is above it
_U = np.uint64
_EARLY = _U(16)  # rows


@njit(nogil=True, cache=True, error_model="numpy")
def pack(g, h, unit_g, unit_h, order, packed):
    """Gradients as integers, of the rows that have any."""
    n = 0
    for i in range(len(g)):
        weight = max(np.int64(np.rint(h[i] / unit_h)), np.int64(h[i] > 0))  # nobody becomes nobody
        own = (np.int64(np.rint(g[i] / unit_g)) << 32) + weight
        if own != 0:
            order[n], packed[n] = i, own
            n += 1
    return n


@njit(nogil=True, cache=True, error_model="numpy")
def grow(rows, columns, order, packed, rule, sums, nodes, spare, stack):
    """Depth first. Returns how many nodes there are.

    `nodes`: column, cut, side of missing values, left child, begin and end of its rows, depth.
    `stack`: node, begin, end, depth, place of its histogram or FEW.
    """
    _clear(sums[-1])
    _sum_up(rows, columns, order, packed, 0, len(order), sums[0])
    _push(stack[0], 0, 0, len(order), 0, 0)
    n_stack, n_nodes = 1, 1
    while n_stack > 0:
        n_stack -= 1
        node, begin, end, depth, own = stack[n_stack]
        nodes[3, node], nodes[4, node], nodes[5, node], nodes[6, node] = LEAF, begin, end, depth
        if depth == rule.depth:
            continue
        gain, j, b, missing_left = _best_split(rows, columns, order, packed, begin, end, rule, sums, own, spare)
        gain = np.float64(gain) * rule.unit
        if gain <= LEAST_GAIN or gain < rule.gamma:
            continue
        middle = _partition(rows, columns, order, packed, begin, end, (j, b, missing_left), spare)
        nodes[0, node], nodes[1, node], nodes[2, node], nodes[3, node] = j, b, missing_left, n_nodes
        at = _histograms(rows, columns, order, packed, (begin, middle, end), depth + 1, rule, sums, own)
        _push(stack[n_stack], n_nodes, begin, middle, depth + 1, at[0])
        _push(stack[n_stack + 1], n_nodes + 1, middle, end, depth + 1, at[1])
        n_stack, n_nodes = n_stack + 2, n_nodes + 2
    return n_nodes


@njit(nogil=True, cache=True)
def by_level(left, order):
    """The nodes level by level."""
    order[0], end = 0, 1
    for i in range(len(left)):
        child = left[order[i]]
        if child != LEAF:
            order[end], order[end + 1] = child, child + 1
            end += 2


@njit(nogil=True, cache=True, error_model="numpy")
def _push(place, node, begin, end, depth, own):
    place[0], place[1], place[2], place[3], place[4] = node, begin, end, depth, own


@njit(nogil=True, cache=True, error_model="numpy")
def _histograms(rows, columns, order, packed, bounds, depth, rule, sums, own):
    """Where the histograms of two children are. The smaller one is summed up, the other one is what remains.

    The smaller one's place is that of its depth: nobody else on the path, or still to come, has it.
    """
    begin, middle, end = bounds
    left_is_smaller = middle - begin < end - middle
    if own == FEW or depth == rule.depth or max(middle - begin, end - middle) < rule.few:
        return FEW, FEW
    if left_is_smaller:
        _sum_up(rows, columns, order, packed, begin, middle, sums[depth])
    else:
        _sum_up(rows, columns, order, packed, middle, end, sums[depth])
    for b in range(sums.shape[1]):
        sums[own, b] -= sums[depth, b]
    return (depth, own) if left_is_smaller else (own, depth)


@njit(nogil=True, cache=True, error_model="numpy")
def _sum_up(rows, columns, order, packed, begin, end, sums):
    """The histogram of a node."""
    _clear(sums)
    _add(rows, order, packed, begin, end, sums)
    _add_unwritten(columns, _total(packed, begin, end), sums)


@njit(nogil=True, cache=True, error_model="numpy")
def _clear(sums):
    for b in range(len(sums)):
        sums[b] = 0


@njit(nogil=True, cache=True, error_model="numpy")
def _add(rows, order, packed, begin, end, sums):
    start, bins, last = rows.start, rows.bin, order.size - 1
    for i in range(_U(begin), _U(end)):
        own, k, stop = packed[i], _U(start[order[i]]), _U(start[order[i] + 1])
        later = order[min(i + _EARLY, _U(last))]
        fetch_early(bins, _U(start[later]))
        fetch_early(bins, _U(start[later + 1]))
        while k + _U(4) <= stop:
            sums[bins[k]] += own
            sums[bins[k + _U(1)]] += own
            sums[bins[k + _U(2)]] += own
            sums[bins[k + _U(3)]] += own
            k += _U(4)
        while k < stop:
            sums[bins[k]] += own
            k += _U(1)


@njit(nogil=True, cache=True, error_model="numpy")
def _add_unwritten(columns, total, sums):
    """What remains of the node's sum."""
    first, _, unwritten = columns
    for j in range(len(unwritten)):
        if unwritten[j] >= 0:
            rest = total
            for b in range(first[j], first[j + 1]):
                rest -= sums[b]
            sums[unwritten[j]] += rest


@njit(nogil=True, cache=True, error_model="numpy")
def _total(packed, begin, end):
    total = np.int64(0)
    for i in range(begin, end):
        total += packed[i]
    return total


# --- the best split --------------------------------------------------------------------------------------------------


@njit(nogil=True, cache=True, error_model="numpy")
def _best_split(rows, columns, order, packed, begin, end, rule, sums, own, spare):
    """Gain, column, cut, and whether missing values go left. A node of few rows has its histogram only here."""
    total = _total(packed, begin, end)
    if own != FEW:
        return _best(columns, sums[own], total, rule, spare)
    here = sums[-1]
    _add(rows, order, packed, begin, end, here)
    _add_unwritten(columns, total, here)
    found = _best(columns, here, total, rule, spare)
    _clear(here)
    return found


@njit(nogil=True, cache=True, error_model="numpy")
def _best(columns, sums, total, rule, spare):
    """A loop for each part: those over all cuts at once have no jumps and go by vectors."""
    first, missing, (_, _, _, left, at_bin, gains, bits) = columns.first, columns.missing, spare
    best, column, at, side = np.float32(0.0), len(missing), 0, 0
    for missing_left in range(2):
        n = _running_sums(columns, sums, missing_left, left, at_bin)
        if n == 0:
            break
        _gains(left[:n], total, _score(total, rule.reg_lambda, rule.reg_alpha), rule, gains[:n])
        largest, j = _largest(bits[:n]), 0
        while first[j + 1] <= at_bin[largest]:
            j += 1
        if gains[largest] > best or (gains[largest] == best and j < column):  # of equal ones the first column
            best, column, at, side = gains[largest], j, int(at_bin[largest]), missing_left
    while side and at + 1 < missing[column] and sums[at + 1] == 0:  # XGBoost comes from above then
        at += 1
    return best, column, at, side


@njit(nogil=True, cache=True, error_model="numpy")
def _running_sums(columns, sums, missing_left, left, at_bin):
    """What is left of each cut, without and with missing values, and its bin. Returns how many there are.

    A cut with the same rows to its left as the one before is none: in a small node most bins are empty. With missing
    values only columns that have some count.
    """
    first, missing, _ = columns
    n = _U(0)
    for j in range(len(missing)):
        end = first[j + 1] if missing[j] < 0 else missing[j]
        running, before = sums[missing[j]] if missing_left and missing[j] >= 0 else np.int64(0), np.int64(0)
        if missing_left and running == 0:
            continue
        for b in range(_U(first[j]), _U(end)):
            running += sums[b]
            left[n], at_bin[n] = running, b
            n += _U(running != before)
            before = running
    return n


@njit(nogil=True, cache=True, error_model="numpy")
def _gains(left, total, before, rule, gains):
    """XGBoost compares gains as float32: which of two equal ones is taken must not hang on the last bit."""
    reg_lambda, reg_alpha, lightest = rule.reg_lambda, rule.reg_alpha, rule.min_child_weight
    for b in range(len(left)):
        right = total - left[b]
        gain = _score(left[b], reg_lambda, reg_alpha) + _score(right, reg_lambda, reg_alpha) - before
        own = min(np.float64(left[b] & LOW_HALF), np.float64(right & LOW_HALF))
        gains[b] = np.float32(max(gain, 0.0)) if own >= lightest else np.float32(0.0)


@njit(nogil=True, cache=True, error_model="numpy")
def _score(sums, reg_lambda, reg_alpha):
    G = max(abs(np.float64(sums >> 32)) - reg_alpha, 0.0)
    return G * G / (np.float64(sums & LOW_HALF) + reg_lambda)


@njit(nogil=True, cache=True)
def _largest(bits):
    """The first of the largest. As integers floats above zero have the same order, and go by vectors."""
    most = np.int32(0)
    for b in range(len(bits)):
        most = max(most, bits[b])
    b = 0
    while most > 0 and bits[b] != most:
        b += 1
    return b


# --- rows to the children --------------------------------------------------------------------------------------------


@njit(nogil=True, cache=True)
def _partition(rows, columns, order, packed, begin, end, split, spare):
    """Rows that go left to the front, in their order, without a jump that the processor would have to guess."""
    spare_order, spare_packed, goes_left, _, _, _, _ = spare
    if rows.width:
        _look_at(rows, order[begin:end], split, columns.missing[split[0]], goes_left)
    else:
        _look_for(rows, columns, order[begin:end], split, goes_left)
    n_left, n_right, shift = _U(begin), _U(0), _U(begin)
    for i in range(shift, _U(end)):
        own, value, is_left = order[i], packed[i], _U(goes_left[i - shift])
        order[n_left], packed[n_left] = own, value
        spare_order[n_right], spare_packed[n_right] = own, value
        n_left += is_left
        n_right += _U(1) - is_left
    for i in range(n_right):
        order[n_left + i], packed[n_left + i] = spare_order[i], spare_packed[i]
    return np.int64(n_left)


@njit(nogil=True, cache=True)
def _look_at(rows, order, split, missing, goes_left):
    """Every row has an entry for every column: which side each goes to."""
    column, cut, missing_left = split
    bins, width, last = rows.bin, _U(rows.width), _U(len(order) - 1)
    for i in range(_U(len(order))):
        fetch_early(bins, _U(order[min(i + _EARLY, last)]) * width + _U(column))
        own = bins[_U(order[i]) * width + _U(column)]
        goes_left[i] = missing_left if own == missing else own <= cut


@njit(nogil=True, cache=True)
def _look_for(rows, columns, order, split, goes_left):
    """The same by bisection in the entries of each row; a row without one has the bin that is not written."""
    column, cut, missing_left = split
    first, end, missing = columns.first[column], columns.first[column + 1], columns.missing[column]
    for i in range(len(order)):
        low, stop = rows.start[order[i]], rows.start[order[i] + 1]
        high = stop
        while low < high:
            middle = (low + high) >> 1
            low, high = (middle + 1, high) if rows.bin[middle] < first else (low, middle)
        written = low < stop and rows.bin[low] < end
        own = np.int64(rows.bin[low]) if written else np.int64(columns.unwritten[column])
        goes_left[i] = missing_left if own == missing else own <= cut
