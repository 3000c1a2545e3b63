#!/usr/bin/env bash
# Builds a release (tools/release.sh) and installs each of its parts into a clean folder: archives, installer, package for
# Debian, wheel, formula; the Arm ones run in qemu's user emulation. Then the notice of new versions, against a server of
# this machine. Installs qemu and ruby where they are missing. `--built` takes what the last run has built.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
work=$root/target/release-tests
files=$work/files
# It is built into the program, so it is always the same.
port=18437
url=http://127.0.0.1:$port/martlet
missing() { echo "release-tests: $1" >&2; exit 77; }
fail() { echo "release-tests: $1" >&2; exit 1; }
step() { printf '\n-- %s (%ss)\n' "$1" "$SECONDS"; }
[ "$(uname -sm)" = "Linux x86_64" ] || missing "only on Linux on x86-64"

need() { # PROGRAM PACKAGE
    command -v "$1" >/dev/null && return
    command -v apt-get >/dev/null || missing "$1 is not here"
    { apt-get install -qq -y --no-install-recommends "$2" || { apt-get update && apt-get install -qq -y --no-install-recommends "$2"; }; } \
        >"$work/install.log" 2>&1 || missing "$2 can not be installed ($work/install.log)"
}
mkdir -p "$work"
need qemu-aarch64 qemu-user
need ruby ruby
need curl curl
need wget wget
need unzip unzip

if [ "${1:-}" != --built ]; then
    step "build"
    tools/release.sh --out "$files" --url "$url"
fi
version=$(cat "$files/latest")

# A program that was installed answers as README says, with the model that is inside, and without any file beside it.
answers() { # COMMAND...
    local answer
    [ "$("$@" --version)" = "martlet $version" ] || fail "$*: not version $version"
    answer=$(env -i PATH="$PATH" HOME="$work/nobody" "$@" chat "hello" </dev/null 2>/dev/null) || fail "$*: chat failed"
    [ -n "$answer" ] || fail "$*: no answer"
    printf '%s: %s\n' "$*" "$answer"
}
# The same on an Arm processor: one with all of its instruction sets, and an old one.
answers_on_arm() { # PROGRAM
    answers qemu-aarch64 -cpu max "$1"
    answers qemu-aarch64 -cpu cortex-a53 "$1"
}

step "files"
(cd "$files" && sha256sum --quiet --check "martlet-$version.sha256")
for name in "martlet-$version-"{x86_64,aarch64}-linux.tar.gz "martlet_$version-1_"{amd64,arm64}.deb martlet.rb install.sh; do
    [ -s "$files/$name" ] || fail "$name is missing"
done
unpacked=$work/unpacked
rm -rf "$unpacked"
mkdir "$unpacked"
for arch in x86_64 aarch64; do
    tar -xzf "$files/martlet-$version-$arch-linux.tar.gz" -C "$unpacked"
    folder=$unpacked/martlet-$version-$arch-linux
    for name in LICENSE THIRD-PARTY.txt README.md man/martlet.1 man/martlet-chat.1 completions/martlet.bash; do
        [ -s "$folder/$name" ] || fail "$name is missing in the archive for $arch"
    done
    python3 tools/release/static.py "$folder/martlet" "$arch" "$root" "$HOME"
done
answers "$unpacked/martlet-$version-x86_64-linux/martlet"
answers_on_arm "$unpacked/martlet-$version-aarch64-linux/martlet"

step "the package for Debian"
tree=$work/debian
rm -rf "$tree"
mkdir -p "$tree/var/lib/dpkg/info" "$tree/var/lib/dpkg/updates"
touch "$tree/var/lib/dpkg/status" "$tree/var/lib/dpkg/available"
before=$(find "$tree" -path "$tree/var" -prune -o -print)
dpkg=(dpkg --root="$tree" --log=/dev/null --force-not-root --force-script-chrootless)
"${dpkg[@]}" --install "$files/martlet_$version-1_amd64.deb" >/dev/null
"${dpkg[@]}" --install "$files/martlet_$version-1_amd64.deb" >/dev/null # once more
answers "$tree/usr/bin/martlet"
# Nothing else is needed: it runs where there is nothing else.
if [ "$(id -u)" = 0 ]; then chroot "$tree" /usr/bin/martlet chat --quiet hello </dev/null; fi
for name in share/man/man1/martlet.1.gz share/doc/martlet/copyright share/bash-completion/completions/martlet; do
    [ -s "$tree/usr/$name" ] || fail "usr/$name is not installed"
done
"${dpkg[@]}" --purge martlet >/dev/null
[ "$before" = "$(find "$tree" -path "$tree/var" -prune -o -print)" ] || fail "dpkg has left something behind"
[ "$(dpkg-deb --field "$files/martlet_$version-1_arm64.deb" Architecture)" = arm64 ] || fail "not for arm64"
dpkg-deb --extract "$files/martlet_$version-1_arm64.deb" "$tree/arm"
answers_on_arm "$tree/arm/usr/bin/martlet"

step "the wheel"
rm -rf "$work/venv" "$work/wheel"
python3 -m venv "$work/venv"
pip=("$work/venv/bin/python" -m pip --quiet --disable-pip-version-check)
"${pip[@]}" install --no-index --find-links "$files" martlet
answers "$work/venv/bin/martlet"
"${pip[@]}" check >/dev/null
"${pip[@]}" uninstall --yes martlet
[ ! -e "$work/venv/bin/martlet" ] || fail "pip has left the program behind"
"${pip[@]}" download --no-index --find-links "$files" --only-binary :all: --platform manylinux_2_17_aarch64 --dest "$work/wheel" martlet
unzip -q "$work"/wheel/*.whl -d "$work/wheel"
chmod +x "$work/wheel/martlet-$version.data/scripts/martlet"
answers_on_arm "$work/wheel/martlet-$version.data/scripts/martlet"

step "the formula"
for arch in x86_64 aarch64; do
    rm -rf "$work/cellar"
    ruby tools/release/test_formula.rb "$files" "$arch" "$work/cellar"
    [ -s "$work/cellar/man1/martlet.1" ] || fail "the formula installs no man pages"
done
ruby tools/release/test_formula.rb "$files" x86_64 "$work/cellar"
answers "$work/cellar/bin/martlet"

step "the installer"
tools/release/test_install.sh "$files" "$port" "$work"

step "the notice of new versions"
python3 tools/release/test_news.py "$unpacked/martlet-$version-x86_64-linux/martlet" "$port"
step "done"
