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

# uv reads no setting of pip: hand over the ones that decide where packages come from and whom to trust, from pip's
# variables and from its configuration files.
adopt_pip_settings() {
    local -A pip=()
    local name value
    while IFS='=' read -r name value; do pip[$name]=$value; done < <(
        "$venv/bin/python" -m pip config list 2>/dev/null | "$venv/bin/python" -c '
import ast, sys
settings = [line.rstrip("\n").partition("=")[::2] for line in sys.stdin]
for wanted in ("global", "install", ":env:"):
    for key, value in settings:
        section, _, name = key.partition(".")
        if section == wanted:
            print(name, " ".join(ast.literal_eval(value).split()), sep="=")
'
    )

    if [[ -z ${SSL_CERT_FILE:-} ]]; then
        value=${pip[cert]:-${REQUESTS_CA_BUNDLE:-${CURL_CA_BUNDLE:-}}}
        if [[ -n $value ]]; then
            export SSL_CERT_FILE=$value
        elif [[ -s /etc/ssl/certs/ca-certificates.crt && -z ${UV_NATIVE_TLS:-} ]]; then
            # Debian's pip trusts the authorities that the system trusts, uv those that it brings.
            export UV_SYSTEM_CERTS=${UV_SYSTEM_CERTS:-true}
        fi
    fi
    if [[ -n ${pip[index-url]:-} && -z ${UV_DEFAULT_INDEX:-} && -z ${UV_INDEX_URL:-} ]]; then
        export UV_DEFAULT_INDEX=${pip[index-url]}
    fi
    if [[ -n ${PIP_EXTRA_INDEX_URL:-} && -z ${UV_INDEX:-} && -z ${UV_EXTRA_INDEX_URL:-} ]]; then
        # All of them together, as pip does; the hashes of the lock say which file it is.
        export UV_INDEX=$PIP_EXTRA_INDEX_URL UV_INDEX_STRATEGY=${UV_INDEX_STRATEGY:-unsafe-best-match}
    fi
    if [[ -n ${pip[trusted-host]:-} && -z ${UV_INSECURE_HOST:-} ]]; then
        export UV_INSECURE_HOST=${pip[trusted-host]}
    fi
    if [[ -n ${pip[proxy]:-} && -z ${HTTPS_PROXY:-${https_proxy:-${ALL_PROXY:-${all_proxy:-}}}} ]]; then
        export ALL_PROXY=${pip[proxy]}
    fi
}

# uv ARGUMENT...: this project's uv; without a cache where none can be written.
uv() {
    local home=${HOME:-~}
    local cache=${UV_CACHE_DIR:-${XDG_CACHE_HOME:-$home/.cache}/uv}
    if [[ -z ${UV_NO_CACHE:-} ]] && { ! mkdir -p -- "$cache" 2>/dev/null || [[ ! -w $cache ]]; }; then
        export UV_NO_CACHE=true
    fi
    "$venv/bin/uv" --no-progress "$@"
}

# uv_pip PYTHON COMMAND...: `uv pip COMMAND`, acting on the venv of PYTHON.
uv_pip() {
    local python=$1 command=$2
    shift 2
    uv pip "$command" --python "$python" "$@"
}
