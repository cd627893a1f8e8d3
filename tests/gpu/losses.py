#!/usr/bin/env python3
"""losses.py INGLE_EMU [N [SEED [WORD]]] - an emulated card that is lost at random calls: the same text, one report each.

Each case is run on a whole card first, which counts the calls of the driver; then N times (2) with the card lost at one
of them. Cases with WORD in their names only. The texts and logits are those of the processor."""
import concurrent.futures, hashlib, json, os, pathlib, random, re, shutil, subprocess, sys, tempfile

for room in "serve", "cli":
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / room))
from client import Server
from modelfile import Gguf

emu = sys.argv[1]
times = int(sys.argv[2]) if len(sys.argv) > 2 else 2
seed = int(sys.argv[3]) if len(sys.argv) > 3 else 5
word = sys.argv[4] if len(sys.argv) > 4 else ""
V4 = "tests/data/nano-v4/nano-v4"
GEMMA = "tests/data/nano/nano-gemma4"
LONG = "The lighthouse keeper wrote every evening what the sea had brought. " * 12
DSPARK = ["-m", f"{GEMMA}-Q4_K_M.gguf", "--draft", f"{GEMMA}-dspark-Q8_0.gguf", "--gpu-layers", "0", "Once upon a time"]
STORY = ["--temp", "0", "--threads", "2", "-n", "10"]


def run(options, env=None):
    full = dict(os.environ, INGLE_EMU_CARD=env) if env else os.environ
    p = subprocess.run([emu, "run", *STORY, *options], env=full, capture_output=True, text=True, timeout=600)
    assert p.returncode == 0, (options, env, p.returncode, p.stderr)
    return p.stdout, p.stderr


def command(*options):
    """A case of `run`: text and what it says with layers on a card, or without."""
    return lambda env: run([*options, "--gpu", "off"] if env == "off" else [*options, "--gpu-layers", "all"], env)


def restored(env):
    """The prefix comes from a folder that another process has filled."""
    with tempfile.TemporaryDirectory() as d:
        store = ["--store", d, "--store-tokens", "16"]
        run([*store, "--gpu", "off", LONG + "A"])
        return command(*store, LONG + "B")(env)


def own_block(env):
    """The drafter is in the model's own file."""
    with tempfile.TemporaryDirectory() as d:
        model, block = Gguf(f"{V4}-MXFP4.gguf"), Gguf(f"{V4}-mtp0-Q8_0.gguf")
        model.tensors.update(block.tensors)
        model.kv["deepseek4.nextn_predict_layers"] = block.kv["deepseek4.nextn_predict_layers"]
        model.write(f"{d}/m.gguf")
        return served(env, "-m", f"{d}/m.gguf", *DRAFTS)


def model_drafts(env):
    """A whole model is the drafter."""
    with tempfile.TemporaryDirectory() as d:
        shutil.copy(f"{GEMMA}-Q4_K_M.gguf", f"{d}/m.gguf")
        return served(env, "-m", f"{GEMMA}-Q4_K_M.gguf", "--draft", f"{d}/m.gguf", *DRAFTS)


DENSE, DFLASH2 = (f"tests/data/goldens/{name}/model-F32.gguf" for name in ("gemma4_dense", "dflash2_gemma4"))
DRAFTS = ["--draft-min", "2", "--draft-max", "3"]
WISH = {"n_predict": 8, "temperature": 0, "n_probs": 3}


def on_server(env, *options, do):
    """What do(server) says of a server with a card, or without, and its log."""
    where = ["--gpu", "off"] if env == "off" else ["--gpu-layers", "all"]
    if env and env != "off":
        os.environ["INGLE_EMU_CARD"] = env
    try:
        with Server(emu, "--threads", "2", *where, *options) as s:
            said = do(s)
            return said, "".join(s.log) if s.close() in (0, None) else "closed"
    finally:
        os.environ.pop("INGLE_EMU_CARD", None)


def posted(s, path, wish):
    status, _, answer = s.post(path, wish)[:3]
    assert status == 200, (path, status, answer)
    return answer


def served(env, *options, several=False):
    """Answers of a server, with their probabilities: one after another, then several at once."""
    def ask(s, prompt):
        answer = posted(s, "/completion", dict(WISH, prompt=prompt))
        return json.dumps([answer["content"], answer["completion_probabilities"]])

    def do(s):
        with concurrent.futures.ThreadPoolExecutor(4 if several else 1) as pool:
            return "\n".join(pool.map(lambda prompt: ask(s, prompt), ["Once upon a time", "The sea is", LONG, "A blue dog"]))

    return on_server(env, *options, do=do)


def pages_of(path):
    """Of a saved file: what comes after its head, which has a time."""
    return hashlib.sha256(path.read_bytes()[512:]).hexdigest()


def saved(env, *options):
    """A slot is saved, erased and restored: the file of the processor, and what comes after it."""
    with tempfile.TemporaryDirectory() as d:
        def do(s):
            posted(s, "/completion", dict(WISH, prompt=LONG, id_slot=0))
            n = [posted(s, f"/slots/0?action={what}", {"filename": "a"}) for what in ("save", "erase", "restore", "save")]
            answer = posted(s, "/completion", dict(WISH, prompt=LONG + "A", id_slot=0))
            return json.dumps([n[0]["n_saved"], n[3]["n_saved"], answer["content"], answer["completion_probabilities"],
                               pages_of(pathlib.Path(d) / "a")])

        return on_server(env, "--slot-save-path", d, *options, do=do)


def kept(env):
    """A session of a daemon is saved."""
    with tempfile.TemporaryDirectory() as d:
        lines = [{"do": "generate", "id": "g", "session": "s", "prompt": LONG, "max_tokens": 4, "temperature": 0},
                 {"do": "save", "id": "v", "session": "s", "file": f"{d}/a"}]
        full = dict(os.environ, INGLE_EMU_CARD=env) if env and env != "off" else os.environ
        where = ["--gpu", "off"] if env == "off" else ["--gpu-layers", "all"]
        with tempfile.TemporaryFile("w+") as err:
            p = subprocess.Popen([emu, "daemon", "--threads", "2", "--draft", "off", *where], env=full, text=True, stderr=err,
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            said = [p.stdout.readline()]
            for line in lines:
                p.stdin.write(json.dumps(line) + "\n")
                p.stdin.flush()
                while json.loads(said[-1]).get("event") not in ("end", "saved", "error"):
                    said.append(p.stdout.readline())
                said.append('{}')
            p.stdin.close()
            assert p.wait(60) == 0 and os.path.exists(f"{d}/a"), (env, p.returncode, said)
            err.seek(0)
            return pages_of(pathlib.Path(d) / "a"), err.read()


CASES = {
    "run": command("Once upon a time"),
    "prompt": command(LONG),
    "half": lambda env: run(["--gpu-layers", "0" if env == "off" else "1-4", LONG], env),
    "no drafts": command("--draft", "off", "Once upon a time"),
    "mtp": command("-m", f"{GEMMA}-Q4_K_M.gguf", "--draft", f"{GEMMA}-mtp-Q8_0.gguf", "Once upon a time"),
    "dflash": command("-m", f"{GEMMA}-Q4_K_M.gguf", "--draft", f"{GEMMA}-dflash-Q8_0.gguf", "Once upon a time"),
    "drafter only": lambda env: run(DSPARK if env == "off" else [*DSPARK, "--draft-gpu-layers", "all"], env),
    "v4": command("-m", f"{V4}-MXFP4.gguf", "Once upon a time"),
    "v4 dspark": command("-m", f"{V4}-MXFP4.gguf", "--draft", f"{V4}-dspark-Q8_0.gguf", LONG),
    "kv": command("--kv", "q8_0", LONG),
    "restored": restored,
    "saved": lambda env: saved(env, "--draft", "off"),
    "kept": kept,
    "in a save": lambda env: kept(env if env == "off" else "in=get," + env),
    "server": served,
    "own block": own_block,
    "model drafts": model_drafts,
    "dflash2": lambda env: served(env, "-m", DENSE, "--draft", DFLASH2, *DRAFTS),
    "server with mtp": lambda env: served(env, "-m", f"{GEMMA}-Q4_K_M.gguf", "--draft", f"{GEMMA}-mtp-Q8_0.gguf", *DRAFTS),
    "batch": lambda env: served(env, several=True),
    "batch of v4": lambda env: served(env, "-m", f"{V4}-MXFP4.gguf", several=True),
}


def hold(name, case, rng):
    want, _ = case("off")
    text, said = case("count")
    assert text == want, (name, "whole", text, want)
    others = said.count("fallback '")
    calls = int(re.search(r"(\d+) calls", said)[1])
    n_lost = 0
    for _ in range(times):
        at = rng.randrange(calls - 5 if name == "in a save" else 1, calls)  # the last copies are those of the save
        text, said = case(f"count,lose={at}")
        assert text == want, (name, at, text, want, said)
        lost = re.search(r"lost in (\w+)", said)
        reports = said.count("fallback '")
        told = "the card is lost" in said or "the processor computes" in said
        assert reports <= others + 1, (name, at, said)
        # what is lost while the program ends needs no word
        assert told or not lost or lost[1] in ("give", "count", "about"), (name, at, said)
        n_lost += bool(lost)
    print(f"{name}: {calls} calls, {n_lost} of {times} times lost: the same", flush=True)


rng = random.Random(seed)
for name, case in CASES.items():
    if word in name:
        hold(name, case, rng)
