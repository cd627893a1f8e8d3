/* SPDX-License-Identifier: Apache-2.0 */
/* eval_draft - what a drafter drafts at given places of a text, for other implementations to
 * compare with. */
#include "cli/bench.h"
#include "cli/cli.h"
#include "cli/input.h"

#include "base/mem.h"
#include "base/num.h"
#include "base/write.h"
#include "tool/tool.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_PLACES = 4096, NAME = 40, PARTS = 3 };

struct drafts {
    struct str out; /* JSON */
    struct cli *c;
    struct ingle_engine *engine;
    struct ingle_session *session;
    struct ingle_engine_info info;
    const int32_t *ids;
    int64_t n;
    struct tool_part *part; /* [n_parts] */
    char (*name)[NAME];
    size_t n_parts;
};

/* "10,67,300" */
static int read_places(struct drafts *d, const char *text, int64_t *at, size_t *n)
{
    *n = 0;
    for (const char *p = text;;) {
        char *end;
        const long long v = strtoll(p, &end, 10);
        if (end == p || (*end && *end != ',') || v < 1 || v > d->n)
            return cli_usage(d->c,
                             "option '--draft-at': '%s' is no list of numbers from 1 to the %lld "
                             "tokens that there are",
                             text, (long long)d->n);
        if (v + d->info.draft_most >= d->info.n_ctx)
            return cli_usage(d->c,
                             "option '--draft-at': %lld and a draft of %lld do not fit in the "
                             "context of %lld tokens (--ctx)",
                             v, (long long)d->info.draft_most, (long long)d->info.n_ctx);
        if (*n == MOST_PLACES)
            return cli_usage(d->c, "option '--draft-at': more than %d places", MOST_PLACES);
        at[(*n)++] = v;
        if (!*end)
            return CLI_OK;
        p = end + 1;
    }
}

static struct tool_part *add_part(struct drafts *d, int64_t at, const char *what, int64_t n,
                                  int64_t width)
{
    struct tool_part *p = &d->part[d->n_parts];
    snprintf(d->name[d->n_parts], NAME, "n%lld.%s", (long long)at, what);
    *p = (struct tool_part){.name = d->name[d->n_parts++], .n = n, .width = width};
    return p;
}

static void write_draft(struct drafts *d, int64_t at, int32_t seed,
                        const struct ingle_draft *draft)
{
    int64_t same = 0;
    write_open(&d->out, '{');
    write_member_int(&d->out, "at", at);
    write_member_int(&d->out, "seed", seed);
    write_key(&d->out, "tokens");
    write_open(&d->out, '[');
    for (int64_t i = 0; i < draft->n; i++)
        write_int(&d->out, draft->token[i]);
    write_close(&d->out, ']');
    if (draft->confidence && draft->n) {
        write_key(&d->out, "confidence");
        write_open(&d->out, '[');
        for (int64_t i = 0; i < draft->n; i++)
            write_significant(&d->out, 6, (double)draft->confidence[i]);
        write_close(&d->out, ']');
    }
    while (same < draft->n && at + 1 + same < d->n && d->ids[at + 1 + same] == draft->token[same])
        same++;
    write_member_int(&d->out, "as_in_text", same);
    write_close(&d->out, '}');
}

static ingle_status draft_at(struct drafts *d, int64_t at, struct ingle_error *error)
{
    const int64_t most = d->info.draft_most, n_vocab = d->info.n_vocab;
    const float *logits;
    int32_t *token = NULL;
    struct ingle_draft draft = {.session = d->session, .width = most};
    ingle_status st = ingle_session_sync(d->session, d->ids, at, NULL, error);
    if (!st)
        st = ingle_session_finish(d->session, &logits, error);
    if (st)
        return st;
    const int32_t seed = at < d->n ? d->ids[at] : (int32_t)tool_top_of(logits, n_vocab);
    struct tool_part *p = add_part(d, at, "logits", most, n_vocab);
    draft.logits = p->at = mem_calloc((size_t)most, (size_t)n_vocab * sizeof(float));
    p = add_part(d, at, "tokens", most, 0);
    draft.token = p->ints = token = mem_calloc((size_t)most, sizeof *token);
    bool ok = draft.logits && token;
    if (d->info.draft_confidence) {
        p = add_part(d, at, "confidence", most, 0);
        ok = (draft.confidence = p->at = mem_calloc((size_t)most, sizeof(float))) && ok;
    }
    if (!ok) {
        error->status = INGLE_NOMEM;
        snprintf(error->text, sizeof error->text, "no memory for drafts at %lld", (long long)at);
        return INGLE_NOMEM;
    }
    st = ingle_session_append(d->session, &seed, 1, error);
    if (!st)
        st = ingle_draft(d->engine, &draft, 1, error);
    for (size_t i = 0; i < d->n_parts; i++)
        if (d->part[i].at == draft.logits || d->part[i].ints == token ||
            (draft.confidence && d->part[i].at == draft.confidence))
            d->part[i].n = draft.n;
    if (!st)
        write_draft(d, at, seed, &draft);
    return st;
}

static int run(struct drafts *d, const int64_t *at, size_t n, const char *path)
{
    struct ingle_error error;
    struct err err;
    d->part = mem_calloc(n * PARTS, sizeof *d->part);
    d->name = mem_calloc(n * PARTS, NAME);
    if (!d->part || !d->name)
        return cli_usage(d->c, "no memory for %zu drafts", n);
    cli_json(&d->out);
    write_open(&d->out, '{');
    write_member_int(&d->out, "tokens", d->n);
    write_member(&d->out, "draft", d->info.draft);
    write_key(&d->out, "drafts");
    write_open(&d->out, '[');
    for (size_t i = 0; i < n; i++) {
        if (draft_at(d, at[i], &error)) {
            cli_json_end(&d->out, "\n");
            return cli_fail(d->c, &error);
        }
    }
    write_close(&d->out, ']');
    write_close(&d->out, '}');
    cli_json_end(&d->out, "\n");
    return path && tool_matrices_save(path, d->part, d->n_parts, &err) ? cli_fail_err(d->c, &err)
                                                                       : CLI_OK;
}

int cli_eval_draft(struct cli *c, struct ingle_engine *e, struct ingle_session *s,
                   const int32_t *ids, int64_t n)
{
    struct drafts d = {.c = c, .engine = e, .session = s, .ids = ids, .n = n};
    size_t n_at;
    int64_t *at = mem_calloc(MOST_PLACES, sizeof *at);
    ingle_engine_info(e, &d.info);
    int rc = CLI_FAILURE;
    if (!at)
        rc = cli_usage(c, "no memory for the places of drafts");
    else if (!*d.info.draft)
        rc = cli_usage(c, "no network drafts: %s", d.info.draft_why);
    else if (!(rc = read_places(&d, ingle_config_text(c->config, "draft-at", 0), at, &n_at)))
        rc = run(&d, at, n_at, ingle_config_text(c->config, "draft-out", 0));
    for (size_t i = 0; i < d.n_parts; i++) {
        mem_free(d.part[i].at);
        mem_free(d.part[i].ints);
    }
    mem_free(d.part);
    mem_free(d.name);
    mem_free(at);
    return rc;
}
