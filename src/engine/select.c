/* SPDX-License-Identifier: Apache-2.0 */
/* select - answers whose rows read chosen pages: what is asked for, whether it can be, what it left
 * out. */
#include "engine/engine.h"
#include "engine/way.h"
#include "engine/session.h"

#include <stdio.h>
#include <string.h>

static const char kind[] = "kv-select";
enum { USUAL_PART = 16 }; /* of who only says "on" */

static bool read_number(const char *text, size_t n, int64_t least, int64_t most, int64_t *out)
{
    int64_t v = 0;
    for (size_t i = 0; i < n; i++) {
        if (text[i] < '0' || text[i] > '9' || v > most)
            return false;
        v = v * 10 + (text[i] - '0');
    }
    *out = v;
    return n && v >= least && v <= most;
}

ingle_status engine_select_parse(const char *what, const char *text, struct kern_select *select,
                               struct err *err)
{
    struct kern_select p = {.part = 0, .least = KERN_SELECT_LEAST};
    if (!text || strcmp(text, "off") == 0) {
        *select = (struct kern_select){0};
        return INGLE_OK;
    }
    if (strlen(text) >= INGLE_SELECT_TEXT)
        return err_set(err, INGLE_ARG, "%s: '%.60s' has %zu bytes, more than %d", what, text,
                       strlen(text), INGLE_SELECT_TEXT - 1);
    const size_t n = strcspn(text, ",");
    if (n < 3 || memcmp(text, "1/", 2) != 0 ||
        !read_number(text + 2, n - 2, 1, KERN_SELECT_PART_MOST, &p.part))
        return err_set(err, INGLE_ARG, "%s: '%.60s' is neither off nor 1/N with N from 1 to %d",
                       what, text, KERN_SELECT_PART_MOST);
    static const char least[] = ",least=";
    const size_t n_least = sizeof least - 1;
    if (text[n] && (strncmp(text + n, least, n_least) != 0 ||
                    !read_number(text + n + n_least, strlen(text + n + n_least), KERN_SELECT_ALWAYS,
                                 KERN_SELECT_LEAST_MOST, &p.least)))
        return err_set(err, INGLE_ARG, "%s: '%.60s' is not least=PAGES with %d to %d pages", what,
                       text + n + 1, KERN_SELECT_ALWAYS, KERN_SELECT_LEAST_MOST);
    *select = p;
    return INGLE_OK;
}

void engine_select_text(const struct kern_select *p, char *out, size_t n)
{
    if (!p->part)
        snprintf(out, n, "off");
    else if (p->least == KERN_SELECT_LEAST)
        snprintf(out, n, "1/%lld", (long long)p->part);
    else
        snprintf(out, n, "1/%lld,least=%lld", (long long)p->part, (long long)p->least);
}

ingle_status engine_select_open(struct ingle_engine *e, const struct ingle_engine_options *o,
                              struct err *err)
{
    struct kv_types types;
    struct kv_spec kv = {0};
    ingle_status st = engine_select_parse("kv-select", o->kv_select, &e->select, err);
    if (!st)
        st = kv_types_parse(o->kv, o->kv_k, o->kv_v, o->kv_layers, &types, err);
    if (!st)
        st = e->family->kv(e->self, &types, &kv, err);
    if (st)
        return st;
    e->select_why = family_select_refuses(e->device, &kv);
    kv_spec_release(&kv);
    if (!e->select.part)
        return INGLE_OK;
    if (e->select_why) {
        engine_select_refuse(e);
        e->select = (struct kern_select){0};
        return INGLE_OK;
    }
    if (e->select.part > 1)
        report(&e->sink, INGLE_REPORT_NOTE, kind, "attention",
               "rows of answers read 1/%lld of the pages of 128 tokens, and no fewer than %lld; "
               "what they miss is estimated, and measured at "
               "every %dth: answers change",
               (long long)e->select.part, (long long)e->select.least, KERN_SELECT_EVERY);
    else
        report(&e->sink, INGLE_REPORT_NOTE, kind, "attention",
               "4-bit copies of keys are kept; rows of answers read all pages unless their request "
               "says otherwise");
    return INGLE_OK;
}

void engine_select_refuse(struct ingle_engine *e)
{
    if (e->select_told)
        return;
    e->select_told = true;
    report(&e->sink, INGLE_REPORT_WARN, kind, "attention",
           "not used, answers read all keys and values: %s", e->select_why);
}

/* Of a request or session: one word more. */
static ingle_status parse_asked(const char *text, const struct kern_select *usual,
                                struct kern_select *select, struct err *err)
{
    if (strcmp(text, "on") != 0)
        return engine_select_parse("kv_select", text, select, err);
    *select = usual->part > 1 ? *usual : (struct kern_select){USUAL_PART, KERN_SELECT_LEAST};
    return INGLE_OK;
}

ingle_status ingle_select_check(const char *how, struct ingle_error *error)
{
    struct err err;
    struct kern_select select, none = {0};
    return engine_say(error, how ? parse_asked(how, &none, &select, &err) : INGLE_OK, &err);
}

ingle_status engine_select_choose(const struct ingle_engine *e, const char *how,
                                struct kern_select *select, bool *in_vain, struct err *err)
{
    struct kern_select p = e->select;
    const ingle_status st = how ? parse_asked(how, &e->select, &p, err) : INGLE_OK;
    if (st)
        return st;
    *in_vain = p.part > 1 && e->select_why;
    if (*in_vain || p.part <= 1)
        p = (struct kern_select){0};
    const int64_t room = session_select_room(e->runner),
                  most = p.part ? kern_select_budget(&p, session_runner_n_ctx(e->runner) - 1) : 0;
    if (p.part && !e->select.part)
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
    *select = p;
    return INGLE_OK;
}

ingle_status ingle_session_set_select(struct ingle_session *s, const char *how,
                                      struct ingle_error *error)
{
    struct err err;
    struct kern_select select;
    bool in_vain;
    const ingle_status st = engine_select_choose(s->e, how, &select, &in_vain, &err);
    if (st)
        return engine_say(error, st, &err);
    if (in_vain)
        engine_select_refuse(s->e);
    session_set_select(s->s, &select);
    engine_drawing_turn(s);
    return INGLE_OK;
}

void ingle_session_select_text(const struct ingle_session *s, char *out, size_t n)
{
    const struct kern_select select = session_select(s->s);
    engine_select_text(&select, out, n);
}

void engine_select_join(struct ingle_select *sum, const struct ingle_select *more)
{
    sum->pairs += more->pairs;
    sum->missed += more->missed;
    sum->checked += more->checked;
    sum->missed_true += more->missed_true;
    sum->pages_read += more->pages_read;
    sum->pages_seen += more->pages_seen;
    sum->bytes_read += more->bytes_read;
    sum->most = more->most > sum->most ? more->most : sum->most;
    sum->most_true = more->most_true > sum->most_true ? more->most_true : sum->most_true;
}

void engine_select_add(struct ingle_select *sum, const struct kern_select_seen *n)
{
    const struct ingle_select more = {.pairs = n->pairs,
                                      .missed = (double)n->missed * 0x1p-32,
                                      .most = (double)n->most,
                                      .checked = n->checked,
                                      .missed_true = (double)n->missed_true * 0x1p-32,
                                      .most_true = (double)n->most_true,
                                      .pages_read = n->pages_read,
                                      .pages_seen = n->pages_seen,
                                      .bytes_read = n->bytes_read};
    engine_select_join(sum, &more);
}

void engine_select_report(const struct ingle_engine *e, const struct ingle_select *s)
{
    char subject[48], measured[96] = "";
    if (!s->pairs)
        return;
    snprintf(subject, sizeof subject, "attention of %lld layer%s", (long long)e->n_sparse_layers,
             e->n_sparse_layers == 1 ? "" : "s");
    if (s->checked)
        snprintf(measured, sizeof measured, "; measured %.2g %%, %.2g %%",
                 100 * s->missed_true / (double)s->checked, 100 * s->most_true);
    report(&e->sink, INGLE_REPORT_NOTE, kind, subject,
           "pages of small weights were replaced by their means: missed %.2g %% on average, %.2g "
           "%% at most (estimated)%s; %.1f %% of pages "
           "read, %.1f MiB",
           100 * s->missed / (double)s->pairs, 100 * s->most, measured,
           100 * (double)s->pages_read / (double)s->pages_seen, (double)s->bytes_read / (1 << 20));
}

void engine_select_tell(struct ingle_session *s)
{
    engine_select_report(s->e, &s->select);
    s->select = (struct ingle_select){0};
}

void engine_select_take(struct ingle_session *s)
{
    const struct kern_select_seen seen = session_select_take(s->s);
    engine_select_add(&s->select, &seen);
}

void ingle_session_select(const struct ingle_session *s, struct ingle_select *out)
{
    *out = s->select;
}

void ingle_session_prompt(struct ingle_session *s, bool is_one)
{
    session_prompt(s->s, is_one ? session_length(s->s) + session_pending(s->s) : -1);
}
