/* SPDX-License-Identifier: Apache-2.0 */
/* pick - answers whose rows read chosen pages: what is asked for, whether it can be, what it left out. */
#include "engine/engine.h"

#include <stdio.h>
#include <string.h>

static const char kind[] = "kv-select";

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

ingle_status engine_pick_parse(const char *what, const char *text, struct kern_pick *pick, struct err *err)
{
    struct kern_pick p = {.part = 0, .least = KERN_PICK_LEAST};
    if (!text || strcmp(text, "off") == 0) {
        *pick = (struct kern_pick){0};
        return INGLE_OK;
    }
    const size_t n = strcspn(text, ",");
    if (n < 3 || memcmp(text, "1/", 2) != 0 || !read_number(text + 2, n - 2, 1, KERN_PICK_PART_MOST, &p.part))
        return err_set(err, INGLE_ARG, "%s: '%.60s' is neither off nor 1/N with N from 1 to %d", what, text, KERN_PICK_PART_MOST);
    static const char least[] = ",least=";
    const size_t n_least = sizeof least - 1;
    if (text[n] && (strncmp(text + n, least, n_least) != 0 ||
                    !read_number(text + n + n_least, strlen(text + n + n_least), KERN_PICK_ALWAYS, KERN_PICK_LEAST_MOST, &p.least)))
        return err_set(err, INGLE_ARG, "%s: '%.60s' is not least=PAGES with %d to %d pages", what, text + n + 1, KERN_PICK_ALWAYS,
                       KERN_PICK_LEAST_MOST);
    *pick = p;
    return INGLE_OK;
}

void engine_pick_text(const struct kern_pick *p, char *out, size_t n)
{
    if (!p->part)
        snprintf(out, n, "off");
    else if (p->least == KERN_PICK_LEAST)
        snprintf(out, n, "1/%lld", (long long)p->part);
    else
        snprintf(out, n, "1/%lld,least=%lld", (long long)p->part, (long long)p->least);
}

ingle_status engine_pick_open(struct ingle_engine *e, const struct ingle_engine_options *o, struct err *err)
{
    struct kv_types types;
    struct kv_spec kv = {0};
    char least[24] = "";
    ingle_status st = engine_pick_parse("kv-select", o->kv_select, &e->pick, err);
    if (!st)
        st = kv_types_parse(o->kv, o->kv_k, o->kv_v, o->kv_layers, &types, err);
    if (!st)
        st = e->family->kv(e->self, &types, &kv, err);
    if (st)
        return st;
    e->pick_why = family_pick_refuses(e->device, &kv);
    kv_spec_release(&kv);
    if (!e->pick.part)
        return INGLE_OK;
    if (e->pick_why) {
        report(&e->sink, INGLE_REPORT_WARN, kind, "attention", "not used, answers read all keys and values: %s", e->pick_why);
        e->pick = (struct kern_pick){0};
        return INGLE_OK;
    }
    report(&e->sink, INGLE_REPORT_NOTE, kind, "attention",
           "rows of answers read 1/%lld of the pages of 128 tokens, and no fewer than %lld; what they miss is estimated, and measured at every "
           "%dth: answers change", (long long)e->pick.part, (long long)e->pick.least, KERN_PICK_EVERY);
    if (e->pick.least != KERN_PICK_LEAST)
        snprintf(least, sizeof least, "-p%lld", (long long)e->pick.least);
    snprintf(e->picked, sizeof e->picked, "%.40s+sel%lld%s", e->numerics, (long long)e->pick.part, least);
    e->numerics = e->picked;
    return INGLE_OK;
}

void engine_pick_join(struct ingle_select *sum, const struct ingle_select *more)
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

void engine_pick_add(struct ingle_select *sum, const struct kern_pick_seen *n)
{
    const struct ingle_select more = {.pairs = n->pairs, .missed = (double)n->missed * 0x1p-32, .most = (double)n->most,
                                      .checked = n->checked, .missed_true = (double)n->missed_true * 0x1p-32, .most_true = (double)n->most_true,
                                      .pages_read = n->pages_read, .pages_seen = n->pages_seen, .bytes_read = n->bytes_read};
    engine_pick_join(sum, &more);
}

void engine_pick_report(const struct ingle_engine *e, const struct ingle_select *s)
{
    char subject[48], measured[96] = "";
    if (!s->pairs)
        return;
    snprintf(subject, sizeof subject, "attention of %lld layer%s", (long long)e->n_few_layers, e->n_few_layers == 1 ? "" : "s");
    if (s->checked)
        snprintf(measured, sizeof measured, "; measured %.2g %%, %.2g %%", 100 * s->missed_true / (double)s->checked, 100 * s->most_true);
    report(&e->sink, INGLE_REPORT_NOTE, kind, subject,
           "pages of small weights were replaced by their means: missed %.2g %% on average, %.2g %% at most (estimated)%s; %.1f %% of pages "
           "read, %.1f MiB", 100 * s->missed / (double)s->pairs, 100 * s->most, measured,
           100 * (double)s->pages_read / (double)s->pages_seen, (double)s->bytes_read / (1 << 20));
}

void engine_pick_tell(struct ingle_session *s)
{
    engine_pick_report(s->e, &s->select);
    s->select = (struct ingle_select){0};
}

void engine_pick_take(struct ingle_session *s)
{
    const struct kern_pick_seen seen = session_pick_take(s->s);
    engine_pick_add(&s->select, &seen);
}

void ingle_session_select(const struct ingle_session *s, struct ingle_select *out)
{
    *out = s->select;
}

void ingle_session_prompt(struct ingle_session *s, bool is_one)
{
    session_prompt(s->s, is_one ? session_length(s->s) + session_pending(s->s) : -1);
}
