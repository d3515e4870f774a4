# make demo    build the demo model's four files, measure them, run a batch on both runtimes
# make chat    talk with the demo model in the terminal, its files built first where they are not there
# make test    run every test, in two processes (TESTS=... for some of them)
# make fuzz    look for what breaks a server or a reader of files, for MINUTES=5 (ONLY=server: one target)
# make figures measure what README.md and docs/performance.md show, and write it there (FIGURES="--list": what that is)
# make lint    style, types (for Linux, macOS and Windows), import directions
# make native  check the build of llama.cpp, and build it again if it is not the right one
#
# Each makes .venv and installs what it needs; a second run installs nothing.
#
# Choices, given on the command line (make demo EXTRAS=...):
#   GPU         what llama.cpp is built for: cuda, hip, metal, sycl, vulkan, or none; it stays until another is given
#   EXTRAS      cpu,quantize (the default) or cuda,quantize-cuda (with GPU=cuda): which ONNX Runtime, and what makes
#               files for it
#   CMAKE_ARGS  more for llama.cpp's build
#   PIP_ARGS    for pip when it installs Python packages, e.g. an index that has the torch build of your choice
#   PYTHON      the interpreter that .venv is made from

PYTHON ?= python3
comma := ,
GPU ?=
EXTRAS ?= $(if $(filter cuda,$(GPU)),cuda$(comma)quantize-cuda,cpu$(comma)quantize)
PIP_ARGS ?=
MINUTES ?= 5

BIN := .venv/bin
NATIVE := .venv/.native$(if $(GPU),-$(GPU))
stamp = .venv/.installed-$(subst $(comma),-,$(EXTRAS))
PIP := $(BIN)/python -m pip --disable-pip-version-check
# onnxruntime and onnxruntime-gpu install the same files: whichever is not asked for has to go first.
UNWANTED = $(if $(findstring cuda,$(EXTRAS)),onnxruntime onnxruntime-genai,onnxruntime-gpu onnxruntime-genai-cuda)

.DEFAULT_GOAL := help
.PHONY: help demo chat test fuzz figures lint native install

help:
	@sed -n '/^# make/s/^# //p' Makefile

demo: $(stamp)
	$(BIN)/python -m app.demo

chat: $(stamp)
	@test -f assets/pebble-built/manifest.json || $(BIN)/quantize assets/pebble --out assets/pebble-built
	@$(BIN)/ingot chat assets/pebble-built

test: $(stamp)-dev
	$(BIN)/python -m pytest -n 2 $(TESTS)

fuzz: $(stamp)-dev
	@test -f assets/pebble-built/manifest.json || $(BIN)/quantize assets/pebble --out assets/pebble-built
	$(BIN)/python -m tests.fuzz --minutes $(MINUTES) $(addprefix --only ,$(ONLY))

figures: $(stamp)-dev
	$(BIN)/python -m tests.figures $(FIGURES)

lint: $(stamp)-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --platform darwin --cache-dir .mypy_cache/darwin
	$(BIN)/mypy --platform win32 --cache-dir .mypy_cache/win32
	$(BIN)/lint-imports

install: $(stamp)

native: .venv/pyvenv.cfg
	$(BIN)/python -m runtimes.llamacpp.build $(if $(GPU),--gpu $(GPU))

.venv/pyvenv.cfg:
	@echo "== making .venv"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Ingot needs Python 3.11 or later; name one with PYTHON=")'
	$(PYTHON) -m venv .venv

# Built before anything else, since pip would otherwise take or make a build whose fast kernels may crash.
$(NATIVE): .venv/pyvenv.cfg constraints.txt $(addprefix runtimes/llamacpp/,source.py build.py attention.h products.h weights.h adapters.h)
	@echo "== llama.cpp for this machine (minutes the first time on it, seconds afterwards)"
	$(BIN)/python -m runtimes.llamacpp.build $(if $(GPU),--gpu $(GPU))
	@rm -f .venv/.native*
	@touch .venv/.native $@

$(stamp): pyproject.toml constraints.txt | $(NATIVE)
	@echo "== installing Ingot with $(EXTRAS)"
	@$(PIP) uninstall --quiet --yes $(UNWANTED) 2>/dev/null || true
	$(PIP) install --quiet $(PIP_ARGS) -c constraints.txt -e '.[$(EXTRAS),serve,web]'
	@touch $@

$(stamp)-dev: $(stamp)
	@echo "== installing what the tests and checks need"
	$(PIP) install --quiet $(PIP_ARGS) -c constraints.txt -e '.[$(EXTRAS),dev]'
	@touch $@
