#!/usr/bin/env bash
# Train the reference model's draft again, from the answers that are kept in models/, in the folder named
# (default: work/draft); about an hour on two cores. Started again, it goes on. For the answers too, leave
# out --corpus: hours more.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

work=${1:-work/draft}
[[ $work != -* ]] || { sed -n '2,4s/^# //p' "$0"; exit 2; }
python -m export distill --target smollm2-135m --out "$work" --corpus models/smollm2-135m-corpus \
    --layers 0,1,2,8,9,10,11,19,20,21,23,24,27,28,29 --head-width 24576 --tokens 1500000
cp "$work/draft.safetensors" models/smollm2-135m-draft.safetensors
sha256sum models/smollm2-135m-draft.safetensors # belongs into models/smollm2-135m.json
