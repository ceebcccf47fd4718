# make demo    install into .venv and run the demonstration
# make test    lint, types, import contracts, tests, documentation
# make docs    the documentation, into build/site
# make accuracy   the accuracy tables and picture of docs/recipes.md (some two hours on two cores; needs SIMFL_DATA)
# make bench   the speed of the search, of both stages, of joint trees and of FLARE, into docs/results/speed.md, and what became
#              slower since the last commit (some forty minutes on two quiet cores)
# make chaos   kill -9 hub and parties twenty times in a training of 100 trees: the model must be the same
# make paper   the paper's tables, figures and theorems, into docs/results (under two hours on two cores)
# make peers   SimFL beside its peers, each in its own environment, into docs/results
# make published   tables that others published, SimFL beside them, into docs/results (11 minutes on two quiet cores, more where they are slow)
# make image-steps   what the Dockerfile and the Compose file do, played without Docker (as root; some minutes)
# make lock    renew requirements.lock, requirements-demo.lock and requirements-image.lock from pyproject.toml

PYTHON ?= python3
BIN := .venv/bin
DEMO := .venv/.demo
INSTALLED := .venv/.installed
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps

.PHONY: demo test docs accuracy paper peers published bench chaos image-steps lock clean

demo: $(DEMO)
	$(BIN)/simfl demo

test: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -n 3 --dist worksteal simfl benchmarks tests
	$(BIN)/pytest -q README.md docs
	$(BIN)/mkdocs build --strict

docs: $(INSTALLED)
	$(BIN)/mkdocs build --strict

accuracy: $(INSTALLED)
	$(BIN)/python -m benchmarks.accuracy --record
	$(BIN)/python -m benchmarks.accuracy --stopped --methods joint "joint, no guard" ALL-IN
	$(BIN)/python -m benchmarks.accuracy --data bank pendigits housing --methods joint "joint, no guard" ALL-IN

paper: $(INSTALLED)
	$(BIN)/python -m benchmarks.paper all

peers: $(INSTALLED)
	$(BIN)/python -m benchmarks.peers

published: $(INSTALLED)
	$(BIN)/python -m benchmarks.private --data default_credit bank
	$(BIN)/python -m benchmarks.attacks --parts tables --from docs/results/attacks.json
	$(BIN)/python -m benchmarks.published

bench: $(INSTALLED)
	$(BIN)/python -m benchmarks.bench

chaos: $(INSTALLED)
	$(BIN)/python -m benchmarks.chaos --kills 20 --trees 100 --page docs/results/chaos.md

image-steps: $(INSTALLED)
	$(BIN)/python .ci/image_steps.py

# A lock lists every package, so nothing is resolved here. It leaves out the GPU library that XGBoost's wheel names
# as a dependency on Linux: 300 MB that a CPU never loads. The demonstration needs a quarter of what the tests need.
$(DEMO): pyproject.toml requirements-demo.lock
	$(PYTHON) -c "import sys; sys.exit('SimFL needs Python 3.11 to 3.13') if not (3, 11) <= sys.version_info[:2] <= (3, 13) else None"
	$(PYTHON) -m venv .venv
	$(PIP) --require-hashes -r requirements-demo.lock
	$(PIP) --no-build-isolation -e .
	@echo "Compiling: half a minute, once."
	$(BIN)/simfl demo --splits 1 --save .venv/demo.ubj --run .venv/demo > .venv/demo.txt
	touch $@

$(INSTALLED): $(DEMO) requirements.lock
	$(PIP) --require-hashes -r requirements.lock
	touch $@

COMPILE := -m uv pip compile pyproject.toml --universal --python-version 3.11 --quiet --generate-hashes --no-header \
  --no-annotate --no-emit-package nvidia-nccl-cu12 --no-emit-package nvidia-nccl-cu13

lock:
	$(PYTHON) -m pip install --quiet uv
	$(PYTHON) $(COMPILE) --extra dev --extra docs --extra onnx --extra mlflow --upgrade -o requirements.lock
	$(PYTHON) $(COMPILE) --group demo --upgrade --constraints requirements.lock -o requirements-demo.lock
	$(PYTHON) $(COMPILE) --group demo --extra flare --extra sql --extra dp --upgrade --constraints requirements.lock -o requirements-image.lock

clean:
	rm -rf .venv build dist .hypothesis .mypy_cache .ruff_cache .import_linter_cache
