#!/usr/bin/env bash
# Says which Vulkan driver the tests of shaders will find. Where there is none, Debian's software driver
# is installed, if that is allowed here; else one line says what to do, and those tests are skipped.
set -euo pipefail

drivers() {
  find /usr/share/vulkan/icd.d /etc/vulkan/icd.d -name '*.json' -printf '%f\n' 2>/dev/null || true
}
loader() {
  [[ "$(ldconfig -p 2>/dev/null)" == *libvulkan.so.1* ]]
}
packages="libvulkan1 mesa-vulkan-drivers"

if [ "$(uname)" = Linux ] && { ! loader || [ -z "$(drivers)" ]; }; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    install="apt-get install -q -y --no-install-recommends $packages"
    DEBIAN_FRONTEND=noninteractive $install >/dev/null 2>&1 \
      || { apt-get update -q >/dev/null 2>&1 && DEBIAN_FRONTEND=noninteractive $install >/dev/null 2>&1; } \
      || true
  fi
  if ! loader || [ -z "$(drivers)" ]; then
    echo "no Vulkan driver: shaders are not run; on Debian: apt-get install $packages"
    exit 0
  fi
fi
echo "Vulkan drivers: $(drivers | sort | paste -sd ' ')"
