/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/bench.h"
#include "cli/editor.h"
#include "cli/input.h"
#include "cli/report.h"

#include "base/mem.h"
#include "base/num.h"
#include "base/pool.h"
#include "base/write.h"
#include "tool/tool.h"

#include <math.h>
#include <string.h>

enum { LOGIT_ROWS = 64 };
static const char MARK[] = "<__media__>"; /* llama.cpp's */

struct eval {
    struct cli *c;
    struct ingle_model *model;
    struct ingle_engine *engine;
    struct ingle_session *session;
    struct ingle_engine_info info;
    struct cli_talk media;      /* --image, --audio */
    struct ingle_prompt prompt; /* --text with them */
    int64_t chunk; /* tokens of a step */
    /* --tokens */
    int32_t *ids;
    int64_t n;
    float *logits;            /* f32 [n][n_vocab], or NULL: not requested */
    struct tool_part *hidden; /* [n_layers + 2]: embed, layers, norm; taken as they come; or NULL */
    bool no_memory;       /* for one of them */
    float *last;          /* f32 [n_vocab] */
    int64_t base;         /* position of the running step's first row */
    double surprise;      /* sum of -log p of tokens 1.. */
    bool reports;         /* --against or --html */
    struct cli_report report;
};

/* ---- steps ---- */

static void take_hidden(void *arg, enum ingle_tap tap, int layer, const float *x, int64_t n,
                        int64_t width, int64_t stride)
{
    struct eval *e = arg;
    const int64_t part = tap == INGLE_TAP_EMBED   ? 0
                         : tap == INGLE_TAP_LAYER ? 1 + layer
                                                  : 1 + e->info.n_layers;
    cli_report_hidden(&e->report, part, e->base, x, n, width, stride);
    struct tool_part *p = e->hidden ? &e->hidden[part] : NULL;
    if (p && !p->at) { /* the width is the family's: DeepSeek V4 has four streams */
        *p = (struct tool_part){NULL, mem_calloc((size_t)e->n, (size_t)width * sizeof(float)),
                                e->n, width, NULL};
        e->no_memory |= !p->at;
    }
    for (int64_t i = 0; p && p->at && width == p->width && i < n && e->base + i < e->n; i++)
        memcpy(p->at + (e->base + i) * width, x + i * stride, (size_t)width * sizeof *x);
}

/* Row `at` of the logits has come. */
static ingle_status take_row(struct eval *e, int64_t at, const float *row,
                             struct ingle_error *error)
{
    const int64_t v = e->info.n_vocab;
    struct err err;
    if (e->logits)
        memcpy(e->logits + at * v, row, (size_t)v * sizeof *row);
    if (at + 1 < e->n)
        e->surprise += tool_surprise(row, v, e->ids[at + 1]);
    else
        memcpy(e->last, row, (size_t)v * sizeof *row);
    const ingle_status st = e->reports ? cli_report_row(&e->report, at, row, &err) : INGLE_OK;
    if (st) {
        error->status = st;
        snprintf(error->text, sizeof error->text, "%s", err.msg);
    }
    return st;
}

/* Rows of prompts choose no pages: what choosing does is measured with rows as those of answers. */
static void as_answers(const struct eval *e)
{
    if (strcmp(e->info.kv_select, "off") != 0)
        ingle_session_prompt(e->session, false);
}

static ingle_status run_tokens(struct eval *e, struct ingle_error *error)
{
    const struct ingle_callbacks screen = cli_callbacks(e->c);
    ingle_status st = ingle_session_sync(e->session, e->ids, e->n, NULL, error);
    as_answers(e);
    while (!st && ingle_session_pending(e->session) > 0) {
        struct ingle_work w = {
            .session = e->session, .max_tokens = e->chunk, .want = INGLE_WANT_ALL};
        e->base = ingle_session_length(e->session);
        st = ingle_step(e->engine, &w, 1, error);
        for (int64_t i = 0; !st && i < w.n_logits; i++)
            st = take_row(e, e->base + i, w.logits + i * e->info.n_vocab, error);
        screen.progress(screen.arg, "eval", (double)(e->base + w.n_done), (double)e->n);
    }
    return st;
}

static ingle_status write_greedy(struct eval *e, struct str *out, int64_t n,
                                 struct ingle_error *error)
{
    const float *row = e->last;
    ingle_engine_set_tap(e->engine, NULL, NULL);
    write_key(out, "greedy");
    write_open(out, '[');
    for (int64_t i = 0; i < n; i++) {
        const int32_t token = (int32_t)tool_top_of(row, e->info.n_vocab);
        write_int(out, token);
        if (i + 1 == n)
            break;
        ingle_status st = ingle_session_append(e->session, &token, 1, error);
        if (!st)
            st = ingle_session_finish(e->session, &row, error);
        if (st)
            return st;
    }
    write_close(out, ']');
    return INGLE_OK;
}

/* ---- files ---- */

static int save(struct eval *e, const char *path, bool taps)
{
    enum { NAME = 32 };
    struct err err;
    const size_t n_parts = taps ? (size_t)e->info.n_layers + 3 : 1;
    struct tool_part *part = mem_calloc(n_parts, sizeof *part);
    char(*name)[NAME] = mem_calloc(n_parts, NAME);
    int rc = CLI_FAILURE;
    if (part && name) {
        part[0] = (struct tool_part){"logits", e->logits, e->n, e->info.n_vocab, NULL};
        for (size_t i = 1; i < n_parts; i++) {
            if (i == 1)
                snprintf(name[i], NAME, "hidden.embed");
            else if (i + 1 == n_parts)
                snprintf(name[i], NAME, "hidden.norm");
            else
                snprintf(name[i], NAME, "hidden.%zu", i - 2);
            part[i] = e->hidden[i - 1];
            part[i].name = name[i];
        }
        rc = tool_matrices_save(path, part, n_parts, &err) ? cli_fail_err(e->c, &err) : CLI_OK;
    }
    mem_free(part);
    mem_free(name);
    return rc;
}

static int prepare_tokens(struct eval *e)
{
    const struct ingle_config *config = e->c->config;
    const char *against = ingle_config_text(config, "against", 0);
    const bool taps = ingle_config_is_set(config, "taps");
    const int64_t greedy = (int64_t)ingle_config_number(config, "greedy");
    const size_t v = (size_t)e->info.n_vocab, n = (size_t)e->n;
    struct err err;
    size_t n_logits;
    if (!num_mul(n, v, &n_logits))
        return cli_usage(e->c, "%lld tokens are too many", (long long)e->n);
    if (e->n > e->info.n_ctx || greedy - 1 > e->info.n_ctx - e->n) {
        err_set(&err, INGLE_LIMIT,
                "%lld tokens with %lld more exceed the context of %lld", (long long)e->n,
                (long long)greedy, (long long)e->info.n_ctx);
        return cli_fail_err(e->c, &err);
    }
    e->last = mem_calloc(v, sizeof(float));
    bool ok = e->last != NULL;
    if (taps || ingle_config_is_set(config, "logits"))
        ok = (e->logits = mem_calloc(n_logits, sizeof(float))) && ok;
    if (taps)
        ok = (e->hidden = mem_calloc((size_t)e->info.n_layers + 2, sizeof *e->hidden)) && ok;
    if (!ok) {
        err_set(&err, INGLE_NOMEM, "no memory for the results of %lld tokens", (long long)e->n);
        return cli_fail_err(e->c, &err);
    }
    e->reports = against || ingle_config_is_set(config, "html");
    if (e->reports && cli_report_init(&e->report, e->model, e->engine, against, e->ids, e->n, &err))
        return cli_fail_err(e->c, &err);
    if (taps || e->report.has_layers)
        ingle_engine_set_tap(e->engine, take_hidden, e);
    return CLI_OK;
}

static int print_json(struct eval *e)
{
    const int64_t greedy = (int64_t)ingle_config_number(e->c->config, "greedy");
    struct ingle_error error;
    struct str out;
    cli_json(&out);
    write_open(&out, '{');
    write_member_int(&out, "tokens", e->n);
    if (e->n > 1) {
        const double mean = e->surprise / (double)(e->n - 1);
        write_member_significant(&out, "nll", 9, mean);
        write_member_significant(&out, "perplexity", 9, exp(mean));
    }
    cli_report_json(&out, &e->report);
    if (greedy && write_greedy(e, &out, greedy, &error)) {
        cli_json_end(&out, "\n");
        return cli_fail(e->c, &error);
    }
    write_close(&out, '}');
    cli_json_end(&out, "\n");
    return CLI_OK;
}

/* A report is for people unless --json is given; without one there are numbers alone. */
static int print_tokens(struct eval *e)
{
    if (!e->reports || ingle_config_flag(e->c->config, "json"))
        return print_json(e);
    const double mean = e->n > 1 ? e->surprise / (double)(e->n - 1) : 0;
    printf("%lld tokens, mean negative log-likelihood %.6f, perplexity %.4f\n", (long long)e->n,
           mean, exp(mean));
    cli_report_text(&e->report);
    return CLI_OK;
}

static int eval_tokens(struct eval *e, const char *path)
{
    const struct ingle_config *config = e->c->config;
    const char *logits = ingle_config_text(config, "logits", 0);
    const char *taps = ingle_config_text(config, "taps", 0);
    const char *html = ingle_config_text(config, "html", 0);
    struct err err;
    struct ingle_error error;
    size_t n;
    if (cli_ids(e->model, path, &e->ids, &n, &err))
        return cli_fail_err(e->c, &err);
    e->n = (int64_t)n;
    if (ingle_config_is_set(config, "draft-at"))
        return cli_eval_draft(e->c, e->engine, e->session, e->ids, e->n);
    int rc = prepare_tokens(e);
    if (!rc && run_tokens(e, &error))
        rc = cli_fail(e->c, &error);
    cli_screen_clear(&e->c->screen);
    if (!rc && e->no_memory) {
        err_set(&err, INGLE_NOMEM, "no memory for the hidden states of %lld tokens",
                (long long)e->n);
        rc = cli_fail_err(e->c, &err);
    }
    if (!rc && logits)
        rc = save(e, logits, false);
    if (!rc && taps)
        rc = save(e, taps, true);
    if (!rc)
        rc = print_tokens(e);
    return rc || !html ? rc : cli_report_html(e->c, &e->report, e->engine, e->session, html);
}

/* ---- text ---- */

/* A soft token or a marker: no text. */
static bool is_of_medium(const struct eval *e, int64_t at)
{
    for (size_t i = 0; i < e->prompt.n_spans; i++)
        if (at >= e->prompt.span[i].start - 1 &&
            at <= e->prompt.span[i].start + e->prompt.span[i].n)
            return true;
    return false;
}

/* One piece of the text: tokens from `first` on are counted. */
static ingle_status eval_piece(struct eval *e, const int32_t *ids, int64_t n, int64_t first,
                               double *sum, int64_t *count, struct ingle_error *error)
{
    ingle_status st = ingle_session_sync_media(e->session, ids, n, e->prompt.span,
                                               e->prompt.n_spans, NULL, error);
    as_answers(e);
    while (!st && ingle_session_pending(e->session) > 0) {
        const int64_t base = ingle_session_length(e->session);
        const bool counts = base + e->chunk >= first;
        struct ingle_work w = {.session = e->session,
                               .max_tokens = e->chunk,
                               .want = counts ? INGLE_WANT_ALL : INGLE_WANT_NONE};
        st = ingle_step(e->engine, &w, 1, error);
        for (int64_t i = 0; !st && i < w.n_logits; i++) {
            /* of a picture's rows there is only the last one */
            const int64_t next = base + w.n_done - w.n_logits + i + 1;
            if (next < first || next >= n || is_of_medium(e, next))
                continue;
            *sum += tool_surprise(w.logits + i * e->info.n_vocab, e->info.n_vocab, ids[next]);
            (*count)++;
        }
    }
    return st;
}

static ingle_status eval_pieces(struct eval *e, int32_t *ids, int64_t n, double *sum,
                                int64_t *count, struct ingle_error *error)
{
    const struct ingle_callbacks screen = cli_callbacks(e->c);
    const int64_t window = (int64_t)ingle_config_number(e->c->config, "window");
    struct ingle_model_info m;
    ingle_model_info(e->model, &m);
    if (n <= window || e->prompt.n_spans)
        return eval_piece(e, ids, n, 1, sum, count, error);
    ingle_status st = INGLE_OK;
    for (int64_t at = 0; !st && at + window <= n; at += window) {
        int32_t *piece = ids + at;
        if (m.add_bos)
            piece[0] = m.bos;
        st = eval_piece(e, piece, window, window / 2, sum, count, error);
        screen.progress(screen.arg, "eval", (double)(at + window), (double)n);
    }
    return st;
}

/* Media stand at the marks of the text, or in front of it where there are none. */
static int place_media(struct eval *e, const char *text, size_t n, const char *path)
{
    struct ingle_medium *medium[CLI_MOST_MEDIA];
    struct ingle_error error;
    struct err err;
    struct str marked;
    size_t n_media;
    int rc = cli_media_list(e->c, &e->media, medium, &n_media);
    str_init(&marked);
    for (size_t i = 0; i < n_media && !strstr(text, MARK); i++)
        str_adds(&marked, MARK);
    str_add(&marked, text, n);
    if (!rc && ingle_tokenize_media(e->model, marked.at, marked.n, INGLE_ADD_SPECIAL, MARK, medium,
                                    n_media, NULL, &e->prompt, &error))
        rc = cli_fail(e->c, &error);
    str_release(&marked);
    if (!rc && (int64_t)e->prompt.n_ids > e->info.n_ctx) {
        (void)err_set(&err, INGLE_LIMIT,
                      "%s: %zu tokens with those of %zu pictures and sounds, which are one piece; "
                      "the context has %lld",
                      path, e->prompt.n_ids, n_media, (long long)e->info.n_ctx);
        rc = cli_fail_err(e->c, &err);
    }
    return rc;
}

static bool has_media(const struct cli *c)
{
    return ingle_config_is_set(c->config, "image") || ingle_config_is_set(c->config, "audio");
}

static int tokenise(struct eval *e, const char *text, size_t n, const char *path)
{
    struct ingle_error error;
    if (has_media(e->c))
        return place_media(e, text, n, path);
    return ingle_tokenize(e->model, text, n, INGLE_ADD_SPECIAL, &e->prompt.ids, &e->prompt.n_ids,
                          &error)
               ? cli_fail(e->c, &error)
               : CLI_OK;
}

static int eval_text(struct eval *e, const char *path)
{
    struct err err;
    struct ingle_error error;
    char *text;
    size_t n_bytes;
    double sum = 0;
    int64_t count = 0;
    if (cli_slurp(path, &text, &n_bytes, &err))
        return cli_fail_err(e->c, &err);
    int rc = tokenise(e, text, n_bytes, path);
    if (rc) {
        /* it is reported */
    } else if (eval_pieces(e, e->prompt.ids, (int64_t)e->prompt.n_ids, &sum, &count, &error)) {
        rc = cli_fail(e->c, &error);
    } else if (!count) {
        err_set(&err, INGLE_ARG, "%s: there are no tokens to count", path);
        rc = cli_fail_err(e->c, &err);
    } else {
        const double mean = sum / (double)count;
        cli_screen_clear(&e->c->screen);
        if (ingle_config_flag(e->c->config, "json")) {
            struct str out;
            cli_json(&out);
            write_open(&out, '{');
            write_member_int(&out, "tokens", count);
            write_member_significant(&out, "nll", 9, mean);
            write_member_significant(&out, "perplexity", 9, exp(mean));
            write_close(&out, '}');
            cli_json_end(&out, "\n");
        } else {
            printf("%lld tokens, mean negative log-likelihood %.6f, perplexity %.4f\n",
                   (long long)count, mean, exp(mean));
        }
    }
    mem_free(text);
    return rc;
}

int cli_eval(struct cli *c)
{
    struct eval e = {.c = c};
    struct ingle_error error;
    const char *tokens = ingle_config_text(c->config, "tokens", 0);
    const char *text = ingle_config_text(c->config, "text", 0);
    const char *official = ingle_config_text(c->config, "official", 0);
    if (c->n_arg || !tokens + !text + !official != 2)
        return cli_usage(c, "give --tokens FILE, --text FILE or --official FILE");
    if ((text || official) &&
        (ingle_config_is_set(c->config, "against") || ingle_config_is_set(c->config, "logits") ||
         ingle_config_is_set(c->config, "taps") || ingle_config_is_set(c->config, "greedy") ||
         ingle_config_is_set(c->config, "html")))
        return cli_usage(c, "--logits, --taps, --greedy, --against and --html go with --tokens");
    const char *against = ingle_config_text(c->config, "against-sparse", 0);
    if (has_media(c) && (!text || against))
        return cli_usage(c, "--image and --audio go with --text; the messages of --official name "
                            "pictures themselves");
    if (against && !text)
        return cli_usage(c, "--against-sparse goes with --text");
    if (against)
        return cli_sparse_compare(c, ingle_config_text(c->config, "sparse", 0), against);
    if (ingle_config_is_set(c->config, "depth"))
        return cli_usage(c, "--depth goes with --against-sparse");
    const bool json = ingle_config_flag(c->config, "json");
    if (!json && ingle_config_is_set(c->config, "greedy") &&
        (ingle_config_is_set(c->config, "against") || ingle_config_is_set(c->config, "html")))
        return cli_usage(c, "--greedy with a report needs --json");
    const bool drafts = ingle_config_is_set(c->config, "draft-at");
    if (drafts
            ? !tokens || ingle_config_is_set(c->config, "logits") ||
                  ingle_config_is_set(c->config, "taps") ||
                  ingle_config_is_set(c->config, "against") ||
                  ingle_config_is_set(c->config, "greedy") || ingle_config_is_set(c->config, "html")
            : ingle_config_is_set(c->config, "draft-out"))
        return cli_usage(
            c,
            "--experiment out=FILE goes with at=N, and that with --tokens and nothing "
            "else to write");
    int rc = CLI_OK;
    if (cli_open_model(c, &e.model, &error) ||
        cli_open_engine(c, e.model, LOGIT_ROWS, &e.engine, &error) ||
        ingle_session_open(&e.session, e.engine, &error)) {
        rc = cli_fail(c, &error);
    } else {
        cli_interrupt_engine(e.engine);
        e.media.engine = e.engine;
        ingle_engine_info(e.engine, &e.info);
        e.chunk = num_min(e.info.max_rows, LOGIT_ROWS);
        rc = official ? cli_eval_official(c, e.model, e.engine, e.session, official)
             : tokens ? eval_tokens(&e, tokens)
                      : eval_text(&e, text);
        cli_interrupt_engine(NULL);
    }
    mem_free(e.ids);
    mem_free(e.logits);
    for (int64_t i = 0; e.hidden && i < e.info.n_layers + 2; i++)
        mem_free(e.hidden[i].at);
    mem_free(e.hidden);
    mem_free(e.last);
    cli_report_release(&e.report);
    ingle_prompt_release(&e.prompt);
    cli_media_close(&e.media);
    ingle_session_close(e.session);
    ingle_engine_close(e.engine);
    ingle_model_close(e.model);
    return rc;
}

static bool is_safetensors(const char *path)
{
    static const char end[] = ".safetensors";
    const size_t n = strlen(path), k = sizeof end - 1;
    return n > k && !strcmp(path + n - k, end);
}

int cli_compare(struct cli *c)
{
    const struct ingle_callbacks callbacks = cli_callbacks(c);
    const struct report_sink sink = {callbacks.report, callbacks.progress, callbacks.arg};
    const bool json = ingle_config_flag(c->config, "json");
    struct pool *pool = NULL;
    struct str out;
    struct err err;
    int64_t n_other;
    ingle_status s;
    if (c->n_arg != 2)
        return cli_usage(c, "compare needs two files, A and B");
    int rc = CLI_OK;
    str_init(&out);
    if (is_safetensors(c->arg[0]) && is_safetensors(c->arg[1])) {
        s = tool_compare(c->arg[0], c->arg[1], json, &out, &n_other, &err);
    } else {
        rc = cli_pool(c, &pool);
        if (rc)
            return rc;
        s = tool_compare_files(pool, c->arg[0], c->arg[1], json, &sink, &out, &n_other, &err);
        cli_screen_clear(&c->screen);
    }
    pool_free(pool);
    if (s)
        rc = cli_fail_err(c, &err);
    else
        cli_put_text(stdout, out.at, out.n);
    if (!rc && n_other && c->screen.progress)
        fprintf(stderr, "ingle: %lld tensors are not in the other file\n",
                (long long)n_other);
    str_release(&out);
    return rc;
}
