#!/usr/bin/env bash
# Runs every fuzz target for so many seconds (default 60). Needs cargo-fuzz and a nightly toolchain:
#   cargo install cargo-fuzz && rustup toolchain install nightly
set -euo pipefail
cd "$(dirname "$0")/../fuzz"
seconds=${1:-60}
cargo +nightly fuzz --version >/dev/null || { echo "cargo fuzz is missing: cargo install cargo-fuzz" >&2; exit 1; }
for target in $(cargo +nightly fuzz list); do
    echo "== $target, $seconds s"
    words=(); if [ -f "$target.dict" ]; then words=("-dict=$target.dict"); fi
    cargo +nightly fuzz run "$target" -- -max_total_time="$seconds" "${words[@]}"
done
