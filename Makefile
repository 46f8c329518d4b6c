# make demo       let the voice `en` speak a corpus, train a tiny voice on it, from `base`, and synthesize a sentence; needs
#                 Python and make only
# make real       train a vocoder and a voice on a person's recordings, and write a page to hear them; Debian or Ubuntu.
#                 make real FROM=FOLDER takes the package festvox-ru from a folder, as a file *.deb or unpacked
# make test       the test suite, in two processes
# make test-long  the test suite with the tests that take many seconds each, faults, a short soak test and mutants
# make test-outside  the tests that need other programs, which it installs: Ray, Slurm, torchrun, mpirun, an S3 server, schemas
#                 of Kubernetes, players of exported voices; needs root
# make test-quick the tests that need no TensorFlow, in half a minute
# make lint       ruff and mypy
# make docs      the pages that follow from the sources, in docs/generated: all settings, all messages
# make site      a searchable site of all pages, build/site/index.html; fails at a warning, such as a broken link
# make gpu-proof  prove on this machine's GPUs what the documentation claims, in ten minutes; the page is proof/proof.md

PYTHON ?= python3
BIN := .venv/bin
FROM_BASE := --init-from base --vocoder voices/myxtts_voices/base/vocoder --learning-rate 5e-4
DEMO_TEXT := "The old teacher sang a quiet song, and we listened."
SITE := build/venv
ZENSICAL := zensical==0.0.73
INSTALLED := .venv/installed
INSTALLED_DEMO := .venv/installed-demo
INSTALLED_REAL := .venv/installed-real
INSTALLED_GPU := .venv/installed-gpu
INSTALLED_OUTSIDE := .venv/installed-outside

.PHONY: demo real test test-long test-outside test-quick lint docs site gpu-proof

demo: $(INSTALLED_DEMO)
	$(BIN)/python -m myxtts corpus --speaker en --out data/demo
	$(BIN)/python train_main.py --config configs/demo.yaml $(FROM_BASE) --max-steps 1000 --resume
	$(BIN)/python -m myxtts synthesize --run runs/demo --text $(DEMO_TEXT) --out runs/demo/hello.wav
	@echo
	@echo "Listen:  runs/demo/hello.wav says $(DEMO_TEXT), a sentence that is not in the corpus"
	@echo "         runs/demo/report.html in a browser: held-out sentences, each as a recording and as synthesized speech,"
	@echo "         with the vocoder and with Griffin-Lim, and pictures of mel and alignment"
	@echo "Look:    .venv/bin/tensorboard --logdir runs"

real: $(INSTALLED_REAL)
	$(BIN)/python utilities/human/corpora.py festvox-ru $(if $(FROM),--from $(FROM))
	$(BIN)/python -m myxtts voice --train-data data/human/festvox-ru --run human --minutes 36
	$(BIN)/python utilities/human/page.py --run runs/human --open

test: $(INSTALLED)
	$(BIN)/python -m tests.run

test-long: $(INSTALLED)
	TEST_LONG=1 $(BIN)/python -m tests.run
	$(BIN)/python tests/robustness/soak.py --minutes 5
	$(BIN)/python tests/robustness/mutants.py --count 5
	$(BIN)/python tests/robustness/device_mutants.py
	$(BIN)/python -m tests.robustness.cases

test-outside: $(INSTALLED_OUTSIDE)
	$(BIN)/python -m unittest discover --start-directory tests/engines --top-level-directory .
	$(BIN)/python -m unittest discover --start-directory tests/players --top-level-directory .

test-quick: $(INSTALLED)
	$(BIN)/python -m tests.run --quick

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(INSTALLED)
	$(BIN)/python -m docs.generate

site:
	$(PYTHON) -m venv $(SITE)
	$(SITE)/bin/python -m pip install --quiet --disable-pip-version-check $(ZENSICAL)
	$(SITE)/bin/python -m docs.site_pages
	$(SITE)/bin/zensical build --clean --strict

gpu-proof: $(INSTALLED_GPU)
	$(BIN)/python benchmarks/gpu_proof.py --out proof

$(INSTALLED_DEMO): requirements.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	touch $@

# DNSMOS, by which the best checkpoint of a voice is chosen; what needs a compiler is left out.
$(INSTALLED_REAL): $(INSTALLED_DEMO)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "speechmos>=0.0.1.1"
	touch $@

$(INSTALLED_OUTSIDE): $(INSTALLED) tests/engines/requirements.txt tests/players/requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r tests/engines/requirements.txt \
		-r tests/players/requirements.txt
	touch $@

$(INSTALLED_GPU): requirements.txt requirements-gpu.txt pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-gpu.txt
	touch $@

$(INSTALLED): requirements.txt requirements-dev.txt pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt -r requirements-dev.txt
	touch $@
