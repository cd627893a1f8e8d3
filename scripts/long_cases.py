#!/usr/bin/env python3
"""long_cases.py INGLE DENSE MIXTURE [--case NAME ...] [--kv TYPE ...] [-- OPTION ...]

Four prompts whose lengths are those where long contexts of others went wrong, of a dense model of Gemma 4 and of a mixture of experts:

  one-step    900 tokens in one step, DENSE
  two-steps   2,500 tokens in two steps, so that the second begins behind the first
  windows     8,192 tokens, far beyond the window
  mixture     16,384 tokens, MIXTURE

each with keys and values of full layers in tq3_0 and in q8_0 (--kv: others).  Each prompt is answered by an `ingle daemon` with the steps
that the case is about, and the first two by another one with steps of 128 tokens, which must write the same.  Prints the time of a prompt and what was
reported; the status is 1 where two answers differ, or tokens of prompt or answer are not counted as sent and asked for.  Behind "--"
options for the daemon."""
import argparse, sys, time

from long_context import Daemon

#        tokens, of a step, mixture
CASES = {"one-step": (900, 1024, False), "two-steps": (2500, 1280, False), "windows": (8192, 2048, False), "mixture": (16384, 2048, True)}
ANSWER, SMALL, AGAIN = 8, 128, 4096


def answer(a, model, kv, chunk, n):
    """The text behind n tokens, the numbers of those and of its own as they are reported, and the seconds of it all."""
    d = Daemon(a.ingle, model, ["--kv-layers", "full=" + kv, "--chunk", str(chunk), "--ctx", str(n + 256), "--draft", "off", *a.options])
    start = time.monotonic()
    text, end = d.ask(tokens=[300 + i * 7919 % 1700 for i in range(n)], max_tokens=ANSWER, ignore_end=True)
    seconds = time.monotonic() - start
    d.close()
    return text, (end["prompt_tokens"], end["tokens"]), seconds


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("ingle")
    p.add_argument("dense")
    p.add_argument("mixture")
    p.add_argument("--case", action="append", choices=list(CASES))
    p.add_argument("--kv", action="append")
    at = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    a = p.parse_args(sys.argv[1:at])
    a.options = sys.argv[at + 1:]
    bad = 0
    for name in a.case or CASES:
        n, chunk, mixture = CASES[name]
        for kv in a.kv or ["tq3_0", "q8_0"]:
            model = a.mixture if mixture else a.dense
            text, counted, seconds = answer(a, model, kv, chunk, n)
            again = answer(a, model, kv, SMALL, n)[0] if n <= AGAIN else text
            ok = text == again and counted == (n, ANSWER)
            bad += not ok
            print(f"{name:10} {kv:8} {n:6} tokens {seconds:7.1f} s  {'ok' if ok else f'DIFFERS: {counted} tokens, {text!r}, {again!r}'}", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
