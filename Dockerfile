# syntax=docker/dockerfile:1
#
# The gateway, and as target `pipeline` the Spark jobs:
#
#     docker build --tag gateway .
#     docker build --target pipeline --tag gateway-pipeline .
#
# Both run as user 10001, on a read-only root, and as children of tini, which passes signals on. What they
# write goes to /data, and Spark's shuffles to /tmp.

ARG PYTHON=3.11

# Everything that is needed to build and not to run stays in this stage.
FROM python:${PYTHON}-slim AS build
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends tini && rm -rf /var/lib/apt/lists/*
WORKDIR /src
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
COPY constraints.txt ./
RUN python3 -m venv /pip \
    && /pip/bin/pip install --quiet --constraint constraints.txt pip \
    && python3 -m venv --without-pip /venv
COPY pyproject.toml LICENSE ./
COPY app app
COPY dedupe dedupe
COPY pipeline pipeline
COPY docs/runbooks docs/runbooks
RUN /pip/bin/pip wheel --quiet --no-deps --build-constraint constraints.txt --wheel-dir /wheels . ./pipeline \
    && /pip/bin/pip --python /venv/bin/python install --quiet \
       --constraint constraints.txt --build-constraint constraints.txt \
       --find-links /wheels "idempotent-ingestion-gateway[msk,otel,snapshots]"
COPY deploy/sbom.py /sbom.py

# The native module, which needs Rust to be built and nothing to run.
FROM build AS build-native
# hadolint ignore=DL3008
RUN if ! command -v cargo >/dev/null; then \
      apt-get update \
      && apt-get install --yes --no-install-recommends rustc-web cargo-web \
      && rm -rf /var/lib/apt/lists/*; \
    fi
COPY native native
RUN /pip/bin/pip wheel --quiet --no-deps --build-constraint constraints.txt --wheel-dir /native-wheels ./native

# The Spark jobs without the gateway, and the jars that pipeline/pom.xml names.
FROM build AS build-pipeline
# hadolint ignore=DL3008
RUN apt-get update \
    && mkdir -p /usr/share/man/man1 \
    && apt-get install --yes --no-install-recommends default-jdk-headless maven \
    && rm -rf /var/lib/apt/lists/*
# For proxies, and for certificates of one's own: --build-arg MAVEN_OPTS=-Djavax.net.ssl.trustStore=...
ARG MAVEN_OPTS=
# The stores that the jobs reach, profiles of pipeline/pom.xml with commas between them: s3, gcs, abfs.
ARG STORES=s3
RUN python3 -m venv --clear --without-pip /venv \
    && /pip/bin/pip --python /venv/bin/python install --quiet \
       --constraint constraints.txt --build-constraint constraints.txt \
       --find-links /wheels "gateway-pipeline[spark]"
RUN mvn --batch-mode --quiet -Dstyle.color=never --file pipeline/pom.xml \
      --activate-profiles "$STORES" dependency:copy-dependencies \
    && jars="$(/venv/bin/python -c 'import pyspark; print(pyspark.__path__[0])')/jars" \
    && cp build/spark/jars/*.jar "$jars" \
    && mkdir -p /opt/gateway && ln -s "$jars" /opt/gateway/jars

FROM python:${PYTHON}-slim AS pipeline
LABEL org.opencontainers.image.title="Spark jobs of the idempotent ingestion gateway" \
      org.opencontainers.image.licenses="Apache-2.0"
# hadolint ignore=DL3008
RUN apt-get update \
    && mkdir -p /usr/share/man/man1 \
    && apt-get install --yes --no-install-recommends default-jre-headless procps tini \
    && rm -rf /var/lib/apt/lists/* \
    # Java wants its user to have a name and a home.
    && groupadd --gid 10001 gateway \
    && useradd --uid 10001 --gid 10001 --home-dir /tmp --no-create-home gateway \
    && mkdir /data && chown 10001:10001 /data
COPY --from=build-pipeline /venv /venv
COPY --from=build-pipeline /opt/gateway /opt/gateway
RUN --mount=type=bind,from=build,source=/sbom.py,target=/sbom.py \
    mkdir -p /usr/share/sbom && python3 /sbom.py /venv gateway-pipeline > /usr/share/sbom/gateway-pipeline.cdx.json
# Operators start jobs by a file: this one.
COPY pipeline/__main__.py /opt/gateway/pipeline/__main__.py
ENV PATH=/venv/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 PYSPARK_PYTHON=/venv/bin/python \
    PIPELINE_JARS_DIR=/opt/gateway/jars HOME=/tmp
USER 10001:10001
WORKDIR /data
VOLUME /data
ENTRYPOINT ["/usr/bin/tini", "--", "/venv/bin/python", "-m", "pipeline"]
CMD ["--help"]

# The last stage is what `docker build` makes by default.
FROM python:${PYTHON}-slim AS gateway
LABEL org.opencontainers.image.title="Idempotent ingestion gateway" \
      org.opencontainers.image.description="An HTTP event gateway in front of Kafka: every event is stored once, however often it is sent" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN mkdir /data && chown 10001:10001 /data
COPY --from=build /usr/bin/tini-static /usr/bin/tini
COPY --from=build /venv /venv
RUN --mount=type=bind,from=build,source=/pip,target=/pip \
    --mount=type=bind,from=build-native,source=/native-wheels,target=/native-wheels \
    /pip/bin/pip --python /venv/bin/python install --quiet --no-cache-dir --no-deps /native-wheels/*.whl
RUN --mount=type=bind,from=build,source=/sbom.py,target=/sbom.py \
    mkdir -p /usr/share/sbom && python3 /sbom.py /venv gateway > /usr/share/sbom/gateway.cdx.json
ENV PATH=/venv/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 \
    GATEWAY_HOST=0.0.0.0 GATEWAY_DATA_DIR=/data
EXPOSE 8080 9090
USER 10001:10001
WORKDIR /data
VOLUME /data
STOPSIGNAL SIGTERM
ENTRYPOINT ["/usr/bin/tini", "--", "/venv/bin/gateway"]
CMD ["serve"]
