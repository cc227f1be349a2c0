#!/usr/bin/env bash
# Train the reference model's two drafts and its lenses again, from the answers that are kept in models/, in
# the folder named (default: work/draft); over two hours on two cores. Started again, it goes on. For the
# answers too, leave out --corpus: hours more. Runs on a CUDA GPU where torch finds one.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

work=${1:-work/draft}
[[ $work != -* ]] || { sed -n '2,4s/^# //p' "$0"; exit 2; }

# distill NAME FLAGS…: one stage, in a folder of its own.
distill() {
    local out=$work/$1
    shift
    mkdir -p "$work/states" "$out"
    ln -sfn "$(realpath "$work/states")" "$out/states" # the same for all
    python -m export distill --target smollm2-135m --out "$out" --corpus models/smollm2-135m-corpus "$@"
}

masks="--masks-from 0 --rate 1e-3"
# Half of the target's layers, first for the next token, then for those after it.
distill deep --layers 0,1,2,8,9,10,11,19,20,21,23,24,27,28,29 --head-width 24576 --tokens 1500000 \
    --optimizer muon --batch-tokens 4096 --rate 2e-3 --masks-from 0.7 --blocks 0.1 --mask-weight 1
distill draft --from "$work/deep/draft.safetensors" --head-width 24576 --tokens 600000 $masks
# The best layers of that half, the same way.
distill shallow --from "$work/deep/draft.safetensors" --layers 0,1,11,21,23,24,28,29 --tokens-per-pass 3 \
    --tokens 1200000 --masks-from 0.4 --mask-weight 1
distill shallow-draft --from "$work/shallow/draft.safetensors" --tokens-per-pass 3 --tokens 400000 $masks
distill lenses --layers 0,29 --tokens-per-pass 1 --tokens 0 --lenses 10,15,20,25 --lens-tokens 150000 \
    --batch-tokens 1024

cp "$work/draft/draft.safetensors" models/smollm2-135m-draft.safetensors
cp "$work/shallow-draft/draft.safetensors" models/smollm2-135m-shallow-draft.safetensors
cp "$work/lenses/lenses.safetensors" models/smollm2-135m-lenses.safetensors
sha256sum models/*.safetensors # belong into models/smollm2-135m.json and models/smollm2-135m-shallow.json
