/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/cli.h"

#include "base/clock.h"
#include "base/mem.h"

#include <string.h>

static double seconds(uint64_t since)
{
    return (double)(clock_now() - since) * 1e-9;
}

ingle_status cli_open_engine(struct cli *c, struct ingle_model *m, int64_t max_logits,
                             struct ingle_engine **out, struct ingle_error *error)
{
    struct ingle_engine_options o = {.max_logits = max_logits, .callbacks = cli_callbacks(c)};
    ingle_config_engine(c->config, &o);
    const ingle_status st = ingle_engine_open(out, m, &o, error);
    if (!st)
        cli_pack_say(c, *out);
    return st;
}

/* What --grammar, --json-schema, --json-object or --regex ask of every answer. */
static int open_grammar(struct cli *c, struct cli_talk *t)
{
    static const struct {
        const char *option;
        enum ingle_grammar_kind kind;
        bool is_file;
    } form[] = {{"grammar", INGLE_GRAMMAR_GBNF, true},
                {"json-schema", INGLE_GRAMMAR_JSON_SCHEMA, true},
                {"json-object", INGLE_GRAMMAR_JSON, false},
                {"regex", INGLE_GRAMMAR_REGEX, false}};
    struct err err;
    struct ingle_error error;
    const char *first = NULL;
    for (size_t i = 0; i < sizeof form / sizeof *form; i++) {
        if (!ingle_config_is_set(c->config, form[i].option))
            continue;
        if (first) {
            err_set(&err, INGLE_ARG, "options '--%s' and '--%s' exclude each other", first,
                    form[i].option);
            return cli_fail_err(c, &err);
        }
        first = form[i].option;
        const char *text = ingle_config_text(c->config, first, 0);
        char *file = NULL;
        size_t n = text ? strlen(text) : 0;
        if (form[i].is_file && cli_slurp(text, &file, &n, &err))
            return cli_fail_err(c, &err);
        const ingle_status st = ingle_grammar_open(&t->grammar, t->model, form[i].kind,
                                                   file ? file : text, n, &error);
        mem_free(file);
        if (st) {
            err_set(&err, st, "%s: %s", form[i].is_file ? text : "--regex", error.text);
            return cli_fail_err(c, &err);
        }
    }
    return CLI_OK;
}

/* What --system or --system-file says. */
static int read_system(struct cli *c, struct cli_talk *t)
{
    const char *text = ingle_config_text(c->config, "system", 0);
    const char *file = ingle_config_text(c->config, "system-file", 0);
    struct err err;
    if (text && file)
        return cli_usage(c, "options '--system' and '--system-file' exclude each other");
    if (file && cli_slurp(file, &t->system, &t->n_system, &err))
        return cli_fail_err(c, &err);
    if (file)
        t->n_system = cli_without_end(t->system, t->n_system);
    else if (text && (t->system = mem_strdup(text)))
        t->n_system = strlen(text);
    return CLI_OK;
}

int cli_talk_open(struct cli *c, struct cli_talk *t)
{
    struct ingle_error error;
    *t = (struct cli_talk){.c = c};
    if (cli_open_model(c, &t->model, &error))
        return cli_fail(c, &error);
    int rc = open_grammar(c, t); /* a mistake in it is told before what takes long */
    if (!rc)
        rc = read_system(c, t);
    if (rc) {
        cli_talk_close(t);
        return rc;
    }
    if (cli_open_engine(c, t->model, 1, &t->engine, &error) ||
        ingle_session_open(&t->session, t->engine, &error)) {
        cli_talk_close(t);
        return cli_fail(c, &error);
    }
    cli_screen_clear(&c->screen);
    ingle_sampling_defaults(t->model, &t->sampling);
    t->sampling.seed = clock_now() >> 8 & 0xFFFFFFFFFFFu;
    ingle_config_sampling(c->config, &t->sampling);
    t->predict = (int64_t)ingle_config_number(c->config, "predict");
    t->ignore_end = ingle_config_flag(c->config, "ignore-eos");
    cli_interrupt_engine(t->engine);
    return CLI_OK;
}

void cli_talk_close(struct cli_talk *t)
{
    cli_interrupt_engine(NULL);
    ingle_session_close(t->session);
    ingle_engine_close(t->engine);
    ingle_grammar_close(t->grammar);
    ingle_model_close(t->model);
    mem_free(t->system);
    *t = (struct cli_talk){0};
}

/* Draws, shows and appends tokens until something ends the answer. */
static ingle_status go_on(struct cli_talk *t, struct ingle_reader *reader,
                          struct ingle_sampler *sampler, const float *logits,
                          struct cli_answer *out, struct ingle_error *error)
{
    struct ingle_engine_info info;
    ingle_engine_info(t->engine, &info);
    for (;;) {
        struct ingle_token token;
        enum ingle_end end;
        if (cli_interrupts()) {
            out->end = "interrupted";
            return INGLE_OK;
        }
        if (out->tokens == t->predict || ingle_session_length(t->session) >= info.n_ctx) {
            out->end = "length";
            return INGLE_OK;
        }
        ingle_status st = ingle_sample(sampler, logits, t->session, &token, error);
        end = INGLE_END_NONE;
        const bool ignored = t->ignore_end && !t->grammar && ingle_model_is_end(t->model, token.id);
        if (!st && !ignored)
            st = ingle_reader_token(reader, token.id, &end, error);
        if (!st)
            st = ingle_session_append(t->session, &token.id, 1, error);
        if (st)
            return st;
        out->tokens++;
        if (end != INGLE_END_NONE) {
            out->end = "stop";
            return INGLE_OK;
        }
        st = ingle_session_finish(t->session, &logits, error);
        if (st == INGLE_CANCEL)
            continue; /* the interrupt is counted */
        if (st)
            return st;
    }
}

static ingle_status answer(struct cli_talk *t, struct ingle_reader *reader,
                           struct ingle_sampler *sampler, const struct ingle_prompt *p,
                           struct cli_answer *out, struct ingle_error *error)
{
    struct ingle_reuse reuse = {0};
    const float *logits;
    uint64_t start = clock_now();
    ingle_status st = ingle_session_sync(t->session, p->ids, (int64_t)p->n_ids, &reuse, error);
    if (!st)
        st = ingle_session_finish(t->session, &logits, error);
    cli_screen_clear(&t->c->screen);
    out->prompt_s = seconds(start);
    out->prompt_tokens = (int64_t)p->n_ids;
    out->reused_tokens = reuse.kept;
    out->disk_tokens = reuse.from_disk;
    if (st == INGLE_CANCEL) {
        out->end = "interrupted";
        return INGLE_OK;
    }
    start = clock_now();
    if (!st)
        st = go_on(t, reader, sampler, logits, out, error);
    out->answer_s = seconds(start);
    if (!st) /* the next question goes on from here, perhaps after a restart */
        st = ingle_session_remember(t->session, error);
    return st;
}

ingle_status cli_talk_answer(struct cli_talk *t, const struct ingle_prompt *p,
                             const struct ingle_reader_options *o, ingle_event_fn *fn, void *arg,
                             struct cli_answer *out, struct ingle_error *error)
{
    struct ingle_reader *reader = NULL;
    struct ingle_sampler *sampler = NULL;
    *out = (struct cli_answer){.end = "stop"};
    ingle_engine_resume(t->engine);
    cli_interrupt_reset();
    ingle_status st = ingle_reader_open(&reader, t->model, o, fn, arg, error);
    t->sampling.no_calls = !o->raw && !o->tools;
    if (!st)
        st = ingle_sampler_open(&sampler, t->engine, &t->sampling, error);
    if (!st && t->grammar)
        st = ingle_sampler_constrain(sampler, t->grammar, error);
    if (!st)
        st = answer(t, reader, sampler, p, out, error);
    if (!st)
        st = ingle_reader_finish(reader, error);
    if (!st)
        st = ingle_reader_message(reader, &out->message, &out->n_message, error);
    ingle_sampler_close(sampler);
    ingle_reader_close(reader);
    return st;
}

void cli_answer_release(struct cli_answer *a)
{
    ingle_free(a->message);
    *a = (struct cli_answer){0};
}

void cli_answer_print(FILE *to, const struct cli_answer *a)
{
    const int64_t read = a->prompt_tokens - a->reused_tokens;
    fprintf(to, "%lld tokens read in %.2f s (%.1f/s, %lld more were there), %lld written in %.2f s "
            "(%.1f/s)\n",
            (long long)read, a->prompt_s, a->prompt_s > 0 ? (double)read / a->prompt_s : 0,
            (long long)a->reused_tokens, (long long)a->tokens, a->answer_s,
            a->answer_s > 0 ? (double)a->tokens / a->answer_s : 0);
}
