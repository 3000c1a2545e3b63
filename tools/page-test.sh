#!/usr/bin/env bash
# The web page in real Chromium: against a server of the tests that misbehaves on request, and against `martlet serve`.
# Installs Playwright and axe into target/page-test, and Chromium from Debian's packages where no chromium is there.
# Screenshots come into target/page-test. MARTLET=PROGRAM tests another program than this workspace's; --stub-only tests
# the page without any. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/serve-for-tests.sh

python="pytest==9.2.0 playwright==1.65.2 axe-playwright-python==0.1.8"
work=$PWD/target/page-test
missing() { echo "page-test: $1" >&2; exit 77; }

find_chromium() {
    CHROMIUM=${CHROMIUM:-$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)}
}
find_chromium
if [ -z "$CHROMIUM" ]; then
    { apt-get update && apt-get install -y --no-install-recommends chromium fonts-dejavu-core; } >/dev/null ||
        missing "no chromium is here, and none can be installed: name one with CHROMIUM=PROGRAM"
    find_chromium
fi
export CHROMIUM

mkdir -p "$work"
if [ "$(cat "$work/installed" 2>/dev/null)" != "$python" ]; then
    rm -rf "$work/venv"
    python3 -m venv "$work/venv" || missing "python3 has no venv (apt-get install python3-venv)"
    # shellcheck disable=SC2086 # the packages are words
    "$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check $python ||
        missing "not to be had from PyPI: $python"
    echo "$python" >"$work/installed"
fi

if [ "${1:-}" = --stub-only ]; then
    shift
else
    find_martlet
    export PAGE_KEY=a-key-for-tests
    serve "$work/model.log" --api-key "$PAGE_KEY"
    export PAGE_MODEL_URL=$url
    # One answer is long enough to be stopped. The prompt opens the thinking, so an answer begins by closing it.
    { printf '=== answer repeat when: talk for ever\n</think>\n\n'; seq 20000; cat tests/page/script.txt; } >"$work/script.txt"
    serve "$work/script.log" --script "$work/script.txt"
    export PAGE_SCRIPT_URL=$url
fi
PAGE_TEST_SHOTS=$work "$work/venv/bin/python" -B -m pytest -q -p no:cacheprovider --tb=short tests/page "$@"
