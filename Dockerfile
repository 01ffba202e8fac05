# docker build -t lockstep .
# docker run --rm -v "$PWD":/work lockstep check recipes/llama3_8b.toml
FROM debian:12 AS build
RUN apt-get update && apt-get install -y --no-install-recommends git make
COPY . /src
WORKDIR /src
RUN make package

FROM debian:12-slim
COPY --from=build /src/build/release/lockstep_*.deb /tmp/
RUN apt-get update && apt-get install -y --no-install-recommends /tmp/lockstep_*.deb openmpi-bin && \
    rm -rf /var/lib/apt/lists/* /tmp/lockstep_*.deb
WORKDIR /work
ENTRYPOINT ["lockstep"]
CMD ["--help"]
