#!/usr/bin/env python3
"""run.py - other servers' own tests, unmodified, against `ingle serve`; see README.md beside this file."""
import argparse, os, pathlib, subprocess, sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]


def llama(o):
    """pytest in llama.cpp's tools/server/tests, with our program in the place of theirs."""
    sys.path.insert(0, str(HERE))
    from llama_expected import FILES
    tests = pathlib.Path(o.llama_tests)
    if (tests / "tools/server/tests").is_dir():
        tests /= "tools/server/tests"
    (tests / "tmp").mkdir(exist_ok=True)  # llama-server makes it, for its models
    files = o.file or sorted(f.name for f in (tests / "unit").glob("test_*.py") if f.name not in FILES)
    env = dict(os.environ, INGLE=os.path.abspath(o.ingle), LLAMA_SERVER_BIN_PATH=str(HERE / "llama_shim.py"), PORT=str(o.port),
               PYTHONPATH=str(HERE), PYTHONDONTWRITEBYTECODE="1")
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "llama_plugin", "-p", "no:cacheprovider", "--tb=short"]
    argv += ["--any-text"] * o.any_text + [f"unit/{f}" for f in files] + o.rest
    for name, why in FILES.items():
        if not o.file:
            print(f"not run: {name}: {why}")
    return subprocess.run(argv, cwd=tests, env=env).returncode


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--ingle", default=str(ROOT / "out/release/ingle"), help="the program")
    p.add_argument("--llama-tests", metavar="DIR", help="a checkout of llama.cpp, or its tools/server/tests")
    p.add_argument("--lucebox", metavar="DIR", help="a checkout of lucebox")
    p.add_argument("--any-text", action="store_true", help="the model may write what it likes")
    p.add_argument("--port", type=int, default=18080)
    p.add_argument("--file", action="append", help="test_basic.py; may be repeated; default: all that apply")
    p.add_argument("rest", nargs="*", help="behind --: for pytest")
    o = p.parse_args()
    if not o.llama_tests and not o.lucebox:
        p.error("there is nothing to do: see --llama-tests and --lucebox")
    bad = False
    if o.lucebox:
        sys.path.insert(0, str(HERE))
        import lucebox
        bad = lucebox.run(o, ROOT)
    if o.llama_tests:
        bad = llama(o) or bad
    sys.exit(bad)


if __name__ == "__main__":
    main()
