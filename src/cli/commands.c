/* SPDX-License-Identifier: Apache-2.0 */
/* commands - the one table of commands. */
#include "cli/cli.h"

#include <assert.h>
#include <string.h>

static const struct cli_command commands[] = {
    {"chat", "[QUESTION]",
     "talk with a model; with a question as an argument it is answered as 'ingle run' does", NULL,
     cli_chat},
    {"run", "[PROMPT]", "answer a prompt: the argument, -f FILE, or standard input",
     "The answer goes to standard output, thoughts and statistics to standard error.\n", cli_run},
    {"serve", "", "serve a web page, and the APIs of OpenAI, Anthropic and Ollama over HTTP",
     "After SIGTERM running answers finish; after a second signal the server exits at once.\n",
     cli_serve},
    {"daemon", "", "answer commands on standard input, one JSON object a line",
     "For programs that embed a model: {\"do\": \"generate\", \"id\": \"1\", \"prompt\": "
     "\"...\"};\n"
     "docs/use/daemon.md has all commands and events.\n",
     cli_daemon},
    {"worker", "",
     "compute experts or layers of a model for engines in other processes and on other machines",
     "The engine names it: --experts-worker HOST:PORT, or --stages HOST:PORT,... if the worker\n"
     "has --stage A:B.  Each machine has its own copy of the model file: docs/use/workers.md,\n"
     "docs/use/stages.md.\n"
     "Other names of this command: moe-expert, deepseek4-expert.\n",
     cli_worker},
    {"models", "", "show which published models this machine can run, how fast, and the commands",
     "The memory rate is measured in a second or two; --rate and --memory show the table of\n"
     "another machine.\n",
     cli_models},
    {"inspect", "[FILE]", "show the contents of a model file, or the memory that it needs", NULL,
     cli_inspect},
    {"eval", "", "compute logits, hidden states, perplexity; compare with saved ones",
     "Token ids in, safetensors out: logits [T, V], and with --taps also hidden.embed,\n"
     "hidden.0 ... (after each layer), hidden.norm.  Text in: perplexity.\n",
     cli_eval},
    {"bench", "", "measure the speed of prefill and decode",
     "Prefill computes a prompt at once, decode one token after the other, both after --depth\n"
     "tokens.  read share: weights read per second, over the read rate of this machine.\n"
     "With --prompt-drafter: prompts of --depth tokens, shortened and whole in turn\n"
     "(docs/use/prompt-drafter.md).  With --draft or --draft-method: answers with and without\n"
     "drafts in turn (docs/use/drafting.md).\n",
     cli_bench},
    {"cache", "", "list, write and delete files of packed weights, which make starts fast",
     "A file is about as large as the model's own.  Without an option the files are listed.\n",
     cli_cache},
    {"doctor", "", "show the machine, its measured speed, and what that means for models",
     "-v also lists the chosen kernels; 'ingle models' has the table of models.\n", cli_doctor},
    {"convert", "DIR|FILE",
     "write a checkpoint of safetensors as a GGUF file, or a GGUF file as a checkpoint",
     "DIR has config.json and tokenizer.json beside the tensors: a model, or a drafter.  The\n"
     "values stay exact (FP8 as BF16, FP4 as MXFP4) unless --outtype says otherwise.  An\n"
     "interrupted call goes on with the same command: docs/use/convert.md.\n",
     cli_convert},
    {"pull", "[OWNER/NAME[:CODE]]", "fetch a model from a hub and print its path",
     "CODE is that of the weights (Q4_K_M), or a file's name.  -m hf:OWNER/NAME:CODE does the\n"
     "same wherever a model is named.  --have lists what is there, --delete removes a model,\n"
     "--update fetches what changed: docs/use/pull.md.\n",
     cli_pull},
    {"imatrix", "", "measure with a text which columns matter, for 'ingle quantize --imatrix'",
     "-m FILE -f TEXT -o OUT; --in-file FILE ... -o OUT merges.  An interrupted run goes on with\n"
     "the same command: docs/use/imatrix.md.\n",
     cli_imatrix},
    {"quantize", "IN OUT CODE", "write a GGUF file with fewer bits a weight, e.g. Q4_K_M",
     "CODE: Q8_0, Q4_K_M, IQ4_XS and others; docs/use/quantize.md has them all.  With --fit there\n"
     "is none, with --like FILE it is for the tensors that FILE lacks.\n"
     "Norms, routers, tables and biases stay as they are.\n",
     cli_quantize},
    {"check", "FILE", "read all of a model file: damage, values, which model it is",
     "Exit status: 0 nothing found, 1 a problem or an error, 3 only warnings.\n", cli_check},
    {"compare", "A B", "compare the tensors of two files",
     "Two safetensors files are compared by the names in them, all others by the names of GGUF.\n",
     cli_compare},
    {"tokenize", "[TEXT]", "turn text into token ids, or ids into text",
     "-m may also be a vocabulary-only GGUF or a tokenizer.json.\n"
     "With --jsonl: {text or bytes (hex), add_special, parse_special} gives {ids}; {ids,\n"
     "special} gives {text, bytes, pieces}; an error gives {error}.\n",
     cli_tokenize},
    {"render", "[TEXT]", "turn a conversation into the prompt that the model sees",
     "TEXT is a user's message; with -f FILE the input is a JSON array of messages.  -m may also\n"
     "be a vocabulary-only GGUF or a tokenizer.json.\n"
     "With --jsonl: {messages, tools, enable_thinking ...} gives {prompt, ids, open_thought}.\n",
     cli_render},
    {"parse", "[TEXT]", "turn a model's output into a message: content, reasoning, tool calls",
     "-m may also be a vocabulary-only GGUF or a tokenizer.json.\n"
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
    if (strcmp(name, "moe-expert") == 0 || strcmp(name, "deepseek4-expert") == 0)
        name = "worker"; /* what others call it */
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (strcmp(commands[i].name, name) == 0)
            return &commands[i];
    return NULL;
}
