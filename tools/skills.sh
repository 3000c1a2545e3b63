#!/usr/bin/env bash
# Scores fledgling's skills at 4 bits on the CPU device, beside the published scores of its training run, and has a server
# call tools as well as the model does alone.
# tools/skills.sh [CASES A SKILL, 200] [MODEL FOLDER; default: quantised here to 4 bits, groups of 64]
set -euo pipefail
cd "$(dirname "$0")/.."
count=${1:-200}
work=$(mktemp -d)
source tools/serve-for-tests.sh
trap 'stop_servers; rm -rf "$work"' EXIT
find_martlet
model=${2:-}
if [ -z "$model" ]; then
    "$MARTLET" --quiet quantize models/fledgling "$work/model" --bits 4 --group 64
    model=$work/model
fi
python3 tools/skills.py cases "$count" "$work/cases.jsonl"
cargo run --release --quiet -p martlet-tests --example skills -- "$model" <"$work/cases.jsonl" >"$work/answers.jsonl"
python3 tools/skills.py score "$work/cases.jsonl" "$work/answers.jsonl"
serve "$work/serve.log" -m "$model" --model-name fledgling
python3 tools/skills.py serve "$url" "$work/cases.jsonl" "$work/answers.jsonl"
