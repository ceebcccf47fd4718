# One image for every role: `hub start`, `party start`, `train`, `join`, `check`.
# Written by `simfl provision --for docker`.
FROM python:3.11-slim-bookworm AS build
WORKDIR /src
RUN python -m venv /opt/simfl
COPY requirements-image.lock ./
RUN /opt/simfl/bin/pip install --no-cache-dir --no-deps --require-hashes -r requirements-image.lock
COPY pyproject.toml README.md LICENSE ./
COPY simfl ./simfl
RUN /opt/simfl/bin/pip install --no-cache-dir --no-deps --no-build-isolation .

FROM python:3.11-slim-bookworm
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /simfl simfl \
    && install --directory --owner=simfl --group=simfl --mode=0700 /simfl /simfl/kits /simfl/runs
COPY --from=build /opt/simfl /opt/simfl
# Compiled kernels go to /tmp: the rest of the file system can be read-only.
ENV PATH=/opt/simfl/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 NUMBA_CACHE_DIR=/tmp/numba HOME=/tmp
USER 10001:10001
WORKDIR /simfl
ENTRYPOINT ["simfl"]
CMD ["--help"]
