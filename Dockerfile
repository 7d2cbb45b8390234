# Two images: `operator` (no Java) and `driver` (Spark with Delta, Kafka, Avro and S3).
#
#     docker build --target operator -t lakemirror-operator:0.1.0 .
#     docker build --target driver   -t lakemirror-driver:0.1.0 .
#
# Which object stores the driver knows is told by --build-arg OBJECT_STORES="s3 azure gcs", by default s3. With --build-arg
# METASTORES=hive, Spark keeps the jars that serve only a Hive metastore. Some of them have vulnerabilities that Spark has not mended.
#
# Build secrets, all of them optional, let the build use the machine's own registries without leaving a trace of them:
# `pip` (pip.conf), `maven` (settings.xml), `ca` (certificates, PEM), `truststore` (certificates, for Java). scripts/images
# passes what is there.
# The base is named by its digest (scripts/lock base takes the newest), and each build installs Debian's security updates on it. Python
# packages and jars have the hashes that are written down beside their versions. What was built is named by its own digest, and
# scripts/scan-images looks for what has no update in it yet.
ARG BASE=debian:bookworm-slim@sha256:abd67ffcfa541b485a3dff59865ab629aa048a6c613e639d36e7456b0b229241

FROM ${BASE} AS base
RUN apt-get update \
 && apt-get upgrade -y \
 && apt-get install -y --no-install-recommends ca-certificates python3 tini \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/debconf/* /var/log/*
ENV PATH=/opt/lakemirror/bin:$PATH LANG=C.UTF-8 PYTHONUNBUFFERED=1
ENTRYPOINT ["/usr/bin/tini", "--"]


# Wheels are built or fetched in /build, by their hashes, and installed from there.
FROM base AS python
RUN apt-get update && apt-get install -y --no-install-recommends python3-venv && python3 -m venv /build && python3 -m venv /opt/lakemirror
WORKDIR /src
COPY docker/build.txt ./
ENV PIP_CONFIG_FILE=/run/secrets/pip PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN --mount=type=secret,id=pip \
    --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt \
    /build/bin/pip install --require-hashes -r build.txt

FROM python AS operator-packages
COPY docker/operator.txt ./
RUN --mount=type=secret,id=pip \
    --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt \
    /build/bin/pip wheel --no-build-isolation --require-hashes --wheel-dir /wheels -r operator.txt \
 && pip install --no-index --no-deps /wheels/*.whl && pip uninstall -y pip setuptools && rm -r /wheels \
 # A class for each API group, 77 of the package's 126 MB; the operator uses the dynamic client.
 && rm -rf /opt/lakemirror/lib/python3.11/site-packages/kubernetes/client/api \
           /opt/lakemirror/lib/python3.11/site-packages/kubernetes/aio/client/api

FROM python AS driver-packages
ARG METASTORES=""
COPY docker/driver.txt docker/hive-jars.txt ./
RUN --mount=type=secret,id=pip \
    --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt \
    /build/bin/pip wheel --no-build-isolation --require-hashes --wheel-dir /wheels -r driver.txt \
 && pip install --no-index --no-deps /wheels/*.whl && pip uninstall -y pip setuptools && rm -r /wheels \
 && rm -rf /opt/lakemirror/lib/python3.11/site-packages/pyspark/examples \
 && case " $METASTORES " in \
      *" hive "*) ;; \
      *) cd /opt/lakemirror/lib/python3.11/site-packages/pyspark/jars && grep -v '^#' /src/hive-jars.txt | xargs rm ;; \
    esac

# The project itself, apart from what it needs, so that a change of its code makes a small layer.
FROM python AS project
COPY README.md LICENSE pyproject.toml ./
COPY operator operator
COPY sparkapp_templates sparkapp_templates
RUN /build/bin/pip wheel --no-build-isolation --no-deps --no-index --wheel-dir /wheels . \
 && pip install --no-index --no-deps --root /project /wheels/*.whl

FROM base AS jars
ARG OBJECT_STORES=s3
ENV LC_ALL=C
RUN apt-get update && apt-get install -y --no-install-recommends maven
WORKDIR /src
COPY operator/lakemirror/driver/runtime/jars.xml operator/lakemirror/driver/runtime/jars.sha256 ./
COPY operator/lakemirror/driver/runtime/object_stores ./
RUN --mount=type=secret,id=maven \
    --mount=type=secret,id=truststore,target=/etc/ssl/certs/java/cacerts \
    if [ -r /run/secrets/maven ]; then settings="-s /run/secrets/maven"; fi; \
    for pom in jars $OBJECT_STORES; do \
      mvn ${settings:-} -B -ntp -q -f $pom.xml org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies \
        -DincludeScope=runtime -DoutputDirectory=/jars || exit 1; \
      cat $pom.sha256 >>named; \
    done \
 # Each jar is named by its hash, and no other one is there.
 && cd /jars && sha256sum --check --strict --quiet /src/named \
 && ls | sort >/src/there && cut -c 67- /src/named | sort -u | diff - /src/there


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
