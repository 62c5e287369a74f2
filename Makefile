# Every target sets up what it needs: .venv with the locked dependencies and this checkout, editable.
# The set-up runs once, and again after a lock file or a pyproject.toml changed.

BIN := .venv/bin
GPU := $(shell nvidia-smi -L 2>/dev/null | grep '^GPU')
LOCK := $(if $(GPU),requirements-gpu.lock,requirements.lock)
READY := .venv/.ready-$(LOCK)
PIP := $(BIN)/python -m pip --quiet --no-input --disable-pip-version-check
LOCKED := --universal --generate-hashes --no-header --no-annotate --python-version 3.11
LOCKED += --no-emit-package tilewright --quiet
PROJECTS := pyproject.toml client/pyproject.toml
PYTEST := $(BIN)/python -m pytest
APART := --ignore tests/gpu --ignore tests/fleet
# One process more than there are cores, since many tests wait for others; four at most.
PROCESSES := $(shell cores=$$(getconf _NPROCESSORS_ONLN); echo $$((cores < 4 ? cores + 1 : 4)))
PARALLEL := $(PYTEST) --numprocesses $(PROCESSES) --dist loadfile --no-loadscope-reorder $(APART)
# Some tests have limits in seconds, and processes share the cores: what failed (1) runs once more, one at a
# time.
alone = [ $$? = 1 ] && echo 'what failed beside other tests runs once more, one at a time' && \
	$(PYTEST) --last-failed --last-failed-no-failures none $(1) $(ARGS)
# Whole files side by side; the argument chooses more than the short tests.
side_by_side = @$(PARALLEL) $(1) $(ARGS) || { $(call alone,$(APART) $(1)); }
gpu_tests = @$(if $(GPU),$(PYTEST) tests/gpu)
# NOTE: tests start hundreds of processes; without bytecode each compiles every source that it imports.
unexport PYTHONDONTWRITEBYTECODE
# Options for the program of demo, test, bench and serve, for instance: make test ARGS=tests/unit
ARGS :=

.PHONY: help demo test test-long test-short-and-long test-all test-fleet fuzz bench pictures serve lint lock faults faults-fleet soak sbom audit clean

help:
	@echo 'make demo    tune a GEMM on this machine and show the result, about two minutes'
	@echo 'make test    static checks and the test suite, about fifteen minutes on two cores'
	@echo 'make test-long  the long sweeps alone'
	@echo 'make test-short-and-long  the short tests and the long sweeps in one run'
	@echo 'make test-all   static checks, then make test-short-and-long and make test-fleet'
	@echo 'make test-fleet  install Ray and test the fleet on a cluster of this machine'
	@echo 'make fuzz    ask a service 10,000 generated requests and compare answers with its API description'
	@echo 'make bench   race a kernel with itself on a quiet machine, and compare times on its GPU'
	@echo 'make pictures  take screenshots of the page for docs/pictures'
	@echo 'make serve   run the service at http://127.0.0.1:8080 until Ctrl-C'
	@echo 'make lint    the static checks alone'
	@echo 'make lock    write the lock files anew'
	@echo 'make faults  kill servers, workers and compilers at 1,000 points of tuning, on SQLite and PostgreSQL'
	@echo 'make faults-fleet  kill parts of a fleet at 20 moments each, then the long tests of the fleet'
	@echo 'make soak    32 writers, 16 claimers, every revision, 60 MiB at once, an hour of mixed load: what fails'
	@echo 'make sbom    write what the images install as CycloneDX'
	@echo 'make audit   look the locked packages up in an advisory database'
	@echo 'make clean   remove .venv and caches; databases and compiled kernels are kept'

demo: $(READY)
	@$(BIN)/python -m service.cli.demo $(ARGS)

# The GPU tests run last, one at a time, where there is a GPU.
test: lint
	$(call side_by_side)
	$(gpu_tests)

test-long: $(READY)
	$(call side_by_side,-m long)

# NOTE: the fleet's tests have limits in seconds too, and keep two cores busy.
test-all: lint
	@$(MAKE) --no-print-directory test-short-and-long
	@$(MAKE) --no-print-directory test-fleet
	$(gpu_tests)

test-short-and-long: $(READY)
	$(call side_by_side,-m 'not alone')

# Ray is in the extra `fleet` alone; nothing else needs it.
test-fleet: .venv/.ready-requirements-fleet.lock
	@timeout 2400 $(PYTEST) tests/fleet --numprocesses 2 --dist loadfile $(ARGS) || { $(call alone,tests/fleet); }

.venv/.ready-requirements-fleet.lock: requirements-fleet.lock $(READY)
	@$(PIP) install --require-hashes -r $<
	@touch $@

# Screenshots of every view of the page, light and dark, for docs/page.md.
pictures: $(READY)
	@mkdir -p docs/pictures
	@PICTURES=docs/pictures $(PYTEST) -m long tests/browser/test_browser_pictures.py $(ARGS)

fuzz: $(READY)
	@PYTHONPATH=.:tests/support/servers $(BIN)/python tests/api/fuzz.py $(ARGS)

bench: $(READY)
	@$(BIN)/python -m benchmarks.lab.race_against_itself $(ARGS)
	@$(if $(GPU),$(PYTEST) -m alone tests/gpu)

serve: $(READY)
	@exec $(BIN)/tilewright serve $(ARGS)

lint: $(READY)
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/codespell

# The lock files hold versions and hashes, no registry's address: any index or mirror serves them.
# Those of docker/ leave out the development tools and agree with the first two in every version.
lock:
	@$(MAKE) --no-print-directory .venv/lock/bin/uv
	@$(UV) $(PROJECTS) --extra compile --extra postgres --extra dev -o requirements.lock
	@$(UV) $(PROJECTS) --extra compile --extra gpu --extra postgres --extra dev \
		-c requirements.lock -o requirements-gpu.lock
	@$(UV) $(PROJECTS) --extra postgres --extra fleet -c requirements.lock -o requirements-fleet.lock
	@$(UV) $(PROJECTS) --extra postgres -c requirements.lock -o docker/requirements-cpu.lock
	@$(UV) $(PROJECTS) --extra compile --extra gpu --extra postgres \
		-c requirements-gpu.lock -o docker/requirements-gpu.lock

UV := .venv/lock/bin/uv pip compile $(LOCKED)

.venv/lock/bin/uv: | $(READY)
	@$(BIN)/python -m venv .venv/lock
	@.venv/lock/bin/python -m pip --quiet --disable-pip-version-check install uv

# The tests of faults with as many of each as twenty minutes allow; results are added as they come.
SUPPORT := .:tests/support:tests/support/faults:tests/support/servers:tests/support/samples
FAULTS := PYTHONPATH=$(SUPPORT) nice $(BIN)/python tests/faults
RESULTS := benchmarks/results

faults: $(READY)
	@$(FAULTS)/kill_points.py --points 1000 --seconds 1200 --out $(RESULTS)/kill-points.json $(ARGS)
	@$(FAULTS)/kill_points.py --points 1000 --seconds 1200 --postgresql \
		--out $(RESULTS)/kill-points-postgresql.json $(ARGS)

faults-fleet: .venv/.ready-requirements-fleet.lock
	@PYTHONPATH=.:tests/support:tests/support/servers:tests/support/stand_in $(BIN)/python \
		tests/fleet/faults.py --out $(RESULTS)/fleet-faults.json $(ARGS)
	@$(PYTEST) tests/fleet -m long

soak: $(READY)
	@$(FAULTS)/soak/contention.py --out $(RESULTS)/contention.json $(ARGS)
	@$(FAULTS)/soak/every_revision.py --out $(RESULTS)/migrations.json
	@$(FAULTS)/soak/large_import.py --out $(RESULTS)/import-60mib.json
	@$(BIN)/python -m benchmarks.service.lookup_load --out $(RESULTS)/lookup-load.json
	@nice $(BIN)/python -m benchmarks.service.soak --out $(RESULTS)/soak.json

# What the images install, as CycloneDX bills of materials.
sbom: .venv/supply/bin/cyclonedx-py
	@for image in cpu gpu; do \
		$< requirements docker/requirements-$$image.lock --output-reproducible --of JSON \
			-o docker/sbom-$$image.json || exit 1; \
		echo "docker/sbom-$$image.json"; \
	done

# Needs the advisories of PyPI or OSV; strict, as a package that they do not know must not pass as safe.
audit: .venv/supply/bin/cyclonedx-py
	@for lock in requirements.lock requirements-gpu.lock; do \
		.venv/supply/bin/pip-audit --strict --disable-pip --require-hashes -r $$lock $(ARGS) || exit 1; \
	done

.venv/supply/bin/cyclonedx-py: | $(READY)
	@$(BIN)/python -m venv .venv/supply
	@.venv/supply/bin/python -m pip --quiet --disable-pip-version-check install cyclonedx-bom pip-audit

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): $(LOCK) pyproject.toml client/pyproject.toml
	@python=; for name in python3.13 python3.12 python3.11 python3; do \
		if $$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; \
		then python=$$name; break; fi; \
	done; \
	test -n "$$python" || { echo 'error: Python 3.11 or newer is needed and was not found' >&2; exit 1; }; \
	$$python -c 'import ensurepip' 2>/dev/null || { \
		echo "error: $$python has no venv module; on Debian: apt-get install python3-venv" >&2; exit 1; }; \
	echo "Setting up .venv from $(LOCK) with $$python; this happens once and takes about a minute." >&2; \
	$(BIN)/python -c '' 2>/dev/null || $$python -m venv --clear .venv
	@$(PIP) install --require-hashes -r $(LOCK)
	@$(PIP) install --no-deps --no-build-isolation -e client -e .
	@touch $@
