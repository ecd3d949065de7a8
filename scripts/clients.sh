#!/bin/sh
# Runs the tests of clients with all clients there are: installs what is missing, the system's with apt-get and
# Python's in environments of their own under .cache/clients. Arguments go to pytest.
set -eu
cd "$(dirname "$0")/.."
home=.cache/clients

missing=""
for tool in aria2c:aria2 curl:curl git:git rclone:rclone rsync:rsync setfacl:acl; do
    command -v "${tool%%:*}" >/dev/null || missing="$missing ${tool##*:}"
done
if [ -n "$missing" ]; then
    if [ "$(id -u)" = 0 ]; then sudo=""; else sudo="sudo"; fi
    $sudo apt-get update -qq
    # shellcheck disable=SC2086  # a list of packages
    $sudo apt-get install -y -qq --no-install-recommends $missing >/dev/null
fi

environment() { # name, packages…
    name=$1
    shift
    if [ ! -e "$home/$name/ready" ]; then
        .venv/bin/python -m venv --clear "$home/$name"
        "$home/$name/bin/pip" install -q --disable-pip-version-check "$@"
        touch "$home/$name/ready"
    fi
}
for version in 0.5.3 0.7.0 0.8.0; do
    environment "safetensors-$version" "safetensors==$version" numpy
done
environment hub "huggingface_hub>=1.0"

BREVISFS_ROUNDS=${BREVISFS_ROUNDS:-500} BREVISFS_CLIENTS=$PWD/$home exec .venv/bin/python -m pytest tests/clients "$@"
