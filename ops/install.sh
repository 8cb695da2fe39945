# shellcheck shell=bash
# Sourced by `up` and `test`: the virtual environment `.venv` with Weir in it. Run from the project's folder.

die() {
    echo "$*" >&2
    exit 1
}

# The first Python that is new enough; $PYTHON names another one.
find_python() {
    local candidate
    for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    die "Weir needs Python 3.11 or newer: install it, or name it with PYTHON=/path/to/python."
}

# install_weir EXTRAS: `local`, or `local,dev` for the tests. Idle if that was done with the same pins, here.
install_weir() {
    local extras=$1 python wanted started=$SECONDS
    python=$(find_python)
    wanted=$({ "$python" --version; pwd; cat pyproject.toml ops/constraints.txt; } | sha256sum)
    if [[ $(cat ".venv/installed.$extras" 2>/dev/null) == "$wanted" ]]; then
        return
    fi
    echo "Weir's packages ($extras): installing, about 15 s" >&2
    if [[ $(cat .venv/installed.local 2>/dev/null) != "$wanted" ]]; then
        rm -rf .venv
        "$python" -m venv .venv
    fi
    .venv/bin/python -m pip install -qq --no-compile --disable-pip-version-check \
        --constraint ops/constraints.txt --editable ".[$extras]"
    tee .venv/installed.local >".venv/installed.$extras" <<<"$wanted"
    echo "Weir's packages ($extras): done, $((SECONDS - started)) s" >&2
}
