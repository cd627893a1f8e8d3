#!/usr/bin/env python3
"""Logits of tokens that stand at given positions: transformers' Gemma 4 with position_ids and masks that count positions.

    python make.py GOLDENS    writes CASE.safetensors for each case
"""
import sys

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, Gemma4ForConditionalGeneration

N, ROWS = 100, 12
CASES = ("gemma4_dense", "gemma4_ple_e2b")


def positions():
    """Gaps of one position, of less and of more than the window of 24, and tokens that stand alone."""
    gap = {1: 3, 20: 1, 37: 9, 38: 30, 39: 23, 40: 5, 60: 200, 70: 24, 71: 25, 90: 11}
    at, out = 0, []
    for i in range(N):
        at += gap.get(i, 0)
        out.append(at + i)
    return torch.tensor(out)


def mask(pos, window):
    far = pos[:, None] - pos[None, :]
    seen = (far >= 0) & (far < window)
    return torch.where(seen, 0.0, float("-inf"))[None, None]


@torch.no_grad()
def case(root, name):
    cfg = AutoConfig.from_pretrained(f"{root}/{name}")
    cfg._attn_implementation = cfg.text_config._attn_implementation = "eager"
    m = Gemma4ForConditionalGeneration(cfg).float().eval()
    lost = m.load_state_dict(load_file(f"{root}/{name}/model.safetensors"), strict=False)
    assert not lost.unexpected_keys and all(k.startswith("lm_head") for k in lost.missing_keys), lost
    m.tie_weights()
    ids = load_file(f"{root}/{name}/golden.safetensors")
    plain = m(input_ids=ids["input_ids"].view(1, -1).long(), use_cache=False).logits[0]
    assert (plain - ids["logits"]).abs().max() < 1e-3  # it is the model of the golden
    tokens, pos = ids["input_ids"][:N].long(), positions()
    lm = m.model.language_model
    x = lm(input_ids=tokens.view(1, -1), position_ids=pos.view(1, -1), use_cache=False,
           attention_mask={"full_attention": mask(pos, 1 << 30), "sliding_attention": mask(pos, cfg.text_config.sliding_window)})
    z = m.lm_head(x.last_hidden_state)[0]
    z = cfg.text_config.final_logit_softcapping * torch.tanh(z / cfg.text_config.final_logit_softcapping)
    rows = torch.tensor(sorted({0, 1, 19, 20, 36, 37, 38, 39, 45, 60, 71, N - 1}))
    assert len(rows) == ROWS
    print(name, "beside the same tokens without gaps: largest difference of the last row", float((z[-1] - plain[N - 1]).abs().max()))
    save_file({"tokens": tokens.int(), "positions": pos.int(), "rows": rows.int(), "logits": z[rows].contiguous()}, f"{name}.safetensors")


for name in CASES:
    case(sys.argv[1], name)
