#!/bin/sh
# Checks of the C code that need more than the extension module; docs/design/native-checks.md describes them.
#
#   native_checks.sh sanitize CASES    vectors under AddressSanitizer and UndefinedBehaviorSanitizer, each instruction set;
#                                      plan, read, folder, front and programs, too; the last two also under
#                                      ThreadSanitizer
#   native_checks.sh aarch64 CASES     all built for aarch64, under qemu, and on an x86 without AVX; planning must
#                                      answer as it does here
#   native_checks.sh fuzz SECONDS      each fuzzer of native/fuzz for that long, from the corpus and random cases
#
# Installs what it misses; builds in build/native.  scripts/setup.sh has made .venv.
set -eu
cd "$(dirname "$0")/.."
python=$PWD/.venv/bin/python
build=build/native
# no fused operations, as in native/build_brevis.py: what is planned must not hang on the machine
flags="-std=gnu11 -g -O1 -ffp-contract=off -Wall -Wextra -Werror -Inative"
sanitizers="-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer"
fuzzers="decode encode plan"
export ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=print_stacktrace=1

die() {
    echo "native checks: $*" >&2
    exit 1
}

# install TEST PACKAGE…: the packages, unless the command TEST succeeds
install() {
    test=$1
    shift
    if $test >/dev/null 2>&1; then return 0; fi
    command -v apt-get >/dev/null || die "these are missing, by their Debian names: $* (no apt-get here)"
    root=
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null || die "as root, run: apt-get install $*"
        root=sudo
    fi
    echo "native checks: installing $*"
    $root apt-get update -q
    $root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "$@"
    $test >/dev/null || die "installed, yet this does not work: $test"
}

sources() { "$python" -c 'import sys; sys.path.insert(0, "native"); import build_brevis; print(*(f"native/{s}" for s in build_brevis.SOURCES))'; }

# objects FOLDER COMPILER…: each source compiled, in $build/FOLDER
objects() {
    folder=$build/$1
    shift
    rm -rf "$folder"
    mkdir -p "$folder"
    for source in $(sources); do "$@" -c "$source" -o "$folder/$(basename "$source" .c).o"; done
}

vectors() { "$python" -m tests.native.inputs vectors "$build/vectors-$1" "$1"; }

sanitize() {
    vectors "$1"
    # shellcheck disable=SC2086  # lists of words, here and below
    objects sanitized cc $flags $sanitizers
    for check in vectors plan read folder front programs; do
        # shellcheck disable=SC2086
        cc $flags $sanitizers -o "$build/$check-sanitized" "native/tests/$check.c" "$build"/sanitized/*.o -lzstd -lm
    done
    for cpu in scalar avx2 avx512; do "$build/vectors-sanitized" "$build/vectors-$1" "$cpu"; done
    "$build/plan-sanitized" "$((10 * $1))" native/fuzz/corpus/plan/*
    "$build/read-sanitized"
    "$build/folder-sanitized"
    "$build/front-sanitized" "$((10 * $1))"
    "$build/programs-sanitized" "$1"
    # shellcheck disable=SC2086
    objects threads cc $flags -fsanitize=thread
    for check in front programs; do
        # shellcheck disable=SC2086
        cc $flags -fsanitize=thread -o "$build/$check-threads" "native/tests/$check.c" "$build"/threads/*.o -lzstd -lm
        "$build/$check-threads" "$1"
    done
}

# zstd for another architecture: built from the sources that the zstandard package brings
cross_zstd() {
    [ -e "$build/aarch64/zstd.o" ] && return 0
    version=$("$python" -c 'import zstandard; print(zstandard.__version__)')
    "$python" -m pip download -q --no-deps --no-binary :all: --no-build-isolation -d "$build/aarch64" "zstandard==$version"
    tar xzf "$build/aarch64/zstandard-$version.tar.gz" -C "$build/aarch64" --strip-components=1 "zstandard-$version/zstd"
    # The amalgamation has no assembly of its own.
    aarch64-linux-gnu-gcc -O1 -w -DZSTD_DISABLE_ASM -c "$build/aarch64/zstd/zstd.c" -o "$build/aarch64/zstd.new"
    mv "$build/aarch64/zstd.new" "$build/aarch64/zstd.o"
}

cross_works() { echo 'int main(void) { return 0; }' | aarch64-linux-gnu-gcc -static -x c - -o "$build/aarch64/works"; }

# plan_digest CASES COMMAND…: what plan answers, run by that command
plan_digest() {
    cases=$1
    shift
    "$@" "$((10 * cases))" native/fuzz/corpus/plan/*
}

aarch64() {
    mkdir -p "$build/aarch64/zstd"
    install cross_works gcc-aarch64-linux-gnu libc6-dev-arm64-cross
    install "qemu-aarch64-static --version" qemu-user-static
    cross_zstd
    vectors "$1"
    # one header of the machine's own; all of its include directory would not do
    cp "$(echo '#include <xxhash.h>' | cc -E - | sed -n 's/^# [0-9]* "\(.*xxhash\.h\)".*/\1/p' | head -n 1)" "$build/aarch64/zstd/"
    # shellcheck disable=SC2086
    objects aarch64/objects aarch64-linux-gnu-gcc $flags -O2 -I"$build/aarch64/zstd"
    # shellcheck disable=SC2086
    objects here cc $flags -O2
    for check in vectors plan read folder; do
        # shellcheck disable=SC2086
        aarch64-linux-gnu-gcc $flags -O2 -static -I"$build/aarch64/zstd" -o "$build/aarch64/$check" \
            "native/tests/$check.c" "$build"/aarch64/objects/*.o "$build/aarch64/zstd.o" -lm
    done
    qemu-aarch64-static "$build/aarch64/vectors" "$build/vectors-$1" scalar
    qemu-aarch64-static "$build/aarch64/read"
    qemu-aarch64-static "$build/aarch64/folder"
    for check in vectors plan; do
        # shellcheck disable=SC2086
        cc $flags -O2 -o "$build/$check-here" "native/tests/$check.c" "$build"/here/*.o -lzstd -lm
    done
    here=$(plan_digest "$1" "$build/plan-here")
    echo "here: $here"
    there=$(plan_digest "$1" qemu-aarch64-static "$build/aarch64/plan")
    [ "$there" = "$here" ] || die "planning answers otherwise on aarch64: $there"
    if [ "$(uname -m)" = x86_64 ]; then
        # a processor without AVX
        qemu-x86_64-static -cpu Nehalem "$build/vectors-here" "$build/vectors-$1" scalar
        there=$(plan_digest "$1" qemu-x86_64-static -cpu Nehalem "$build/plan-here")
        [ "$there" = "$here" ] || die "planning answers otherwise without AVX: $there"
    fi
}

fuzzer_works() {
    echo 'int LLVMFuzzerTestOneInput(void *d, unsigned long n) { return !d && n; }' |
        clang -fsanitize=fuzzer,address,undefined -x c - -o "$build/works"
}

fuzz() {
    install fuzzer_works clang libclang-rt-dev
    # shellcheck disable=SC2086
    objects fuzz-objects clang $flags $sanitizers -fsanitize=fuzzer-no-link
    for target in $fuzzers; do fuzz_one "$target" "$1"; done
}

fuzz_one() {
    work=$build/fuzz-$1
    mkdir -p "$work/found"
    "$python" -m tests.native.inputs seeds "$work/seeds" "$1" 400
    # shellcheck disable=SC2086
    clang $flags $sanitizers -fsanitize=fuzzer -o "$work/fuzzer" "native/fuzz/$1.c" "$build"/fuzz-objects/*.o -lzstd -lm
    echo "native checks: fuzzing $1 for $2 seconds"
    # New inputs go to the first folder. One that fails stays as crash-…: it belongs in native/fuzz/corpus.
    "$work/fuzzer" -max_total_time="$2" -max_len=8192 -timeout=20 -rss_limit_mb=3000 -print_final_stats=1 \
        -artifact_prefix="$work/" "$work/found" "$work/seeds" "native/fuzz/corpus/$1" >"$work/log" 2>&1 || {
        grep -v '^#[0-9]' "$work/log" | tail -n 60
        die "the input is in $work (the last line of $work/log names it)"
    }
    grep '^stat::number_of_executed_units' "$work/log"
}

mkdir -p "$build"
case "${1-} ${2-}" in
sanitize\ ?*) sanitize "$2" ;;
aarch64\ ?*) aarch64 "$2" ;;
fuzz\ ?*) fuzz "$2" ;;
*) die "usage: native_checks.sh sanitize CASES | aarch64 CASES | fuzz SECONDS" ;;
esac
