#!/usr/bin/env bash
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
target=aarch64-unknown-linux-gnu
work=$root/target/arm-tests
missing() { echo "arm-tests: $1" >&2; exit 77; }

# A compiler with the standard library for the target: rustup's, or else Debian's, whose package for another
# architecture is unpacked into a folder of ours, so that nothing of the system changes.
install_compiler() {
    command -v apt-get >/dev/null || missing "no standard library for $target (rustup target add $target)"
    [ -x /usr/bin/rustc ] || apt-get install -y --no-install-recommends rustc-web
    local version lists=$work/lists arm
    version=$(dpkg-query -W -f '${Version}' rustc-web)
    [ "$(cat "$work/version" 2>/dev/null)" != "$version" ] || return 0
    rm -rf "$work"
    mkdir -p "$lists/partial" "$work/debs" "$work/files" "$work/sysroot/lib"
    arm="-oAPT::Architecture=arm64 -oAPT::Architectures=arm64 -oDir::State::Lists=$lists"
    apt-get $arm update
    cd "$work/debs"
    apt-get $arm download "libstd-rust-web-dev=$version"
    for deb in *.deb; do dpkg -x "$deb" "$work/files"; done
    ln -s ../../files/usr/lib/rustlib "$work/sysroot/lib/rustlib"
    echo "$version" >"$work/version"
    cd "$root"
}
install_compiler
