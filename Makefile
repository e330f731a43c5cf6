PYTHON ?= python3
ARGS ?=

# Each of a test run's thousand processes, and each start of a gateway, would compile all sources anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL: # apt and pip lock what they write

include tools/setup.mk

.PHONY: help run native test unit mutants prove fuzz docs site check kafka pipeline kafka-matrix demo bench load fault screenshots image-test chart-test k8s-test grafana-test release release-test clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: export GATEWAY_MODE ?= development
run: $(VENV)/.stamp-run ## start the gateway in the foreground; GATEWAY_* variables are passed on, WORKERS=2 makes it several
	@exec $(BIN)/gateway serve $(if $(WORKERS),--workers $(WORKERS))

native: $(VENV)/.stamp-native ## build the native module, which halves the CPU of plain events; needs Rust, or Debian and root
	@echo "The native module is installed: the gateway uses it from its next start on."

test: $(TEST_NEEDS) ## run all tests, four at a time; or some, e.g. make test ARGS="tests/unit -x"
	@[ -n "$(ARGS)" ] || echo "All tests, about half an hour on two cores: Spark in two processes, and in two more" \
	  "gateways, logs and brokers, faults, SDKs, simulation, contracts and units." \
	  "Those that need Python alone, in about a minute: make unit"
	@exec $(BIN)/pytest $(or $(ARGS),-n 4 --reruns 1)

unit: export SIM_HISTORIES ?= 250
unit: $(VENV)/.stamp-dev ## run the tests that need Python alone, with a quarter of the simulated histories, in a minute
	@exec $(BIN)/pytest -n 2 -m "not kafka and not slow" tests/unit tests/sim tests/contract $(ARGS)

mutants: $(VENV)/.stamp-dev build/kafka/.stamp-libs ## break the code on purpose, see that the named tests fail; half an hour
	@exec $(BIN)/python -m tools.mutants $(ARGS)

prove: $(VENV)/.stamp-dev $(VENV)/.stamp-pipeline build/kafka/.stamp-libs build/spark/.stamp-jars ## try for an hour, or MINUTES=10, whatever could break the promise; one report
	@exec $(BIN)/python -m tools.prove $(if $(MINUTES),--minutes $(MINUTES)) $(ARGS)

fuzz: $(VENV)/.stamp-dev $(FUZZ)/.stamp ## fuzz the native module and the Python code against one another, for an hour or MINUTES=5; needs Rust
	@PYTHONPATH=$(FUZZ)/modules exec $(BIN)/python -m tests.native.fuzz $(FUZZ) $(if $(MINUTES),--minutes $(MINUTES)) $(ARGS)

docs: $(VENV)/.stamp-dev ## write what is generated anew, after a new setting, metric or value of the chart
	@exec $(BIN)/python -m tests.support.generated

site: $(VENV)/.stamp-dev ## build the documentation as a site with search in build/site, every link checked
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict && echo "The site is built: build/site/index.html"

check: $(VENV)/.stamp-dev $(VENV)/.stamp-pipeline ## lint, formatting, types, import contracts, Dockerfile; and the native module, where cargo is
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/hadolint Dockerfile
	@$(CHECK_NATIVE)

conformance: $(VENV)/.stamp-dev ## judge a client by HARNESS="command", against a gateway of its own or URL=; see clients/conformance
	@exec $(BIN)/python -m clients.conformance --harness "$(HARNESS)" $(if $(URL),--url $(URL)) $(ARGS)

kafka: $(VENV)/.stamp-run build/kafka/.stamp-libs ## start a throw-away Kafka on 127.0.0.1:9092 in the foreground
	@exec $(BIN)/python -m tests.support.kafka --port 9092

kafka-matrix: $(VENV)/.stamp-dev build/kafka/.stamp-libs $(KAFKA_RELEASES:%=build/kafka-%/.stamp-libs) ## try each supported release of Kafka, one after the other, in five minutes
	@KAFKA_RELEASES="$(KAFKA_RELEASES) 4.2" exec $(BIN)/pytest tests/kafka_matrix $(ARGS)

pipeline: $(VENV)/.stamp-pipeline build/spark/.stamp-jars build/spark/home/classes.jsa ## install the Spark jobs; then .venv/bin/python -m pipeline
	@echo "The Spark jobs are ready: $(BIN)/python -m pipeline --help"

demo: $(VENV)/.stamp-dev $(VENV)/.stamp-pipeline build/.stamp-java ## send 100,000 events through losses and let Spark judge the log
	@exec $(BIN)/python -m loadtests.demo

bench: $(VENV)/.stamp-dev $(VENV)/.stamp-native build/kafka/.stamp-libs $(REDIS) ## compare with a plain service and Redis in minutes; ARGS=--quick for seconds
	@exec $(BIN)/python -m loadtests.bench $(ARGS)

load: $(VENV)/.stamp-dev ## send traffic to a running gateway by locust; ARGS="--load-profile spike --seconds 120", --web for its page
	@exec $(BIN)/python -m loadtests.load $(ARGS)

screenshots: $(VENV)/.stamp-dev build/sdks/.stamp-chromium build/.stamp-promtool ## take the pictures in docs/images anew, by Chromium; three minutes
	@exec $(BIN)/python -m tests.e2e.console.screenshots

image-test: build/image/base.tar $(IMAGE_NEEDS) ## build both images without a container engine, send events, run jobs; Debian, as root
	@exec $(BIN)/pytest tests/deploy/image -s $(ARGS)

chart-test: $(CHART_NEEDS) ## render and check the charts, their alerts and their board, and deploy/compose.yaml; the first time it builds helm, for minutes
	@exec $(BIN)/pytest tests/deploy/chart $(ARGS)

fault: $(VENV)/.stamp-dev build/kafka/.stamp-libs ## kill, freeze, restart and add workers of a group on a real Kafka; a quarter of an hour
	@exec $(BIN)/python -m loadtests.group_faults $(ARGS)

k8s-test: $(CLUSTER_NEEDS) ## install, upgrade and scale the chart on a real control plane, which the first call builds for ten minutes
	@exec $(BIN)/pytest tests/deploy/cluster $(ARGS)

grafana-test: $(GRAFANA_NEEDS) ## have a real Grafana take its files of deploy/compose.yaml and ask Prometheus; the first call builds it for six minutes
	@exec $(BIN)/pytest tests/deploy/grafana $(ARGS)

release: $(RELEASE_NEEDS) ## build all that is published, VERSION=x, into dist/x, and push images and charts to REGISTRY=
	@exec $(BIN)/python -m tools.release "$(VERSION)" $(if $(REGISTRY),--registry "$(REGISTRY)") $(ARGS)

release-test: $(RELEASE_NEEDS) build/image/base.tar build/.stamp-registry build/kafka/.stamp-libs ## release to a registry on this machine, install from it, upgrade a group; Debian, as root
	@exec $(BIN)/pytest tests/deploy/release -s $(ARGS)

clean: ## remove .venv, build and caches; never the gateway's data
	@rm -rf $(VENV) build dist native/target tests/e2e/sdks/*/node_modules tests/e2e/clients/javascript/node_modules tests/deploy/grafana/node_modules .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
