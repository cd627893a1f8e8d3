#!/bin/sh
# kernels.sh CMAKE DIR: brings DIR/libkern_x86.a and DIR/libkern_tests_x86.a up to date, which builds with
# sanitizers link; one call at a time.
set -eu
cmake=$1 dir=$2
cd "$(dirname "$0")/.."
mkdir -p "$dir"
exec 9>"$dir/kernels.lock"
flock 9
[ -f "$dir/build.ninja" ] || "$cmake" --preset release >/dev/null
"$cmake" --build "$dir" --target kern_x86_archive kern_tests_x86
