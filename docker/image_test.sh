#!/usr/bin/env bash
# Builds the image, runs it and trains against it from outside: that it serves as a user other than
# root, is exact, ends by SIGTERM with 0 and finds in its volume what it left there; that its first
# start shows a token, and that none is answered without.
#
#   ENGINE         docker or podman; default: docker if its engine answers, else podman
#   BASE           the base image; default: the Dockerfile's
#   IMAGE          the tag to build, which stays: the next build is short; default: embstore:test
#   BUILD_OPTIONS  more words for `build`, e.g. "--build-arg PIP_INDEX_URL=..."
#   RUN_OPTIONS    more words for `run`
#   PYTHON         an interpreter with the extra server; default: .venv/bin/python
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [ -z "${ENGINE:-}" ]; then
    if docker info >/dev/null 2>&1; then ENGINE=docker; else ENGINE=podman; fi
fi
IMAGE=${IMAGE:-embstore:test}
PYTHON=${PYTHON:-.venv/bin/python}
read -ra build_options <<<"${BASE:+--build-arg BASE=$BASE }${BUILD_OPTIONS:-}"
read -ra run_options <<<"${RUN_OPTIONS:-}"
# Podman only: the image's own format, which has a place for HEALTHCHECK; and no timers of systemd
# for it, which a container may not have: this script runs the check itself.
export BUILDAH_FORMAT=docker DISABLE_HC_SYSTEMD=true
name=embstore-image-test-$$
scratch=$(mktemp -d)

step() { printf 'image test: %s\n' "$*"; }

is_podman() { "$ENGINE" --version | grep -qi podman; } # whose stand-in for docker is one too

clean_up() {
    local status=$?
    if [ "$status" -ne 0 ]; then
        step "FAILED; what the container said last, if there is one:"
        "$ENGINE" logs --tail 50 "$name" 2>&1 || true
    fi
    "$ENGINE" rm --force "$name" >/dev/null 2>&1 || true
    "$ENGINE" volume rm "$name" "$name-kernels" "$name-socket" >/dev/null 2>&1 || true
    rm -rf "$scratch"
}
trap clean_up EXIT

# As hardened as compose.yaml does it, so that what the server may do there is tried here.
start() {
    "$ENGINE" run --detach --name "$name" \
        --volume "$name:/data" --volume "$name-kernels:/var/cache/embstore" \
        --volume "$name-socket:/run/embstore" --read-only --tmpfs /tmp --cap-drop ALL --security-opt no-new-privileges \
        --publish 127.0.0.1::50051 --publish 127.0.0.1::8080 \
        ${run_options[@]+"${run_options[@]}"} "$IMAGE" >/dev/null
}

# The token that the first start has shown, and no later one.
shown_tokens() { "$ENGINE" logs "$name" 2>&1 | grep -o 'admin\.[A-Za-z0-9_-]*' || true; }

healthy() {
    if is_podman; then
        "$ENGINE" healthcheck run "$name" >/dev/null 2>&1
    else
        [ "$("$ENGINE" inspect --format '{{.State.Health.Status}}' "$name")" = healthy ]
    fi
}

wait_until_healthy() {
    local begin=$SECONDS
    until healthy; do
        if [ "$("$ENGINE" inspect --format '{{.State.Running}}' "$name")" != true ]; then
            step "the container has ended by itself"
            return 1
        fi
        if ((SECONDS - begin > 180)); then
            step "not healthy after 180 s"
            return 1
        fi
        sleep 1
    done
    step "healthy after $((SECONDS - begin)) s"
}

train() {
    "$PYTHON" docker/image_test.py "$("$ENGINE" port "$name" 50051/tcp)" "$scratch/twin" \
        --admin "$("$ENGINE" port "$name" 8080/tcp)"
}

# As compose.trainer.yaml has it: no network, and of the server nothing but its socket.
train_near() {
    chmod -R a+rwX "$scratch" # the twin, for the user of the image
    "$ENGINE" run --rm --network none --read-only --tmpfs /tmp --cap-drop ALL --env EMBSTORE_TOKEN \
        --security-opt no-new-privileges \
        --volume "$name-socket:/run/embstore" --volume "$name-kernels:/var/cache/embstore" \
        --volume "$PWD/docker/image_test.py:/trainer/image_test.py:ro" \
        --volume "$scratch/twin:/twin" ${run_options[@]+"${run_options[@]}"} \
        --entrypoint python "$IMAGE" \
        /trainer/image_test.py unix:/run/embstore/socket /twin
}

stop() {
    "$ENGINE" stop -t 60 "$name" >/dev/null
    local code
    code=$("$ENGINE" inspect --format '{{.State.ExitCode}}' "$name")
    if [ "$code" -ne 0 ]; then
        step "exit code $code after SIGTERM, expected 0"
        return 1
    fi
    "$ENGINE" rm "$name" >/dev/null
}

step "building $IMAGE with $ENGINE"
"$ENGINE" build --file docker/Dockerfile --tag "$IMAGE" \
    ${build_options[@]+"${build_options[@]}"} . >"$scratch/build.log" 2>&1 \
    || { tail -n 40 "$scratch/build.log"; exit 1; }

step "embstore imports, as a user other than root, who owns /data"
"$ENGINE" run --rm ${run_options[@]+"${run_options[@]}"} --entrypoint python "$IMAGE" -c \
    'import os, embstore; assert 0 != os.getuid() == os.stat("/data").st_uid, os.getuid()'

step "starting on new volumes: it shows a token"
start
wait_until_healthy
EMBSTORE_TOKEN=$(shown_tokens)
export EMBSTORE_TOKEN
[ -n "$EMBSTORE_TOKEN" ]

step "training from outside, beside an embedded twin"
train

step "it compiled no kernel, because the image has them (for x86-64 with AVX2)"
[ -z "$("$ENGINE" exec "$name" find /var/cache/embstore -type f)" ]

step "stopping by SIGTERM"
stop

step "starting a new container on the same volumes: it shows no token"
start
wait_until_healthy
[ -z "$(shown_tokens)" ]

step "as it was left, and training on"
train

step "training in another container, through shared memory"
train_near

step "stopping by SIGTERM"
stop
step "passed"
