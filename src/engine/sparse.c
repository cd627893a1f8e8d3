/* SPDX-License-Identifier: Apache-2.0 */
/* sparse - prompts whose rows read the values of large weights alone: what is asked for, whether it
 * can be, what it left out. */
#include "base/str.h"
#include "engine/engine.h"
#include "engine/way.h"
#include "engine/session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { USUAL_BITS = 3, USUAL_FROM = 4096, MOST_FROM = 16777216 };

/* "1/8", or a number such as 0.125. */
static bool read_eps(const char *text, size_t n_text, int *bits)
{
    char copy[32], *end;
    if (!n_text || n_text >= sizeof copy)
        return false;
    memcpy(copy, text, n_text);
    copy[n_text] = 0;
    const bool inverse = n_text > 2 && memcmp(copy, "1/", 2) == 0;
    const double v = str_to_double(inverse ? copy + 2 : copy, &end);
    if (*end || end == copy || *copy == ' ')
        return false;
    for (int i = 0; i <= KERN_SPARSE_EPS_MOST; i++) {
        const double n_parts = (double)(1 << i), one = inverse ? v / n_parts : v * n_parts;
        if (one >= 1 && one <= 1) {
            *bits = i;
            return true;
        }
    }
    return false;
}

static bool read_from(const char *text, size_t n, int64_t *from)
{
    int64_t v = 0;
    for (size_t i = 0; i < n; i++) {
        if (text[i] < '0' || text[i] > '9' || v > MOST_FROM)
            return false;
        v = v * 10 + (text[i] - '0');
    }
    *from = v;
    return n && v <= MOST_FROM;
}

ingle_status engine_sparse_parse(const char *what, const char *text, uint32_t *sparse,
                                 struct err *err)
{
    int bits = USUAL_BITS;
    int64_t from = USUAL_FROM;
    if (!text || strcmp(text, "off") == 0) {
        *sparse = 0;
        return INGLE_OK;
    }
    if (strlen(text) >= INGLE_SPARSE_TEXT)
        return err_set(err, INGLE_ARG, "%s: '%.60s' has %zu bytes, more than %d", what, text,
                       strlen(text), INGLE_SPARSE_TEXT - 1);
    if (strcmp(text, "on") != 0 && strncmp(text, "on:", 3) != 0)
        return err_set(err, INGLE_ARG, "%s: '%.60s' is none of off, on and on:eps=1/8,from=4096",
                       what, text);
    for (const char *p = text + 2; *p;) {
        p++;
        const size_t n = strcspn(p, ",");
        if (n > 4 && memcmp(p, "eps=", 4) == 0) {
            if (!read_eps(p + 4, n - 4, &bits))
                return err_set(err, INGLE_ARG, "%s: eps '%.*s' is no power of two from 1/%d to 1",
                               what, (int)(n < 40 ? n : 40) - 4, p + 4, 1 << KERN_SPARSE_EPS_MOST);
        } else if (n > 5 && memcmp(p, "from=", 5) == 0) {
            if (!read_from(p + 5, n - 5, &from))
                return err_set(err, INGLE_ARG, "%s: from '%.*s' is no position from 0 to %d", what,
                               (int)(n < 40 ? n : 40) - 5, p + 5, MOST_FROM);
        } else {
            return err_set(err, INGLE_ARG, "%s: '%.*s' is neither eps=1/N nor from=POSITION", what,
                           (int)(n < 40 ? n : 40), p);
        }
        p += n;
    }
    *sparse = kv_sparse_of(bits, from);
    return INGLE_OK;
}

ingle_status ingle_sparse_check(const char *how, struct ingle_error *error)
{
    struct err err;
    uint32_t sparse;
    return engine_say(error, engine_sparse_parse("sparse", how, &sparse, &err), &err);
}

void engine_sparse_text(uint32_t sparse, char *out, size_t n)
{
    if (sparse)
        snprintf(out, n, "on:eps=1/%d,from=%lld", 1 << kv_sparse_bits(sparse),
                 (long long)kv_sparse_from(sparse));
    else
        snprintf(out, n, "off");
}

ingle_status engine_sparse_open(struct ingle_engine *e, const struct ingle_engine_options *o,
                                const struct kv_types *types, struct err *err)
{
    struct kv_spec kv = {0};
    ingle_status st = engine_sparse_parse("sparse", o->sparse, &e->sparse, err);
    if (!st)
        st = e->family->kv(e->self, types, &kv, err);
    if (st)
        return st;
    e->n_sparse_layers = 0;
    for (uint32_t i = 0; i < kv.n_streams; i++)
        e->n_sparse_layers += kv.stream[i].kind == KV_HEADS && !kv.group[kv.stream[i].group].window;
    e->sparse_why = family_sparse_refuses(e->device, &kv);
    kv_spec_release(&kv);
    if (e->sparse && e->sparse_why)
        engine_sparse_refuse(e);
    e->sparse = e->sparse_why ? 0 : e->sparse;
    const struct kv_select_text select = kv_select_name(&e->select);
    snprintf(e->named, sizeof e->named, "%.31s%s%.14s%s%s", e->numerics, select.at[0] ? "+" : "",
             select.at, e->sparse ? "+" : "", kv_sparse_name(e->sparse).at);
    return INGLE_OK;
}

void engine_sparse_refuse(struct ingle_engine *e)
{
    if (e->sparse_told)
        return;
    e->sparse_told = true;
    report(&e->sink, INGLE_REPORT_WARN, "sparse", "attention", "prompts read all values: %s",
           e->sparse_why);
}

void engine_sparse_join(struct ingle_sparse *sum, const struct ingle_sparse *more)
{
    sum->pairs += more->pairs;
    sum->missed += more->missed;
    sum->n_read += more->n_read;
    sum->n_seen += more->n_seen;
    if (more->most > sum->most)
        sum->most = more->most;
}

void engine_sparse_add(struct ingle_sparse *sum, const struct kern_sparse_seen *seen)
{
    const struct ingle_sparse more = {seen->pairs, (double)seen->missed * 0x1p-32,
                                      (double)seen->most, seen->kept, seen->seen};
    engine_sparse_join(sum, &more);
}

void engine_sparse_report(const struct ingle_engine *e, uint32_t sparse,
                          const struct ingle_sparse *s)
{
    char subject[48];
    if (!s->pairs || !sparse)
        return;
    snprintf(subject, sizeof subject, "attention of %lld layer%s", (long long)e->n_sparse_layers,
             e->n_sparse_layers == 1 ? "" : "s");
    report(&e->sink, INGLE_REPORT_NOTE, "sparse", subject,
           "values of weights below 1/%d of the sum were replaced by page means: missed %.2g %% on "
           "average, %.2g %% at most; %.0f %% of "
           "values read",
           1 << kv_sparse_bits(sparse), 100 * s->missed / (double)s->pairs, 100 * s->most,
           s->n_seen ? 100 * (double)s->n_read / (double)s->n_seen : 0.0);
}

void engine_sparse_tell(struct ingle_session *s)
{
    const struct kern_sparse_seen seen = session_sparse_take(s->s);
    engine_sparse_add(&s->sparse, &seen);
    if (s->sparse_told || !s->sparse.pairs || session_pending(s->s))
        return;
    s->sparse_told = true;
    engine_sparse_report(s->e, session_sparse(s->s), &s->sparse);
}

ingle_status ingle_session_set_sparse(struct ingle_session *s, const char *how,
                                      struct ingle_error *error)
{
    struct err err;
    uint32_t sparse = s->e->sparse;
    const ingle_status st = how ? engine_sparse_parse("sparse", how, &sparse, &err) : INGLE_OK;
    if (st)
        return engine_say(error, st, &err);
    if (sparse && s->e->sparse_why)
        engine_sparse_refuse(s->e);
    session_set_sparse(s->s, s->e->sparse_why ? 0 : sparse);
    engine_drawing_turn(s);
    return INGLE_OK;
}

void ingle_session_sparse_text(const struct ingle_session *s, char *out, size_t n)
{
    engine_sparse_text(session_sparse(s->s), out, n);
}

void ingle_session_sparse(const struct ingle_session *s, struct ingle_sparse *out)
{
    *out = s->sparse;
}
