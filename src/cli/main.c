/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/cli.h"

#include "base/mem.h"
#include "base/near.h"

#include <signal.h>
#include <string.h>

static const struct cli_command commands[] = {
    {"chat", "", "talk with a model", NULL, cli_chat},
    {"run", "[PROMPT]", "answer a prompt: the argument, -f FILE, or standard input",
     "The answer goes to standard output, thoughts and statistics to standard error.\n", cli_run},
    {"serve", "", "answer requests over HTTP as OpenAI's and Anthropic's servers do",
     "SIGTERM lets running answers end; a second one leaves at once.\n", cli_serve},
    {"daemon", "", "answer commands on standard input, one JSON object a line",
     "For programs that embed a model: {\"do\": \"generate\", \"id\": \"1\", \"prompt\": \"...\"};\n"
     "docs/daemon.md has all commands and events.\n", cli_daemon},
    {"inspect", "[FILE]", "show what is in a model file, or the memory it would take", NULL,
     cli_inspect},
    {"eval", "", "compute logits, hidden states, perplexity; compare with saved ones",
     "Token ids in, safetensors out: logits [T, V], and with --taps also hidden.embed,\n"
     "hidden.0 ... (after each layer), hidden.norm.  Text in: perplexity.\n",
     cli_eval},
    {"bench", "", "measure how fast prompts are read and answers written",
     "Tokens are read at once (prefill) and written one by one (decode) behind --depth tokens.\n"
     "read share: weights a second over what this machine reads from memory.\n",
     cli_bench},
    {"cache", "", "list, write and delete files of packed weights, for starts without loading",
     "A file takes about as much as the model's own.  Without an option they are listed.\n", cli_cache},
    {"doctor", "", "show the machine, what it measures, and the kernels chosen", NULL, cli_doctor},
    {"compare", "A B", "compare the tensors of two safetensors files", NULL, cli_compare},
    {"tokenize", "[TEXT]", "turn text into token ids, or ids into text",
     "With --jsonl: {text or bytes (hex), add_special, parse_special} gives {ids}; {ids,\n"
     "special} gives {text, bytes, pieces}; what fails gives {error}.\n",
     cli_tokenize},
    {"render", "[TEXT]", "turn a conversation into the prompt that the model sees",
     "TEXT is a user's message; with -f FILE the input is a JSON array of messages.\n"
     "With --jsonl: {messages, tools, enable_thinking ...} gives {prompt, ids, open_thought}.\n",
     cli_render},
    {"parse", "[TEXT]", "turn what a model wrote into a message: content, reasoning, tool calls",
     "With --jsonl: {text, tools_enabled, splits ...} gives {content, reasoning_content,\n"
     "tool_calls}.\n",
     cli_parse},
};

const struct cli_command *cli_commands(size_t *n)
{
    *n = sizeof commands / sizeof *commands;
    return commands;
}

const struct cli_command *cli_command_find(const char *name)
{
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (strcmp(commands[i].name, name) == 0)
            return &commands[i];
    return NULL;
}

static int unknown_command(const char *name)
{
    const char *word[sizeof commands / sizeof *commands];
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        word[i] = commands[i].name;
    const char *meant = near_word(word, sizeof commands / sizeof *commands, name);
    fprintf(stderr, "ingle: error: there is no command '%s'%s%s%s (see 'ingle --help')\n", name,
            meant ? "; did you mean '" : "", meant ? meant : "", meant ? "'?" : "");
    return CLI_USAGE;
}

/* "ingle help [COMMAND | man | markdown]" */
static int help(int argc, char **argv)
{
    const struct cli_command *command = argc > 2 ? cli_command_find(argv[2]) : NULL;
    if (argc > 2 && strcmp(argv[2], "man") == 0)
        cli_help_manual(stdout);
    else if (argc > 2 && strcmp(argv[2], "markdown") == 0)
        cli_help_markdown(stdout);
    else if (argc > 2 && !command)
        return unknown_command(argv[2]);
    else if (command)
        cli_help_command(stdout, command);
    else
        cli_help_all(stdout);
    return CLI_OK;
}

static int run(struct cli *c, const struct cli_command *command, int argc, char **argv)
{
    bool wants_help;
    int rc = cli_options_read(c, argc, argv, 2, &wants_help);
    if (wants_help && !rc) {
        cli_help_command(stdout, command);
        return cli_flush(c);
    }
    if (rc)
        return rc;
    cli_screen_init(&c->screen, c->config);
    struct ingle_error error;
    if (cli_pack_default(c, &error))
        return cli_fail(c, &error);
    rc = command->run(c);
    cli_screen_clear(&c->screen);
    const int flushed = cli_flush(c);
    return rc ? rc : flushed;
}

int main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_IGN); /* a reader that has gone is a write error */
    signal(SIGXFSZ, SIG_IGN); /* and so is a file that may not grow (ulimit -f) */
    cli_watch_files();
    if (argc < 2) {
        cli_help_all(stderr);
        return CLI_USAGE;
    }
    if (strcmp(argv[1], "--version") == 0)
        return printf("ingle %s\n", ingle_version()) < 0 || fflush(stdout);
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "help") == 0)
    {
        struct cli none = {0};
        const int rc = help(argc, argv), flushed = cli_flush(&none);
        return rc ? rc : flushed;
    }
    const struct cli_command *command = cli_command_find(argv[1]);
    if (!command)
        return unknown_command(argv[1]);
    struct cli c = {.command = command->name};
    struct ingle_error error;
    c.arg = mem_calloc((size_t)argc, sizeof *c.arg);
    int rc;
    if (!c.arg || ingle_config_open(&c.config, &error)) {
        fputs("ingle: error: out of memory\n", stderr);
        rc = CLI_FAILURE;
    } else {
        rc = run(&c, command, argc, argv);
    }
    ingle_config_close(c.config);
    mem_free(c.arg);
    return rc;
}
