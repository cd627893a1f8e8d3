/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#include "cli/cli.h"
#include "cli/wrap.h"
#include "cli/input.h"
#include "cli/talk.h"
#include "cli/hub.h"

#include "base/mem.h"
#include "base/write.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct job {
    struct cli_talk talk;
    char *tools, *text; /* JSON, and what to answer; or NULL */
    size_t n_tools, n_text;
    int32_t *ids; /* [n_ids], of --tokens: the prompt; until it is taken */
    size_t n_ids;
    const char **stop;
    size_t n_stop;
    bool json, lines, any_line, any_content, dim;
    struct str media; /* parts of the message: pictures and sounds */
    bool interrupted, reported_short;
    struct cli_wrap content, thoughts;
};

/* Its beginning: arguments and a brace follow. */
static void print_call(const char *name, size_t n)
{
    struct str out;
    cli_json(&out);
    write_open(&out, '{');
    write_member_string(&out, "name", name, n);
    write_key(&out, "arguments");
    cli_json_end(&out, "");
}

/* Content to standard output as it comes; thoughts to standard error. */
static void show(void *arg, enum ingle_event_kind kind, int call, const char *text, size_t n)
{
    struct job *j = arg;
    (void)call;
    if (j->json)
        return;
    if (j->dim && kind != INGLE_EVENT_REASONING) {
        fputs(j->talk.c->screen.colour ? "\033[0m\n" : "\n", stderr);
        j->dim = false;
        cli_wrap_new(&j->thoughts);
    }
    switch (kind) {
    case INGLE_EVENT_CONTENT:
        cli_wrap_put(&j->content, text, n);
        cli_push(j->talk.c);
        j->any_content = true;
        break;
    case INGLE_EVENT_REASONING:
        if (!j->talk.c->screen.progress)
            break;
        if (!j->dim && j->talk.c->screen.colour)
            fputs("\033[2m", stderr);
        cli_wrap_put(&j->thoughts, text, n);
        j->dim = true;
        break;
    case INGLE_EVENT_CALL_BEGIN:
        if (j->any_content)
            putchar('\n');
        print_call(text, n);
        break;
    case INGLE_EVENT_CALL_ARGUMENTS:
        cli_put_text(stdout, text, n);
        break;
    case INGLE_EVENT_CALL_END:
    case INGLE_EVENT_CALL_CUT:
        putchar('}');
        j->any_content = true;
        break;
    }
}

static void write_why(struct str *out, const char *name, const char *why)
{
    if (*why)
        write_member(out, name, why);
}

static void print_json(const struct job *j, const struct cli_answer *a)
{
    struct ingle_engine_info e;
    ingle_engine_info(j->talk.engine, &e);
    /* The message is an object: its members go on with ours. */
    struct str out;
    cli_json(&out);
    str_add(&out, a->message, a->n_message - 1);
    write_member(&out, "finish_reason", a->end);
    write_member_int(&out, "prompt_tokens", a->prompt_tokens);
    write_member_int(&out, "computed_tokens", a->computed_tokens);
    write_member_int(&out, "reused_tokens", a->reused_tokens);
    write_member_int(&out, "disk_tokens", a->disk_tokens);
    write_member_int(&out, "completion_tokens", a->tokens);
    write_member_int(&out, "drafts", a->drafts);
    write_member_int(&out, "draft_n", a->drafted_tokens);
    write_member_int(&out, "draft_n_accepted", a->accepted_tokens);
    write_member_fixed(&out, "prompt_s", 6, a->prompt_s);
    write_member_fixed(&out, "completion_s", 6, a->answer_s);
    write_member(&out, "draft",
                 *e.draft       ? e.draft
                 : e.draft_text ? "ngram"
                                : "off");
    write_member_fixed(&out, "draft_mean_length", 3, cli_answer_mean(a));
    write_member_fixed(&out, "draft_saved_s", 6, a->draft_saved_s);
    write_member_uint(&out, "seed", j->talk.sampling.seed);
    if (a->n_media) {
        write_key(&out, "media");
        write_open(&out, '{');
        write_member_int(&out, "n", a->n_media);
        write_member_int(&out, "tokens", a->media_tokens);
        write_member_int(&out, "encoded", a->n_encoded);
        write_member_fixed(&out, "encode_s", 6, a->encode_s);
        write_close(&out, '}');
    }
    if (a->experts.hits || a->experts.misses) {
        write_key(&out, "experts");
        write_open(&out, '{');
        write_member_uint(&out, "hits", a->experts.hits);
        write_member_uint(&out, "misses", a->experts.misses);
        write_member_uint(&out, "read_bytes", a->experts.read_bytes);
        write_member_fixed(&out, "stall_s", 6, (double)a->experts.stall_ns * 1e-9);
        write_close(&out, '}');
    }
    cli_add_sparse(&out, &a->sparse);
    cli_add_select(&out, &a->select);
    cli_add_pages(&out, &a->pages);
    write_why(&out, "draft_why_off", a->draft_why);
    write_why(&out, "draft_why_no_network", e.draft_why);
    write_close(&out, '}');
    cli_json_end(&out, "\n");
}

static ingle_status make_prompt(struct job *j, const char *text, size_t n, struct ingle_prompt *out,
                                struct ingle_error *error)
{
    const struct ingle_config *config = j->talk.c->config;
    if (j->n_ids) {
        *out = (struct ingle_prompt){.ids = j->ids, .n_ids = j->n_ids};
        j->ids = NULL;
        return INGLE_OK;
    }
    struct ingle_medium *medium[CLI_MOST_MEDIA];
    for (size_t i = 0; i < j->talk.n_media && i < CLI_MOST_MEDIA; i++)
        medium[i] = j->talk.medium[i].medium;
    if (ingle_config_flag(config, "raw") && j->media.n) {
        *out = (struct ingle_prompt){0};
        return ingle_tokenize_media(j->talk.model, text, n, INGLE_ADD_SPECIAL | INGLE_PARSE_SPECIAL,
                                    "<__media__>", medium, j->talk.n_media, NULL, out, error);
    }
    if (ingle_config_flag(config, "raw")) {
        *out = (struct ingle_prompt){0};
        return ingle_tokenize(j->talk.model, text, n, INGLE_ADD_SPECIAL | INGLE_PARSE_SPECIAL,
                              &out->ids, &out->n_ids, error);
    }
    struct str s;
    str_init(&s);
    write_open(&s, '[');
    if (j->talk.system) {
        write_open(&s, '{');
        write_member(&s, "role", "system");
        write_member_string(&s, "content", j->talk.system, j->talk.n_system);
        write_close(&s, '}');
    }
    write_open(&s, '{');
    write_member(&s, "role", "user");
    write_key(&s, "content");
    if (j->media.n) {
        write_open(&s, '[');
        str_add(&s, j->media.at, j->media.n);
        write_open(&s, '{');
        write_member(&s, "type", "text");
        write_key(&s, "text");
    }
    write_string(&s, text, n);
    str_adds(&s, j->media.n ? "}]}]" : "}]");
    const struct ingle_chat chat = {
        .messages = s.at,
        .n_messages = s.n,
        .tools = j->tools,
        .n_tools = j->n_tools,
        .thinking = ingle_config_flag(config, "think"),
        .developer_own = cli_developer_own(j->talk.c),
        .media = medium,
        .n_media = j->talk.n_media,
    };
    const ingle_status st = ingle_chat_render(j->talk.model, &chat, out, error);
    str_release(&s);
    return st;
}

/* Says once that the store keeps nothing of a text that is too short for it. */
static void say_short(struct job *j, const struct cli_answer *a)
{
    const struct ingle_config *config = j->talk.c->config;
    const char *dir = ingle_config_text(config, "store", 0);
    const long long least = (long long)ingle_config_number(config, "store-tokens"),
                    n = a->computed_tokens + a->tokens;
    if (!dir || n >= least || j->reported_short || !j->talk.c->screen.progress)
        return;
    cli_line("ingle: note: nothing of %lld tokens is saved in %s: a prefix is kept from %lld "
             "tokens on (--store-tokens)",
             n, dir, least);
    j->reported_short = true;
}

static int run_prompt(struct job *j, const char *text, size_t n)
{
    struct cli *c = j->talk.c;
    struct ingle_prompt p = {0};
    struct ingle_error error;
    struct cli_answer a = {0};
    ingle_status st = make_prompt(j, text, n, &p, &error);
    const struct ingle_reader_options o = {
        .raw = j->n_ids || ingle_config_flag(c->config, "raw"),
        .tools = j->tools != NULL,
        .open_thought = p.open_thought,
        .stop = j->stop,
        .n_stop = j->n_stop,
    };
    j->any_content = false;
    cli_wrap_init(&j->content, stdout);
    cli_wrap_init(&j->thoughts, stderr);
    if (!st)
        st = cli_talk_answer(&j->talk, &p, &o, show, j, &a, &error);
    if (j->dim)
        fputs(c->screen.colour ? "\033[0m\n" : "\n", stderr);
    j->dim = false;
    int rc = CLI_OK;
    if (st && !p.ids)
        cli_name_files(&error, NULL, ingle_config_text(c->config, "tools", 0));
    if (st)
        rc = cli_fail(c, &error);
    else if (j->json)
        print_json(j, &a);
    else
        putchar('\n');
    if (!st) {
        cli_push(c);
        if (c->screen.progress)
            cli_answer_print(stderr, &a);
        say_short(j, &a);
        if (strcmp(a.end, "interrupted") == 0)
            rc = CLI_INTERRUPTED;
    }
    cli_answer_release(&a);
    ingle_prompt_release(&p);
    return rc;
}

/* Whether there is anything to answer.  Without a chat format a blank is a text that can be
 * continued, and so is nothing at all if that is what was given. */
static bool is_prompt(const struct job *j, const char *text, size_t n)
{
    const struct cli *c = j->talk.c;
    if (ingle_config_flag(c->config, "raw"))
        return n || c->n_arg;
    for (size_t i = 0; i < n; i++)
        if (!strchr(" \t\r\n", text[i]))
            return true;
    return false;
}

static int run_line(struct cli *c, void *arg, char *line, size_t n)
{
    struct job *j = arg;
    (void)c;
    if (!is_prompt(j, line, n))
        return CLI_OK;
    j->any_line = true;
    return run_prompt(j, line, n);
}

static int no_prompt(const struct job *j)
{
    struct cli *c = j->talk.c;
    const char *file = ingle_config_text(c->config, "file", 0);
    if (!file && j->lines && c->n_arg)
        file = c->arg[0];
    return cli_usage(c, "there is no prompt%s%s",
                     file       ? " in "
                     : c->n_arg ? ""
                                : " on standard input",
                     file ? file : "");
}

static int run_prompts(struct job *j)
{
    struct cli *c = j->talk.c;
    struct err err;
    if (j->n_ids)
        return run_prompt(j, "", 0);
    if (j->lines) {
        const int rc = cli_lines(c, CLI_TEXT, 0, run_line, j);
        return rc || j->any_line ? rc : no_prompt(j);
    }
    if (!j->text && cli_input(c, &j->text, &j->n_text, &err))
        return cli_fail_err(c, &err);
    /* The line end that ends a text file is no part of the prompt. */
    const size_t n = c->n_arg ? j->n_text : cli_without_end(j->text, j->n_text);
    return is_prompt(j, j->text, n) ? run_prompt(j, j->text, n) : no_prompt(j);
}

/* What is there already, and does not come from a program that is still writing it. */
static bool input_is_there(void)
{
    struct stat st;
    return !fstat(STDIN_FILENO, &st) &&
           (S_ISREG(st.st_mode) || (S_ISCHR(st.st_mode) && !isatty(STDIN_FILENO)));
}

/* What is given is read before the weights are loaded; what is typed or piped in, afterwards. */
static int read_files(struct job *j, struct cli *c)
{
    struct err err;
    const char *tools = ingle_config_text(c->config, "tools", 0),
               *file = ingle_config_text(c->config, "file", 0);
    const char *prompt = ingle_config_text(c->config, "prompt", 0);
    if (prompt && j->lines)
        return cli_usage(
            c, "'--lines' takes prompts from a file or from standard input, not from '--prompt %s'",
            prompt);
    ingle_status st = tools ? cli_slurp_json(tools, &j->tools, &j->n_tools, &err) : INGLE_OK;
    const bool typed = file ? strcmp(file, "-") == 0 : !prompt && !c->n_arg;
    if (!st && !j->lines && !ingle_config_is_set(c->config, "tokens") &&
        (!typed || input_is_there()))
        st = cli_input(c, &j->text, &j->n_text, &err);
    if (st)
        return cli_fail_err(c, &err);
    return j->text && !is_prompt(j, j->text, j->n_text) ? no_prompt(j) : CLI_OK;
}

static int read_stops(struct job *j)
{
    const struct ingle_config *config = j->talk.c->config;
    while (ingle_config_text(config, "stop", j->n_stop))
        j->n_stop++;
    j->stop = mem_calloc(j->n_stop + 1, sizeof *j->stop);
    if (!j->stop)
        return CLI_FAILURE;
    for (size_t i = 0; i < j->n_stop; i++)
        j->stop[i] = ingle_config_text(config, "stop", i);
    return CLI_OK;
}

/* --tokens; its ids are the model's. */
static int read_ids(struct job *j, struct cli *c)
{
    static const char *const others[] = {"lines",  "think",       "file", "prompt",
                                         "system", "system-file", "tools"};
    const char *path = ingle_config_text(c->config, "tokens", 0);
    struct err err;
    if (!path)
        return CLI_OK;
    if (c->n_arg)
        return cli_usage(c, "both '--tokens %s' and '%s' are given as the input", path, c->arg[0]);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (i < 2 ? ingle_config_flag(c->config, others[i])
                  : ingle_config_is_set(c->config, others[i]))
            return cli_usage(
                c, "options '--tokens' and '--%s' exclude each other: ids are the whole prompt",
                others[i]);
    return cli_ids(j->talk.model, path, &j->ids, &j->n_ids, &err) ? cli_fail_err(c, &err) : CLI_OK;
}

/* With --raw the text is the whole prompt. */
static void say_unused(const struct cli *c)
{
    static const char *const of_messages[] = {"system", "system-file", "tools", "think"};
    for (size_t i = 0; i < sizeof of_messages / sizeof *of_messages; i++)
        if (ingle_config_flag(c->config, "raw") && !ingle_config_flag(c->config, "quiet") &&
            ingle_config_is_set(c->config, of_messages[i]))
            cli_line("ingle: warning: with --raw there are no messages; --%s is not used",
                     of_messages[i]);
}

int cli_run(struct cli *c)
{
    if (c->n_arg && cli_names_model(c, c->arg[0]))
        return cli_usage(c, "'run' takes a prompt, not a model; a model is -m %s", c->arg[0]);
    struct job j = {.talk.c = c,
                    .json = ingle_config_flag(c->config, "json"),
                    .lines = ingle_config_flag(c->config, "lines")};
    say_unused(c);
    int rc = read_files(&j, c);
    if (!rc)
        rc = cli_talk_open(c, &j.talk);
    if (!rc)
        rc = read_ids(&j, c);
    if (!rc)
        rc = read_stops(&j);
    const char *experts = ingle_config_text(c->config, "experts", 0);
    struct err err;
    if (!rc && experts && cli_experts_check(j.talk.model, j.talk.engine, experts, &err))
        rc = cli_fail_err(c, &err);
    str_init(&j.media);
    if (!rc)
        rc = cli_media_options(c, &j.talk, &j.media);
    if (!rc)
        rc = run_prompts(&j);
    str_release(&j.media);
    if (experts && j.talk.engine && (rc == CLI_OK || rc == CLI_INTERRUPTED)) {
        const int kept = cli_experts_keep(c, j.talk.model, j.talk.engine, experts);
        rc = rc ? rc : kept;
    }
    mem_free(j.stop);
    mem_free(j.tools);
    mem_free(j.ids);
    mem_free(j.text);
    cli_talk_close(&j.talk);
    return rc;
}
