# `make demo` and `make test` each work first, alone, in a fresh clone; `make help` lists the rest.
PYTHON ?= python3
N ?= 20000
VENV := .venv
PY := $(VENV)/bin/python
DEPS := $(VENV)/.requirements-$(shell cksum < requirements.txt | tr ' ' -)
SILERO := .cache/silero-vad-6.2.3
MODELS := .cache/models-packages-$(shell cksum < benchmarks/real/requirements.txt | tr ' ' -)
STOCK = $(shell $(PY) -m tools stock)

export OMP_NUM_THREADS ?= 1
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: help setup dev test test-all lint demo bench models models-packages fuzz upstream-tests matrix \
	check-alone patches wheel clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

$(DEPS): requirements.txt
	@echo "== setting up $(VENV): PyTorch and the tools (a few minutes the first time)"
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install -r requirements.txt
	@rm -f $(VENV)/.requirements-*
	@touch $@

# Only its weights are wanted: what the package itself requires would pull another torch.
$(SILERO): $(DEPS)
	@echo "== fetching the weights of Silero VAD"
	$(PY) -m pip install --quiet --no-deps --target $@.new silero-vad==6.2.3
	@rm -rf $@ && mv $@.new $@

# A directory of its own behind .venv: what these require themselves would pull another torch, and
# other versions of what .venv has.
$(MODELS): | $(DEPS)
	@echo "== fetching the packages that real models come from"
	$(PY) -m pip install --quiet --no-deps --target $@.new -r benchmarks/real/requirements.txt
	@rm -rf $@ && mv $@.new $@

models-packages: $(MODELS) ## packages that real models come from (transformers and others)

setup: $(DEPS) | $(SILERO) ## environment, custom wheel, untouched release
	@$(PY) -m tools install
	@$(PY) -m tools stock > /dev/null

dev: $(DEPS) ## put an edited overlay into the environment (quick)
	@$(PY) -m tools refresh

TESTS := $(PY) -m pytest -n auto --dist loadfile --durations 15 exir/tests tests

test: setup ## all but the slow tests, in minutes; says what it left out
	$(TESTS)

test-all: setup ## every test
	$(TESTS) --all

lint: setup ## upstream's linters on exir/, ruff and mypy on the rest
	$(PY) -m ufmt check exir
	$(PY) -m flake8 exir
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(VENV)/bin/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(VENV)/bin/check-jsonschema --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/*.yml

demo: setup ## the main job on real models, patched beside stock
	$(PY) -m demo --stock $(STOCK)

bench: setup ## measure against stock; writes benchmarks/RESULTS.md
	$(PY) -m benchmarks --stock $(STOCK)

models: setup $(MODELS) ## real models beside stock; writes benchmarks/MODELS.md
	$(PY) -m benchmarks.real --stock $(STOCK) --packages $(MODELS)

fuzz: setup ## random programs against their own meaning (N=20000), then N/4 that share buffers
	$(PY) -m tests.fuzz $(N)
	$(PY) -m tests.fuzz.shared $$(($(N) / 4))

upstream-tests: setup ## upstream's own test files, stock beside patched
	$(PY) -m tests.support.upstream_suites --stock $(STOCK)

matrix: setup ## wheel, tests and upstream's core suites for every release
	$(PY) -m nox

check-alone: setup ## the tests of each patch, with just what it requires
	@$(PY) -m tools check-alone

patches: setup ## lines that each patch adds and removes
	@$(PY) -m tools patches

wheel: setup ## the custom wheel, in dist/
	$(PY) -m tools wheel

clean: ## all that was built or downloaded
	rm -rf $(VENV) .cache build dist *.egg-info
