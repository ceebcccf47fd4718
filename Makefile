# make demo    install into .venv and run the demonstration
# make test    lint, types, import contracts, tests, documentation
# make docs    the documentation, into build/site
# make accuracy   the accuracy table and picture of docs/recipes.md (under an hour on two cores; needs SIMFL_DATA)
# make bench   the speed of the search, of both stages and of FLARE, into docs/results/speed.md (a quarter of an hour)
# make chaos   kill -9 hub and parties twenty times in a training of 100 trees: the model must be the same
# make paper   the paper's tables, figures and theorems, into docs/results (under two hours on two cores)
# make peers   SimFL beside its peers, each in its own environment, into docs/results
# make lock    renew requirements.lock from pyproject.toml

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

.PHONY: demo test docs accuracy paper peers bench chaos lock clean

demo: $(INSTALLED)
	$(BIN)/simfl demo

test: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -n 2 --dist worksteal simfl benchmarks tests
	$(BIN)/pytest -q README.md docs
	$(BIN)/mkdocs build --strict --quiet

docs: $(INSTALLED)
	$(BIN)/mkdocs build --strict --quiet

accuracy: $(INSTALLED)
	$(BIN)/python -m benchmarks.accuracy --plot docs/gain.png

paper: $(INSTALLED)
	$(BIN)/python -m benchmarks.paper all

peers: $(INSTALLED)
	$(BIN)/python -m benchmarks.peers

bench: $(INSTALLED)
	$(BIN)/python -m benchmarks.bench

chaos: $(INSTALLED)
	$(BIN)/python -m benchmarks.chaos --kills 20 --trees 100

# The lock lists every package, so nothing is resolved here. It leaves out the GPU library that XGBoost's wheel names
# as a dependency on Linux: 300 MB that a CPU never loads.
$(INSTALLED): pyproject.toml requirements.lock
	$(PYTHON) -c "import sys; sys.exit('SimFL needs Python 3.11 to 3.13') if not (3, 11) <= sys.version_info[:2] <= (3, 13) else None"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

lock:
	$(PYTHON) -m pip install --quiet uv
	$(PYTHON) -m uv pip compile pyproject.toml --extra dev --extra docs --extra onnx --extra tensorboard --extra mlflow --universal --python-version 3.11 --upgrade --quiet \
	  --generate-hashes --no-emit-package nvidia-nccl-cu12 --no-emit-package nvidia-nccl-cu13 \
	  --no-header --no-annotate -o requirements.lock

clean:
	rm -rf .venv build dist .hypothesis .mypy_cache .ruff_cache .import_linter_cache
