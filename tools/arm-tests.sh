#!/usr/bin/env bash
# Builds for aarch64 Linux and runs tests there, in qemu's user emulation: the CPU device, on a processor with all of its
# instruction sets and on an old one that has only NEON, and what it stands on. `--full` adds the lints, the build of the
# whole workspace, the conformance suite on every instruction set, the law, and fledgling's golden answers.
# Emulation says nothing about speed.
# Takes the standard library of a Rust toolchain that has it (rustup target add aarch64-unknown-linux-gnu); else, on
# Debian, a second compiler with it. Installs that, the cross linker and qemu where they are missing.
set -euo pipefail
cd "$(dirname "$0")/.."
full=${1:-}
root=$PWD
target=aarch64-unknown-linux-gnu
work=$root/target/arm-tests
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$root/target}/arm
missing() { echo "arm-tests: $1" >&2; exit 77; }
[ "$(uname -s)" = Linux ] || missing "only on Linux"

install() {
    command -v apt-get >/dev/null || missing "$* can not be installed: no apt-get"
    apt-get install -qq -y --no-install-recommends "$@" >"$work/install.log" 2>&1 && return
    { apt-get update && apt-get install -qq -y --no-install-recommends "$@"; } >"$work/install.log" 2>&1 ||
        missing "can not be installed: $* ($work/install.log)"
}

# Whether /usr/bin has a compiler and its lints, no older than Cargo.toml wants.
recent_compiler() {
    [ -x /usr/bin/rustc ] && [ -x /usr/bin/clippy-driver ] || return
    local wanted found
    wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
    found=$(/usr/bin/rustc --version | cut -d " " -f 2)
    [ "$(printf '%s\n' "$wanted" "$found" | sort -V | head -n 1)" = "$wanted" ]
}

# Debian's compiler, and beside it its standard library for the target: unpacked into a folder of ours, so that the
# system's own packages stay as they are.
debian_compiler() {
    # Lists of packages may be of a day when the compiler was older.
    recent_compiler || { apt-get update >"$work/install.log" 2>&1 && install rustc-web rust-web-clippy; }
    recent_compiler || missing "the system's compiler is older than the project's"
    export RUSTC=/usr/bin/rustc
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUSTFLAGS="--sysroot $work/sysroot"
    local version lists=$work/lists arm
    version=$(dpkg-query -W -f '${Version}' rustc-web) || missing "/usr/bin/rustc is not of the package rustc-web"
    [ "$(cat "$work/version" 2>/dev/null)" != "$version" ] || return 0
    rm -rf "$lists" "$work/debs" "$work/files" "$work/sysroot"
    mkdir -p "$lists/partial" "$work/debs" "$work/files" "$work/sysroot/lib"
    arm=(-qq -oAPT::Architecture=arm64 -oAPT::Architectures=arm64 "-oDir::State::Lists=$lists")
    apt-get "${arm[@]}" update || missing "no lists of packages for arm64"
    (cd "$work/debs" && apt-get "${arm[@]}" download "libstd-rust-web-dev=$version") ||
        missing "libstd-rust-web-dev $version is not to be had for arm64"
    dpkg -x "$work"/debs/*.deb "$work/files"
    # Build scripts and procedural macros take the compiler's own library; this holds the target's alone.
    ln -s ../../files/usr/lib/rustlib "$work/sysroot/lib/rustlib"
    rm -rf "$lists" "$work/debs"
    echo "$version" >"$work/version"
}

mkdir -p "$work"
command -v aarch64-linux-gnu-gcc >/dev/null || install gcc-aarch64-linux-gnu libc6-dev-arm64-cross
command -v qemu-aarch64 >/dev/null || install qemu-user
compgen -G "$(rustc --print sysroot)/lib/rustlib/$target/lib/libstd-*" >/dev/null || debian_compiler

export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CC_aarch64_unknown_linux_gnu=aarch64-linux-gnu-gcc
# On a processor: a command that cargo starts tests with.
on() { export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L /usr/aarch64-linux-gnu -cpu $1"; }
step() { printf '\n-- %s (%ss)\n' "$1" "$SECONDS"; }
tests() { cargo test --release --locked --target "$target" "$@"; }

step "build"
tests -p martlet-tensor -p martlet-io -p martlet-cpu --no-run

step "a processor with dotprod and i8mm"
on max
# This one compares millions of values with the mathematical library: for `--full`.
tests -p martlet-tensor -p martlet-io --lib -- --skip errors_stay_below_what_is_stated
# Schedules of threads are the same on any processor; `shuttle` tries them where that is fast.
tests -p martlet-cpu --lib -- --nocapture --skip pool::model | tee "$work/max.log"
for isa in neon dotprod i8mm; do
    grep -qx "matmul-$isa: ran" "$work/max.log" || { echo "$isa did not run" >&2; exit 1; }
done
tests -p martlet-cpu --test conformance conforms_to_the_reference

step "a processor without them: a Cortex-A53"
on cortex-a53
tests -p martlet-cpu --lib -- --nocapture matmul attention device | tee "$work/a53.log"
grep -qx "matmul-neon: ran" "$work/a53.log" && grep -qx "matmul-dotprod: absent" "$work/a53.log" &&
    grep -qx "matmul-i8mm: absent" "$work/a53.log" || { echo "a Cortex-A53 must run NEON alone" >&2; exit 1; }

if [ "$full" = --full ]; then
    on max
    step "lints"
    if [ -n "${RUSTC:-}" ]; then
        # Debian's cargo-clippy and compiler, of one version.
        clippy=(env CLIPPY_DRIVER_PATH=/usr/bin/clippy-driver PATH="/usr/bin:$PATH" cargo-clippy clippy)
    else
        clippy=(cargo clippy)
    fi
    "${clippy[@]}" -p martlet-tensor -p martlet-io -p martlet-device -p martlet-cpu --all-targets --release --locked \
        --target "$target" -- -D warnings
    step "the whole workspace"
    cargo build --workspace --release --locked --target "$target"
    step "conformance, every instruction set"
    tests -p martlet-tensor --lib errors_stay_below_what_is_stated
    tests -p martlet-device --lib
    tests -p martlet-cpu --test conformance
    step "golden answers, and the law on the CPU device"
    tests -p martlet-tests --test golden
    tests -p martlet-tests --test law_cpu threads_and_instruction_sets
fi
step "done"
