"""STAGE 2 of the paper: trees from the gradients of the builder's rows and of the others' similar rows.

schedule (whose turn it is) -> losses (gradients) -> gradients (sums onto similar rows, after groups) -> trees (grown by
XGBoost) -> traversal (the leaf of each row) -> pruning (leaf values, splits that stay). Pure functions on arrays.
"""
