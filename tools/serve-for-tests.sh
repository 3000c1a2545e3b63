# For `source`: starts servers for tests, and ends them when the script ends.

servers=()
stop_servers() { [ ${#servers[@]} = 0 ] || kill "${servers[@]}" 2>/dev/null || true; }
trap stop_servers EXIT

# The program that is tested: $MARTLET, or what this workspace builds.
find_martlet() {
    if [ -z "${MARTLET:-}" ]; then
        cargo build --release --locked --quiet -p martlet
        MARTLET=${CARGO_TARGET_DIR:-target}/release/martlet
    fi
    "$MARTLET" serve --help >/dev/null || { echo "$MARTLET can not serve" >&2; exit 1; }
}

# serve LOG ARGUMENTS...: starts a server on a free port, with its access log in LOG; sets $url.
serve() {
    local log=$1 said
    shift
    said=$(mktemp)
    "$MARTLET" serve --port 0 "$@" >"$said" 2>"$log" </dev/null &
    servers+=($!)
    for _ in $(seq 600); do
        url=$(head -n 1 "$said")
        [ -n "$url" ] && break
        kill -0 $! 2>/dev/null || break
        sleep 0.1
    done
    rm -f "$said"
    [ -n "$url" ] || { echo "martlet serve $* does not begin:" >&2; tail -n 20 "$log" >&2; exit 1; }
}
