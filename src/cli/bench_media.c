/* SPDX-License-Identifier: Apache-2.0 */
/* bench --image FILE --audio FILE: how long the encoders take. */
#include "cli/bench.h"
#include "cli/cli.h"
#include "cli/input.h"
#include "cli/editor.h"
#include "cli/talk.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/write.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_REPEATS = 1000 };
static const char MARK[] = "<__media__>";

struct bench_media {
    struct cli *c;
    struct cli_talk t; /* model, engine, media */
    int64_t n_repeats;
    double seconds[MOST_REPEATS];
};

/* Seconds of one run of the encoder: nothing of it is there before, and nothing is kept. */
static ingle_status encode(struct bench_media *b, const struct ingle_prompt *p, double *seconds,
                           struct ingle_error *error)
{
    struct ingle_session *s = NULL;
    struct ingle_media_counts before, after;
    const float *logits;
    ingle_engine_media(b->t.engine, &before);
    ingle_status st = ingle_session_open(&s, b->t.engine, error);
    if (!st)
        st = ingle_session_sync_media(s, p->ids, (int64_t)p->n_ids, p->span, p->n_spans, NULL,
                                      error);
    if (!st)
        st = ingle_session_finish(s, &logits, error);
    ingle_session_close(s);
    ingle_engine_forget(b->t.engine);
    ingle_engine_media(b->t.engine, &after);
    *seconds = after.encode_seconds - before.encode_seconds;
    return st;
}

static void print(struct bench_media *b, const struct cli_medium *m, double opened)
{
    struct ingle_medium_info i;
    const int64_t n = b->n_repeats;
    ingle_medium_info(m->medium, &i);
    qsort(b->seconds, (size_t)n, sizeof *b->seconds, num_order_f64);
    const double middle = b->seconds[n / 2];
    if (ingle_config_flag(b->c->config, "json")) {
        struct str out;
        cli_json(&out);
        write_open(&out, '{');
        write_member(&out, "test", "encode");
        write_member(&out, "file", m->path);
        write_member(&out, "kind", m->is_sound ? "sound" : "picture");
        write_member_int(&out, "soft_tokens", i.n_soft);
        write_member_significant(&out, "per_s", 6, (double)i.n_soft / middle);
        write_member_significant(&out, "seconds", 6, middle);
        write_member_significant(&out, "least", 6, b->seconds[0]);
        write_member_significant(&out, "most", 6, b->seconds[n - 1]);
        write_member_int(&out, "rounds", n);
        write_member_significant(&out, "open_seconds", 6, opened);
        write_close(&out, '}');
        cli_json_end(&out, "\n");
    } else {
        printf("%-24s %6lld %12.2f %11.3f %11.3f %11.3f\n", CLI_SHOWN(m->path),
               (long long)i.n_soft, (double)i.n_soft / middle, b->seconds[0] * 1e3,
               b->seconds[n - 1] * 1e3, opened * 1e3);
    }
    cli_push(b->c);
}

/* Opens a file and encodes it so often. */
static ingle_status measure(struct bench_media *b, const char *path, enum ingle_media_kind kind,
                            struct ingle_error *error)
{
    const struct cli_medium *m;
    struct ingle_prompt p = {0};
    const uint64_t began = clock_now();
    ingle_status st = cli_media_add(&b->t, path, kind, &m, error);
    const double opened = (double)(clock_now() - began) * 1e-9;
    if (st)
        return st;
    struct ingle_medium *medium = m->medium;
    st = ingle_tokenize_media(b->t.model, MARK, sizeof MARK - 1, INGLE_ADD_SPECIAL, MARK, &medium,
                              1, NULL, &p, error);
    for (int64_t i = 0; !st && i < b->n_repeats; i++)
        st = encode(b, &p, &b->seconds[i], error);
    ingle_prompt_release(&p);
    if (!st)
        print(b, m, opened);
    return st;
}

static ingle_status open_all(struct bench_media *b, struct ingle_error *error)
{
    /* a cache of one byte keeps no vectors */
    struct ingle_engine_options o = {.callbacks = cli_callbacks(b->c)};
    if (cli_open_model(b->c, &b->t.model, error))
        return error->status;
    ingle_config_engine(b->c->config, &o);
    o.media_cache = 1;
    return ingle_engine_open(&b->t.engine, b->t.model, &o, error);
}

int cli_bench_media(struct cli *c)
{
    static const struct {
        const char *option;
        enum ingle_media_kind kind;
    } lists[] = {{"image", INGLE_MEDIA_IMAGE}, {"audio", INGLE_MEDIA_AUDIO}};
    struct ingle_error error;
    struct bench_media *b = mem_zalloc(sizeof *b);
    if (!b)
        return CLI_FAILURE;
    b->c = c;
    b->n_repeats = (int64_t)ingle_config_number(c->config, "repeat");
    ingle_status st = open_all(b, &error);
    if (!st)
        cli_interrupt_engine(b->t.engine);
    if (!st && !ingle_config_flag(c->config, "json"))
        printf("%-24s %6s %12s %11s %11s %11s\n", "encode", "tokens", "tokens/s", "least ms",
               "most ms", "open ms");
    for (size_t k = 0; k < sizeof lists / sizeof *lists; k++) {
        const char *path;
        for (size_t i = 0; !st && (path = ingle_config_text(c->config, lists[k].option, i)); i++)
            st = measure(b, path, lists[k].kind, &error);
    }
    const int rc = st ? cli_fail(c, &error) : CLI_OK;
    cli_interrupt_engine(NULL);
    cli_media_close(&b->t);
    ingle_engine_close(b->t.engine);
    ingle_model_close(b->t.model);
    mem_free(b);
    return rc;
}
