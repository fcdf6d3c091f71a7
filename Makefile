# Everything is installed into .venv; the stamp is renewed when pyproject.toml changes.
PYTHON ?= python3.11
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: fuzz test clean

fuzz: $(STAMP)
	$(BIN)/pytest -n auto fuzz/

test: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -n auto --dist loadfile

$(STAMP): pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet torch==2.13.0
	$(BIN)/pip install --quiet --editable '.[dev]'
	touch $(STAMP)

clean:
	rm -rf .venv
