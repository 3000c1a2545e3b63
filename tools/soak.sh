#!/usr/bin/env bash
# Mixed load on one engine for so many minutes (default 30): wrong answers, growing memory and leftovers are errors.
# The head of tests/examples/soak.rs says what the load is.
set -euo pipefail
cd "$(dirname "$0")/.."
exec cargo run --release --quiet -p martlet-tests --example soak -- "${1:-30}"
