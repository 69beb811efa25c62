# Sourced by the other scripts: goes to the repository root and activates the virtual environment they work in, which is
# the active one, else .venv (made with $PYTHON, by default python3, if it is not there yet).
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [[ -z ${VIRTUAL_ENV:-} ]]; then
    if [[ ! -f .venv/bin/activate ]]; then
        "${PYTHON:-python3}" -c 'import sys; sys.exit("Python 3.10 or newer is needed") if sys.version_info < (3, 10) else None'
        "${PYTHON:-python3}" -m venv .venv
    fi
    # shellcheck source=/dev/null
    source .venv/bin/activate
fi
