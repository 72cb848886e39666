#!/usr/bin/env bash
# A job whose weights stream, at several budgets, each inside a memory control group of that size (version 1, as root; without one where none can be made):
#
#     benches/streaming.sh MODEL ROWS.jsonl NEW_TOKENS BUDGET...        as in: models/synth rows.jsonl 4 1GiB 2GiB 3GiB
#
# Prints a Markdown table: seconds and bytes a token, the group's peak beside the ledger's sum, what was read beside what the recorded routing and the
# plan say must be read, waiting, and the hash of the answers, which is one for all budgets.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
model=$(realpath "$1") rows=$(realpath "$2") tokens=$3
shift 3
cargo build --release --quiet
scratch=$(mktemp -d)
group=/sys/fs/cgroup/memory/nightshift-bench-$$
trap 'rm -rf "$scratch"; rmdir "$group" 2>/dev/null || true' EXIT
number() { grep -o "\"$1\": *[0-9]*" "$2" | head -1 | grep -o '[0-9]*$'; }
bytes() { numfmt --from=iec-i --suffix=B "$1" | grep -o '^[0-9]*'; }
echo "| budget | sweeps | s a token | MB a token | trunk GB | experts GB | blocks read | peak MB | ledger MB | read s | waited s | wall s | answers |"
echo "|---|---|---|---|---|---|---|---|---|---|---|---|---|"
for budget in "$@"; do
  out="$scratch/$budget"
  run=(target/release/nightshift run --model "$model" --input "$rows" --output "$out" --memory "$budget"
    --set sampling.temperature=0 --set sampling.ignore_eos=true --set sampling.max_tokens="$tokens")
  if mkdir "$group" 2>/dev/null && bytes "$budget" 2>/dev/null >"$group/memory.limit_in_bytes"; then
    (echo "$BASHPID" >"$group/cgroup.procs" && exec "${run[@]}" >/dev/null 2>"$scratch/said") || { cat "$scratch/said" >&2; exit 1; }
    peak=$(cat "$group/memory.max_usage_in_bytes")
    rmdir "$group"
  else
    "${run[@]}" >/dev/null 2>"$scratch/said" || { cat "$scratch/said" >&2; exit 1; }
    peak=$(number peak_memory "$out/state/summary.json")
  fi
  s="$out/state/summary.json"
  hash=$(cat "$out"/data/*.parquet | sha256sum | cut -c1-12)
  awk -v b="$budget" -v n="$(($(number prompt_tokens "$s") + $(number completion_tokens "$s")))" -v s="$(number sweeps "$s")" \
    -v t="$(number bytes_read_trunk "$s")" -v e="$(number bytes_read_experts "$s")" -v k="$(number prefetched_used "$s")" \
    -v d="$(number on_demand "$s")" -v p="$peak" -v l="$(number ledger_total "$s")" -v r="$(number read_ms "$s")" \
    -v w="$(number wait_ms "$s")" -v ms="$(number wall_ms "$s")" -v h="$hash" \
    'BEGIN { printf "| %s | %d | %.3f | %.1f | %.2f | %.2f | %d | %.0f | %.0f | %.0f | %.0f | %.0f | %s |\n",
      b, s, ms / 1e3 / n, (t + e) / 1e6 / n, t / 1e9, e / 1e9, k + d, p / 1e6, l / 1e6, r / 1e3, w / 1e3, ms / 1e3, h }'
done
