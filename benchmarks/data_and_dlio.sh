#!/usr/bin/env bash
# data_and_dlio.sh MILLRACE: generators in MB/s beside dd, and utilisation at 0.38 ms steps with data in memory for 1, 2, 4
# and 8 ranks. Wants 4 GB below TMPDIR. Every figure is of its own fresh folder; load of the machine is printed with it.
set -euo pipefail
millrace="$1"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
rate() { python3 -c 'import json,sys; r=json.load(sys.stdin); print("%-8s %6.0f MB/s" % (sys.argv[1], r["mb_per_s"]))' "$1"; }
echo "load: $(cut -d' ' -f1-3 /proc/loadavg)"
echo "dd       $(dd if=/dev/zero of="$work/dd" bs=1M count=1000 2>&1 | tail -n 1 | sed 's/.*, //')"
rm "$work/dd"
for workload in imseg bert dlrm images text; do
  "$millrace" data generate -w "$workload" -o "$work/$workload" -s 1GB --format json | rate "$workload"
  rm -r "${work:?}/$workload"
done
for ranks in 1 2 4 8; do
  "$millrace" dlio workload=default --ranks "$ranks" --output-dir "$work/out" ++workload.workflow.generate_data=True \
    ++workload.workflow.evaluation=False ++workload.dataset.data_folder="$work/data" ++workload.dataset.num_files_train=2048 \
    ++workload.dataset.num_files_eval=0 ++workload.dataset.num_subfolders_train=0 ++workload.dataset.record_length_bytes=65536 \
    ++workload.reader.read_type=memory ++workload.reader.batch_size=1 ++workload.train.computation_time=0.00038 \
    ++workload.train.epochs="$((2 * ranks))" >/dev/null 2>&1
  python3 - "$work/out/summary.json" "$ranks" "$(cut -d' ' -f1 /proc/loadavg)" <<'PYTHON'
import json, sys
summary = json.load(open(sys.argv[1]))
ours = summary["millrace"]
share = {k: sum(e[k] for e in ours["shares_by_epoch"]) / len(ours["shares_by_epoch"]) * 100 for k in ours["shares_by_epoch"][0]}
print(f"{sys.argv[2]} ranks: AU {summary['metric']['train_au_mean_percentage']:.2f} %, calibrated {ours['train_au_calibrated_mean_percentage']:.2f} %, "
      f"of the time asked for {ours['train_au_asked_mean_percentage']:.2f} %, loop {ours['loop_cost_us_per_step']:.2f} us; "
      + ", ".join(f"{k} {v:.2f} %" for k, v in share.items()) + f"; load {sys.argv[3]}")
PYTHON
done
