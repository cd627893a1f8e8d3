#!/bin/sh
# install.sh run|test|all|card: installs those packages of scripts/packages that are missing, with apt-get,
# as root or through sudo.  Says nothing and needs no rights when all are there.
set -eu
cd "$(dirname "$0")"
if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    echo "this system has no apt-get: install what scripts/packages lists by the names of your distribution" >&2
    exit 0 # the build says what it does not find
fi
missing=
while read -r name who _; do
    case $name in '' | '#'*) continue ;; esac
    case $1/$who in run/run | test/run | test/test | all/* | card/card) ;; *) continue ;; esac
    case $(dpkg-query -W -f '${Status}' "$name" 2>/dev/null) in
    *' installed') ;;
    *) missing="$missing $name" ;;
    esac
done <packages
[ -n "$missing" ] || exit 0

if [ "$(id -u)" = 0 ]; then
    sudo=
elif command -v sudo >/dev/null; then
    sudo=sudo
else
    echo "packages are missing and there is no sudo; install them as root, then call this again:" >&2
    echo "    apt-get install --no-install-recommends$missing" >&2
    exit 1
fi
mkdir -p ../out
log=$(cd ../out && pwd)/install.log
echo "installing (a minute or two${sudo:+; sudo may ask for your password}; log: $log):$missing" >&2
# shellcheck disable=SC2086  # $sudo may be nothing, $missing is a list
if ! { timeout --foreground 600 $sudo apt-get update &&
    timeout --foreground 1800 $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $missing; } \
    >"$log" 2>&1 </dev/null; then
    tail -n 15 "$log" >&2
    if grep -Eq 'Temporary failure resolving|Could not (resolve|connect)|Network is unreachable' "$log"; then
        echo "installing failed: the servers of the packages cannot be reached; is there a network?" >&2
    elif [ -n "$sudo" ] && grep -q '^sudo:' "$log"; then
        echo "installing failed: sudo refused; as root: apt-get install --no-install-recommends$missing" >&2
    fi
    echo "installing failed; the whole log is $log" >&2
    exit 1
fi
