#!/usr/bin/env python3
"""What is kept of a prompt (docs/how/long-context.md#shortened-prompts), by transformers' attention weights and plain loops.

    python make_scores.py GOLDENS    writes kept.safetensors
"""
import sys

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, Gemma4ForConditionalGeneration

N, KEEP = 1500, 0.8


def tokens(seed):
    """Plain tokens without a repetition, but for one passage of the end that stands in the middle, too."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(300, 500, N)
    ids[700:706] = ids[N - 50:N - 44]
    return ids


@torch.no_grad()
def scores(root, ids):
    cfg = AutoConfig.from_pretrained(f"{root}/gemma4_dense")
    cfg._attn_implementation = cfg.text_config._attn_implementation = "eager"
    m = Gemma4ForConditionalGeneration(cfg).float().eval()
    m.load_state_dict(load_file(f"{root}/gemma4_dense/model.safetensors"), strict=False)
    m.tie_weights()
    out = m(input_ids=torch.tensor(ids).view(1, -1), use_cache=False, output_attentions=True)
    full = [i for i, t in enumerate(cfg.text_config.layer_types) if t == "full_attention"]
    best = np.max([out.attentions[i][0, :, N - 8:, :].numpy() for i in full], axis=(0, 1))
    return best.mean(0)


def kept(ids, score):
    chunks = [list(range(i, min(N, i + 32))) for i in range(0, N, 32)]
    pooled = [np.mean(score[max(0, i - 2):i + 3]) for i in range(N)]
    mean = [float(np.mean([pooled[i] for i in c])) for c in chunks]
    keep = set(range(8)) | set(range(len(chunks) - 24, len(chunks)))
    grams = {tuple(ids[i:i + 4]) for i in range(N - 96, N - 3)}
    hits = sorted({i // 32 for i in range(N - 96 - 3) if tuple(ids[i:i + 4]) in grams})[:64]
    for h in hits:
        keep |= {c for c in (h - 1, h, h + 1) if 0 <= c < len(chunks)}
    left = sorted((c for c in range(len(chunks)) if c not in keep), key=lambda c: (-mean[c], c))
    for k, c in enumerate(left):
        if sum(len(chunks[x]) for x in keep) + len(chunks[c]) > int(KEEP * N):
            print("the last that is kept, the next:", mean[left[k - 1]], mean[c])
            if mean[left[k - 1]] < 1.02 * mean[c]:
                return None  # too near to each other
            break
        keep.add(c)
    print("hits", hits, "chunks", sorted(keep))
    return [i for c in sorted(keep) for i in chunks[c]]


for seed in range(5, 50):
    ids = tokens(seed)
    result = kept(ids, scores(sys.argv[1], ids))
    if result:
        save_file({"tokens": torch.tensor(ids).int(), "kept": torch.tensor(result).int()}, "kept.safetensors")
        break
