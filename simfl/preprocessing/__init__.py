"""STAGE 1 of the paper: which rows of different parties resemble each other.

lsh (hash the rows) -> tables (put equal hash values together) -> similarity (the rows with the most equal ones).
Pure functions on arrays; `scaling` puts the features on a common scale first.
"""
