#!/usr/bin/env bash
# The installer: as it should go, twice, and with everything wrong that can be. Called by tools/release-tests.sh.
#
# Usage: test_install.sh FILES PORT WORK
set -euo pipefail
files=$1
port=$2
work=$3/install
url=http://127.0.0.1:$port/martlet
version=$(cat "$files/latest")
archive=martlet-$version-x86_64-linux.tar.gz
fail() { echo "test_install: $1" >&2; [ -s "$work/said" ] && sed 's/^/  said: /' "$work/said" >&2; exit 1; }

rm -rf "$work"
mkdir -p "$work/www/martlet" "$work/home"
cp "$files"/* "$work/www/martlet/"
python3 -m http.server --bind 127.0.0.1 --directory "$work/www" "$port" >"$work/server.log" 2>&1 &
server=$!
trap 'kill "$server" 2>/dev/null || true' EXIT
for _ in $(seq 100); do
    curl -fs -o /dev/null "$url/latest" && break
    sleep 0.1
done
curl -fsS "$url/latest" >/dev/null || fail "no server at port $port"
cmp -s <(curl -fsS "$url/latest") "$files/latest" || fail "port $port is another program's"

home=$work/home
bin=$home/.local/bin
# What a plain machine has; `tools` is the PATH.
tools() { # NAME PROGRAM...
    local dir=$work/tools-$1 program
    mkdir -p "$dir"
    shift
    for program in sh cat cp chmod gzip head mkdir mktemp mv rm sha256sum tar "$@"; do
        ln -sf "$(command -v "$program")" "$dir/$program"
    done
    echo "$dir"
}
with_curl=$(tools curl curl uname)
with_wget=$(tools wget wget uname)
with_neither=$(tools neither uname)
# A machine of another kind.
pretends() { # SYSTEM MACHINE
    local dir
    dir=$(tools "$1-$2" curl)
    printf '#!/bin/sh\ncase $1 in -s) echo "%s" ;; -m) echo "%s" ;; esac\n' "$1" "$2" >"$dir/uname"
    chmod 755 "$dir/uname"
    echo "$dir"
}
run() { # PATH SCRIPT ARGUMENT...
    local path=$1 script=$2
    shift 2
    (cd "$work" && env -i HOME="$home" PATH="$path" sh "$script" "$@" >"$work/said" 2>&1 </dev/null)
}
# Nothing but the program lies where it was put, and it works.
installed() {
    [ "$(ls -A "$1")" = martlet ] || fail "$1 holds $(ls -A "$1" | tr '\n' ' ')"
    [ "$(env -i HOME="$home" "$1/martlet" --version)" = "martlet $version" ] || fail "$1/martlet does not run"
}
nothing() { [ -z "$(ls -A "$1" 2>/dev/null)" ] || fail "$1 holds $(ls -A "$1" | tr '\n' ' ')"; }
refused() { # WORDS PATH SCRIPT ARGUMENT...: fails with these words and leaves the old program as it was
    local words=$1
    shift
    local before
    before=$(sha256sum "$bin/martlet" 2>/dev/null || true)
    ! run "$@" || fail "nothing was refused where \"$words\" was expected"
    grep -qF -- "$words" "$work/said" || fail "\"$words\" was not said"
    [ "$before" = "$(sha256sum "$bin/martlet" 2>/dev/null || true)" ] || fail "the old program has changed"
    [ -z "$before" ] || [ "$(ls -A "$bin")" = martlet ] || fail "left behind: $(ls -A "$bin" | tr '\n' ' ')"
    printf 'refused: %s\n' "$words"
}

# As the README says.
(cd "$work" && curl -fsSL "$url/install.sh" | env -i HOME="$home" PATH="$with_curl" sh >"$work/said" 2>&1) || fail "the usual way"
installed "$bin"
grep -qF "is not in PATH" "$work/said" || fail "nothing was said about PATH"
answer=$(env -i HOME="$home" "$bin/martlet" chat hello </dev/null 2>/dev/null)
[ -n "$answer" ] || fail "no answer"
# Again, over a program that is running, and over something else.
"$bin/martlet" serve --port 0 >/dev/null 2>&1 &
running=$!
run "$with_curl:$bin" "$files/install.sh" || fail "the second time"
grep -qF "try: martlet chat hello" "$work/said" || fail "no word of what to do next"
kill -0 "$running" || fail "the running program has ended"
kill "$running"
installed "$bin"
echo "something else" >"$bin/martlet"
run "$with_wget" "$files/install.sh" || fail "with wget"
installed "$bin"
run "$with_curl" "$files/install.sh" --to "$work/else where" || fail "--to"
installed "$work/else where"
run "$with_neither" "$files/install.sh" --from "$files" --version "$version" --to "$work/from-folder" || fail "from a folder"
installed "$work/from-folder"

# What is wrong is refused.
refused "no archive for processors of the kind riscv64" "$(pretends Linux riscv64)" "$files/install.sh"
refused "no archive for Darwin" "$(pretends Darwin arm64)" "$files/install.sh"
refused "curl or wget is needed" "$with_neither" "$files/install.sh"
refused "is not known" "$with_curl" "$files/install.sh" --prefix /usr
refused "needs a value" "$with_curl" "$files/install.sh" --to
refused "can not be fetched" "$with_curl" "$files/install.sh" --version 999.0.0
refused "can not be fetched" "$with_wget" "$files/install.sh" --version 999.0.0
refused "is no version" "$with_curl" "$files/install.sh" --version ../../etc
refused "can not be fetched" "$with_curl" "$files/install.sh" --from http://127.0.0.1:9
refused "can not be made" "$with_curl" "$files/install.sh" --to "$files/latest/bin"
refused "is not there" "$with_curl" "$files/install.sh" --from "$work/nowhere"
if ! qemu-aarch64 --version >/dev/null 2>&1 || [ ! -e /proc/sys/fs/binfmt_misc/qemu-aarch64 ]; then
    # The right archive of another machine: it is fetched and found not to run.
    refused "does not run on this machine; nothing was installed" "$(pretends Linux aarch64)" "$files/install.sh"
fi
mkdir -p "$work/taken/martlet"
refused "is a folder" "$with_curl" "$files/install.sh" --to "$work/taken"

# Damage: one bit, a cut archive, one that was cut before it was summed up, checksums without it, a page instead of it.
www=$work/www/martlet
damaged() { # WORDS
    refused "$1" "$with_curl" "$files/install.sh"
    cp "$files/$archive" "$files/martlet-$version.sha256" "$files/latest" "$www/"
}
python3 - "$www/$archive" <<'PYTHON'
import sys
with open(sys.argv[1], "r+b") as file:
    file.seek(5_000_000)
    byte = file.read(1)[0]
    file.seek(5_000_000)
    file.write(bytes([byte ^ 4]))
PYTHON
damaged "is damaged or not what was released"
truncate -s 3000000 "$www/$archive"
damaged "is damaged or not what was released"
truncate -s 3000000 "$www/$archive"
(cd "$www" && sha256sum "$archive" >"martlet-$version.sha256")
damaged "can not be unpacked"
grep -v "$archive" "$files/martlet-$version.sha256" >"$www/martlet-$version.sha256"
damaged "does not name $archive"
echo "<html>log in first</html>" >"$www/$archive"
damaged "is damaged or not what was released"
echo '<html>"$(touch gone-wrong)"</html>' >"$www/latest"
damaged "is no version"
[ ! -e "$work/gone-wrong" ] || fail "a command from the server was run"

# A script that was cut off does nothing.
size=$(stat -c %s "$files/install.sh")
for part in 10 50 90 99; do
    head -c $((size * part / 100)) "$files/install.sh" >"$work/cut.sh"
    rm -rf "$work/cut-home"
    mkdir "$work/cut-home"
    env -i HOME="$work/cut-home" PATH="$with_curl" sh "$work/cut.sh" >/dev/null 2>&1 || true
    nothing "$work/cut-home"
done

# Stopped while it fetches: what was there stays, and nothing is left.
kill "$server"
wait "$server" 2>/dev/null || true
python3 - "$port" "$files" <<'PYTHON' &
import http.server, pathlib, sys
files = pathlib.Path(sys.argv[2])
class Slow(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = (files / self.path.rsplit("/", 1)[1]).read_bytes()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        # An archive never comes to its end.
        self.wfile.write(body if len(body) < 100_000 else body[:100_000])
        if len(body) >= 100_000:
            self.connection.recv(1)
    def log_message(self, *_):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Slow).serve_forever()
PYTHON
server=$!
for _ in $(seq 100); do
    curl -fs -o /dev/null "$url/latest" && break
    sleep 0.1
done
before=$(sha256sum "$bin/martlet")
for signal in INT TERM HUP; do
    # A group of its own, as a terminal gives: the signal is for all of it. What runs in the background is deaf to some.
    setsid env --default-signal -i HOME="$home" PATH="$with_curl" sh "$files/install.sh" >"$work/said" 2>&1 </dev/null &
    leader=$!
    for _ in $(seq 200); do
        compgen -G "$bin/.martlet-install.*/archive" >/dev/null && break
        sleep 0.05
    done
    compgen -G "$bin/.martlet-install.*/archive" >/dev/null || fail "the archive does not begin to come"
    kill "-$signal" -- "-$leader"
    ! wait "$leader" || fail "a stopped installer says that it has succeeded"
    [ "$before" = "$(sha256sum "$bin/martlet")" ] && [ "$(ls -A "$bin")" = martlet ] ||
        fail "after $signal there is $(ls -A "$bin" | tr '\n' ' ')"
done
echo "stopped while it fetches: nothing is left"
