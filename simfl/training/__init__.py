"""STAGE 2 of the paper: trees from the gradients of one's own rows and of the others' similar rows.

losses (gradients) -> gradients (sums onto similar rows) -> trees (a tree from XGBoost, its leaves, its pruning).
Pure functions on arrays; `schedule` says whose turn it is.
"""
