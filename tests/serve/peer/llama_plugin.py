"""llama_plugin.py - for pytest beside llama.cpp's server tests: expected failures, a table at the end.

With --any-text what the model writes counts as right, so that what the tests look at behind it is seen.
Where a test of several models counts on llama-server's delay for tests (LLAMA_SERVER_DEBUG_FAKE_TIMING: two seconds
before each request), the request is an answer that takes so long."""
import collections, fnmatch, os, re

import pytest

from llama_expected import EXPECTED, FREE


def name(item):
    return re.sub(r"^.*/", "", item.nodeid.split("::")[0]) + "::" + item.nodeid.split("::", 1)[1]


def pytest_addoption(parser):
    parser.addoption("--any-text", action="store_true", help="the model may write what it likes")


def pytest_configure(config):
    if config.getoption("--any-text"):
        import utils
        utils.match_regex = lambda regex, text: True


def pytest_collection_modifyitems(config, items):
    import openai, utils  # the suite's
    # A server that does not start is none of the failures that are expected.
    raises = (AssertionError, LookupError, StopIteration, TypeError, OSError, openai.OpenAIError, utils.ServerError)
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.skip(reason="needs a model that is not here"))
            continue
        for pattern, kind, reason in EXPECTED:
            if fnmatch.fnmatchcase(name(item), pattern):
                if kind != "text" or not config.getoption("--any-text"):
                    item.add_marker(pytest.mark.xfail(reason=f"{kind}: {reason}", strict=True,
                                                      raises=raises))
                break


def busy(server, model, timeout=600):
    """In the place of the tests' _tokenize(): the model is at work for two seconds."""
    body = {"model": model, "prompt": "Say 1 to 1000", "n_predict": 30000, "t_max_predict_ms": 2000, "logit_bias": [[107, 100]]}
    return server.make_request("POST", "/completion", data=body, timeout=timeout)


def pytest_runtest_setup(item):
    if "test_router_queue" in item.name:
        item.module._tokenize = lambda model, timeout=600: busy(item.module.server, model, timeout)
    free = any(fnmatch.fnmatchcase(name(item), p) for p in FREE)
    os.environ["INGLE_PEER_ENDS"] = "free" if free else ""


def pytest_terminal_summary(terminalreporter):
    count = collections.defaultdict(collections.Counter)
    kinds = ("passed", "failed", "error", "xfailed", "xpassed", "skipped")
    for kind in kinds:
        for report in terminalreporter.stats.get(kind, []):
            count[report.nodeid.split("::")[0].rsplit("/", 1)[-1]][kind] += 1
    terminalreporter.write_line(f"\n{'file':32}" + "".join(f"{k:>9}" for k in kinds))
    for file in sorted(count):
        terminalreporter.write_line(f"{file:32}" + "".join(f"{count[file][k]:9}" for k in kinds))
