"""STAGE 1 of the paper: which rows of different parties resemble each other.

expansion (categories as 0/1 columns) -> scaling (a common scale) -> lsh (hash the rows) -> tables (number equal hash
values alike) -> similarity (the rows with the most equal ones). Pure functions on arrays.
"""
