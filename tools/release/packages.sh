# Functions of tools/release.sh, which has set: version, url, target, stage, new, program.
# shellcheck shell=bash disable=SC2154

# make_archive ARCH: program and documents in one folder.
make_archive() {
    local name=martlet-$version-$1-linux
    mkdir "$stage/$name"
    cp -r "$stage/docs/." "$stage/$name/"
    install -m 755 "$(program "$1")" "$stage/$name/martlet"
    tar -C "$stage" --sort=name --owner=0 --group=0 --numeric-owner --mode=u+rw,go+r-w --mtime="@$SOURCE_DATE_EPOCH" \
        -cf - "$name" | gzip -9n >"$new/$name.tar.gz"
}

# make_deb ARCH
make_deb() {
    local arch files=$stage/deb-$1
    case $1 in
    x86_64) arch=amd64 ;;
    aarch64) arch=arm64 ;;
    *) echo "release: Debian's name of $1 is not known" >&2; return 1 ;;
    esac
    mkdir -p "$files/DEBIAN"
    install -D -m 755 "$(program "$1")" "$files/usr/bin/martlet"
    local page
    for page in "$stage"/docs/man/*.1; do
        install -D -m 644 "$page" "$files/usr/share/man/man1/$(basename "$page")"
    done
    gzip -9n "$files"/usr/share/man/man1/*.1
    install -D -m 644 "$stage/docs/completions/martlet.bash" "$files/usr/share/bash-completion/completions/martlet"
    install -D -m 644 "$stage/docs/completions/martlet.zsh" "$files/usr/share/zsh/vendor-completions/_martlet"
    install -D -m 644 "$stage/docs/completions/martlet.fish" "$files/usr/share/fish/vendor_completions.d/martlet.fish"
    local doc=$files/usr/share/doc/martlet
    install -D -m 644 "$stage/docs/README.md" "$doc/README.md"
    gzip -9n <"$stage/docs/CHANGELOG.md" >"$doc/changelog.gz"
    { printf 'martlet is under the Apache-2.0 licence:\n\n'; cat "$stage/docs/LICENSE" "$stage/docs/THIRD-PARTY.txt"; } >"$doc/copyright"
    cat >"$files/DEBIAN/control" <<CONTROL
Package: martlet
Version: $version-1
Architecture: $arch
Maintainer: ${MARTLET_MAINTAINER:-The martlet authors <martlet@localhost>}
Installed-Size: $(du -k -s "$files/usr" | cut -f 1)
Section: utils
Priority: optional
Description: Runs Qwen3-Next, 3.5 and 3.6 models on your own machine
 A local inference runtime for one family of language models, in one static
 program: chat, a server with the APIs of OpenAI and Anthropic, models by name.
 A tiny model is inside.
CONTROL
    find "$files" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
    dpkg-deb --root-owner-group -Zxz --build "$files" "$new/martlet_$version-1_$arch.deb" >/dev/null
}

# make_wheel ARCH: pip puts what lies under *.data/scripts where programs go. A static program runs with any C library.
make_wheel() {
    local files=$stage/wheel-$1
    local info=$files/martlet-$version.dist-info
    mkdir -p "$files/martlet-$version.data/scripts" "$info/licenses"
    install -m 755 "$(program "$1")" "$files/martlet-$version.data/scripts/martlet"
    cp "$stage/docs/LICENSE" "$stage/docs/THIRD-PARTY.txt" "$info/licenses/"
    {
        cat <<METADATA
Metadata-Version: 2.4
Name: martlet
Version: $version
Summary: Runs Qwen3-Next, 3.5 and 3.6 models on your own machine
License-Expression: Apache-2.0
License-File: LICENSE
License-File: THIRD-PARTY.txt
Requires-Python: >=3.7
Description-Content-Type: text/markdown

METADATA
        cat "$stage/docs/README.md"
    } >"$info/METADATA"
    printf '%s\n' "Wheel-Version: 1.0" "Generator: tools/release.sh" "Root-Is-Purelib: false" \
        "Tag: py3-none-manylinux2014_$1" "Tag: py3-none-manylinux_2_17_$1" "Tag: py3-none-musllinux_1_1_$1" >"$info/WHEEL"
    python3 -m wheel pack --dest-dir "$new" "$files" >/dev/null
}

# fill TEMPLATE FILE: @VERSION@, @URL@ and @SHA256:name@ by what they are.
fill() {
    local text sum name
    text=$(<"$1")
    text=${text//@VERSION@/$version}
    text=${text//@URL@/$url}
    while read -r sum name; do
        text=${text//"@SHA256:$name@"/$sum}
    done <"$new/martlet-$version.sha256"
    printf '%s\n' "$text" >"$2"
    case $2 in *.sh) chmod 755 "$2" ;; esac
}
