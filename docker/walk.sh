#!/usr/bin/env bash
# The way of an operator, by docs/guide/deploying.md: tokens, the store and Prometheus by compose, a
# trainer with a token in another container, the page, a full disk, the alert, its mending.
#
# It takes about eight minutes, since an alert waits for five. The compose files are used as they
# are; Grafana is left out. The volume of the store is made here, 700 MB in memory, so that it can be
# filled: that takes root.
#
#   COMPOSE   docker compose or podman-compose; default: that of ENGINE
#   ENGINE    docker or podman; default: docker if its engine answers, else podman
#   PYTHON    an interpreter with the extras server and dev; default: .venv/bin/python
#   PICTURE   the picture of the page; none is made without Chromium; default: build/walk.png
#
# The image `embstore` must have been built as in the Dockerfile, and Prometheus's be there or be
# reached. Ports 50051, 8080 and 9090 must be free.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [ -z "${ENGINE:-}" ]; then
    if docker info >/dev/null 2>&1; then ENGINE=docker; else ENGINE=podman; fi
fi
if [ "$ENGINE" = docker ]; then COMPOSE=${COMPOSE:-docker compose}; else COMPOSE=${COMPOSE:-podman-compose}; fi
PYTHON=${PYTHON:-.venv/bin/python}
PICTURE=${PICTURE:-build/walk.png}
export BUILDAH_FORMAT=docker DISABLE_HC_SYSTEMD=true
project=embstore-walk-$$
scratch=$(mktemp -d)
admin=127.0.0.1:8080 prometheus=127.0.0.1:9090

step() { printf 'walk: %3d s  %s\n' "$SECONDS" "$*"; }

compose() {
    $COMPOSE --project-name "$project" --file docker/compose.yaml "$@"
}

clean_up() {
    local status=$?
    if [ "$status" -ne 0 ]; then
        step "FAILED; the errors of compose, and what the containers said last, if there are any:"
        grep '^Error' "$scratch/compose.log" || true
        for name in $("$ENGINE" ps --all --format '{{.Names}}' | grep "^$project"); do
            "$ENGINE" logs --tail 20 "$name" 2>&1 || true
        done
    fi
    "$ENGINE" rm --force --time 5 "$project-trainer" >/dev/null 2>&1 || true
    compose down --volumes >/dev/null 2>&1 || true
    for volume in access data socket kernels metrics boards; do
        "$ENGINE" volume rm "${project}_$volume" >/dev/null 2>&1 || true
    done
    umount "$scratch/data" 2>/dev/null || true
    rm -rf "$scratch"
}
trap clean_up EXIT

wait_for() { # seconds, what, command...
    local end=$((SECONDS + $1)) what=$2
    shift 2
    until "$@" >/dev/null 2>&1; do
        if ((SECONDS > end)); then
            step "not so in time: $what"
            return 1
        fi
        sleep 1
    done
    step "$what"
}

new_token() { # podman-compose says much beside it
    compose exec -T embstore embstore token add "$@" --tables '*' | tr -d '\r' | grep "^$1\."
}
first_token() { compose logs embstore 2>&1 | grep -o 'admin\.[A-Za-z0-9_-]*'; }
readyz() { [ "$(curl --silent --noproxy '*' -o "$scratch/readyz" -w '%{http_code}' "http://$admin/readyz")" = "$1" ]; }
stats() { curl --silent --fail --noproxy '*' -H "Authorization: Bearer $(<"$scratch/operator")" "http://$admin/api/v1/$1"; }
updates() { stats tables/ads | "$PYTHON" -c 'import json, sys; print(json.load(sys.stdin)["table"]["t"])'; }
has_trained() { [ "$(updates)" -ge "$1" ]; }
value() { # of a query: the first sample of it, nothing where there is none
    curl --silent --fail --noproxy '*' --get "http://$prometheus/api/v1/query" --data-urlencode "query=$1" \
        | "$PYTHON" -c 'import json, sys; print(*[s["value"][1] for s in json.load(sys.stdin)["data"]["result"]])'
}
is() { [ "$(value "$1")" = "$2" ]; }

mkdir "$scratch/data"
mount -t tmpfs -o size=700m,uid=10001,gid=10001,mode=0755 tmpfs "$scratch/data"
"$ENGINE" volume create --opt type=none --opt o=bind --opt device="$scratch/data" "${project}_data" >/dev/null

step "compose up"
compose up --detach embstore prometheus >"$scratch/compose.log" 2>&1
wait_for 180 "the store is ready" readyz 200
step "the operator's token, which the first start has shown, and one for the trainer"
first_token >"$scratch/operator"
new_token trainer --right write >"$scratch/trainer"
# Not `compose kill`, which older versions of podman-compose lack.
"$ENGINE" kill --signal HUP "$("$ENGINE" ps --quiet --filter "name=$project[-_]embstore")" >/dev/null
wait_for 60 "without a token it answers nothing" \
    "$PYTHON" -c 'import sys, urllib.request, urllib.error
try: urllib.request.urlopen(sys.argv[1])
except urllib.error.HTTPError as e: sys.exit(e.code != 401)' "http://$admin/api/v1/stats"
wait_for 120 "Prometheus scrapes it, with its token" is 'up{job="embstore"}' 1

step "a trainer in a container of its own, with its token"
"$ENGINE" run --detach --name "$project-trainer" --network "${project}_default" \
    --env EMBSTORE_TOKEN="$(<"$scratch/trainer")" --read-only --tmpfs /tmp --cap-drop ALL \
    --volume "$PWD/docker/walk.py:/trainer/walk.py:ro" --entrypoint python \
    embstore /trainer/walk.py train embstore:50051 >/dev/null
wait_for 120 "it has trained 20 steps" has_trained 20

if "$PYTHON" -c 'import sys, tests.page.browser as b; sys.exit(bool(b.why_not()))' 2>/dev/null; then
    mkdir -p "$(dirname "$PICTURE")"
    PYTHONPATH=. "$PYTHON" docker/walk.py look "$admin" "$scratch/operator" "$PICTURE"
    step "the page, with its curves: $PICTURE"
fi

step "something else fills the disk"
dd if=/dev/zero of="$scratch/data/ballast" bs=1M 2>/dev/null || true
wait_for 60 "the store says that it is not ready" readyz 503
cat "$scratch/readyz" && echo
wait_for 60 "the alert is pending" is 'ALERTS{alertname="EmbstoreNotReady",alertstate="pending"}' 1
wait_for 480 "EmbstoreNotReady fires" is 'ALERTS{alertname="EmbstoreNotReady",alertstate="firing"}' 1

step "mended, as the guide says: /readyz names the disk, so room is made"
rm "$scratch/data/ballast"
wait_for 60 "the store is ready" readyz 200
wait_for 180 "the alert is resolved" is 'count(ALERTS{alertname="EmbstoreNotReady"}) or vector(0)' 0
wait_for 120 "training goes on" has_trained $(($(updates) + 20))
"$ENGINE" logs --tail 2 "$project-trainer" 2>&1
step "passed"
