#!/bin/sh
# install.sh run|test|all|card: installs those packages of scripts/packages that are missing, with apt-get,
# as root or through sudo.  Says nothing and needs no rights when all are there.
set -eu
cd "$(dirname "$0")"
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

mkdir -p ../out
log=$(cd ../out && pwd)/install.log
echo "installing (a minute or two; log: $log):$missing" >&2
if [ "$(id -u)" = 0 ]; then
    sudo=
elif command -v sudo >/dev/null; then
    sudo=sudo
else
    echo "these packages are missing; install them as root: apt-get install$missing" >&2
    exit 1
fi
# shellcheck disable=SC2086  # $sudo may be nothing, $missing is a list
if ! { timeout --foreground 600 $sudo apt-get update &&
    timeout --foreground 1800 $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $missing; } \
    >"$log" 2>&1 </dev/null; then
    tail -n 30 "$log" >&2
    echo "installing failed; the whole log is $log" >&2
    exit 1
fi
