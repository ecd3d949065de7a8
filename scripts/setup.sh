#!/bin/sh
# Makes a checkout ready to use: system packages that are missing, .venv, the built extension.
# Each step looks first, so a second run takes well under a second and needs no network.
# PYTHON names another interpreter than python3.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
venv=.venv

die() {
    echo "setup: $*" >&2
    exit 1
}

has_module() { "$python" -c "import $1" 2>/dev/null; }
has_python_headers() {
    "$python" -c 'import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' 2>/dev/null
}

# Looked for by what is used, not by package name, so that other distributions work too.
missing_packages() {
    command -v cc >/dev/null || echo gcc libc6-dev
    command -v pkg-config >/dev/null || echo pkg-config
    pkg-config --exists fuse3 2>/dev/null || echo libfuse3-dev
    pkg-config --exists libzstd 2>/dev/null || echo libzstd-dev
    pkg-config --exists libxxhash 2>/dev/null || echo libxxhash-dev
    command -v fusermount3 >/dev/null || echo fuse3
    command -v setfattr >/dev/null || echo attr
    command -v setfacl >/dev/null || echo acl
    command -v "$python" >/dev/null || echo python3
    has_module ensurepip || echo python3-venv
    has_python_headers || echo python3-dev
}

install_packages() {
    wanted=$(missing_packages | tr '\n' ' ')
    [ -n "$wanted" ] || return 0
    command -v apt-get >/dev/null ||
        die "these are missing, by their Debian names: $wanted(no apt-get here: install them with your package manager)"
    root=
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null || die "as root, run: apt-get install $wanted"
        root=sudo
    fi
    echo "setup: installing $wanted"
    $root apt-get update -q
    # shellcheck disable=SC2086  # a list of words
    $root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $wanted
    wanted=$(missing_packages | tr '\n' ' ')
    [ -z "$wanted" ] || die "installed, yet $python does not see: $wanted(is it the system's python3? PYTHON=/usr/bin/python3 is)"
}

make_venv() {
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        die "$python is $("$python" -V 2>&1), and 3.11 or newer is needed; PYTHON=… names another"
    "$venv/bin/python" -c '' 2>/dev/null || "$python" -m venv --clear "$venv"
}

# One list from pyproject.toml, build requirements too: the extension is then rebuilt without the network.
install_requirements() {
    "$venv/bin/python" - pyproject.toml >"$venv/requirements.new" <<'EOF'
import sys, tomllib
with open(sys.argv[1], "rb") as file:
    settings = tomllib.load(file)
project = settings["project"]
print(*settings["build-system"]["requires"], *project["dependencies"], *project["optional-dependencies"]["test"], sep="\n")
EOF
    if ! cmp -s "$venv/requirements.new" "$venv/requirements.txt"; then
        "$venv/bin/python" -m pip install -q -r "$venv/requirements.new"
    fi
    mv "$venv/requirements.new" "$venv/requirements.txt"
}

build() {
    if [ -e "$venv/built" ] && [ -x "$venv/bin/brevisfs" ] && ls brevisfs/_native/_brevis*.so >/dev/null 2>&1 &&
        [ -z "$(find native setup.py pyproject.toml -newer "$venv/built" ! -name '*.pyc' -type f)" ]; then
        return 0
    fi
    touch "$venv/built.new" # before the build, so that an edit made during it counts as newer
    "$venv/bin/python" -m pip install -q --no-build-isolation --no-deps -e .
    mv "$venv/built.new" "$venv/built"
}

install_packages
make_venv
install_requirements
build
