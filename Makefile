# Each target makes the environment it needs; Python 3.11 or newer is all that must be there.
#   make demo     .venv, then a server, a DLRM trained through it, and what came of it (DEMO_ARGS=...);
#                 with DEMO_ARGS="--framework torch" in .venv-frameworks
#   make test     .venv, then the tests that are not slow (PYTEST_ARGS="-k cache" narrows it)
#   make test-rest   .venv, then slow ones: of each function what tests/slow.txt says
#   make test-all    all tests: test, test-rest, those that both leave out, test-frameworks
#   make times    .venv, .venv-frameworks, then all of them, measured, and tests/slow.txt made anew of that
#   make mutations   .venv, then small wrong changes, made one by one: tests of `make test` find each
#   make test-page   .venv, then the tests of the page in Chromium (Debian: chromium, chromium-driver);
#                 `make test` runs them, too, and skips them where there is no Chromium
#   make screenshots   .venv, then the pictures of the page and of `embstore top` in docs/guide/pictures
#   make test-frameworks   .venv-frameworks, then the tests of the adapters for frameworks, of slow ones
#                 what tests/slow.txt says
#   make test-cluster   .venv-cluster, then the tests of clusters of shards on Ray
#   make soak-cluster   .venv-cluster, then 70 kills of what runs on Ray, twice, and the times they take
#   make test-lowest   .venv-lowest, the lowest versions of what pyproject.toml depends on, then the
#                 tests of the wire, the client and the command line
#   make soak     .venv, then the tests that kill trainers and servers, again and again, that send
#                 mutated messages by the million and requests made of the OpenAPI document, and a
#                 crowd of clients for minutes (SOAK=27)
#   make check    .venv, then format, lint, types and the style tests
#   make bench    .venv-bench, then python -m tests.bench   (BENCH_ARGS=... is passed on),
#                 tests.bench.lookahead with its plots       (LOOKAHEAD_ARGS=...), and
#                 tests.bench.hot                            (HOT_ARGS=...)
#   make papers   .venv-bench, then the headlines of four papers beside our figures
#   make gpu      what to do first on a GPU, by parts: python -m tests.gpu.plan, with the PYTHON that
#                 is there and what it has installed  (GPU_ARGS="--minutes 8" narrows it)
#   make docs     .venv-docs, then the site of docs/ in build/site; warnings are errors
#   make proto    the committed protobuf code, from the .proto file
#   make image-test   .venv, then docker/image_test.sh: builds the image, runs it, trains against it
#   make image-walk   .venv, then docker/walk.sh: compose, tokens, the page, an alert and its end (8 minutes)
#   make release  .venv-release, then sdist, wheels, archives of the other clients and of the .proto
#                 file, a bill of materials and checksums in dist/, checked. Nothing is published
#                 (RELEASE_ARGS="--twice": built twice and compared)
#   make images   .venv-release, then images for CPU, CUDA 12 and CUDA 13 of HEAD, each with its bill of
#                 materials in dist/ (ENGINE=docker, BASE=..., IMAGES_ARGS="cpu --save")
#   make test-installed   installs the wheel of dist/ where nothing else is, serves, runs the README's
#                 example and a trainer, and says how long that took (INSTALLED_ARGS=--examples: and the
#                 examples of all pages)
#   make format   format and fix what ruff can fix
#   make clean    remove the environments and every cache
# .venv-frameworks is separate because frameworks are large, and the client must work without them;
# .venv-cluster because Ray is, and a server must;
# .venv-bench is separate because the peers (torch, FBGEMM) are large and pin their own versions;
# .venv-docs is small: the site is made from sources, and imports nothing of embstore. .venv-proto has
# the protobuf compiler, which wants an older protobuf than the tests run with.

PYTHON ?= python3
PYTEST_ARGS ?=
BENCH_ARGS ?=
LOOKAHEAD_ARGS ?= $(filter --quick,$(BENCH_ARGS))
HOT_ARGS ?= $(filter --quick,$(BENCH_ARGS))
DEMO_ARGS ?=
DEMO_VENV = $(if $(findstring --framework,$(DEMO_ARGS)),.venv-frameworks,.venv)
GPU_ARGS ?=
RELEASE_ARGS ?=
IMAGES_ARGS ?=
INSTALLED_ARGS ?=
# Every test has its own directory, so two processes are safe; "worksteal" begins with contiguous
# halves, so that most of a kernel's tests share one process and one compilation. 0: no xdist.
PYTEST_WORKERS ?= 2
OF_FRAMEWORKS = tests/frameworks tests/unit/test_torch_replica.py tests/docs/test_examples.py::test_python_example_runs_and_may_be_pasted_again
SOAK ?= 27
# Python keeps what it compiled, whatever a caller's environment says: else every server that a test
# starts, and each process of pytest, compiles all sources again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := test
.DELETE_ON_ERROR:
.PHONY: demo test test-rest test-all times mutations test-page screenshots test-frameworks test-cluster soak-cluster test-lowest soak check bench papers gpu docs proto image-test image-walk release images test-installed format clean

test: .venv/stamp
	@echo "embstore: running the tests in $(PYTEST_WORKERS) processes"
	@.venv/bin/python -m pytest -q -n $(PYTEST_WORKERS) --dist worksteal -m "not slow" $(PYTEST_ARGS)

test-rest: .venv/stamp
	@echo "embstore: running the slow tests in $(PYTEST_WORKERS) processes"
	@.venv/bin/python -m pytest -q -n $(PYTEST_WORKERS) --dist worksteal -m "slow and not complete" $(PYTEST_ARGS)

test-all:
	@$(MAKE) --no-print-directory test
	@$(MAKE) --no-print-directory test-rest
	@.venv/bin/python -m pytest -q -n $(PYTEST_WORKERS) --dist worksteal -m complete
	@$(MAKE) --no-print-directory test-frameworks PYTEST_ARGS='-m ""'

times: .venv/stamp .venv-frameworks/stamp
	@echo "embstore: measuring the tests in $(PYTEST_WORKERS) processes"
	@rm -rf build/times
	@.venv/bin/python -m pytest -q -n $(PYTEST_WORKERS) --dist worksteal -p tests.times $(PYTEST_ARGS)
	@.venv-frameworks/bin/python -m pytest -q -n $(PYTEST_WORKERS) --dist worksteal -p tests.times $(OF_FRAMEWORKS) $(PYTEST_ARGS)
	@.venv/bin/python -m tests.times

mutations: .venv/stamp
	@echo "embstore: making small wrong changes, one by one"
	@.venv/bin/python -m tests.mutations

test-page: .venv/stamp
	@echo "embstore: driving the page in Chromium"
	@.venv/bin/python -m pytest -q tests/page tests/service/test_page_files.py $(PYTEST_ARGS)

screenshots: .venv/stamp
	@echo "embstore: training, and making pictures of the page"
	@.venv/bin/python -m tests.page.shots

test-frameworks: .venv-frameworks/stamp
	@echo "embstore: running the tests of the adapters for frameworks"
	@.venv-frameworks/bin/python -m pytest -q -n $(PYTEST_WORKERS) --dist worksteal -m "not complete" $(OF_FRAMEWORKS) $(PYTEST_ARGS)

test-cluster: .venv-cluster/stamp
	@echo "embstore: running the tests of clusters on Ray"
	@.venv-cluster/bin/python -m pytest -q tests/cluster $(PYTEST_ARGS)

soak-cluster: .venv-cluster/stamp
	@echo "embstore: killing shards, trainers and the coordinator on Ray"
	@.venv-cluster/bin/python -m pytest -q -s --soak 11 tests/cluster/test_kills.py $(PYTEST_ARGS)

test-lowest: .venv-lowest/stamp
	@echo "embstore: running the tests of wire, client and command line with the lowest versions"
	@.venv-lowest/bin/python -m pytest -q -n $(PYTEST_WORKERS) --dist worksteal tests/commands tests/service --ignore tests/service/demo --ignore tests/service/faults $(PYTEST_ARGS)

soak: .venv/stamp
	@echo "embstore: killing trainers and servers, thousands of times, and sending what is almost right"
	@.venv/bin/python -m pytest -q -n $(PYTEST_WORKERS) --soak $(SOAK) tests/faults/test_kill_at_random_moments.py tests/faults/test_power_cuts.py tests/service/faults/test_restarts.py tests/service/faults/test_resumed_runs.py tests/service/faults/test_write_behind_kills.py tests/service/faults/test_shard_kills.py tests/service/faults/test_cluster_checkpoint_kills.py tests/service/faults/test_standbys.py
	@.venv/bin/python -m pytest -q -n $(PYTEST_WORKERS) --dist worksteal --soak $(SOAK) tests/service/faults/test_mutations.py tests/service/faults/test_documented.py
	@.venv/bin/python -m pytest -q --soak $(SOAK) tests/service/faults/test_crowd.py

check: .venv/stamp .venv-proto/stamp
	@echo "embstore: checking format, lint, types and style"
	@.venv/bin/python -m ruff format --check --output-format concise .
	@.venv/bin/python -m ruff check --quiet .
	@.venv/bin/python -m mypy --strict --no-error-summary
	@.venv/bin/python -m pytest -q tests/style

demo: $(DEMO_VENV)/stamp
	@$(DEMO_VENV)/bin/python -m embstore_server demo $(DEMO_ARGS)

bench: .venv-bench/stamp
	@echo "embstore: running the benchmarks"
	@.venv-bench/bin/python -m tests.bench $(BENCH_ARGS)
	@.venv-bench/bin/python -m tests.bench.lookahead $(LOOKAHEAD_ARGS)
	@.venv-bench/bin/python -m tests.bench.hot $(HOT_ARGS)

papers: .venv-bench/stamp
	@.venv-bench/bin/python -m tests.bench.hot --only training
	@.venv-bench/bin/python -m tests.bench.lookahead --only cells
	@.venv-bench/bin/python -m tests.bench.papers

gpu:
	@echo "embstore: running the plan of a GPU"
	@$(PYTHON) -m tests.gpu.plan $(GPU_ARGS)

docs: .venv-docs/stamp
	@echo "embstore: building the site in build/site"
	@NO_MKDOCS_2_WARNING=1 .venv-docs/bin/python -m mkdocs build --strict --quiet
	@.venv-docs/bin/zizmor --offline --quiet .github/workflows
	@.venv-docs/bin/typos --format brief *.md docs client embstore proto release server

proto: .venv-proto/stamp
	@echo "embstore: generating the protobuf code"
	@cd proto && ../.venv-proto/bin/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. --grpc_python_out=. embstore_proto/v1/embstore.proto

image-test: .venv/stamp
	@echo "embstore: building the image and training against it"
	@PYTHON=.venv/bin/python docker/image_test.sh

image-walk: .venv/stamp
	@echo "embstore: walking an operator's way, from compose to an alert that is mended"
	@PYTHON=.venv/bin/python docker/walk.sh

release: .venv-release/stamp
	@echo "embstore: building a release in dist"
	@.venv-release/bin/python -m release $(RELEASE_ARGS)

images: .venv-release/stamp
	@echo "embstore: building images"
	@.venv-release/bin/python -m release.images $(IMAGES_ARGS)
	@for bill in dist/*-image-*.spdx.json; do .venv-release/bin/pyspdxtools --infile $$bill; done

test-installed:
	@echo "embstore: installing the wheel in dist, in an empty place"
	@$(PYTHON) -m release.installed $(INSTALLED_ARGS)

format: .venv/stamp
	@echo "embstore: formatting"
	@.venv/bin/python -m ruff check --quiet --fix-only .
	@.venv/bin/python -m ruff format --quiet .

clean:
	@echo "embstore: removing environments and caches"
	@rm -rf .venv .venv-frameworks .venv-cluster .venv-bench .venv-docs .venv-proto .venv-release .venv-lowest .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/stamp: EXTRAS = server,dev
.venv-frameworks/stamp: EXTRAS = server,dev,torch,jax,keras
.venv-cluster/stamp: EXTRAS = ray,dev
.venv/stamp .venv-frameworks/stamp .venv-cluster/stamp .venv-bench/stamp: AHEAD = $(@D)/bin/python -m embstore_server compile
.venv-frameworks/stamp: EXACTLY = torch==2.13.0 # as for the benchmarks: what was tested
.venv-bench/stamp: EXTRAS = server,bench
.venv-docs/stamp: EXTRAS = docs
.venv-proto/stamp: EXTRAS = proto
.venv-release/stamp: EXTRAS = release
.venv-lowest/stamp: EXTRAS = server,dev
.venv-lowest/stamp: EXACTLY = grpcio==1.65.5 numpy==2.0.0 protobuf==5.26.1 rich==13.9.4 typer==0.26.1 xxhash==3.2.0

# The stamp stands for "the package and its extras are installed as pyproject.toml says". An
# environment that is there is kept and brought up to date; one without a working pip is made again.
# Environments that run stores have the kernels compiled ahead, once for all of them (about 30 s of two cores).
.venv/stamp .venv-frameworks/stamp .venv-cluster/stamp .venv-bench/stamp .venv-docs/stamp .venv-proto/stamp .venv-release/stamp .venv-lowest/stamp: pyproject.toml
	@echo "embstore: preparing $(@D) with the extras $(EXTRAS) (needs the network; once per pyproject.toml)"
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "embstore needs Python 3.11 or newer, found %d.%d: set PYTHON" % sys.version_info[:2])'
	@$(@D)/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(@D)
	@$(@D)/bin/python -m pip install -qq --no-input --disable-pip-version-check --editable ".[$(EXTRAS)]" $(EXACTLY)
	@$(AHEAD)
	@touch $@
