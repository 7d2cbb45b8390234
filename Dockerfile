# Two images: `operator` (no Java) and `driver` (Spark with Delta, Kafka, Avro and S3).
#
#     docker build --target operator -t lakemirror-operator:0.1.0 .
#     docker build --target driver   -t lakemirror-driver:0.1.0 .
#
# Which object stores the driver knows is told by --build-arg OBJECT_STORES="s3 azure gcs", by default s3.
#
# Build secrets, all of them optional, let the build use the machine's own registries without leaving a trace of them:
# `pip` (pip.conf), `maven` (settings.xml), `ca` (certificates, PEM), `truststore` (certificates, for Java). scripts/images
# passes what is there.
# The base is named by its tag alone, so that each build starts from Debian's newest security updates, as those of apt do. What was
# built is named by its own digest, and scripts/scan-images looks for what has no update in it yet.
ARG BASE=debian:bookworm-slim

FROM ${BASE} AS base
RUN apt-get update \
 && apt-get install -y --no-install-recommends ca-certificates python3 tini \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/debconf/* /var/log/*
ENV PATH=/opt/lakemirror/bin:$PATH LANG=C.UTF-8 PYTHONUNBUFFERED=1
ENTRYPOINT ["/usr/bin/tini", "--"]


FROM base AS python
RUN apt-get update && apt-get install -y --no-install-recommends python3-venv && python3 -m venv /opt/lakemirror
WORKDIR /src
COPY docker/constraints.txt docker/requirements pyproject.toml ./
ENV PIP_CONFIG_FILE=/run/secrets/pip PIP_CONSTRAINT=/src/constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1

FROM python AS operator-packages
RUN --mount=type=secret,id=pip \
    --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt \
    ./requirements operator >wanted && pip install -r wanted && pip uninstall -y pip setuptools \
 # A class for each API group, 77 of the package's 126 MB; the operator uses the dynamic client.
 && rm -rf /opt/lakemirror/lib/python3.11/site-packages/kubernetes/client/api \
           /opt/lakemirror/lib/python3.11/site-packages/kubernetes/aio/client/api

FROM python AS driver-packages
RUN --mount=type=secret,id=pip \
    --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt \
    ./requirements spark >wanted && pip install -r wanted && pip uninstall -y pip setuptools \
 && rm -rf /opt/lakemirror/lib/python3.11/site-packages/pyspark/examples

# The project itself, apart from what it needs, so that a change of its code makes a small layer.
FROM python AS project
COPY README.md LICENSE ./
COPY operator operator
COPY sparkapp_templates sparkapp_templates
RUN --mount=type=secret,id=pip \
    --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt \
    pip install --no-deps --root /project .

FROM base AS jars
ARG OBJECT_STORES=s3
RUN apt-get update && apt-get install -y --no-install-recommends maven
WORKDIR /src
COPY operator/lakemirror/driver/runtime/jars.xml ./
COPY operator/lakemirror/driver/runtime/object_stores ./
RUN --mount=type=secret,id=maven \
    --mount=type=secret,id=truststore,target=/etc/ssl/certs/java/cacerts \
    if [ -r /run/secrets/maven ]; then settings="-s /run/secrets/maven"; fi; \
    for pom in jars $OBJECT_STORES; do \
      mvn ${settings:-} -B -ntp -q -f $pom.xml org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies \
        -DincludeScope=runtime -DoutputDirectory=/jars || exit 1; \
    done


FROM base AS operator
COPY --from=operator-packages /opt/lakemirror /opt/lakemirror
COPY --from=project /project /
# kopf asks for the user's name; by a variable, so that any user will do.
ENV USER=lakemirror
USER 65532:65532
CMD ["lakemirror", "--help"]


FROM base AS driver
# Spark's own images use this user too. It needs a name: Hadoop asks for it.
RUN apt-get update && mkdir -p /usr/share/man/man1 \
 && apt-get install -y --no-install-recommends openjdk-17-jre-headless procps \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/debconf/* /var/log/* \
 && groupadd --gid 185 spark && useradd --uid 185 --gid spark --no-create-home --home-dir /tmp spark \
 && ln -s /opt/lakemirror/lib/python3.11/site-packages/pyspark /opt/spark
ENV SPARK_HOME=/opt/spark PYSPARK_PYTHON=/opt/lakemirror/bin/python3
COPY --from=driver-packages /opt/lakemirror /opt/lakemirror
COPY --from=jars /jars /opt/lakemirror/lib/python3.11/site-packages/pyspark/jars
COPY docker/entrypoint /opt/entrypoint
COPY --from=project /project /
WORKDIR /tmp
USER 185:185
ENTRYPOINT ["/usr/bin/tini", "--", "/opt/entrypoint"]
CMD ["lakemirror", "--help"]
