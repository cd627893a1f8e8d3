/* SPDX-License-Identifier: Apache-2.0 */
/* way - other ways to compute prompts and answers: what is requested, whether it can be, what it
 * left out. */
#include "engine/way.h"

#include "engine/session.h"
#include <stdio.h>

enum { USUAL_PART = 16 }; /* of who only says "on" */
static_assert((int)INGLE_WAY_SPARSE == (int)KV_WAY_SPARSE &&
                  (int)INGLE_WAY_SELECT == (int)KV_WAY_SELECT &&
                  (int)INGLE_WAY_TEXT == (int)KV_WAY_TEXT,
              "one list of them");

/* What it is called in reports and options, and in requests. */
static const struct {
    const char *option, *request, *unused;
} names[] = {
    [KV_WAY_SPARSE] = {"sparse", "sparse", "prompts read all values"},
    [KV_WAY_SELECT] = {"kv-select", "kv_select", "not used, answers read all keys and values"},
};

/* What the options say, none of which selects pages in answers before requests say so. */
static void say_select(const struct ingle_engine *e)
{
    const struct kern_select *p = &e->way.way.select;
    if (p->part > 1)
        report(&e->sink, INGLE_REPORT_NOTE, names[KV_WAY_SELECT].option, "attention",
               "rows of answers read 1/%lld of the pages of 128 tokens, and no fewer than %lld; "
               "what they miss is estimated, and measured at "
               "every %dth: answers change",
               (long long)p->part, (long long)p->least, KERN_SELECT_EVERY);
    else if (p->part)
        report(&e->sink, INGLE_REPORT_NOTE, names[KV_WAY_SELECT].option, "attention",
               "4-bit copies of keys are kept; rows of answers read all pages unless their request "
               "says otherwise");
}

ingle_status engine_way_open(struct ingle_engine *e, enum kv_way_kind kind,
                             const struct ingle_engine_options *o, const struct kv_types *types,
                             struct err *err)
{
    struct engine_way *w = &e->way;
    struct kv_types own;
    struct kv_spec kv = {0};
    ingle_status st = kind == KV_WAY_GAPS
                          ? INGLE_OK
                          : kv_way_parse(kind, names[kind].option,
                                         kind == KV_WAY_SPARSE ? o->sparse : o->kv_select, NULL,
                                         &w->way, err);
    if (!st && !types)
        st = kv_types_parse(o->kv, o->kv_k, o->kv_v, o->kv_layers, &own, err);
    if (!st)
        st = e->family->kv(e->self, types ? types : &own, &kv, err);
    if (st)
        return st;
    w->n_layers = 0;
    for (uint32_t i = 0; i < kv.n_streams; i++)
        w->n_layers += kv.stream[i].kind == KV_HEADS && !kv.group[kv.stream[i].group].window;
    w->why[kind] = family_way_refuses(kind, e->device, &kv);
    kv_spec_release(&kv);
    if (o->stages)
        w->why[kind] = "some of the layers lie at stages (--stages)";
    if (kind == KV_WAY_SPARSE && w->why[kind] && w->way.sparse) {
        engine_way_refuse(e, kind);
        w->way.sparse = 0;
    } else if (kind == KV_WAY_SELECT && w->why[kind] && w->way.select.part) {
        engine_way_refuse(e, kind);
        w->way.select = (struct kern_select){0};
    } else if (kind == KV_WAY_SELECT) {
        say_select(e);
    }
    const struct kv_name select = kv_select_name(&w->way.select);
    snprintf(e->named, sizeof e->named, "%.31s%s%.14s%s%s", e->numerics, select.at[0] ? "+" : "",
             select.at, w->way.sparse ? "+" : "", kv_sparse_name(w->way.sparse).at);
    return INGLE_OK;
}

void engine_way_refuse(struct ingle_engine *e, enum kv_way_kind kind)
{
    if (e->way.reported[kind])
        return;
    e->way.reported[kind] = true;
    report(&e->sink, INGLE_REPORT_WARN, names[kind].option, "attention", "%s: %s",
           names[kind].unused, e->way.why[kind]);
}

/* There are copies of the keys, and room for the pages. */
static ingle_status check_select(const struct ingle_engine *e, const char *how,
                                 const struct kern_select *p, struct err *err)
{
    const int64_t room = session_select_room(e->runner),
                  most = p->part ? kern_select_budget(p, session_runner_n_ctx(e->runner) - 1) : 0;
    if (p->part && !e->way.way.select.part)
        return err_set(err, INGLE_UNSUP,
                       "kv_select: '%s' needs 4-bit copies of the keys, and there are none without "
                       "--kv-select (1/16; or 1/1: "
                       "all pages are read unless a request says otherwise)",
                       how);
    if (most > room)
        return err_set(err, INGLE_LIMIT,
                       "kv_select: '%s' reads up to %lld pages of a context of %lld tokens; with "
                       "--kv-disk there is room for "
                       "%lld, which --kv-select says",
                       how, (long long)most, (long long)session_runner_n_ctx(e->runner),
                       (long long)room);
    return INGLE_OK;
}

static struct kern_select usual_select(const struct kern_select *said)
{
    return said->part > 1 ? *said : (struct kern_select){USUAL_PART, KERN_SELECT_LEAST};
}

ingle_status engine_way_choose(const struct ingle_engine *e, enum kv_way_kind kind, const char *how,
                               struct kv_way *way, bool *unsupported, struct err *err)
{
    const struct kern_select usual = usual_select(&e->way.way.select);
    struct kv_way w = e->way.way;
    const ingle_status st =
        how ? kv_way_parse(kind, names[kind].request, how, &usual, &w, err) : INGLE_OK;
    if (st)
        return st;
    *unsupported = e->way.why[kind] && (kind == KV_WAY_SPARSE ? w.sparse != 0 : w.select.part > 1);
    if (kind == KV_WAY_SPARSE) {
        way->sparse = *unsupported ? 0 : w.sparse;
        return INGLE_OK;
    }
    if (*unsupported || w.select.part <= 1)
        w.select = (struct kern_select){0};
    const ingle_status room = check_select(e, how, &w.select, err);
    if (!room)
        way->select = w.select;
    return room;
}

ingle_status ingle_way_check(enum ingle_way_kind kind, const char *how, struct ingle_error *error)
{
    struct err err;
    struct kv_way w = {0};
    const struct kern_select usual = usual_select(&w.select);
    return engine_say(error,
                      kv_way_parse((enum kv_way_kind)kind, names[kind].request, how, &usual, &w,
                                   &err),
                      &err);
}

ingle_status ingle_session_set_way(struct ingle_session *s, enum ingle_way_kind kind,
                                   const char *how, struct ingle_error *error)
{
    struct err err;
    struct kv_way way = session_way(s->s);
    bool unsupported;
    const ingle_status st =
        engine_way_choose(s->e, (enum kv_way_kind)kind, how, &way, &unsupported, &err);
    if (st)
        return engine_say(error, st, &err);
    if (unsupported)
        engine_way_refuse(s->e, (enum kv_way_kind)kind);
    session_set_way(s->s, &way);
    engine_drawing_turn(s);
    return INGLE_OK;
}

void ingle_session_way(const struct ingle_session *s, struct ingle_way *out)
{
    const struct kv_way way = session_way(s->s);
    for (int k = 0; k < INGLE_WAYS; k++)
        kv_way_text((enum kv_way_kind)k, &way, out->text[k], sizeof out->text[k]);
}

void ingle_session_prompt(struct ingle_session *s, bool is_one)
{
    session_prompt(s->s, is_one ? session_length(s->s) + session_pending(s->s) : -1);
}

/* ---- what was left out ---- */

static double larger(double a, double b) { return a > b ? a : b; }

void ingle_way_use_add(struct ingle_way_use *to, const struct ingle_way_use *more)
{
    struct ingle_sparse *p = &to->sparse;
    struct ingle_select *a = &to->select;
    p->pairs += more->sparse.pairs;
    p->missed += more->sparse.missed;
    p->n_read += more->sparse.n_read;
    p->n_seen += more->sparse.n_seen;
    p->most = larger(p->most, more->sparse.most);
    a->pairs += more->select.pairs;
    a->missed += more->select.missed;
    a->checked += more->select.checked;
    a->missed_true += more->select.missed_true;
    a->pages_read += more->select.pages_read;
    a->pages_seen += more->select.pages_seen;
    a->bytes_read += more->select.bytes_read;
    a->most = larger(a->most, more->select.most);
    a->most_true = larger(a->most_true, more->select.most_true);
}

struct ingle_way_use engine_way_take(struct session *s)
{
    const struct session_seen seen = session_take_seen(s);
    const struct kern_sparse_seen *p = &seen.sparse;
    const struct kern_select_seen *a = &seen.select;
    return (struct ingle_way_use){
        .sparse = {.pairs = p->pairs,
                   .missed = (double)p->missed * 0x1p-32,
                   .most = (double)p->most,
                   .n_read = p->kept,
                   .n_seen = p->seen},
        .select = {.pairs = a->pairs,
                   .missed = (double)a->missed * 0x1p-32,
                   .most = (double)a->most,
                   .checked = a->checked,
                   .missed_true = (double)a->missed_true * 0x1p-32,
                   .most_true = (double)a->most_true,
                   .pages_read = a->pages_read,
                   .pages_seen = a->pages_seen,
                   .bytes_read = a->bytes_read}};
}

static void report_sparse(const struct ingle_engine *e, const char *subject, uint32_t sparse,
                          const struct ingle_sparse *s)
{
    report(&e->sink, INGLE_REPORT_NOTE, names[KV_WAY_SPARSE].option, subject,
           "values of weights below 1/%d of the sum were replaced by page means: missed %.2g %% on "
           "average, %.2g %% at most; %.0f %% of "
           "values read",
           1 << kv_sparse_bits(sparse), 100 * s->missed / (double)s->pairs, 100 * s->most,
           s->n_seen ? 100 * (double)s->n_read / (double)s->n_seen : 0.0);
}

static void report_select(const struct ingle_engine *e, const char *subject,
                          const struct ingle_select *s)
{
    char measured[96] = "";
    if (s->checked)
        snprintf(measured, sizeof measured, "; measured %.2g %%, %.2g %%",
                 100 * s->missed_true / (double)s->checked, 100 * s->most_true);
    report(&e->sink, INGLE_REPORT_NOTE, names[KV_WAY_SELECT].option, subject,
           "pages of small weights were replaced by their means: missed %.2g %% on average, %.2g "
           "%% at most (estimated)%s; %.1f %% of pages "
           "read, %.1f MiB",
           100 * s->missed / (double)s->pairs, 100 * s->most, measured,
           100 * (double)s->pages_read / (double)s->pages_seen, (double)s->bytes_read / (1 << 20));
}

void engine_way_report(const struct ingle_engine *e, enum kv_way_kind kind, uint32_t sparse,
                       const struct ingle_way_use *use)
{
    char subject[48];
    snprintf(subject, sizeof subject, "attention of %lld layer%s", (long long)e->way.n_layers,
             e->way.n_layers == 1 ? "" : "s");
    if (kind == KV_WAY_SPARSE && use->sparse.pairs && sparse)
        report_sparse(e, subject, sparse, &use->sparse);
    if (kind == KV_WAY_SELECT && use->select.pairs)
        report_select(e, subject, &use->select);
}

void engine_way_moved(struct ingle_session *s)
{
    const struct ingle_way_use more = engine_way_take(s->s);
    ingle_way_use_add(&s->use, &more);
    if (s->sparse_reported || !s->use.sparse.pairs || session_pending(s->s))
        return;
    s->sparse_reported = true;
    engine_way_report(s->e, KV_WAY_SPARSE, session_way(s->s).sparse, &s->use);
}

void engine_way_end(struct ingle_session *s)
{
    engine_way_report(s->e, KV_WAY_SELECT, 0, &s->use);
    s->use = (struct ingle_way_use){0};
    s->sparse_reported = false;
}

void ingle_session_way_use(const struct ingle_session *s, struct ingle_way_use *out)
{
    *out = s->use;
}
