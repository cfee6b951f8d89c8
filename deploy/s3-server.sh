#!/usr/bin/env bash
# A real S3 server for tests and trials: versitygw, which serves a folder's subfolders as buckets. Run again at will.
#
#   deploy/s3-server.sh install       build it with Go (a minute) into HEADRACE_CACHE, else ~/.cache/headrace
#   deploy/s3-server.sh path          print where it is
set -euo pipefail
version=v1.8.0
folder="${HEADRACE_CACHE:-$HOME/.cache/headrace}/versitygw-$version"

case "${1:-}" in
  install)
    [ -x "$folder/versitygw" ] && exit 0
    command -v go > /dev/null || { echo "error: Go is not on PATH; install Go 1.24 or later" >&2; exit 1; }
    mkdir -p "$folder"
    GOBIN="$(cd "$folder" && pwd)" go install "github.com/versity/versitygw/cmd/versitygw@$version"
    ;;
  path)
    echo "$folder/versitygw"
    ;;
  *)
    sed -n '2,5s/^# \{0,1\}//p' "$0"
    exit 2
    ;;
esac
