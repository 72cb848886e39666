#!/usr/bin/env bash
# Bytes a token and rows a second against the number of sequences in flight, no weight kept in memory:
#
#     benches/waves.sh [INPUT.jsonl] [WAVE ...]
#
# Prints a Markdown table. INPUT's rows need `id` and `text`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
input=$(realpath "${1:-fixtures/documents.jsonl}")
shift || true
waves=("${@:-1}")
[ $# -gt 0 ] || waves=(1 8 64 4096)
cargo build --release --quiet
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
number() { grep -o "\"$1\": *[0-9]*" "$2" | grep -o '[0-9]*$'; }
echo "| wave | sweeps | trunk MB | experts MB | kB a token | rows a second |"
echo "|---|---|---|---|---|---|"
for wave in "${waves[@]}"; do
  out="$scratch/$wave"
  target/release/nightshift run pipelines/classify.toml --input "$input" --output "$out" \
    --set engine.wave="$wave" --set engine.resident=0 --set output.keep=[] >/dev/null 2>&1
  s="$out/state/summary.json"
  tokens=$(($(number prompt_tokens "$s") + $(number completion_tokens "$s")))
  awk -v w="$wave" -v s="$(number sweeps "$s")" -v t="$(number bytes_read_trunk "$s")" -v e="$(number bytes_read_experts "$s")" \
    -v n="$tokens" -v r="$(number rows_total "$s")" -v ms="$(number wall_ms "$s")" \
    'BEGIN { printf "| %d | %d | %.0f | %.0f | %.1f | %.1f |\n", w, s, t / 1e6, e / 1e6, (t + e) / 1e3 / n, r * 1000 / ms }'
done
