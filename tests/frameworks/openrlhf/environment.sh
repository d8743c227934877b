#!/usr/bin/env bash
# Makes the environment of `make test-openrlhf` and prints its folder.
#   environment.sh [PYTHON]
# It is made once a machine, for all clones: nothing of ecorl is in it. Its name tells of which
# versions it is; the file `.built` comes last, so that one that was interrupted is made anew.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=${1:-python3}
key=$({ cat "$here"/requirements*.txt; "$python" -VV; } | sha256sum | cut -c1-12)
env=${XDG_CACHE_HOME:-$HOME/.cache}/ecorl/openrlhf-$key
mkdir -p "$(dirname "$env")"
exec 9>"$env.lock"
flock 9
if [[ ! -e $env/.built ]]; then
  echo "building OpenRLHF's environment in $env (some minutes, the first time)" >&2
  rm -rf "$env"
  "$python" -m venv "$env"
  start=$SECONDS
  install=("$env/bin/pip" install -qq --disable-pip-version-check --no-deps)
  {
    # The list is complete: pip chooses nothing, and what is missing shows below.
    "${install[@]}" -r "$here/requirements.txt"
    DS_BUILD_OPS=0 "${install[@]}" --no-build-isolation -r "$here/requirements-sources.txt"
    if "$env/bin/pip" check --disable-pip-version-check | grep -v '^openrlhf ' | grep -v '^No broken'; then
      echo "the pinned versions do not fit together" >&2
      exit 1
    fi
    # DeepSpeed's optimiser for the CPU is compiled where it is first used: here, not in a test.
    PATH=$env/bin:$PATH DS_ACCELERATOR=cpu TORCH_EXTENSIONS_DIR=$env/torch-extensions \
      "$env/bin/python" - <<'END'
from deepspeed.accelerator import get_accelerator

for name in ("FusedAdamBuilder", "ShareMemCommBuilder"):
    get_accelerator().create_op_builder(name).load()
END
  } >&2
  touch "$env/.built"
  echo "built in $((SECONDS - start)) s" >&2
fi
echo "$env"
