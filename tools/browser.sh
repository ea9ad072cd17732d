#!/usr/bin/env bash
# Says which Chromium the tests of pages will find. Where there is none, Debian's is installed, if that
# is allowed here; else one line says what to do, and those tests are skipped.
set -euo pipefail

browser() {
  local name
  for name in chromium chromium-browser google-chrome; do
    if command -v "$name"; then return; fi
  done
}

if [ -z "$(browser)" ]; then
  if [ "$(uname)" = Linux ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    install="apt-get install -q -y --no-install-recommends chromium"
    DEBIAN_FRONTEND=noninteractive $install >/dev/null 2>&1 \
      || { apt-get update -q >/dev/null 2>&1 && DEBIAN_FRONTEND=noninteractive $install >/dev/null 2>&1; } \
      || true
  fi
  if [ -z "$(browser)" ]; then
    echo "no Chromium: shaders are not run in a page; on Debian: apt-get install chromium"
    exit 0
  fi
fi
echo "browser: $(browser)"
