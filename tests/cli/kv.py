#!/usr/bin/env python3
"""kv.py INGLE - what keys and values as codes cost on the nano model, against f32 ones, with numerics that round nothing else."""
import importlib.util, json, pathlib, sys, unittest

sys.argv = sys.argv[:2]
spec = importlib.util.spec_from_file_location("convert", "tests/cli/convert.py")
convert = importlib.util.module_from_spec(spec)
spec.loader.exec_module(convert)

NANO = "assets/nano-gemma4-Q8_0.gguf"
# The largest mean KL divergence, and how many of the tokens: plain kernels decode each key for each row.
MOST, N_TOKENS = {"f16v": 1e-6, "q8_0": 3e-4, "q8r": 4e-5, "n4r": 6e-3, "q8r+rot": 4e-5, "n4r+rot": 6e-3}, 300


class Case(convert.Base):
    def test_the_distance_to_float_keys_and_values(self):
        ids, logits = f"{self.dir}/ids.json", f"{self.dir}/logits.safetensors"
        golden = json.loads(pathlib.Path("tests/data/nano/golden.json").read_text())["weights"]["bf16"]
        pathlib.Path(ids).write_text(json.dumps([i for c in golden for i in c["prompt_ids"] + c["completion_ids"]][:N_TOKENS]))
        base = ["eval", "-q", "-m", NANO, "--no-pack-cache", "--tokens", ids, "--numerics", "reference", "--kv"]
        self.run_it(*base, "f32", "--logits", logits)
        kl = {}
        for kind, most in MOST.items():
            got = json.loads(self.run_it(*base, kind, "--json", "--against", logits).stdout)
            kl[kind] = got["kl"]
            self.assertLess(got["kl"], most, kind)
            self.assertGreater(got["same_top"], 0.97, kind)
        self.assertLess(kl["q8r"], 1.5 * kl["q8_0"])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]])
