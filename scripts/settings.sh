# Sourced by the other scripts in the root of the checkout: finds Python, installs the pinned uv, and passes pip's settings
# (environment and pip.conf) to it.

fail() {
    printf 'error: %s\n' "$1" >&2
    exit 1
}

say() {
    printf '%s\n' "$1" >&2
}

# The first Python with a version for which the pinned packages have wheels. PYTHON overrides it.
find_python() {
    local candidate candidates=(python3 python3.13 python3.12 python3.11 python3.14)
    [ -z "${PYTHON:-}" ] || candidates=("$PYTHON") # a path may contain spaces
    for candidate in "${candidates[@]}"; do
        if command -v "$candidate" >/dev/null 2>&1 &&
            "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 15))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    fail "Python 3.11 to 3.14 is needed and ${PYTHON:-python3} is not one: $("${PYTHON:-python3}" --version 2>&1 | head -1). \
Install it, or name one: make serve PYTHON=/path/to/python3.12"
}

# A small environment only for uv, so that nothing is installed into the system's Python.
make_uv() {
    local python=$1
    UV=.venv-installer/bin/uv
    if [ -x "$UV" ] && [ "$(cat .venv-installer/pins 2>/dev/null)" = "$(cat requirements/installer.txt)" ]; then
        return
    fi
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        fail "$python has no venv module. On Debian and Ubuntu: apt install python3-venv"
    "$python" -m venv --clear .venv-installer || fail "could not make .venv-installer (see above)."
    .venv-installer/bin/python -m pip install --quiet --disable-pip-version-check -r requirements/installer.txt ||
        fail "pip could not fetch uv (see above): $(why)"
    cp requirements/installer.txt .venv-installer/pins
}

# The value that pip would use for a setting, from the environment or else from pip.conf. Empty if there is none.
pip_setting() {
    sed -n "s/^\(:env:\|install\|global\|user\|site\)\.$1='\(.*\)'\$/\2/p" <<<"$PIP_SETTINGS" | head -1 | sed 's/\\n/ /g'
}

# uv reads neither pip.conf nor PIP_*, so pass on the settings for package sources. uv's own variables take precedence.
use_pip_settings() {
    PIP_SETTINGS=$(.venv-installer/bin/python -m pip config list 2>/dev/null || true)
    local index extra links hosts cert timeout
    index=$(pip_setting index-url) extra=$(pip_setting extra-index-url) links=$(pip_setting find-links)
    hosts=$(pip_setting trusted-host) cert=$(pip_setting cert)
    timeout=$(pip_setting timeout) timeout=${timeout:-$(pip_setting default-timeout)}
    [ -z "$index" ] || export UV_DEFAULT_INDEX="${UV_DEFAULT_INDEX:-$index}"
    [ -z "$links" ] || export UV_FIND_LINKS="${UV_FIND_LINKS:-${links// /,}}"
    [ -z "$hosts" ] || export UV_INSECURE_HOST="${UV_INSECURE_HOST:-$hosts}"
    [ -z "$cert" ] || export SSL_CERT_FILE="${SSL_CERT_FILE:-$cert}"
    [ -z "$timeout" ] || export UV_HTTP_TIMEOUT="${UV_HTTP_TIMEOUT:-$timeout}"
    if [ -n "$extra" ] && [ -z "${UV_INDEX:-}" ]; then
        export UV_INDEX="$extra"
        export UV_INDEX_STRATEGY="${UV_INDEX_STRATEGY:-unsafe-best-match}" # pip's way: the best version of all
    fi
    export UV_SYSTEM_CERTS="${UV_SYSTEM_CERTS:-true}"
}

# Whether the user's folder of wheels has a CPU build of torch. `torch==2.13.0` would match it as well and prefer it.
has_cpu_torch() {
    local folder
    local links=${UV_FIND_LINKS:-}
    for folder in ${links//,/ }; do
        if compgen -G "${folder#file://}/torch-*+cpu*.whl" >/dev/null; then return 0; fi
    done
    return 1
}

# PyPI has no CPU build, so torch comes from PyTorch's own index, and stays when the rest of a file with pins is installed.
install_cpu_torch() {
    local python=$1 pins=$2 torch
    torch=$(sed -n 's/^\(torch==[^ ;]*\).*/\1/p' "$pins")
    "$UV" pip install --python "$python" --torch-backend cpu --no-deps "$torch" ||
        fail "torch could not be installed (see above): $(why)"
}

# Makes two calls at once take turns at an environment.
take_turn() {
    if command -v flock >/dev/null 2>&1; then
        mkdir -p .venv-lock
        exec 9>".venv-lock/$1"
        flock 9
    fi
}

# The most likely reason for a failed download or installation.
why() {
    if [ "$(free_mib .)" -lt 200 ]; then
        printf 'the disk of %s is full (%s MiB free).' "$PWD" "$(free_mib .)"
    elif [ "$(free_mib "${UV_CACHE_DIR:-${XDG_CACHE_HOME:-${HOME:-}/.cache}}")" -lt 200 ]; then
        printf 'the disk of the package cache is full; UV_CACHE_DIR moves it.'
    else
        printf 'is the network there? PIP_INDEX_URL, PIP_FIND_LINKS and HTTPS_PROXY are honoured, and so is pip.conf.'
    fi
}

# Free space in MiB on the disk of a path, or of its nearest parent that exists.
free_mib() {
    local path=$1
    while [ ! -e "$path" ]; do path=$(dirname "$path"); done
    df -Pk "$path" | awk 'NR == 2 { print int($4 / 1024) }'
}
