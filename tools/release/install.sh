#!/bin/sh
# Installs martlet @VERSION@: fetches the archive for this machine, compares it with its checksum, and puts the program
# into ~/.local/bin. Needs curl or wget, tar, gzip, and sha256sum, shasum or openssl. Running it again renews what is
# there; whatever goes wrong, what was there before stays.
#
#   curl -fsSL @URL@/install.sh | sh
#   curl -fsSL @URL@/install.sh | sh -s -- --to /usr/local/bin
#
# --to FOLDER         where the program goes (or MARTLET_INSTALL_DIR)
# --version VERSION   another version than the newest (or MARTLET_VERSION)
# --from URL|FOLDER   where archive and checksums are (or MARTLET_RELEASE_URL)

set -eu

say() { printf '%s\n' "martlet: $*" >&2; }
fail() { say "$1"; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }

usage() {
    cat <<'USAGE'
Usage: install.sh [--to FOLDER] [--version VERSION] [--from URL|FOLDER]

  --to FOLDER         where the program goes [default: ~/.local/bin, or MARTLET_INSTALL_DIR]
  --version VERSION   another version than the newest [or MARTLET_VERSION]
  --from URL|FOLDER   where archive and checksums are [or MARTLET_RELEASE_URL]

To remove martlet again, delete the program.
USAGE
}

# fetch NAME FILE: a file of the release.
fetch() {
    case $from in
    http://* | https://*) ;;
    *) cp -- "$from/$1" "$2" 2>/dev/null || fail "$from/$1 is not there"; return ;;
    esac
    # What begins encrypted stays so.
    case $from in
    https://*) only="=https" ;;
    *) only="=http,https" ;;
    esac
    if have curl; then
        curl -fsSL --proto "$only" --connect-timeout 20 --speed-limit 1000 --speed-time 60 --retry 3 -o "$2" "$from/$1" ||
            fail "$from/$1 can not be fetched"
    elif have wget; then
        wget -q -T 60 -t 3 -O "$2" "$from/$1" || fail "$from/$1 can not be fetched"
    else
        fail "curl or wget is needed"
    fi
}

# sha256 FILE
sha256() {
    if have sha256sum; then
        sum=$(sha256sum <"$1") || return 1
    elif have shasum; then
        sum=$(shasum -a 256 <"$1") || return 1
    elif have openssl; then
        sum=$(openssl dgst -sha256 -r <"$1") || return 1
    else
        fail "sha256sum, shasum or openssl is needed to compare checksums"
    fi
    printf '%s\n' "${sum%% *}"
}

machine() {
    system=$(uname -s)
    [ "$system" = Linux ] || fail "there is no archive for $system; with Rust at hand, build it: cargo install --locked --path crates/martlet"
    arch=$(uname -m)
    case $arch in
    x86_64 | amd64) arch=x86_64 ;;
    aarch64 | arm64) arch=aarch64 ;;
    *) fail "there is no archive for processors of the kind $arch; there are x86_64 and aarch64" ;;
    esac
}

# A version is used as part of names.
checked() {
    case $1 in
    "" | *[!0-9A-Za-z.+-]*) fail "\"$1\" is no version such as @VERSION@" ;;
    esac
}

main() {
    to=${MARTLET_INSTALL_DIR:-}
    from=${MARTLET_RELEASE_URL:-@URL@}
    version=${MARTLET_VERSION:-}
    while [ $# -gt 0 ]; do
        case $1 in
        -h | --help) usage; exit 0 ;;
        --to | --version | --from) [ $# -ge 2 ] || fail "$1 needs a value" ;;
        *) usage >&2; fail "\"$1\" is not known" ;;
        esac
        case $1 in
        --to) to=$2 ;;
        --version) version=$2 ;;
        --from) from=$2 ;;
        esac
        shift 2
    done
    [ -n "$to" ] || to=${HOME:?is not set: --to says where the program goes}/.local/bin
    [ -n "$from" ] || fail "--from must say where the archives are: a URL, or a folder"
    from=${from%/}
    machine
    have tar && have gzip || fail "tar and gzip are needed"

    mkdir -p -- "$to" || fail "$to can not be made; --to names another folder"
    to=$(cd -- "$to" && pwd) || fail "$to can not be used"
    [ ! -d "$to/martlet" ] || fail "$to/martlet is a folder"
    # Here and not in /tmp: the last step is a renaming, which is done or not done.
    work=$(mktemp -d "$to/.martlet-install.XXXXXX") || fail "nothing can be written to $to; --to names another folder"
    trap 'rm -rf -- "$work"' EXIT
    trap 'exit 130' INT
    trap 'exit 143' HUP TERM

    if [ -z "$version" ]; then
        fetch latest "$work/latest"
        version=$(head -c 100 "$work/latest" | head -n 1)
    fi
    checked "$version"
    name=martlet-$version-$arch-linux
    say "fetching $name.tar.gz from $from"
    fetch "martlet-$version.sha256" "$work/sums"
    fetch "$name.tar.gz" "$work/archive"

    expected=
    while read -r sum file; do
        [ "${file#\*}" != "$name.tar.gz" ] || expected=$sum
    done <"$work/sums"
    [ -n "$expected" ] || fail "martlet-$version.sha256 does not name $name.tar.gz; nothing was installed"
    found=$(sha256 "$work/archive")
    [ "$found" = "$expected" ] ||
        fail "$name.tar.gz is damaged or not what was released: its sha256 is $found, expected $expected; nothing was installed"

    tar -xzf "$work/archive" -C "$work" "$name/martlet" || fail "$name.tar.gz can not be unpacked; nothing was installed"
    chmod 755 "$work/$name/martlet"
    # A processor or system on which it does not run shows here, while the old one is still there.
    says=$("$work/$name/martlet" --version) || fail "the program does not run on this machine; nothing was installed"
    mv -f -- "$work/$name/martlet" "$to/martlet"

    say "$says is in $to"
    case :${PATH:-}: in
    *:"$to":*) say "try: martlet chat hello" ;;
    *) say "$to is not in PATH; try: $to/martlet chat hello" ;;
    esac
}

# Here, so that a script that was cut off does nothing.
main "$@"
