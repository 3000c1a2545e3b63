#!/usr/bin/env bash
# Builds what a release consists of, for Linux on x86-64 and Arm (aarch64), each with one static program inside:
#
#   martlet-VERSION-ARCH-linux.tar.gz   program, man pages, completions, licences
#   martlet_VERSION-1_ARCH.deb          the same for Debian and Ubuntu
#   martlet-VERSION-py3-none-*.whl      the same for `pip install`
#   martlet-VERSION.sha256              checksums of all of these
#   install.sh                          for `curl -fsSL URL/install.sh | sh`
#   martlet.rb                          a formula for Homebrew on Linux (with --url)
#   latest                              the version, for install.sh and the notice of new versions
#
# All of them belong into one folder of a web server, whose address is --url: install.sh looks there, and so does the
# program for news (never without --url). The same programs give the same packages, byte for byte.
#
# Usage: tools/release.sh [--out FOLDER] [--url URL] [--arch "x86_64 aarch64"]
# Needs a Rust toolchain with rustup, Python 3 with venv, and dpkg-deb. Zig (C compiler and linker for both) and wheel come
# from PyPI, into target/release-tools.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
target=${CARGO_TARGET_DIR:-$root/target}
out=$target/release-files
url=${MARTLET_RELEASE_URL:-}
archs="x86_64 aarch64"
missing() { echo "release: $1" >&2; exit 77; }
usage() { echo "usage: tools/release.sh [--out FOLDER] [--url URL] [--arch \"x86_64 aarch64\"]" >&2; exit 2; }
while [ $# -gt 0 ]; do
    [ $# -ge 2 ] || usage
    case $1 in
    --out) out=$2 ;;
    --url) url=${2%/} ;;
    --arch) archs=$2 ;;
    *) usage ;;
    esac
    shift 2
done
case $url in
"" | https://?* | http://127.0.0.1[:/]*) ;;
*) echo "release: --url must begin with https:// (http:// only at 127.0.0.1, for tests)" >&2; exit 2 ;;
esac
# It is written into scripts.
case $url in
*[!A-Za-z0-9:/._~%-]*) echo "release: --url has characters other than letters, digits and :/._~%-" >&2; exit 2 ;;
esac

version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH
step() { printf -- '-- %s (%ss)\n' "$1" "$SECONDS"; }

command -v dpkg-deb >/dev/null || missing "dpkg-deb is not here (apt-get install dpkg)"
tools=$target/release-tools
if ! cmp -s tools/release/requirements.txt "$tools/requirements.txt"; then
    step "tools from PyPI"
    rm -rf "$tools"
    python3 -m venv "$tools" || missing "python3 has no venv (apt-get install python3-venv)"
    "$tools/bin/python" -m pip install --quiet --disable-pip-version-check -r tools/release/requirements.txt ||
        missing "not to be had from PyPI: $(tr '\n' ' ' <tools/release/requirements.txt)"
    cp tools/release/requirements.txt "$tools/"
fi
export PATH=$tools/bin:$PATH

# What is built elsewhere must not differ: no folder of this machine is in the program.
cargo_home=${CARGO_HOME:-$HOME/.cargo}
export RUSTFLAGS="--remap-path-prefix=$cargo_home=cargo --remap-path-prefix=$root=martlet"
export MARTLET_RELEASE_URL=$url

for arch in $archs; do
    triple=$arch-unknown-linux-musl
    step "$triple"
    if ! compgen -G "$(rustc --print sysroot)/lib/rustlib/$triple/lib/libstd-*" >/dev/null; then
        rustup target add "$triple" || missing "the standard library for $triple is not to be had (rustup target add $triple)"
    fi
    cargo zigbuild --release --locked --package martlet --target "$triple"
done

new=$out.new
stage=$target/release-stage
rm -rf "$new" "$stage"
mkdir -p "$new" "$stage/docs/man"
program() { echo "$target/$1-unknown-linux-musl/release/martlet"; }
host=$(program "$(uname -m)")
[ -x "$host" ] || { echo "release: --arch must name this machine's own ($(uname -m)) too: its program writes the man pages" >&2; exit 2; }
"$host" man "$stage/docs/man"
mkdir "$stage/docs/completions"
for shell in bash zsh fish; do "$host" completions "$shell" >"$stage/docs/completions/martlet.$shell"; done
cp LICENSE README.md CHANGELOG.md "$stage/docs/"
step "notices of what is inside"
python3 tools/release/notices.py "$tools" >"$stage/docs/THIRD-PARTY.txt"

source tools/release/packages.sh
for arch in $archs; do
    step "packages for $arch"
    make_archive "$arch"
    make_deb "$arch"
    make_wheel "$arch"
done
step "checksums, installer"
(cd "$new" && sha256sum -- *.tar.gz *.deb *.whl) >"$stage/sums"
mv "$stage/sums" "$new/martlet-$version.sha256"
fill tools/release/install.sh "$new/install.sh"
[ -z "$url" ] || fill tools/release/martlet.rb "$new/martlet.rb"
echo "$version" >"$new/latest"
# What is there is whole, and of one build.
rm -rf "$out"
mv "$new" "$out"
rm -rf "$stage"
step "done: $out"
(cd "$out" && ls -l)
