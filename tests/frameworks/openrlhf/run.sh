#!/usr/bin/env bash
# Runs Python with OpenRLHF, in the environment of environment.sh:  run.sh [Python's arguments]
# ecorl is not installed in that environment, which other clones use too: it is found on the path,
# and its entry points in its metadata, which are made here.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
env=$("$here/environment.sh" "${PYTHON:-python3}")
metadata=$root/build/openrlhf-metadata
cd "$root"
mkdir -p "$root/build"
exec 8>"$root/build/openrlhf.lock"
flock 8
if [[ ! $metadata/.made -nt pyproject.toml ]]; then
  rm -rf "$metadata"
  mkdir -p "$metadata"
  "$env/bin/python" - "$metadata" >/dev/null <<'END'
import sys

from setuptools import build_meta

build_meta.prepare_metadata_for_build_editable(sys.argv[1])
END
  touch "$metadata/.made"
fi
flock -u 8
export PYTHONPATH=$root:$metadata ECORL_REQUIRE=openrlhf,ray,torch,onnxruntime
if "$env/bin/pip" check --disable-pip-version-check | grep '^ecorl '; then
  echo "OpenRLHF's versions are none that ecorl takes" >&2
  exit 1
fi
exec "$env/bin/python" "$@"
