#!/usr/bin/env bash
# Runs Python with a framework, in the environment of environment.sh:
#   run.sh FRAMEWORK [Python's arguments]
# A framework that is in no registry is found in the checkout that FRAMEWORK_SRC names.
# ecorl is not installed in that environment, which other clones use too: it is found on the path,
# and its entry points in its metadata, which are made here.
set -euo pipefail
framework=$1
shift
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
env=$("$here/environment.sh" "$framework" "${PYTHON:-python3}")
metadata=$root/build/$framework-metadata
cd "$root"
mkdir -p "$root/build"
exec 8>"$root/build/$framework.lock"
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
export PYTHONPATH=$root:$metadata${FRAMEWORK_SRC:+:$FRAMEWORK_SRC} ECORL_REQUIRE=$framework,ray,torch,onnxruntime
if "$env/bin/pip" check --disable-pip-version-check | grep '^ecorl '; then
  echo "the versions of $framework are none that ecorl takes" >&2
  exit 1
fi
exec "$env/bin/python" "$@"
