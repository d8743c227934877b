#!/usr/bin/env bash
# Makes the environment of a framework's tests and prints its folder:
#   environment.sh FRAMEWORK [PYTHON]
# It is made once a machine, for all clones: nothing of ecorl is in it. Its name tells of which
# versions it is; the file `.built` comes last, so that one that was interrupted is made anew.
#   FRAMEWORK/requirements.txt          all versions; pip chooses nothing
#   FRAMEWORK/requirements-sources.txt  what is built where torch is installed already, if there is
#   FRAMEWORK/prepare.py                what is done once in the environment, if there is
set -euo pipefail
framework=$1
python=${2:-python3}
here=$(cd "$(dirname "$0")/$framework" && pwd)
key=$({ cat "$here"/requirements*.txt; "$python" -VV; } | sha256sum | cut -c1-12)
env=${XDG_CACHE_HOME:-$HOME/.cache}/ecorl/$framework-$key
mkdir -p "$(dirname "$env")"
exec 9>"$env.lock"
flock 9
if [[ ! -e $env/.built ]]; then
  echo "building the environment of $framework in $env (some minutes, the first time)" >&2
  rm -rf "$env"
  "$python" -m venv "$env"
  start=$SECONDS
  install=("$env/bin/pip" install -qq --disable-pip-version-check --no-deps)
  {
    # The list is complete: what is missing shows below.
    "${install[@]}" -r "$here/requirements.txt"
    if [[ -e $here/requirements-sources.txt ]]; then
      DS_BUILD_OPS=0 "${install[@]}" --no-build-isolation -r "$here/requirements-sources.txt"
    fi
    if "$env/bin/pip" check --disable-pip-version-check | grep -v "^$framework " |
      grep -v '^No broken'; then
      echo "the pinned versions do not fit together" >&2
      exit 1
    fi
    if [[ -e $here/prepare.py ]]; then
      PATH=$env/bin:$PATH "$env/bin/python" "$here/prepare.py" "$env"
    fi
  } >&2
  touch "$env/.built"
  echo "built in $((SECONDS - start)) s" >&2
fi
echo "$env"
