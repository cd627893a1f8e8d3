#!/usr/bin/env python3
"""cli.py INGLE HELLO - the commands on the built-in model, driven as a user would."""
import base64, fcntl, json, os, pathlib, pty, re, select, signal, struct, subprocess, sys, tempfile, termios, time, unicodedata, unittest

INGLE, HELLO = sys.argv[1:3]
SANITIZED = "INGLE_TEST_SANITIZED" in os.environ  # many times slower: less of the same
SOAK = "INGLE_TEST_SOAK" in os.environ  # hours: all of the same
DATA = "tests/data"
STATE = tempfile.TemporaryDirectory()
os.environ["XDG_STATE_HOME"] = STATE.name  # the history of chats
with open(f"{DATA}/nano/golden.json") as file:
    GOLDEN = json.load(file)["weights"]["q8_0"]


def run(*args, stdin="", env=None, **more):
    return subprocess.run([INGLE, *args], input=stdin, capture_output=True, text=True, timeout=300,
                          env={**os.environ, **(env or {})}, **more)


def lines(text):
    return [json.loads(line) for line in text.split("\n") if line]


def content_of(case):
    """The answer's visible text, as the parser gives it."""
    text = case["completion"]
    for end in ("<turn|>", "<|tool_response>", "<eos>"):
        text = text.removesuffix(end)
    return json.loads(run("parse", stdin=text).stdout)


class Commands(unittest.TestCase):
    def ok(self, r, code=0):
        self.assertEqual(r.returncode, code, r.stdout[-500:] + r.stderr[-500:])
        return r

    def refuses(self, *args, code=1, says=(), stdin=""):
        r = self.ok(run(*args, stdin=stdin), code)
        # a busy machine takes so long that progress is told
        said = re.sub(r"(?m)^\w+: +(\d+ %|done in ).*\n", "", r.stderr)
        self.assertTrue(said.startswith("ingle: error: "), r.stderr)
        self.assertEqual(said.count("\n"), 1, r.stderr)
        for text in says:
            self.assertIn(text, r.stderr)
        return r

    def test_help_and_version(self):
        self.assertRegex(self.ok(run("--version")).stdout, r"^ingle \d+\.\d+\.\d+\n$")
        out = self.ok(run("--help")).stdout
        for command in ("chat", "run", "inspect", "eval", "bench", "doctor", "compare", "tokenize",
                        "render", "parse"):
            self.assertIn(f"  {command} ", out)
            self.assertIn(f"usage: ingle {command}", self.ok(run(command, "--help")).stdout)
            self.assertIn(f"usage: ingle {command}", self.ok(run("help", command)).stdout)
        self.assertIn(".TH INGLE 1", self.ok(run("help", "man")).stdout)
        self.assertIn("| `--top-k N` |", self.ok(run("help", "markdown")).stdout)
        self.assertIn("usage: ingle", self.ok(run(), 2).stderr)

    def test_pictures_and_sounds(self):
        at = f"{DATA}/vision/vision_12b"
        sees = ["-m", f"{at}/model-BF16.gguf", "-n", "1", "--temp", "0", "--image-tokens", "70"]
        media = ["--image", f"{at}/a.png", "--audio", f"{at}/s0.wav", "--image", f"{at}/b.jpg"]
        if "this build reads no such files" in (why := run("run", *sees, *media, "hi").stderr):
            self.skipTest(why)
        r = json.loads(self.ok(run("run", *sees, *media, "--json", "hi")).stdout)
        self.assertEqual((r["media"]["n"], r["media"]["tokens"]), (3, 63 + 35 + 66 + 3 * 2), r)
        r = json.loads(self.ok(run("run", *sees, *media, "--json", "--raw", "a<__media__>b<__media__>c<__media__>")).stdout)
        self.assertEqual(r["media"]["n"], 3)
        self.refuses("run", *sees, *media, "--raw", "a<__media__>", says=["markers"])
        self.refuses("run", *sees, "--audio", f"{at}/a.png", "hi", says=["a.png: it is a picture"])
        self.refuses("run", *sees, "--image", f"{at}/config.json", "hi", says=["config.json", "format"])
        self.refuses("run", *sees, "--image", "none.png", "hi", says=["none.png"])
        self.refuses("run", *sees, "--mmproj", "off", "--image", f"{at}/a.png", "hi", says=["a.png", "off"])
        self.refuses("run", *sees[:-1], "71", "hi", code=2, says=["image-tokens"])
        words = f"/image\n/image none.png\n/image {at}/b.jpg\nwhat\n/audio {at}/s1.wav\nand\n/quit\n"
        r = subprocess.run([INGLE, "chat", *sees], input=words.encode(), capture_output=True, timeout=300)
        out, err = r.stdout.decode(errors="replace"), r.stderr.decode(errors="replace")
        self.assertEqual(r.returncode, 0, err)
        for text in ("usage: /image FILE", "A picture of 40 x 300, 68 tokens", "A sound of 0.1 s, 5 tokens"):
            self.assertIn(text, out)
        self.assertIn("none.png", err)

    def test_projectors_beside_a_model(self):
        """One with the word in its name is found; several are an error; another model's is said, and refused by a picture."""
        at = f"{DATA}/vision"
        with tempfile.TemporaryDirectory() as d:
            put = lambda name, to: os.symlink(os.path.abspath(f"{at}/{name}"), f"{d}/{to}")
            put("vision_31b/model-BF16.gguf", "m.gguf")
            put("vision_31b/mmproj-BF16.gguf", "gemma-it-MMPROJ-f16.gguf")
            put("vision_31b/a.png", "a.png")
            go = lambda *args: run("run", "-m", f"{d}/m.gguf", "-n", "1", "--image-tokens", "70", *args, "hi")
            if "this build reads no such files" in (why := go("--image", f"{d}/a.png").stderr):
                self.skipTest(why)
            self.ok(go("--image", f"{d}/a.png"))
            put("vision_e4b/mmproj-BF16.gguf", "mmproj.gguf")
            self.assertIn("gemma-it-MMPROJ-f16.gguf', 'mmproj.gguf", self.ok(go(), 1).stderr)
            os.unlink(f"{d}/gemma-it-MMPROJ-f16.gguf")
            self.assertIn("not that of", self.ok(go()).stderr)
            self.assertIn("mmproj.gguf': layer 0 has bounds", self.ok(go("--image", f"{d}/a.png"), 1).stderr)
            said = self.ok(go("--mmproj", f"{d}/mmproj.gguf"), 1).stderr
            self.assertIn("m.gguf', which is dense", said)

    def test_eval_of_pictures(self):
        """Perplexity of a text around pictures: the media are read, and their tokens are not counted."""
        at = f"{DATA}/vision/vision_12b"
        sees = ["-m", f"{at}/model-BF16.gguf", "--image-tokens", "70"]
        if "this build reads no such files" in (why := run("run", *sees, "-n", "1", "--image", f"{at}/a.png", "hi").stderr):
            self.skipTest(why)
        url = "data:;base64," + base64.b64encode(pathlib.Path(f"{at}/a.png").read_bytes()).decode()
        with tempfile.TemporaryDirectory() as d:
            text, marked, lines = f"{d}/a", f"{d}/b", f"{d}/c.jsonl"
            pathlib.Path(text).write_text("a b c d e")
            pathlib.Path(marked).write_text("a b <__media__>c d <__media__>e")
            value = lambda *args: json.loads(self.ok(run("eval", "--json", *sees, *args)).stdout)
            plain, front = value("--text", text), value("--text", text, "--image", f"{at}/a.png")
            self.assertEqual(plain["tokens"], front["tokens"])
            self.assertNotEqual(plain["nll"], front["nll"])
            between = value("--text", marked, "--image", f"{at}/a.png", "--audio", f"{at}/s0.wav")
            self.assertEqual(between, value("--text", marked, "--image", f"{at}/a.png", "--audio", f"{at}/s0.wav", "--chunk", "5", "-t", "1"))
            self.assertNotEqual(between["nll"], value("--text", marked, "--image", f"{at}/b.jpg", "--audio", f"{at}/s0.wav")["nll"])
            self.refuses("eval", *sees, "--text", marked, "--image", f"{at}/a.png", says=["markers", "1 media"])
            self.refuses("eval", *sees, "--text", text, "-c", "64", "--image", f"{at}/a.png", says=["1 pictures", "64"])
            r = list(map(json.loads, self.ok(run("bench", *sees, "--json", "-r", "2", "--image", f"{at}/a.png", "--audio", f"{at}/s0.wav")).stdout.splitlines()))
            self.assertEqual([(x["test"], x["soft_tokens"], x["rounds"]) for x in r], [("encode", 63, 2), ("encode", 35, 2)])
            self.refuses("bench", *sees, "--image", "none.png", says=["none.png"])
            self.refuses("eval", *sees, "--tokens", text, "--image", f"{at}/a.png", code=2, says=["--text"])
            with open(lines, "w") as f:
                for part in {"type": "image", "path": f"{at}/a.png"}, {"type": "image_url", "image_url": {"url": url}}:
                    f.write(json.dumps({"messages": [{"role": "user", "content": [part]}], "tokens": [{"id": 70, "logprob": -1}]}) + "\n")
            one, two = map(json.loads, self.ok(run("eval", "--json", *sees, "--official", lines), 3).stdout.splitlines())
            self.assertEqual(one, two)

    def test_wrong_usage(self):
        self.refuses("caht", code=2, says=["did you mean 'chat'"])
        self.refuses("-m", "x", code=2, says=["ingle chat -m"])
        self.refuses("run", "--tmep", "1", code=2, says=["did you mean '--temp'"])
        self.refuses("run", "--top-p", "1.5", code=2, says=["--top-p", "1.5", "0 to 1"])
        self.refuses("run", "--top-k", "2.5", code=2, says=["whole number"])
        goldens = "tests/data/goldens/"
        for kv in ("q8r", "f16:f32", "f16v", "q8_0", "q8r+rot", "q8r:n4r+rot"):
            self.refuses("inspect", "--plan", goldens + "deepseek_v4_full/model-MXFP4.gguf", "--kv", kv,
                         says=["one row for keys and values together: as f32, f16, bf16 or fp8, not as '%s'" % kv])
        self.refuses("inspect", "--plan", goldens + "gemma4_ple_e2b/model-F32.gguf", "--kv", "f16v", says=["has values of its own", "'f16v'"])
        self.refuses("inspect", "--plan", goldens + "gemma4_ple_e2b/model-F32.gguf", "--kv", "n4r+rot",
                     says=["has values of its own", "'n4r+rot'"])
        self.refuses("inspect", "--plan", goldens + "gemma4_moe/model-F32.gguf", "--kv", "q8r+rot",
                     says=["'q8r+rot' cannot hold keys of width 32", "64, 128, 256 and 512"])
        self.refuses("inspect", "--plan", "--kv-layers", "sliding=q8r+rot", says=["layer 0 has values of its own"])
        self.refuses("run", "-ctk", "q8r+rot", code=2, says=["f32 f16 bf16 q8_0 q8r n4r tq3_0"])
        self.refuses("run", "--kv", "q8r+rot:n4r", "x", says=["no KV format 'q8r+rot'"])
        self.refuses("inspect", "--plan", "-ctk", "tq3_0", says=["'tq3_0' cannot hold keys of width 64"])
        self.refuses("inspect", "--plan", "--kv-layers", "half=q8r", says=["full=TYPE, sliding=TYPE"])
        self.refuses("inspect", "--plan", "--kv-layers", "99=q8_0", says=["name layer 99, and the layers are 0 to"])
        self.refuses("inspect", "--plan", "--kv-layers", "full=q8r,", says=["--kv-layers", "full=TYPE, sliding=TYPE"])
        for text in ("unix:/a,", ",unix:/a", "unix:/a,,unix:/b"):
            self.refuses("run", "--stages", text, "x", says=[f"--stages '{text}' has an empty address"])
            self.refuses("run", "-m", "tests/data/nano-v4/nano-v4-MXFP4.gguf", "--experts-worker", text, "x", says=[f"--experts-worker '{text}' has an empty"])
            self.refuses("doctor", "--experts-worker", text, code=2, says=[f"--experts-worker '{text}' has an empty address"])
        self.refuses("serve", "--port", "0", "--cors-origins", "https://a.example,", says=["--cors-origins 'https://a.example,' has an empty origin"])
        self.refuses("run", "--kvflash-pool", "100", "x", says=["kv-pool", "kv-disk"])
        self.refuses("run", "--kv-disk", "/dev/null/here", "x", says=["/dev/null/here"])
        self.refuses("run", "-m", "tests/data/nano-v4/nano-v4-MXFP4.gguf", "--expert-budget", "300K", "--experts-io", "direct", "--no-pack-cache",
                     "x", says=["--experts-io direct", "--pack once writes one"])
        self.refuses("run", "-ctv", "q4_0", code=2, says=["q4_0", "f32 f16 bf16 q8_0 q8r n4r tq3_0"])
        self.refuses("run", "--kv", "f8", code=2, says=["f8", "f32 f16 bf16 q8_0 fp8 q8r n4r tq3_0 f16v q8r+rot n4r+rot K:V"])
        self.refuses("run", "--memory", "lots", code=2, says=["512M"])
        self.refuses("run", "--memory", "8M", "x", says=["8.00 MiB were allowed", "fit"])
        for fault in (["--grammar", "nowhere"], ["--regex", "("], ["--tools", "nowhere"], ["-f", "nowhere"],
                      ["--logit-bias", "2048=1"]):  # before the plan, and before the weights
            r = self.refuses("run", "--memory", "8M", *fault)
            self.assertNotIn("8.00 MiB", r.stderr)
        self.refuses("run", "-m", "one.gguf", "--model", "two.gguf", "x", code=2, says=["second model 'two.gguf'"])
        self.refuses("run", "--ctx", "-1", code=2, says=["0 to 16777216"])
        self.refuses("run", "--logit-bias", "x=1", code=2, says=["ID=NUMBER"])
        self.refuses("run", "--stop", code=2, says=["needs a value"])
        self.refuses("run", "-Z", code=2, says=["-Z"])
        self.refuses("render", "--kv", "f16", "x", code=2, says=["does not take"])
        self.refuses("compare", "x", code=2)
        self.refuses("eval", code=2, says=["--tokens"])
        self.refuses("run", "--json=maybe", "x", code=2, says=["'--json' is on or off (true or false), not 'maybe'"])

    def test_what_was_meant(self):
        self.refuses("chat.gguf", code=2, says=["'chat.gguf' is a model, not a command: ingle chat -m chat.gguf"])
        self.refuses("hf:a/b", code=2, says=["ingle chat -m hf:a/b"])
        self.refuses("--verison", code=2, says=["did you mean '--version'?"])
        self.refuses("run", "-m", "google/gemma", "x", says=["a model of a hub is -m hf:google/gemma"])
        self.refuses("serve", "-m", "llama3", says=["llama3: there is no such file or folder; 'ingle models' shows"])
        self.refuses("run", "-m", "none.gguf", "x", says=["none.gguf: cannot open"])
        self.refuses("models", "--memory", "32", code=2, says=["32 are bytes; write 32G"])
        self.refuses("serve", "--limit", "bodi=5M", code=2, says=["there is no 'bodi'; did you mean body"])
        self.refuses("tokenize", "--decode", "abc", code=2, says=["there is no token id in 'abc'"])
        self.assertEqual(self.ok(run("--help-all")).stdout, self.ok(run("--help")).stdout)

    def test_a_question_for_chat(self):
        r = self.ok(run("chat", "--temp", "0", "What is the capital of Japan?"))
        self.assertEqual(r.stdout, "The capital of Japan is Tokyo.\n")
        self.refuses("chat", "README.md", code=2, says=("-m README.md",))

    def test_what_is_too_short_for_the_store(self):
        with tempfile.TemporaryDirectory() as d:
            r = self.ok(run("run", "--temp", "0", "--store", d + "/s", "--lines", stdin="What is your name?\nCapital of Japan?\n"))
            self.assertEqual(len(re.findall(r"nothing of \d+ tokens is saved in .*/s: .* 256 tokens", r.stderr)), 1, r.stderr)
            r = self.ok(run("run", "--temp", "0", "--store", d + "/s", "--store-tokens", "8", "What is your name?"))
            self.assertNotIn("saved", r.stderr)
            self.refuses("run", "--store", "/tmp", "hi", says=("others may write to this directory",))

    def test_options_without_their_own(self):
        """What an option says of another one that is not there is not silent."""
        r = self.ok(run("run", "-n", "1", "--prompt-keep", "0.3", "--kv-disk-size", "1G", "x"))
        for name, of in ("prompt-keep", "prompt-drafter"), ("kv-disk-size", "kv-disk"):
            self.assertIn(f"ingle: warning: option '--{name}' does nothing without --{of}\n", r.stderr)
        r = self.ok(run("run", "-n", "1", "--worker-plain", "x"))
        self.assertIn("ingle: warning: option '--worker-plain' does nothing without --experts-worker or --stages\n", r.stderr)
        r = run("worker", "--stage", "3:6", "--worker-key", "/no/such", "--listen", "127.0.0.1:0")  # it is its own
        self.assertTrue(r.returncode and "/no/such" in r.stderr and "nothing without" not in r.stderr, r.stderr)
        r = self.ok(run("run", "-n", "1", "--raw", "--system", "be kind", "x"))
        self.assertIn("ingle: warning: with --raw there are no messages; --system is not used\n", r.stderr)
        r = self.ok(run("run", "-n", "1", "--prefill-keep-ratio", "0.3", "x"))  # by the name that was typed
        self.assertIn("warning: option '--prefill-keep-ratio' (--prompt-keep here) does nothing without --prompt-drafter\n", r.stderr)
        self.refuses("run", "--n-predict", "abc", "x", code=2, says=("error: --n-predict: option '--predict' needs a whole number, not 'abc'",))
        self.assertNotIn("nothing without", self.ok(run("run", "-q", "-n", "1", "--store-size", "1G", "x")).stderr)

    def test_names_of_llama_bench(self):
        """-n is --predict elsewhere."""
        out = self.ok(run("bench", "-p", "16", "-n", "3", "--repetitions", "1", "--n-depth", "8", "--json", "-q")).stdout
        self.assertRegex(out, r'"test": "decode", "depth": 8, "tokens": 3')

    def test_launchers(self):
        """One model over several processes, as launchers, ds4 and lucebox say it: which part this process has."""
        def part(*args, says, code=1, **env):
            r = self.ok(run(*args, "--worker-key", "/no/such", env={"PMI_SIZE": "", **env}), code)  # so it ends
            self.assertIn(says, r.stderr, args)
        two = {"SLURM_NTASKS": "3", "SLURM_JOB_NODELIST": "n[08-09],x7"}
        mpi = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
        lws = {"LWS_GROUP_SIZE": "3", "LWS_WORKER_INDEX": "0", "LWS_LEADER_ADDRESS": "m-0.m.default"}
        usage = {"code": 2}
        part("run", "--nnodes", "2", "--node-rank", "1", "--master-addr", "10.0.0.1", "--master-port=7", "x",
             says="rank 1 of 2 has layers 3 to 5 and listens on 0.0.0.0:7\n")
        part("serve", "-pp", "3", says="rank 0 of 3 has layers 0 to 1 and dials n09:29501,x7:29501\n", SLURM_PROCID="0", **two)
        part("serve", "-pp", "3", says="rank 2 of 3 has layers 4 to 5 and listens on 0.0.0.0:29501\n", SLURM_PROCID="2", **two)
        part("serve", "-pp", "2", says="dials 127.0.0.1:29502\n", OMPI_COMM_WORLD_RANK="0", **mpi)
        part("serve", "-pp", "2", says="listens on 127.0.0.1:29502\n", OMPI_COMM_WORLD_RANK="1", **mpi)
        for here in ({"SLURM_STEP_NUM_NODES": "1", "SLURM_NTASKS": "2", "SLURM_PROCID": "0"}, {"MPI_LOCALNRANKS": "2", "PMI_SIZE": "2", "PMI_RANK": "0"}):
            r = self.ok(run("run", "-pp", "2", "--stage-wait", "0.1", "x", env=here), 1)
            self.assertIn("dials 127.0.0.1:29502\n", r.stderr)
            self.assertNotIn("does nothing", r.stderr)
        part("serve", "-pp", "3", says="nothing says where they listen", SLURM_PROCID="0", **{**two, "SLURM_JOB_NODELIST": "n[08-09]-ib,x7"})
        part("serve", "-pp", "3", says="dials m-0-1.m.default:29501,m-0-2.m.default:29501\n", **lws)
        part("run", "--nnodes", "2", "x", says="--nnodes 2 needs --node-rank", **usage)
        part("run", "--nnodes", "2", "--node-rank", "2", "x", says="--node-rank: '2' is no number from 0 to 1", **usage)
        part("run", "--nnodes", "0", "x", says="--nnodes: '0' is no number from 1 to 64", **usage)
        part("run", "--nnodes", "2", "--node-rank", "0", "-pp", "3", "x", says="there are 2 processes", **usage)
        part("serve", "-pp", "9", says="9 stages are more than the 6 layers", SLURM_NTASKS="9", SLURM_PROCID="1")
        part("run", "-n", "1", "-pp", "2", "x", says="note: -pp 2: one process computes", code=0)
        self.assertNotIn("rank", self.ok(run("run", "-n", "1", "x", env={**two, "SLURM_PROCID": "1"})).stderr)
        part("serve", "--role", "coordinator", "--layers", "0:1", "--listen", "127.0.0.1", "1234", says="nothing says where they listen: --stages HOST:PORT")
        for command in "serve", "worker":
            part(command, "--role", "worker", "--layers", "2:output", "--coordinator", "10.0.0.1", "1234",
                 says="layers 2 to 5 and listens on 0.0.0.0:1234\n")
        part("worker", "--role", "worker", "--layers", "2:output", "--listen", "10.0.0.1", "1234", says="listens on 10.0.0.1:1234\ningle: error: /no/such")
        part("worker", "--role", "worker", "--layers", "2:output", "--listen", "10.0.0.1", "70000", says="no number from 0 to 65535")
        part("serve", "--role", "worker", "--layers", "4:3", says="--layers 4:3: no layers A:B (B included) of the model's 0 to 5")
        part("serve", "--role", "coordinator", "--layers", "0:output", says="no layer is left")
        part("serve", "--role", "boss", "--layers", "0:1", says="neither coordinator nor worker")
        part("serve", "--layers", "0:1", says="takes no --layers without --role", **usage)

        def shards(begins, ends, *args, mode="gemma4-target-shard", **more):
            part("worker", f"--backend-ipc-mode={mode}", "assets/nano-gemma4-Q8_0.gguf", f"--layer-begins={begins}", f"--layer-ends={ends}", "--max-ctx=100",
                 "--max-tokens=8", "--stream-fd=3", *args, **more)
        shards("1,2", "2,4", "--hidden=256", says="layers 1 to 3 and listens on fd:3\n")
        shards("0", "2", says="shard 0 begins with layer 0")
        shards("1,3", "2,4", says="shard 1 begins at layer 3, but the one before it ends at 2")
        shards("0", "0", says="'0' are no layers of the model's 0 to 6")
        shards("1", "2,4", says="different numbers of shards")
        shards("1", "2", "--hidden=1", says="--hidden: '1' is not 256")
        shards("1", "2", mode="deepseek4-target-shard", says="the model is gemma4")
        part("serve", "--backend-ipc-mode=gemma4-target-shard", "--layer-begins=1", "--layer-ends=2", says="is an option of 'ingle worker', not of 'serve'")
        shards("0", "2", mode="moe-expert", **usage, says="'ingle worker -m FILE --listen ADDRESS'")
        shards("0", "2", "--payload-fd=4", says="through shared memory: --listen", **usage)
        shards("0", "2", "--target-gpus=0", says="one card computes, --gpu", **usage)

    def test_options_of_others(self):
        """Page and table are one; each name does what the page says."""
        page = self.ok(run("help", "others")).stdout
        with open("docs/use/options-of-others.md") as f:
            self.assertEqual(page, f.read(), "ingle help others > docs/use/options-of-others.md")
        ours = set(re.findall(r"^\| `--([\w-]+)", self.ok(run("help", "markdown")).stdout, re.M))
        rows = re.findall(r"^\| `--([\w*-]+)`(?:, `-(\w[\w-]*)`)? \| [^|]* \| ([^|]*) \| (.*) \|$", page, re.M)
        self.assertGreater(len(rows), 150)
        noted = []  # words that are accepted with a note: several in one command
        for i, (name, letters, taken, here) in enumerate(rows):
            for target in re.findall(r"--([\w-]+)", here):
                self.assertIn(target, ours, name)
            if name in ours or taken in ("yes", "some values", "for several processes") or (SANITIZED and i % 8):
                continue
            if taken == "no" and i % 3 and not SOAK:  # a process each; all rows have one way to be told
                continue
            spelt = ["--" + name.rstrip("*") + ("x" if name.endswith("*") else "")]
            for word in spelt + (["-" + letters] if letters else []):
                if taken != "no" and not here.startswith("it is --limit "):
                    noted.append(([word, "1"] if "value" in taken else [word], here))
                    continue
                r = self.ok(run("run", word, *(["1"] if "value" in taken else [])), 2)
                if here.startswith("it is --limit "):  # cli_complete gives them to serve
                    self.assertIn(f"'run' takes no {word}: it is --limit here, of serve", r.stderr)
                    continue
                self.assertIn(here, r.stderr, word)
                self.assertIn(f"ingle has no {word}: ", r.stderr)
        noted.sort(key=lambda n: n[1])
        for i in range(0, len(noted), 5):  # more lines of notes are only counted
            some = noted[i:i + 5]
            said = self.ok(run("run", *(w for words, _ in some for w in words)), 2).stderr
            self.assertIn("there is no prompt", said)
            for words, here in some:
                self.assertRegex(said, rf"(?m)^ingle: note: (.*, )?{re.escape(' '.join(words))}(, .*)?: {re.escape(here)}$")
        want = "The capital of Japan is Tokyo.\n"
        for args in (["--ctx-size", "512"], ["--max-ctx=512"], ["--n-predict", "20"], ["--n_predict", "20"], ["--jinja"],
                     ["--mlock"], ["-b", "64"], ["--log-disable"], ["-fa"], ["-fa", "on"], ["-ngl", "99", "--flash-attn=off", "--no-jinja"],
                     ["--numa", "distribute"], ["--think", "--reasoning-budget", "0"], ["--think", "--reasoning", "off"], ["--think", "--nothink"],
                     ["--think", "--chat-template-kwargs", '{"enable_thinking": false, "other": 1}'], ["--think=off"], ["--think", "off"],
                     ["--samplers", "top_k;top_p;temperature", "--sampling-seq", "kpt"], ["--cache-ram", "100"]):
            self.assertEqual(self.ok(run("run", "--temp", "0", *args, "Capital of Japan?")).stdout, want, args)
        notes = self.ok(run("run", "-n", "1", "--backend", "cpu", "--no-host", "--backend", "cpu", "-ub", "5\n12", "x")).stderr
        self.assertIn("ingle: note: --backend cpu, --no-host: which layers a card has is --gpu-layers\n", notes)
        self.assertIn("ingle: note: -ub 5\\n12: steps", notes)
        self.assertNotIn("note", self.ok(run("run", "-q", "-n", "1", "--no-host", "x")).stderr)
        for args in (["--reasoning", "on"], ["--think", "on"], ["--chat-template-kwargs", '{"thinking": true}']):
            self.assertIn("The user asks for 9-4.", self.ok(run("run", "--temp", "0", *args, "What is 9 minus 4?")).stderr, args)
        self.refuses("run", "--samplers", "temperature;top_k", "x", code=2, says=["ingle has no --samplers temperature;top_k: "])
        self.refuses("run", "--mirostat", "2", "x", code=2, says=["--mirostat 2"])
        self.refuses("run", "--chat-template-kwargs", '{"enable_thinking": 3}', "x", code=2, says=["enable_thinking", "true=on"])
        self.refuses("run", "-ngl", code=2, says=["'-ngl' needs a value"])
        self.refuses("run", "--ctx-size", "-1", code=2, says=["--ctx"])
        self.refuses("run", "--max-ctx", code=2, says=["'--max-ctx' needs a value"])
        self.refuses("run", "-np", "4", code=2, says=["'run' takes no -np: it is --parallel here"])
        r = self.ok(run("run", "-n", "1", "x", env={"LLAMA_ARG_CTX_SIZE": "1", "DFLASH_DRAFT": "x"}))
        self.assertRegex(r.stderr, r"ingle: note: .*not read.*(LLAMA_ARG_CTX_SIZE|DFLASH_DRAFT)")
        self.assertEqual(self.ok(run("run", "-q", "-n", "1", "x", env={"LLAMA_ARG_CTX_SIZE": "1"})).stderr, "")
        r = self.ok(run("run", "-n", "1", "x", env={"DFLASH27B_KV_K": "q8_0", "LLAMA_GRAPH_REUSE_DISABLE": "1"}))
        self.assertIn("DFLASH27B_KV_K (--kv-k)", r.stderr)
        self.assertIn("LLAMA_GRAPH_REUSE_DISABLE (not needed: there is no graph)", r.stderr)
        for option in ("--backend-ipc-mode=moe-expert",
                       "--payload-fd=3", "--shared-payload-fd=4", "--target-gpus=0"):
            self.refuses("worker", option, says=["ingle has no " + option.split("=")[0], ": "], code=2)

    def test_gpu(self):
        for args, says in ((["--gpu", "on"], "'on', none of auto, off and the numbers 0 to 63"),
                           (["--gpu", "0,1"], "several cards are not built"),
                           (["--gpu-layers", "x"], "'x', none of auto, all"),
                           (["--gpu-layers", "-1"], "'-1', none of auto, all"),
                           (["--gpu-layers", "4-2"], "'4-2', none of auto, all"),
                           (["--gpu-layers", "999"], "'999': the most is 6"),
                           (["--gpu-layers", "2-7"], "'2-7': the most is 6"),
                           (["--gpu-memory", "1K"], "1024 bytes: the least is 1.00 MiB")):
            r = run("run", "-n", "1", *args, "x")
            self.assertNotEqual(r.returncode, 0, args)
            self.assertRegex(r.stderr, r"^ingle: error: option '--gpu", args)
            self.assertIn(says, r.stderr)
        if os.path.exists("/dev/nvidiactl"):
            return
        for args in (["--gpu-layers", "all"], ["-ngl", "99"], ["-ngl", "-1"], ["--gpu-layers", "0"], ["-dev", "none"],
                     ["--gpu", "0", "--numerics", "reference"], ["--gpu", "off", "--gpu-layers", "2"]):
            r = self.ok(run("run", "-n", "1", *args, "x"))
            self.assertEqual("fallback 'gpu'" in r.stderr, args[-1] not in ("0", "none"), (args, r.stderr))

    def test_token_ids(self):
        ids = json.loads(self.ok(run("render", "--json", "Capital of Japan?")).stdout)["ids"]
        want = "The capital of Japan is Tokyo.\n"
        with tempfile.TemporaryDirectory() as d:
            def ask(data, *more, name="ids", code=0):
                path = os.path.join(d, name)
                with open(path, "wb") as f:
                    f.write(data if isinstance(data, bytes) else data.encode())
                return self.ok(run("run", "--temp", "0", "-q", "--tokens", path, *more), code)
            for text in (json.dumps(ids), " ".join(map(str, ids)), ",".join(map(str, ids)) + "\n", "\n".join(map(str, ids))):
                self.assertEqual(ask(text).stdout, want, text)
            self.assertEqual(ask(struct.pack(f"<{len(ids)}i", *ids), name="ids.bin").stdout, want)
            self.assertEqual(self.ok(run("run", "--temp", "0", "--tokens-file", "-", stdin=str(ids))).stdout, want)
            for data, name, says in (("2 5 99999", "a", "element 2 is token 99999, outside the vocabulary of 2048"),
                                     ("2 x 3", "a", "'x' at offset 2"), ("-1", "a", "'-1' at offset 0"), ("", "a", "no token ids"),
                                     ("[1, 2.5]", "a", "element 1"), (b"abc", "a.bin", "3 bytes"), (b"\xff" * 4, "a.bin", "element 0 is -1"),
                                     ("99999999999", "a", "'99999999999'")):
                self.assertIn(says, ask(data, name=name, code=1).stderr)
            self.assertIn("exclude", ask("1", "--system", "x", code=2).stderr)
            self.assertIn("'x'", ask("1", "x", code=2).stderr)

    def test_bad_files(self):
        self.refuses("run", "-m", "no-such-file", "x", says=["no-such-file"])
        self.refuses("run", "-m", "README.md", "x", says=["README.md"])
        self.refuses("inspect", "src", says=["src"])
        with tempfile.TemporaryDirectory() as d:
            with open("assets/nano-gemma4-Q8_0.gguf", "rb") as f:
                whole = f.read()
            cut = os.path.join(d, "cut.gguf")
            for n in (0, 3, 30, 5000, len(whole) - 1):
                with open(cut, "wb") as f:
                    f.write(whole[:n])
                self.refuses("run", "-m", cut, "x", says=["cut.gguf"])
            other = os.path.join(d, "other.gguf")
            with open(other, "wb") as f:
                f.write(whole.replace(b"gemma4", b"gemma9", 1))
            self.refuses("run", "-m", other, "x", says=["gemma9", "gemma4"])
        self.refuses("run", "--memory", "1M", "x", says=["MiB", "quantisation"])
        self.refuses("run", "--memory", "8M", "x", says=["8.00 MiB were allowed", "fit"])
        self.refuses("run", "--ctx", "16", "x " * 100, says=["16"])
        self.refuses("run", "-f", "no-such-file", says=["no-such-file"])

    def test_without_proc(self):
        """What cannot be read is said, and --memory believed."""
        # A build with AddressSanitizer takes its options from /proc/self/environ; its search for leaks needs all of /proc.
        hide = ["unshare", "-rm", "sh", "-c", 'mount -t tmpfs none /proc && mkdir /proc/self && '
                'printf "ASAN_OPTIONS=detect_leaks=0\\000" >/proc/self/environ && exec "$@"', "sh"]
        ask = [INGLE, "run", "--temp", "0", "Capital of Japan?"]
        try:
            hidden = subprocess.run([*hide, "true"], capture_output=True).returncode == 0
        except FileNotFoundError:
            hidden = False
        if not hidden:
            self.skipTest("unshare is not allowed here")
        for more, says in ((["--memory", "1G"], False), ([], True)):
            r = self.ok(subprocess.run([*hide, *ask, *more], capture_output=True, text=True, timeout=300))
            self.assertEqual(r.stdout, "The capital of Japan is Tokyo.\n")
            self.assertEqual("/proc/meminfo" in r.stderr and "--memory" in r.stderr, says, r.stderr)

    def test_errors_name_file_and_place(self):
        with tempfile.TemporaryDirectory() as d:
            def file(text, name):
                with open(os.path.join(d, name), "w", opener=lambda p, f: os.open(p, f, 0o600)) as f:
                    f.write(text)
                return f.name
            bad, odd = file("{bad", "bad.json"), file('[{"role": "king"}]', "odd.json")
            for args in (["run", "--tools", bad, "x"], ["run", "--json-schema", bad, "x"], ["run", "--grammar", bad, "x"],
                         ["run", "--tokens", bad], ["render", "--tools", bad, "x"], ["render", "-f", bad],
                         ["inspect", "--experts", bad], ["serve", "--port", "0", "--codex-model", bad]):
                self.refuses(*args, says=["bad.json: "])
            self.refuses("run", "--tools", odd, "x", says=["odd.json: tool 0"])
            self.refuses("render", "--tools", odd, "x", says=["odd.json: tool 0"])
            self.refuses("render", "-f", odd, says=["odd.json: message 0", "king"])
            self.refuses("run", "--regex", "(", "x", says=["--regex: "])
            self.refuses("serve", "--port", "0", "--api-key-file", file("one\na b\n", "keys"), says=["keys' line 2"])
            r = run("chat", "-q", stdin=f"/load {bad}\n/quit\n")
            self.assertIn("bad.json: json", r.stderr)

    def test_greedy_answers_are_the_golden_ones(self):
        for case in GOLDEN:
            ids = tempfile.NamedTemporaryFile("w", suffix=".json")
            json.dump(case["prompt_ids"], ids)
            ids.flush()
            n = len(case["completion_ids"])
            out = self.ok(run("eval", "--tokens", ids.name, "--greedy", str(n))).stdout
            self.assertEqual(json.loads(out)["greedy"], case["completion_ids"], case["name"])

    def test_run(self):
        for case in GOLDEN:
            if len(case["messages"]) != 1 or case["tools"]:
                continue
            flags = ["--think"] if case["enable_thinking"] else []
            out = self.ok(run("run", "--json", "--temp", "0", "-n", "180", *flags, "--",
                              case["messages"][0]["content"]))
            message = json.loads(out.stdout)
            want = content_of(case)
            self.assertEqual(message["content"], want["content"], case["name"])
            self.assertEqual(message["reasoning_content"], want["reasoning_content"], case["name"])
            self.assertEqual(message["prompt_tokens"], len(case["prompt_ids"]))
            self.assertEqual(message["completion_tokens"], len(case["completion_ids"]))
            self.assertRegex(out.stderr, r"prompt: \d+ tokens, [\d.]+ t/s \(0 from the cache\); answer: \d+ tokens?, [\d.]+ t/s\n")

    def test_run_inputs(self):
        want = "The capital of Japan is Tokyo.\n"
        self.assertEqual(self.ok(run("run", "--temp", "0", "Capital of Japan?")).stdout, want)
        self.assertEqual(self.ok(run("run", "--temp=0", stdin="Capital of Japan?\n")).stdout, want)
        with tempfile.NamedTemporaryFile("w") as f:
            f.write("Capital of Japan?\nCapital of Japan?")
            f.flush()
            r = self.ok(run("run", "--temp", "0", "--lines", "-q", "-f", f.name))
            self.assertEqual(r.stdout, want * 2)
            self.assertEqual(r.stderr, "")
        self.assertEqual(self.ok(run("run", "--temp", "0", "--stop", " of", "Capital of Japan?")).stdout,
                         "The capital\n")
        with tempfile.TemporaryDirectory() as d:
            fifo = os.path.join(d, "fifo")
            os.mkfifo(fifo)
            p = subprocess.Popen([INGLE, "run", "--temp", "0", "-q", "-f", fifo], stdout=subprocess.PIPE, text=True)
            with open(fifo, "w") as f:
                f.write("Capital of Japan?\n")
            self.assertEqual(p.communicate(timeout=300)[0], want)
        self.refuses("run", "-f", "README.md", "hello", says=["README.md", "hello"])
        self.assertEqual(self.ok(run("run", "--temp", "0", "-p", "Capital of Japan?")).stdout, want)
        self.refuses("run", "-p", "one", "two", says=["--prompt one", "two"])
        self.refuses("run", "-p", "one", "-f", "README.md", says=["--prompt one", "README.md"])
        self.refuses("run", "-p", "one", "--lines", code=2, says=["--lines", "--prompt one"])
        self.refuses("chat", "-p", "one", code=2, says=["'--prompt'"])
        prompt = self.ok(run("render", "Capital of Japan?")).stdout[len("<bos>"):]
        self.assertEqual(self.ok(run("run", "--raw", "--temp", "0", stdin=prompt)).stdout, want)
        short = json.loads(self.ok(run("run", "--json", "-n", "2", "--temp", "0", "hello")).stdout)
        self.assertEqual((short["completion_tokens"], short["finish_reason"]), (2, "length"))

    def test_tools(self):
        case = [c for c in GOLDEN if c["name"] == "tool call"][0]
        with tempfile.NamedTemporaryFile("w") as f:
            json.dump(case["tools"], f)
            f.flush()
            out = self.ok(run("run", "--json", "--temp", "0", "--tools", f.name,
                              case["messages"][0]["content"])).stdout
        calls = json.loads(out)["tool_calls"]
        self.assertEqual([c["name"] for c in calls], ["get_weather"])

    def test_seeds(self):
        args = ("run", "-q", "--temp", "1.5", "--top-k", "0", "--top-p", "1", "Tell me a story.")
        one, again, other = (self.ok(run(*args, "--seed", s)).stdout for s in ("1", "1", "2"))
        self.assertEqual(one, again)
        self.assertNotEqual(one, other)

    @unittest.skipIf(SANITIZED, "the kernels are those of the release; unit tests run the plain ones")
    def test_threads_and_kernels_give_the_same_answer(self):
        args = ("run", "-q", "--temp", "0.9", "--seed", "5", "-n", "20", "Tell me a story.")
        want = self.ok(run(*args)).stdout
        for more in (("-t", "1"), ("--cpu", "ref"), ("--cpu", "avx2"), ("--chunk", "7")):
            self.assertEqual(self.ok(run(*args, *more)).stdout, want, more)

    def test_tokenize(self):
        ids = self.ok(run("tokenize", "I am nano")).stdout
        self.assertEqual(self.ok(run("tokenize", "--decode", stdin=ids)).stdout, "I am nano\n")
        self.assertEqual(json.loads(self.ok(run("tokenize", "--json", "--add-special", "x")).stdout)[0], 2)
        self.assertEqual(self.ok(run("tokenize", "--parse-special", "<turn|>")).stdout, "106\n")
        self.assertNotEqual(self.ok(run("tokenize", "<turn|>")).stdout, "106\n")
        self.refuses("tokenize", "--decode", "99999", says=["99999"])
        out = lines(self.ok(run("tokenize", "--jsonl", stdin='{"text": "<turn|>", "parse_special": true}\n'
                                '{"bytes": "c3a9"}\n{"ids": [106], "special": true}\nnonsense\n')).stdout)
        self.assertEqual(out[0], {"ids": [106]})
        self.assertTrue(out[1]["ids"])
        self.assertEqual(out[2]["text"], "<turn|>")
        self.assertEqual(out[2]["pieces"], [b"<turn|>".hex()])
        self.assertIn("error", out[3])
        self.assertTrue(self.ok(run("tokenize", "-m", f"{DATA}/nano/tokenizer.json", "hi")).stdout)

    def test_render_and_parse(self):
        for case in GOLDEN:
            given = {k: case[k] for k in ("messages", "tools", "enable_thinking")}
            given["large"] = given["add_generation_prompt"] = True
            out = lines(self.ok(run("render", "--jsonl", stdin=json.dumps(given) + "\n")).stdout)[0]
            self.assertEqual(out["prompt"], case["prompt"], case["name"])
            self.assertEqual(out["ids"], case["prompt_ids"], case["name"])
        out = json.loads(self.ok(run("parse", "<|channel>thought\nhm<channel|>yes")).stdout)
        self.assertEqual((out["reasoning_content"], out["content"]), ("hm", "yes"))
        text = "x</think>y"
        cases = json.dumps({"text": text, "thinking": True, "tools_enabled": False, "eos": True})
        out = lines(self.ok(run("parse", "--jsonl", "--family", "deepseek4", stdin=cases + "\n")).stdout)
        self.assertEqual((out[0]["reasoning_content"], out[0]["content"]), ("x", "y"))
        self.refuses("render", "-m", f"{DATA}/nano/tokenizer.json", "--family", "deepseek4", "x", code=2)

    def test_inspect(self):
        self.assertIn("gemma4.block_count", self.ok(run("inspect")).stdout)
        out = json.loads(self.ok(run("inspect", "--json", "--tensors", "assets/nano-gemma4-Q8_0.gguf")).stdout)
        self.assertEqual(out["metadata"]["general.architecture"], "gemma4")
        self.assertEqual(len(out["list"]), out["tensors"])
        plan = json.loads(self.ok(run("inspect", "--plan", "--json", "--ctx", "1000")).stdout)
        self.assertEqual(sum(plan["items"].values()), plan["total_bytes"])
        self.assertTrue(plan["fits"])
        paged = ["inspect", "--plan", "--json", "--ctx", "4000", "--chunk", "128", "--kv-disk", "nowhere"]
        plan = json.loads(self.ok(run(*paged, "--kvflash-pool", "2048")).stdout)
        self.assertEqual(sum(plan["items"].values()), plan["total_bytes"])
        self.assertEqual(plan["kv_pool_tokens"], 2048)
        self.assertTrue(0 < plan["kv_disk_session_bytes"] == plan["kv_disk_bytes"] < plan["kv_disk_limit_bytes"])
        self.assertEqual(json.loads(self.ok(run(*paged)).stdout)["kv_disk_bytes"], 0)  # all fits
        v4 = self.ok(run(*paged, "tests/data/goldens/deepseek_v4_full/model-MXFP4.gguf"))
        self.assertIn("kv-paging", v4.stderr)
        self.assertEqual(json.loads(v4.stdout)["kv_pool_tokens"], 0)
        small = json.loads(self.ok(run("inspect", "--plan", "--json", "--memory", "1M")).stdout)
        self.assertFalse(small["fits"])
        self.assertTrue(small["advice"])
        disk = json.loads(self.ok(run("inspect", "--plan", "--json", "--ctx", "512", "--expert-budget", "150K",
                                      "tests/data/nano-v4/nano-v4-MXFP4.gguf")).stdout)
        self.assertTrue(0 < disk["tokens_per_s"][0] <= disk["tokens_per_s"][1])
        self.assertTrue(disk["disk_bytes_per_s"] > 0 and disk["read_bytes_per_s"] > 0)
        self.assertEqual(plan["tokens_per_s"], [0, 0])  # nothing is on disk

    def test_eval(self):
        golden = f"{DATA}/goldens/gemma4_dense"
        with tempfile.TemporaryDirectory() as d:
            out = os.path.join(d, "out.safetensors")
            args = ("-m", f"{golden}/model-F32.gguf", "--tokens", f"{golden}/golden.safetensors",
                    "--kv", "f32")
            first = json.loads(self.ok(run("eval", "--json", *args, "--taps", out, "--against",
                                           f"{golden}/golden.safetensors")).stdout)
            self.assertLess(first["relative_rms"], 1e-5)
            self.assertEqual(first["same_top"], 1)
            names = {t["name"] for t in json.loads(run("inspect", "--json", "--tensors", out).stdout)["list"]}
            self.assertTrue({"logits", "hidden.embed", "hidden.0", "hidden.11", "hidden.norm"} <= names)
            again = json.loads(self.ok(run("eval", "--json", *args, "--chunk", "9", "--against", out)).stdout)
            self.assertEqual(again["max_abs"], 0)
            report = json.loads(self.ok(run("compare", "--json", out, out)).stdout)
            self.assertEqual(report["hidden.3"]["max_abs"], 0)
            v4 = f"{DATA}/goldens/deepseek_v4_full"
            model = [f for f in sorted(os.listdir(v4)) if f.endswith(".gguf")][0]
            with open(os.path.join(d, "ids.json"), "w") as f:
                json.dump([0, 5, 6, 7], f)
            self.ok(run("eval", "-m", f"{v4}/{model}", "--tokens", f.name, "--taps", out))
            shapes = {t["name"]: t["shape"] for t in
                      json.loads(run("inspect", "--json", "--tensors", out).stdout)["list"]}
            self.assertEqual(shapes["hidden.0"], [4, 4 * shapes["hidden.embed"][1]])
        text = json.loads(self.ok(run("eval", "--json", "--window", "64", "--text", "README.md")).stdout)
        self.assertGreater(text["perplexity"], 1)
        self.refuses("eval", "--tokens", "README.md", says=["README.md"])
        self.refuses("eval", "--text", "README.md", "--logits", "x", code=2)

    def test_eval_of_several_streams(self):
        """DeepSeek V4's layers carry four streams: hidden states are wider than the embedding."""
        with tempfile.TemporaryDirectory() as d:
            ids, out = os.path.join(d, "ids.json"), os.path.join(d, "any name")
            with open(ids, "w") as f:
                f.write("[0, 5]")
            golden = f"{DATA}/goldens/deepseek_v4_published"
            self.ok(run("eval", "-m", golden, "--tokens", ids, "--taps", out))
            shape = {t["name"]: t["shape"] for t in
                     json.loads(self.ok(run("inspect", "--json", "--tensors", out)).stdout)["list"]}
            self.assertEqual(sorted(shape["hidden.0"])[1], 4 * sorted(shape["hidden.embed"])[1])
            self.assertEqual(shape["hidden.norm"], shape["hidden.embed"])
            again = self.ok(run("eval", "--json", "-m", golden, "--tokens", ids, "--against", out)).stdout
            self.assertEqual(json.loads(again)["max_abs"], 0)
            # Nothing is printed before it is known that the continuation fits.
            r = self.refuses("eval", "--tokens", ids, "--greedy", "16", "--ctx", "16", says=["16"])
            self.assertEqual(r.stdout, "")
            self.ok(run("eval", "--tokens", ids, "--greedy", "15", "--ctx", "16"))

    def test_config_without_a_type(self):
        with tempfile.TemporaryDirectory() as d:
            golden = f"{DATA}/goldens/gemma4_dense"
            os.symlink(os.path.abspath(f"{golden}/model.safetensors"), f"{d}/model.safetensors")
            for value in (None, 5, []):
                with open(f"{d}/config.json", "w") as f:
                    json.dump({"model_type": value}, f)
                self.refuses("eval", "-m", d, "--tokens", f"{golden}/golden.safetensors",
                             says=["config.json", "model_type"])

    def test_config_that_contradicts_the_weights(self):
        golden = f"{DATA}/goldens/gemma4_dense"
        for key, value, says in (("vocab_size", 100, ["vocab_size", "100", "512"]),
                                 ("head_dim", 12, ["attn", "tensor"]),
                                 ("num_hidden_layers", 0, ["num_hidden_layers", "0"]),
                                 ("sliding_window", 0, ["sliding_window"])):
            with tempfile.TemporaryDirectory() as d, open(f"{golden}/config.json") as f:
                os.symlink(os.path.abspath(f"{golden}/model.safetensors"), f"{d}/model.safetensors")
                config = json.load(f)
                config["text_config"][key] = value
                with open(f"{d}/config.json", "w") as g:
                    json.dump(config, g)
                self.refuses("eval", "-m", d, "--tokens", f"{golden}/golden.safetensors", says=says)

    def test_full_disk(self):
        for args in (["run", "-q", "hello"], ["help"], ["--version"], ["inspect"], ["tokenize", "x"]):
            with open("/dev/full", "w") as full:
                r = subprocess.run([INGLE, *args], stdout=full, stderr=subprocess.PIPE, text=True, timeout=300)
            self.assertEqual(r.returncode, 1, args)
            self.assertIn("No space left", r.stderr, args)

    def test_bench_and_doctor(self):
        out = lines(self.ok(run("bench", "--json", "-p", "16", "-g", "4", "-r", "1", "-d", "0", "-d", "64")).stdout)
        self.assertEqual([(o["test"], o["depth"]) for o in out],
                         [("prefill", 0), ("decode", 0), ("prefill", 64), ("decode", 64)])
        self.assertTrue(all(o["per_s"] > 0 for o in out))
        self.ok(run("bench", "-p", "4", "-g", "40", "-r", "1", "-d", "8"))
        self.refuses("bench", "-d", "x", code=2, says=["'x'"])
        out = self.ok(run("bench", "-p", "16", "-g", "4", "-r", "1", "--profile")).stdout
        self.assertIn("matmul", out)
        self.assertRegex(out, r"joins: \d+\.\d a token, \d+\.\d\d for each of \d+ layers")
        self.assertNotIn("pieces of each thread", self.ok(run("bench", "-p", "0", "-g", "4", "-r", "1", "--profile", "-t", "1")).stdout)
        out = self.ok(run("bench", "-p", "0", "-g", "4", "-r", "1", "--threads", "1000"))
        self.assertIn("; 1000 threads, not bound, ", out.stdout)
        self.assertRegex(out.stderr, r"warning: threads '1000 threads': they are more than the processors \(\d+\), so none is bound to one")
        out = lines(self.ok(run("bench", "-p", "0", "-g", "9", "-r", "1", "--profile", "--threads", "2", "--json")).stdout)
        self.assertTrue(len(out[0]["pieces"]) == 2 and sum(out[0]["pieces"]) > 0)
        out = lines(self.ok(run("bench", "--json", "--threads", "1,2", "-p", "8", "-g", "4", "-r", "1")).stdout)
        self.assertEqual([o["threads"] for o in out], [1, 2])
        self.assertTrue(out[0]["joins"] == 0 < out[1]["joins"] and all(o["decode_per_s"] > 0 and o["read_share"] > 0 for o in out))
        for wrong in ("1,x", "2,", "1,0", "1,2000", "1,,2"):
            self.refuses("bench", "--threads", wrong, code=2, says=["'--threads' needs numbers of 1 to 1024"])
        out = json.loads(self.ok(run("doctor", "--json", "-t", "1")).stdout)
        self.assertTrue(out["memory_nodes"] and out["unbound_threads"] == 0)
        self.assertGreater(out["read_bytes_per_s"], 0)
        self.assertEqual(out["failed_kernels"], 0)
        out = json.loads(self.ok(run("doctor", "--json", "--disk", "tests/data/nano-v4/nano-v4-MXFP4.gguf")).stdout)
        self.assertEqual([r["at_once"] for r in out["rates"]], [1, 2, 4, 8])
        self.assertTrue(out["experts"] and all(r["bytes_per_s"] > 0 and r["median_ms"] > 0 for r in out["rates"]))
        self.assertEqual([s["share"] for s in out["shares"]], [.1, .3, .5, .7])
        self.assertTrue(all(0 < s["tokens_per_s"][0] <= s["tokens_per_s"][1] for s in out["shares"]))
        speeds = [s["tokens_per_s"] for s in out["shares"]]
        self.assertEqual(speeds, sorted(speeds))  # of one measurement
        out = self.ok(run("doctor", "--disk", INGLE)).stdout
        self.assertIn("no model with experts", out)
        self.refuses("doctor", "--disk", "tests/no-such-file", says=["tests/no-such-file"])
        self.refuses("doctor", "--disk", "tests/data", says=["no file of at least"])
        if SANITIZED:  # the rest is how the same is printed
            return
        out = self.ok(run("doctor", "-t", "1")).stdout
        self.assertLess(out.count("\n"), 25)
        self.assertRegex(out, r"reading memory +\d+\.\d GB/s, the best of \d")
        self.assertRegex(out, r"Gemma 4 E2B +Q\w+ +(about \d|needs \d)")
        self.assertIn(" G operations/s", self.ok(run("doctor", "-t", "1", "-v")).stdout)

    def test_models(self):
        """Tokens a second are the memory rate over the bytes of a token; what does not fit has none."""
        def table(memory, rate="60"):
            return {(m["model"], m["code"]): m for m in
                    json.loads(self.ok(run("models", "--json", "--memory", memory, "--rate", rate)).stdout)["models"]}
        large = table("256G")
        self.assertEqual(len(large), 17)
        for m in large.values():
            self.assertEqual(m["fits"], "yes")
            self.assertAlmostEqual(m["tokens_per_s"] * m["token_bytes"] / 60e9, 1, 2)
            self.assertLess(m["token_bytes"], m["need_bytes"])
            self.assertRegex(m["hub"], r"^[\w.-]+/[\w.-]+(:[\w./-]+)?$")
        v4 = "DeepSeek V4 Flash", "IQ2_XXS"
        self.assertAlmostEqual(large[v4]["tokens_per_s"], 6.6, delta=.1)
        self.assertAlmostEqual(table("256G", "120")[v4]["tokens_per_s"], 2 * large[v4]["tokens_per_s"], 1)
        small = table("32G")
        self.assertEqual([small["Gemma 4 31B", c]["fits"] for c in ("Q4_0", "Q4_K_M", "Q8_0")], ["yes", "yes", "no"])
        self.assertIsNone(small["Gemma 4 31B", "Q8_0"]["tokens_per_s"])
        self.assertEqual(small[v4]["fits"], "disk")
        speeds = list(small[v4]["tokens_per_s"].values())
        self.assertEqual(speeds, sorted(speeds))
        self.assertTrue(2 < speeds[0] and speeds[2] < large[v4]["tokens_per_s"] and .2 < small[v4]["experts_in_memory"] < .35)
        self.assertEqual(table("23G")["Gemma 4 31B", "Q4_0"]["fits"], "tight")
        self.assertEqual({m["fits"] for m in table("1K").values()}, {"no"})
        out = self.ok(run("models", "--memory", "24G", "--rate", "60")).stdout
        self.assertRegex(out, r"3\.4  \S*ingle\S* chat -m hf:google/gemma-4-31B-it-qat-q4_0-gguf\n")  # as it was called
        self.assertNotIn("!", out)
        self.assertRegex(self.ok(run("models", "-t", "1")).stdout, r"free \d+\.\d GiB\nreading memory +\d+\.\d GB/s, the best of")
        self.assertIn("No model fits", self.ok(run("models", "--memory", "1K", "--rate", "60")).stdout)
        self.refuses("models", "x", code=2, says=["'x'", "pull --have"])
        self.refuses("models", "--rate", "-1", code=2, says=["--rate"])

    def test_text_from_outside_is_shown_escaped(self):
        """Errors, tables and what a model writes cannot steer a terminal; a pipe gets the bytes as they are."""
        bad, shown = "x\x1b[31m\n\u202e\u009b", "x\\x1b[31m\\n\\u202e\\u009b"
        for args, code in ((["run", "-m", bad, "x"], 1), (["run", f"--{bad}"], 2), ([bad], 2), (["run", "--top-k", bad, "x"], 2),
                           (["inspect", bad], 1), (["check", bad], 1), (["run", "--grammar", bad, "x"], 1)):
            self.refuses(*args, code=code, says=[shown])
        with open(f"{DATA}/nano/nano-gemma4-Q4_K_M.gguf", "rb") as f:
            gguf = bytearray(f.read())
        at = gguf.index(b"general.name") + 12
        size = struct.unpack_from("<Q", gguf, at + 4)[0]
        gguf[at + 12:at + 12 + size] = (b"\xc2\x9b\x1b" * size)[:size - size % 3] + b"x" * (size % 3)
        with tempfile.NamedTemporaryFile(suffix=".gguf") as f:
            f.write(gguf)
            f.flush()
            out = self.ok(run("inspect", f.name)).stdout
            self.assertIn("\\u009b", out)
            self.assertNotRegex(out, "[\x1b\x9b]")
        for args, want in (["--json-schema", ' {"const": "ü"}'], '"ü"'), (["-j", '{"type": "null"}'], "null"), (["--grammar", 'root ::= "ab"'], "ab"):
            self.assertEqual(self.ok(run("run", "-q", *args, "x")).stdout.strip(), want)  # a text, as llama.cpp has it
        for args in ["--json-schema", '{"type":'], ["--grammar", 'root ::= "a" x'], ["--tools", '[{"type"']:
            r = run("run", "-q", *args, "x")
            self.assertEqual((r.returncode, r.stdout), (1, ""), r.stderr)
            self.assertNotIn("cannot open", r.stderr)
        grammar = ["run", "-q", "--grammar"]
        with tempfile.NamedTemporaryFile("w", suffix=".gbnf") as f:
            f.write('root ::= "\\x1b[31mred\\n\\x07\\u202Ex"')
            f.flush()
            self.assertEqual(self.ok(run(*grammar, f.name, "x")).stdout, "\x1b[31mred\n\x07\u202ex\n")
            t = Terminal(INGLE, *grammar, f.name, "x")
            self.assertIn("\\x1b[31mred\r\n\\x07\\u202ex", t.wait_for("202ex"))
            self.assertEqual(t.end(), 0)

    def test_a_closed_pipe_is_no_crash(self):
        for page in ("markdown", "bash"):
            p = subprocess.Popen([INGLE, "help", page], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            p.stdout.close()
            self.assertEqual(p.stderr.read(), b"")
            self.assertIn(p.wait(timeout=300), (0, 1))
            p.stderr.close()

    def test_hello(self):
        r = subprocess.run([HELLO], capture_output=True, text=True, timeout=300)
        want = [c for c in GOLDEN if c["name"] == "identity"][0]
        self.assertEqual(r.stdout, content_of(want)["content"] + "\n")


class Terminal:
    """A program behind a pseudo terminal."""

    def __init__(self, *args, env=None, width=0):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("4H", 24, width, 0, 0))
            os.execvpe(args[0], args, {**os.environ, "TERM": "xterm", **(env or {})})
        self.text = ""

    def send(self, text):
        os.write(self.fd, text.encode())

    def wait_for(self, text):
        """What came up to and including text; it is taken off."""
        return self.wait_for_pattern(re.escape(text))

    def wait_for_pattern(self, pattern, seconds=300):
        end = time.monotonic() + seconds
        while not (found := re.search(pattern, self.text, re.S)):
            ready, _, _ = select.select([self.fd], [], [], max(0, end - time.monotonic()))
            if not ready:
                raise AssertionError(f"no {pattern!r} in {self.text[-500:]!r}")
            try:
                data = os.read(self.fd, 65536)
            except OSError:
                data = b""
            if not data:
                raise AssertionError(f"ended without {pattern!r}: {self.text[-500:]!r}")
            self.text += data.decode(errors="replace")
        taken, self.text = self.text[:found.end()], self.text[found.end():]
        return taken

    def rest(self):
        """What comes until the program ends."""
        try:
            while data := os.read(self.fd, 65536):
                self.text += data.decode(errors="replace")
        except OSError:
            pass
        return self.text

    def resize(self, width):
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("4H", 24, width, 0, 0))

    def end(self):
        end = time.monotonic() + 300
        while time.monotonic() < end:
            if not select.select([self.fd], [], [], 1)[0]:
                continue
            try:
                if not os.read(self.fd, 65536):
                    break
            except OSError:
                break
        else:
            os.kill(self.pid, signal.SIGKILL)
        os.close(self.fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def cells(c):
    if unicodedata.category(c) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(c) in "WF" else 1


def screen(text, width):
    """The rows that a terminal shows, and those that it began itself because one was full."""
    rows, row, col, cut, i = [[]], 0, 0, set(), 0
    while i < len(text):
        if found := re.compile(r"\x1b\[\??(\d*)([A-Za-z])").match(text, i):
            if found[2] == "D":
                col = max(0, min(col, width - 1) - int(found[1]))
            elif found[2] == "K":
                del rows[row][col:]
            i = found.end()
            continue
        c, i = text[i], i + 1
        if c == "\r":
            col = 0
        elif c == "\n":
            row += 1
            rows.append([])
        elif not cells(c):
            rows[row][col - 1] += c
        else:
            if col + cells(c) > width:
                row, col = row + 1, 0
                rows.append([])
                cut.add(row)
            rows[row] += [" "] * (col - len(rows[row]))
            rows[row][col:col + cells(c)] = [c] + [""] * (cells(c) - 1)
            col += cells(c)
    return ["".join(r).rstrip() for r in rows], cut


class Wrap(unittest.TestCase):
    """Answers on a terminal; a grammar leaves the model one text."""

    def answer(self, text, width, *args):
        exact = re.sub(r"([\\.^$|?*+()\[\]{}])", r"\\\1", text).replace("\n", "\\n")
        raw = Terminal(INGLE, "run", "-q", "--temp", "0", "--regex", exact, *args, "hi", width=width).rest()
        for found in re.finditer(r"\x1b\[(\d+)D\x1b\[K\r\n", raw):
            self.assertLess(int(found[1]), width - 1)  # no more than a word is written again
        return screen(raw, width)

    def test_words_are_whole(self):
        for text in ("The capital of Japan is Tokyo, and it is far away.  A new line\n\n - an item of it, indented", "Emoji \U0001f600 and cafe\u0301 e\u0301e\u0301e\u0301 "
                     "\ud55c\uad6d\uc5b4 \ubb38\uc7a5\uc740 \ub744\uc5b4\uc4f0\uae30\uac00 words", "a\ttab and another\ttab"):
            for width in 20, 40, 80:
                rows, cut = self.answer(text, width)
                self.assertEqual((cut, " ".join(rows).split()), (set(), text.split()), (text, width, rows))

    def test_text_without_blanks(self):
        text = "\u65e5\u672c\u306e\u9996\u90fd\u306f\u6771\u4eac\u3067\u3059\u3002" * 4 + "(\u6771\u4eac)Tokyo"
        for width in 20, 40, 80:
            rows, cut = self.answer(text, width)
            self.assertEqual((cut, "".join(rows)), (set(), text), rows)
            self.assertFalse([r for r in rows if r[:1] in ("\u3002", ")")], rows)
            self.assertEqual(rows[0][:8], text[:8])
        rows, cut = self.answer("see http://example.org/a/long/address/of/a/page now", 20)
        self.assertEqual(rows[:4], ["see", "http://example.org/a", "/long/address/of/a/p", "age now"])  # copied whole

    def test_code_stays(self):
        code = "for index in range(1000000): print(index, index)"
        for fence in "```", "~~~~":
            rows, cut = self.answer(f"Look at this:\n{fence}py\n{code}\n{fence}\nand words that wrap again", 20)
            self.assertEqual(rows[:2] + rows[5:], ["Look at this:", fence + "py", fence, "and words that wrap", "again", ""])
            self.assertEqual("".join(rows[2:5]), code)
        rows, cut = self.answer("```code``` within words is no block of it", 20)
        self.assertEqual(cut, set())

    def test_a_pipe_is_exact(self):
        text = "word " * 30 + "\tend"
        r = run("run", "-q", "--temp", "0", "--regex", text, "hi")
        self.assertEqual(r.stdout, text + "\n")

    def test_thoughts_and_interrupts(self):
        args = [a for i in (1, 50, 106) for a in ("--logit-bias", f"{i}=-inf")]
        t = Terminal(INGLE, "chat", "-t", "1", "--cpu", "ref", "--temp", "1", "--think", *args, width=24)
        t.wait_for("> ")
        t.resize(20)
        t.send("Tell me a story.\n")
        raw = t.wait_for("\033[2m") + t.wait_for_pattern("(\n.*){5}")
        t.send("\x03")
        raw += t.wait_for("(interrupted)")
        rows, cut = screen(raw, 20)
        self.assertEqual(rows[-1], "(interrupted)")
        t.send("/quit\n")
        self.assertEqual(t.end(), 0)


class Chat(unittest.TestCase):
    def test_without_a_terminal(self):
        r = run("chat", "--temp", "0", stdin="My name is Ada.\nWhat is my name?\n/quit\n")
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertIn("Your name is Ada.\n", r.stdout)
        self.assertNotIn("\033", r.stdout)

    def test_conversation(self):
        with tempfile.TemporaryDirectory() as d:
            t = Terminal(INGLE, "chat", "--temp", "0")
            t.wait_for("/help explains")
            t.send("Capital of Japan?\n")
            t.wait_for("The capital of Japan is Tokyo.")
            t.send("/save " + d + "/talk.json\n")
            t.wait_for("is saved")
            t.send("/regen\n")
            t.wait_for("Tokyo.")
            t.send("/undo\n")
            t.wait_for("taken back")
            t.send("/undo\n")
            t.wait_for("nothing to take back")
            t.send("/load " + d + "/talk.json\n")
            t.wait_for("2 messages are loaded")
            with open(d + "/odd.json", "w") as f:
                f.write('[{"role": "user", "content": "x"}, 1]')
            t.send("/load " + d + "/odd.json\n")
            t.wait_for("message 1 has no role")
            t.send("/sav\n")
            t.wait_for("There is no command /sav. Did you mean /save? (/help lists all.)")
            t.send("/stats\n")
            t.wait_for("Speeds are shown")
            t.send("/reset\n")
            t.wait_for("forgotten")
            t.send("/think\n")
            t.wait_for("Thinking is on")
            t.send("What is 8+9?\n")
            self.assertIn("\033[2m", t.wait_for("t/s (0 from the cache); answer: "))
            t.send("/system Answer briefly.\n")
            t.wait_for("is set")
            t.send("/reset\n")
            t.wait_for("forgotten")
            t.send("\x04") # before the editor reads: it must not be lost
            self.assertEqual(t.end(), 0)
            with open(d + "/talk.json") as f:
                saved = json.load(f)
            self.assertEqual([m["role"] for m in saved], ["user", "assistant"])
            self.assertEqual(saved[1]["content"], "The capital of Japan is Tokyo.")

    def test_pasted_lines_stay_together(self):
        with tempfile.TemporaryDirectory() as d:
            t = Terminal(INGLE, "chat", "--temp", "0", env={"NO_COLOR": "1"})
            t.wait_for("> ")
            t.send("one \\\ntwo\n")
            t.wait_for("I am a tiny model")
            t.wait_for("> ")
            t.send("/save " + d + "/talk.json\n")
            self.assertNotIn("\033[2m", t.wait_for("is saved"))
            t.send("/quit\n")
            self.assertEqual(t.end(), 0)
            with open(d + "/talk.json") as f:
                self.assertEqual(json.load(f)[0]["content"], "one \ntwo")

    def test_names_of_others_and_arguments(self):
        t = Terminal(INGLE, "chat", "--temp", "0")
        t.wait_for("> ")
        for line, says in (("/clear", "forgotten"), ("/new x", "/new takes no argument."), ("/stats on", "are shown"), ("/stats on", "are shown"),
                           ("/stats off", "not shown"), ("/stats maybe", "usage: /stats [on|off]"), ("/undo x", "usage: /undo"),
                           ("/think off", "Thinking is off"), ("/show", "no system message"), ("/set system Be brief.", "is set"),
                           ("/set parameter num_ctx 9", "--ctx N"), ("/?", "/undo [N]"), ("/model x", "ingle chat -m FILE"),
                           ("/save /no-such-dir/x", "error: /no-such-dir: no such directory\r\n")):
            t.send(line + "\n")
            t.wait_for(says)
        t.send('"""Capital\nof Japan?"""\n')
        t.wait_for("Tokyo")
        t.send("Capital of Norway?\n")
        t.wait_for("Oslo")
        t.send("/undo 2\n")
        t.wait_for("The last 2 questions are taken back.")
        t.send("/bye\n")
        self.assertEqual(t.end(), 0)

    def test_typed_while_it_loads(self):
        """A paste that comes before the first prompt is whole, and its lines are one message."""
        with tempfile.TemporaryDirectory() as d:
            t = Terminal(INGLE, "chat", "--temp", "0", "-n", "1")
            t.wait_for("\033[?2004h")
            text = "word " * 1200 + "\n" + "word " * 600 + "end"
            t.send("\033[200~" + text.replace("\n", "\r") + "\033[201~\r")
            t.wait_for("the limit is reached")
            t.send(f"/save {d}/talk.json\n")
            t.wait_for("is saved")
            t.send("/quit\n")
            self.assertEqual(t.end(), 0)
            with open(f"{d}/talk.json") as f:
                self.assertEqual([m["content"] for m in json.load(f)][:1], [text])

    def test_ctrl_c_drops_a_line(self):
        with tempfile.TemporaryDirectory() as d:
            t = Terminal(INGLE, "chat", "--temp", "0")
            t.wait_for("> ")
            t.send("What is your name")
            t.wait_for("What is your name")
            t.send("\x03")
            self.assertNotIn("again or Ctrl-D", t.wait_for("\n> "))
            t.send("one \\\n")
            t.wait_for("... ")
            t.send("\x03")
            self.assertNotIn("again or Ctrl-D", t.wait_for("\n> "))
            t.send("Capital of Japan?\n")
            t.wait_for("Tokyo")
            t.wait_for("> ")
            t.send(f"/save {d}/talk.json\n")
            t.wait_for("is saved")
            t.wait_for("> ")
            t.send("\x03")
            t.wait_for("again or Ctrl-D")
            t.send("/quit\n")
            self.assertEqual(t.end(), 0)
            with open(f"{d}/talk.json") as f:
                self.assertEqual(json.load(f)[0]["content"], "Capital of Japan?")

    def chat(self, *lines, args=(), env=None):
        """The text of a chat in which these lines are typed."""
        t = Terminal(INGLE, "chat", "--temp", "0", "-n", "1", *args, env=env, width=80)
        text = t.wait_for("> ")
        for line in lines:
            t.send(line + "\n")
            text += t.wait_for_pattern(r"\n(> |\.\.\. )")
        t.send("/quit\n")
        self.assertEqual(t.end(), 0)
        return text

    def test_tab_completes(self):
        with tempfile.TemporaryDirectory() as d:
            with open(f"{d}/talk one.json", "w") as f:
                f.write("[]")
            os.mkdir(f"{d}/talks")
            t = Terminal(INGLE, "chat", "--temp", "0", width=80)
            t.wait_for("> ")
            for typed, says in (("/ur\x7f\x7fund\t x\n", "usage: /undo"), ("/th\tof\t\n", "Thinking is off"), ("/s\t", "/system  /stats  /save  /set  /show"),
                                ("y\t" "Be brief.\n", "is set"), (f"/load {d}/ta\t\t", f"{d}/talks/"), (" \t\n", "0 messages are loaded"),
                                ("/q\t\n", "")):
                t.send(typed)
                t.wait_for(says)
            self.assertEqual(t.end(), 0)

    def test_history(self):
        with tempfile.TemporaryDirectory() as d:
            env, path = {"XDG_STATE_HOME": d}, f"{d}/ingle/history"
            self.chat("one \\\\", "more", "/stats off", " a secret", "/stats off", env=env)
            want = "one \\\\\\nmore\n/stats off\n/quit\n"
            with open(path) as f:
                self.assertEqual(f.read(), want)
            self.assertEqual(os.stat(path).st_mode & 0o777, 0o600)
            self.chat("/history off", "two", args=["--temp", "1"], env=env)
            self.chat("three", args=["--no-history"], env=env)
            with open(path) as f:
                self.assertEqual(f.read(), want + "/history off\n")
            with open(path, "w") as f:
                f.write("".join(f"/show {i}\n" for i in range(2500)) + "cut")
            both = [Terminal(INGLE, "chat", "--temp", "0", env=env, width=80) for _ in range(2)]
            for t in both:
                t.wait_for("> ")
            both[0].send("\x1b[A")
            both[0].wait_for("cut")
            both[0].send("\x1b[A\n")
            both[0].wait_for("system message")
            for i in range(10):
                for k, t in enumerate(both):
                    t.send(f"/stats no{i}-{k}\n")
            for t in both:
                t.wait_for_pattern("(usage.*){10}")
                t.send("/quit\n")
                self.assertEqual(t.end(), 0)
            with open(path) as f:
                lines = f.read().split("\n")
            self.assertEqual(lines[:1] + lines[999:1001], ["/show 1501", "cut", "/show 2499"])
            self.assertEqual(sorted(lines[1001:]), sorted(["", "/quit", "/quit", *(f"/stats no{i}-{k}" for i in range(10) for k in range(2))]))
            self.assertEqual(os.listdir(f"{d}/ingle"), ["history"])

    def test_history_that_cannot_be_kept(self):
        with tempfile.NamedTemporaryFile() as f:
            text = self.chat("/stats off", "/stats off", env={"XDG_STATE_HOME": f.name})
            self.assertEqual(text.count("cannot make its folder: Not a directory"), 1, text)
            self.assertEqual(text.count("note:"), 1)

    def test_a_command_stands_alone(self):
        t = Terminal(INGLE, "chat", "--temp", "0")
        t.wait_for("> ")
        t.send("/think\nWhat is 8+9?\n")
        t.wait_for("Thinking is on")
        t.wait_for("17")
        t.send("/quit\n")
        self.assertEqual(t.end(), 0)

    def test_ctrl_c_twice_leaves(self):
        t = Terminal(INGLE, "chat")
        t.wait_for("> ")
        time.sleep(0.2)
        t.send("\x03")
        t.wait_for("again or Ctrl-D")
        t.send("\x03")
        self.assertEqual(t.end(), 130)

    def test_ctrl_c_stops_an_answer(self):
        # Without end tokens the story goes on until the context is full.
        args = [a for i in (1, 50, 106) for a in ("--logit-bias", f"{i}=-inf")]
        t = Terminal(INGLE, "chat", "-t", "1", "--cpu", "ref", "--temp", "1", *args)
        t.wait_for("> ")
        t.send("Tell me a story.\n")
        t.wait_for("Once")
        t.send("\x03")
        t.wait_for("(interrupted)")
        t.wait_for("> ")
        time.sleep(0.2)
        t.send("\x03")
        t.wait_for("again or Ctrl-D") # what stopped the answer does not count
        t.send("/undo\n")
        t.wait_for("taken back")
        t.send("/quit\n")
        self.assertEqual(t.end(), 0)

    def test_interrupted_run(self):
        args = [a for i in (1, 50, 106) for a in ("--logit-bias", f"{i}=-inf")]
        p = subprocess.Popen([INGLE, "run", "-t", "1", "--cpu", "ref", "--temp", "1", *args, "Tell me a story."],
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        p.stdout.read(1)
        p.send_signal(signal.SIGINT)
        p.communicate(timeout=300)
        self.assertEqual(p.returncode, 130)

    def test_interrupted_prompt(self):
        p = subprocess.Popen([INGLE, "run", "-t", "1", "--cpu", "ref", "--chunk", "16", "word " * 3500], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             text=True)
        while "prompt" not in p.stderr.readline():
            self.assertIsNone(p.poll())
        p.send_signal(signal.SIGINT)
        err = p.communicate(timeout=300)[1]
        self.assertEqual(p.returncode, 130)
        n = int(re.search(r"prompt: (\d+) tokens?", err)[1])
        self.assertTrue(0 < n < 3500 and n % 16 == 0, err)  # not those that were never read


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
