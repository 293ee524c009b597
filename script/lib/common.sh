# shellcheck shell=bash
# Sourced by the scripts beside this folder: names, messages and stamps. Does nothing by itself.

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd -P)
venv=$root/.venv
# shellcheck disable=SC2034  # used by the scripts that source this file
packages=(observatory scheduler dataplane chaos dashboards)

note() { printf '%s\n' "$*" >&2; }

die() {
    printf '%s: %s\n' "${0##*/}" "$*" >&2
    exit 1
}

section() { printf '\n==> %s\n' "$*"; }

# print_help FILE: the comment block at the top of FILE, after the line with the interpreter.
print_help() {
    awk 'NR == 1 { next } !/^#/ { exit } { sub(/^# ?/, ""); print }' "$1"
}

# digest FILE...: one hash over names and contents.
digest() { sha256sum -- "$@" | sha256sum | cut -d ' ' -f 1; }

# stamp_is FILE VALUE: whether FILE holds VALUE.
stamp_is() { [[ -f $1 && $(<"$1") == "$2" ]]; }

# uv reads no setting of pip: hand over the ones that decide where packages come from and whom to trust.
adopt_pip_settings() {
    if [[ -z ${SSL_CERT_FILE:-} ]]; then
        local bundle=${PIP_CERT:-${REQUESTS_CA_BUNDLE:-}}
        if [[ -n $bundle ]]; then export SSL_CERT_FILE=$bundle; fi
    fi
    if [[ -n ${PIP_INDEX_URL:-} && -z ${UV_DEFAULT_INDEX:-} && -z ${UV_INDEX_URL:-} ]]; then
        export UV_DEFAULT_INDEX=$PIP_INDEX_URL
    fi
    if [[ -n ${PIP_EXTRA_INDEX_URL:-} && -z ${UV_INDEX:-} && -z ${UV_EXTRA_INDEX_URL:-} ]]; then
        export UV_INDEX=$PIP_EXTRA_INDEX_URL
    fi
}

# uv_pip PYTHON COMMAND...: `uv pip COMMAND` of this project's venv, acting on the venv of PYTHON.
uv_pip() {
    local python=$1 command=$2
    shift 2
    "$venv/bin/uv" --no-progress pip "$command" --python "$python" "$@"
}
