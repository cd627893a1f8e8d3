#!/usr/bin/env python3
"""command.py INGLE INGLE_EMU FAKE [all] - layers on a card, by command: the same text wherever they lie.

INGLE is the product, which FAKE/libcuda.so.1 (fake_cuda.c) and FAKE/lacks/libcuda.so.1 serve as a driver; INGLE_EMU has
emulated cards of its own.  all: each function of the driver fails and lacks, else some.  losses.py has cards that are
lost."""
import json, os, pathlib, re, shutil, subprocess, sys, tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "serve"))
from client import Server

ingle, emu, fake = sys.argv[1:4]
every = 1 if len(sys.argv) > 4 else 7
ASK = ["run", "-n", "6", "--temp", "0", "--threads", "2", "Once upon a time"]


def run(program, options=(), **env):
    full = dict(os.environ, **env)
    p = subprocess.run([program, *ASK[:1], *options, *ASK[1:]], env=full, capture_output=True, text=True, timeout=600)
    return p.returncode, p.stdout, p.stderr


def same(what, got, words=(), count=None):
    code, out, err = got
    assert code == 0, (what, code, err)
    assert out == want, (what, out, want)
    for w in words:
        assert w in err, (what, w, err)
    if count is not None:
        assert err.count("fallback") == count, (what, count, err)


def refused(what, got, *words):
    code, out, err = got
    assert code != 0, (what, out, err)
    for w in words:
        assert w in err, (what, w, err)


code, want, err = run(ingle, ["--gpu", "off"])
assert code == 0 and want.strip(), (code, want, err)

# where layers lie
for layers in ("0", "2-4", "all"):
    same(layers, run(emu, ["--gpu-layers", layers]), count=0)

# weights lie on one side only: the plan says so, and a file of packed weights is mapped for the way
def weights(layers):
    p = subprocess.run([emu, "inspect", "--plan", "--json", "--gpu-layers", layers], capture_output=True, text=True)
    plan = json.loads(p.stdout)
    return plan["items"]["weights"], plan["total_bytes"]


(all_host, most), (some, _), (least, total) = weights("0"), weights("2"), weights("all")
assert all_host > some > least < all_host / 10 and total < most, (all_host, some, least, total, most)

# encoders of pictures stay with the processor: the same weights are left there with and without them
def left(*options):
    p = subprocess.run([emu, "inspect", "--plan", "--json", "--gpu-layers", "all", *options], capture_output=True, text=True)
    items = json.loads(p.stdout)["items"]
    return items["weights"], "encoders" in items


(with_them, seen), (without, unseen) = left(), left("--mmproj", "off")
assert with_them == without and seen and not unseen, (with_them, without)
look = ["--image", "tests/data/vision/vision_31b/a.png"]
card, host = run(emu, ["--gpu-layers", "all", *look]), run(ingle, ["--gpu", "off", *look])
assert card[:2] == host[:2] and card[0] == 0, (card, host)

# pages, too, unless a store or locked memory has them
with tempfile.TemporaryDirectory() as d:
    kv = []
    for options in ["0"], ["3"], ["all"], ["all", "--store", d], ["all", "--lock"]:
        p = subprocess.run([emu, "inspect", "--plan", "--json", "--gpu-layers", *options], capture_output=True, text=True)
        kv.append(json.loads(p.stdout)["items"]["keys and values"])
    assert kv[0] > kv[1] > kv[2] == 0 and kv[3] == kv[4] == kv[0], kv

with tempfile.TemporaryDirectory() as d:
    model = os.path.join(d, "m.gguf")
    shutil.copy("tests/data/nano/nano-gemma4-Q4_K_M.gguf", model)
    text = run(ingle, ["-m", model, "--no-pack-cache", "--gpu", "off"])[1]
    for layers in ("all", "1"):
        code, out, err = run(emu, ["-m", model, "--pack", "--pack-cache", f"{d}/p", "--gpu-layers", layers])
        assert code == 0 and out == text and "fallback" not in err, (layers, code, out, text, err)
    assert len(os.listdir(f"{d}/p")) == 1
    code, out, err = run(emu, ["-m", model, "--no-pack-cache", "--gpu-layers", "all"], INGLE_EMU_CARD="lose=700")
    assert code == 0 and out == text and err.count("fallback") == 1, (code, out, text, err)

# a step's rows cross a border between layers once; lists go up once for all layers
def counts(layers, n):
    ask = ["run", "-q", "--temp", "0", "--threads", "2", "--draft", "off", "--gpu-layers", layers, "-n", str(n), ASK[-1]]
    err = subprocess.run([emu, *ask], env=dict(os.environ, INGLE_EMU_CARD="count"), capture_output=True, text=True).stderr
    return [int(x) for x in re.findall(r"\d+", re.search("emulated card: .*", err)[0])]


WIDTH, LOGITS, STEPS = 256 * 4, 2064 * 4, 4
for layers, puts, gets, get_bytes, launches in (
    ("1", 5, 1, WIDTH, 22), ("2-4", 5, 1, WIDTH, 44), ("all", 9, 1, LOGITS, 137)):
    step = [(b - a) / STEPS for a, b in zip(counts(layers, 4), counts(layers, 4 + STEPS))]
    assert step[0] <= puts and step[2:4] == [gets, get_bytes] and step[4] <= launches, (layers, step)

# drafters on either side: the same text, and as many drafted tokens are right
NANO = "tests/data/nano/nano-gemma4"


def drafts(program, kind, *options):
    p = subprocess.run([program, *ASK, "-n", "12", "-m", f"{NANO}-Q4_K_M.gguf", "--draft", f"{NANO}-{kind}-Q8_0.gguf", "--draft-min", "2",
                        "--draft-max", "2", *options], capture_output=True, text=True, timeout=600)
    assert p.returncode == 0 and "fallback" not in p.stderr, (kind, options, p.stderr)
    return p.stdout, re.search(r"drafts: (\d+ of \d+) tokens right", p.stderr)[1]


for kind, places in ("mtp", [("all", "auto")]), ("dspark", [("0", "all"), ("2", "1-2")]):
    host = drafts(ingle, kind, "--gpu", "off")
    for layers, some in places:
        got = drafts(emu, kind, "--gpu-layers", layers, "--draft-gpu-layers", some)
        assert got == host, (kind, layers, some, got, host)


def draft_plan(*options):
    p = subprocess.run([emu, "inspect", "--plan", "--json", "-v", "-m", f"{NANO}-Q4_K_M.gguf", "--draft", f"{NANO}-mtp-Q8_0.gguf",
                        *options], capture_output=True, text=True)
    assert p.returncode == 0, p.stderr
    plan = json.loads(p.stdout)
    return plan["gpu"]["draft_layers"], plan["items"]["drafter"], plan["gpu"], p.stderr


layers, memory, taken, said = draft_plan()
assert layers == [0, 4] and memory < 20000, (layers, memory)
layers, most, least, said = draft_plan("--draft-gpu-layers", "0")
assert layers == [0, 0] and least["bytes"] < taken["bytes"] and most > 500000, (layers, most, least)
reserve = (64 << 20) - draft_plan("--gpu-memory", "64M")[2]["limit_bytes"]
assert draft_plan("--gpu-layers", "2")[0] == [0, 0] and draft_plan("--gpu-layers", "2", "--draft-gpu-layers", "3")[0] == [0, 3]
layers, _, gpu, said = draft_plan("--gpu-memory", str(reserve + least["bytes"] + 1000))
assert layers == [0, 0] and gpu["bytes"] == least["bytes"] and "the processor computes the drafter" in said, (gpu, said)
layers, _, _, said = draft_plan("--gpu-memory", str(reserve + taken["bytes"] - 1000), "--draft-gpu-layers", "all")
assert 0 < layers[1] < 4 and "of the drafter's 4 fit" in said, (layers, said)
for value in "x", "-1", "3-1", "1+2":
    refused("draft layers", run(emu, [f"--draft-gpu-layers={value}"]), "--draft-gpu-layers", f"'{value}'")
for value in "9", "2-7":
    refused("draft layers", run(emu, ["-m", f"{NANO}-Q4_K_M.gguf", "--draft", f"{NANO}-mtp-Q8_0.gguf", "--draft-gpu-layers", value]),
            "--draft-gpu-layers", f"'{value}'", "the most is 4")
same("no drafter", run(emu, ["--draft", "off", "--draft-gpu-layers", "all", "--gpu-layers", "0"]), ["no network that drafts"])
same("no card", run(ingle, ["--draft-gpu-layers", "2+"], LD_LIBRARY_PATH="/nonexistent"), count=1)

# experts that the card has no room for, that workers compute; codes that it has no kernels for
V4 = "tests/data/nano-v4/nano-v4-MXFP4.gguf"


def expert_plan(*options):
    p = subprocess.run([emu, "inspect", "--plan", "--json", "-m", V4, "--draft", "off", *options], capture_output=True, text=True)
    assert p.returncode == 0, p.stderr
    gpu = json.loads(p.stdout)["gpu"]
    return gpu["layers"], gpu["experts"], gpu["bytes"], gpu["limit_bytes"]


whole = expert_plan("--gpu-memory", "64M")
assert whole[:2] == ([0, 6], True), whole
for options in ["--gpu-memory", str((64 << 20) - whole[3] + whole[2] - 1000)], ["--experts-worker", "unix:/nonexistent"]:
    less = expert_plan(*options)
    assert less[:2] == ([0, 6], False) and less[2] < whole[2], (options, less)
with tempfile.TemporaryDirectory() as d:
    codes = ["--tensor", "blk.1.ffn_gate=IQ1_S", "--tensor", "blk.2.ffn_up=IQ1_M", "--tensor", "blk.3.ffn_up=TQ1_0"]
    subprocess.run([ingle, "quantize", f"{NANO}-Q4_K_M.gguf", f"{d}/m.gguf", "Q8_0", *codes], check=True, capture_output=True)
    code, text, _ = run(ingle, ["-m", f"{d}/m.gguf", "--gpu", "off"])
    stored = run(emu, ["-m", f"{d}/m.gguf", "--gpu-layers", "all"])
    assert stored[:2] == (0, text) and stored[2].count("fallback") == 3, (text, stored)
    for word in "IQ1_S", "IQ1_M", "TQ1_0":
        assert f"fallback '{word}'" in stored[2], (word, stored)

# a kernel that leaves nothing, as of a damaged cache of the driver's, and code that the driver refuses: one line says who
# computes in its place
WHOLE = ["-m", f"{NANO}-Q4_K_M.gguf", "--draft", "off", "--gpu-layers", "all"]
plain = run(ingle, ["-m", f"{NANO}-Q4_K_M.gguf", "--draft", "off", "--gpu", "off"])[:2]
for card, words in (("skip=row_glu", ["'mlp'", "'row_glu' differs", "the processor stands in"]),
                    ("skip=attend_part_2", ["'gpu'", "'attend_part_2' differs", "stay with the processor"]),
                    ("skip=product_q4_k_1", ["'Q4_K'", "'product_q4_k_1' differs", "stay with the processor"]),
                    ("skip=many_q4_k", ["'matmul'", "'many_q4_k' differs", "a slower one of the card computes"]),
                    ("refuse=pages", ["'gpu'", "code of 'pages'", "stay with the processor"])):
    got = run(emu, WHOLE, INGLE_EMU_CARD=card)
    assert got[:2] == plain and got[2].count("warning") == 1, (card, got, plain)
    for w in words:
        assert w in got[2], (card, w, got[2])

# cards that are not there, and memory
refused("number", run(emu, ["--gpu", "7"], INGLE_EMU_CARD="n=2"), "no card 7", "has 2")
same("absent", run(emu, ["--gpu-layers", "all"], INGLE_EMU_CARD="absent"), ["not there"], 1)
same("auto", run(emu, [], INGLE_EMU_CARD="absent"), count=0)
same("old card", run(emu, ["--gpu-layers", "all"], INGLE_EMU_CARD="capability=70"), ["7.0", "7.5"], 1)
same("small card", run(emu, ["--gpu-layers", "all"], INGLE_EMU_CARD="mib=1"), ["memory"])

same("no layer fits", run(emu, ["--gpu-layers", "all", "--gpu-memory", "9M"]), ["no layer fits"])
for mib in (90, 120):  # another process takes it after the plan
    same("stolen", run(emu, ["--gpu-layers", "all"], INGLE_EMU_CARD=f"mib=128,steal={mib}"), ["memory"])
same("the second card", run(emu, ["--gpu", "1", "--gpu-layers", "all"], INGLE_EMU_CARD="n=2"), count=0)

# a card without memory of its own: what lies there is counted once
def plan_of(layers, card="n=1"):
    p = subprocess.run([emu, "inspect", "--plan", "--json", "--gpu-layers", layers], capture_output=True, text=True,
                       env=dict(os.environ, INGLE_EMU_CARD=card))
    return json.loads(p.stdout)


none, own, shared = plan_of("0"), plan_of("all"), plan_of("all", "integrated")
assert shared["gpu"]["shared"] and not own["gpu"]["shared"] and shared["gpu"]["bytes"] == own["gpu"]["bytes"]
twin = shared["items"]["activations"] - none["items"]["activations"]
assert 0 < twin == shared["total_bytes"] - none["total_bytes"] and own["total_bytes"] < none["total_bytes"], (none, shared)
same("integrated", run(emu, ["--gpu-layers", "all"], INGLE_EMU_CARD="integrated"), count=0)

# options
for value in ("999", "-1", "x", "4-2", "2-7"):
    refused("layers", run(emu, [f"--gpu-layers={value}"]), "--gpu-layers", f"'{value}'")
refused("memory", run(emu, ["--gpu-memory", "1K"]), "--gpu-memory", "1024", "1.00 MiB")
for several in "0,1", "0-1", "all":
    refused("several", run(emu, ["--gpu", several]), "--gpu", "several cards")
refused("several", run(emu, ["--device", "CUDA0,CUDA1"]), "--gpu", "'0,1'", "several cards")
refused("number", run(emu, ["--device", "cuda:7"], INGLE_EMU_CARD="n=2"), "no card 7", "has 2")
assert "computes layers" not in run(emu, ["-dev", "none", "-v"])[2]
for value in ("on", "x", "-1", "64", "0x0", "1.5"):
    for program in (ingle, emu):
        refused("card", run(program, [f"--gpu={value}"]), "--gpu", f"'{value}'", "auto, off")
same("no library", run(ingle, ["--gpu", "7"], LD_LIBRARY_PATH="/nonexistent"), count=1)
same("reference", run(emu, ["--numerics", "reference", "--gpu-layers", "all"]), ["--numerics reference"], 1)
with tempfile.TemporaryDirectory() as d:
    same("disk", run(emu, ["--kv-disk", d, "--gpu-layers", "all"]), ["--kv-disk"], 1)

# the server: what is probable has the same bits, also where a card is lost on the way
WISH = {"prompt": "Once upon a time", "n_predict": 10, "temperature": 0, "n_probs": 5}


def served(program, options, env):
    os.environ.update(env)
    try:
        with Server(program, "--threads", "2", *options) as s:
            probable = s.post("/completion", WISH)[2]["completion_probabilities"]
            return probable, s.get("/props")[2]["runtime"], "".join(s.log)
    finally:
        for name in env:
            del os.environ[name]


probable, props, _ = served(ingle, ["--gpu", "off"], {})
assert props["backend"] == "cpu" and not props["gpu"], props
for layers, backend in ("all", "gpu"), ("1-3", "cpu+gpu"), ("0", "cpu"):
    got, props, _ = served(emu, ["--gpu-layers", layers], {})
    assert got == probable and props["backend"] == backend, (layers, props)
subprocess.run([sys.executable, "tests/gpu/losses.py", emu, "1", "5", "restored"], check=True)
got, props, log = served(emu, ["--gpu-layers", "all"], {"INGLE_EMU_CARD": "lose=700"})
assert got == probable and log.count("fallback") == 1 and props["backend"] == "cpu", (props, log)

# a preset of the router
with tempfile.TemporaryDirectory() as d:
    presets = pathlib.Path(d) / "models.ini"
    presets.write_text(f"[nano]\nmodel = {NANO}-Q4_K_M.gguf\ndraft = {NANO}-mtp-Q8_0.gguf\ngpu = 0\ngpu-layers = 2\nngld = 3\n"
                       "threads = 2\n")
    with Server(emu, "--models", str(presets)) as s:
        for n in range(2):
            answer = s.post("/v1/completions", {"model": "nano", "prompt": "Once", "max_tokens": 3})
            assert answer[0] == 200, answer
        runtime = s.get("/props?model=nano")[2]["runtime"]
        assert runtime["backend"] == "cpu+gpu" and runtime["gpu"]["end_layer"] == 2, runtime
        assert runtime["gpu"]["draft_end_layer"] == 3 and runtime["gpu"]["draft_layers"] == 4, runtime

# where it is shown
for program, name in (ingle, None), (emu, "emulated card 0"):
    d = json.loads(subprocess.run([program, "doctor", "--json"], capture_output=True, text=True, timeout=600).stdout)
    assert (d["gpu"] or {}).get("name") == name and bool(d.get("gpu_why")) == (not name), d["gpu"]
bench = [emu, "bench", "-q", "-p", "4", "-g", "1", "-r", "1", "--json", "--gpu-layers"]
for layers, n in ("1-3", 2), ("0", None):
    for row in subprocess.run([*bench, layers], capture_output=True, text=True, timeout=600).stdout.splitlines():
        row = json.loads(row)
        assert row.get("gpu_layers") == n and ("launches" in row) == bool(n), (layers, row)
rows = subprocess.run([*bench, "1-3", "--profile"], capture_output=True, text=True, timeout=600).stdout.splitlines()
launches = [r["launches"] for r in map(json.loads, rows) if r.get("op") == "mlp"]
assert launches and all(n >= 2 * 4 for n in launches), rows

# the real table of functions
lib = {"LD_LIBRARY_PATH": fake}
same("cuda", run(ingle, ["--gpu-layers", "all"], **lib))
has_code = "no code" not in run(ingle, ["--gpu-layers", "all"], **lib)[2]
same("lacks", run(ingle, ["--gpu-layers", "all"], LD_LIBRARY_PATH=f"{fake}/lacks"), ["cuLaunchKernel"], 1)
same("version", run(ingle, ["--gpu-layers", "all"], FAKE_CUDA="version=11040", **lib), ["11.4", "11.5"], 1)
same("none", run(ingle, ["--gpu-layers", "all"], FAKE_CUDA="count=0", **lib), ["no card"], 1)
same("count", run(ingle, ["--gpu-layers", "all"], FAKE_CUDA="count=70000", **lib), ["what cannot be"], 1)
same("capability", run(ingle, ["--gpu-layers", "all"], FAKE_CUDA="major=6,minor=1", **lib), ["6.1"], 1)
for said in ("nonsense", "major=0", "major=100", "minor=77", "bytes=0", "count=-1"):
    same(said, run(ingle, ["--gpu-layers", "all"], FAKE_CUDA=said, **lib), ["what cannot be"], 1)
same("negative", run(ingle, ["--gpu-layers", "all"], FAKE_CUDA="version=-1", **lib), ["11.5"], 1)
same("zeros", run(ingle, ["--gpu-layers", "all"], FAKE_CUDA="zeros", **lib), ["what cannot be"], 1)
same("little memory", run(ingle, ["--gpu-layers", "all"], FAKE_CUDA="bytes=4096", **lib), ["memory"], 1)
same("much memory", run(ingle, ["--gpu-layers", "all"], FAKE_CUDA=f"bytes={1 << 62}", **lib))
refused("number", run(ingle, ["--gpu", "7"], FAKE_CUDA="count=2", **lib), "no card 7", "has 2")

# each function of the driver fails at all calls, or is not there
functions = re.findall(r'"(cu[A-Z]\w+)"', pathlib.Path("src/device/gpu/api_cuda.c").read_text())
assert len(functions) > 30, functions
for f in functions[:: every]:
    for code in 2, 999:
        got = run(ingle, ["--gpu-layers", "all"], FAKE_CUDA=f"fail={f},code={code}", **lib)
        same(f, got)
        assert got[2].count("fallback") <= 1, (f, code, got)
library = (pathlib.Path(fake) / "libcuda.so.1").read_bytes()
for f in functions[3:: every]:
    with tempfile.TemporaryDirectory() as d:
        lacking = library.replace(b"\0" + f.encode() + b"\0", b"\0" + f.replace("cu", "xx", 1).encode() + b"\0")
        assert lacking != library, f
        (pathlib.Path(d) / "libcuda.so.1").write_bytes(lacking)
        same(f, run(ingle, ["--gpu-layers", "all"], LD_LIBRARY_PATH=d), [f], 1)
with tempfile.TemporaryDirectory() as d:  # what is no library
    (pathlib.Path(d) / "libcuda.so.1").write_bytes(b"no library at all" * 99)
    same("text", run(ingle, ["--gpu-layers", "all"], LD_LIBRARY_PATH=d), ["libcuda.so.1"], 1)
with tempfile.TemporaryDirectory() as d:  # what ends too early
    first, each, n_parts = (int.from_bytes(library[a:b], "little") for a, b in ((32, 40), (54, 56), (56, 58)))
    parts = [library[first + each * i:] for i in range(n_parts)]
    end = max(int.from_bytes(p[8:16], "little") + int.from_bytes(p[32:40], "little") for p in parts)
    for n in 20, 64, first + each, 17000, end - 1:
        (pathlib.Path(d) / "libcuda.so.1").write_bytes(library[:n])
        same("cut", run(ingle, ["--gpu-layers", "all"], LD_LIBRARY_PATH=d), ["libcuda.so.1"], 1)
    same("cut", run(ingle, [], LD_LIBRARY_PATH=d), count=0)
if has_code:
    code, out, err = run(ingle, ["--gpu-layers", "all"], FAKE_CUDA="idle", **lib)  # as of a damaged cache of the driver's
    assert code == 0 and out == want and "differs from the plain kernel" in err and err.count("fallback") == 1, err
    same("refused", run(ingle, ["--gpu-layers", "all"], FAKE_CUDA="refuse", **lib), ["ptxas says no"], 1)
    same("no memory for code", run(ingle, ["--gpu-layers", "all"], FAKE_CUDA="fail=cuModuleLoadDataEx,code=2", **lib), count=1)
    same("no shared memory", run(ingle, ["--gpu-layers", "all"], FAKE_CUDA="shared=0", **lib), ["shared memory"], 1)
    for at, code in ((40, 700), (400, 719)):
        same("lost", run(ingle, ["--gpu-layers", "all"], FAKE_CUDA=f"lose={at},code={code}", **lib), ["lost"], 1)
print("ok" if has_code else "ok (this build has no code for cards)")
