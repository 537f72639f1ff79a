#!/usr/bin/env bash
# Reads the log of a device build (nvcc with -Xptxas -v) and fails on what costs speed in silence:
# a setmaxnreg that ptxas ignored, wgmma that it serialized, and spills above the checked-in limit.
#
# usage: check_device_build.sh LOG LIMITS
# LIMITS: lines `KERNEL BYTES`, where KERNEL is a part of the mangled name; a kernel without a line
# may not spill at all.
set -euo pipefail
log=$1 limits=$2
status=0

if grep -nE "setmaxnreg.*ignored|ignored.*setmaxnreg" "$log"; then
  echo "check_device_build: ptxas ignored setmaxnreg (see above)" >&2
  status=1
fi
if grep -nEi "wgmma.*serializ|serializ.*wgmma" "$log"; then
  echo "check_device_build: ptxas serialized wgmma (see above)" >&2
  status=1
fi

awk -v limits="$limits" '
  BEGIN {
    while ((getline line < limits) > 0) {
      if (line ~ /^#/ || line == "") continue
      split(line, field, " "); limit[field[1]] = field[2]
    }
  }
  match($0, /Compiling entry function .[^ ]+/) {
    kernel = substr($0, RSTART + 26, RLENGTH - 27)
  }
  match($0, /[0-9]+ bytes spill stores/) {
    spill = substr($0, RSTART) + 0
    allowed = 0
    for (name in limit) if (index(kernel, name)) allowed = limit[name]
    ++kernels
    if (spill > allowed) {
      printf "check_device_build: %s spills %d bytes, the limit is %d\n", kernel, spill, allowed
      failed = 1
    }
  }
  END {
    printf "check_device_build: %d kernels checked\n", kernels
    if (kernels == 0) { print "check_device_build: no kernel in the log: was -Xptxas -v lost?"; exit 1 }
    exit failed
  }' "$log" || status=1
exit $status
