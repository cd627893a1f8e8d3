/* SPDX-License-Identifier: Apache-2.0 */
/*
 * grammar_meet - the texts that fit several grammars at once, and others not at all, as one piece.
 *
 * A matcher makes each grammar deterministic; a state here is one of each of their states.  States
 * from which no text ends are left out.
 */
#include "grammar/form.h"

#include "base/mem.h"
#include "grammar/match.h"
#include <string.h>

enum { MEET_MAX_STATES = 1 << 15, NOWHERE = -1 };

struct meet {
    struct grammar_builder *b;
    const struct meet_part *part;
    size_t n_parts;
    struct grammar_matcher **matcher; /* [n_parts] */
    uint64_t n_steps;                 /* of the matchers, that were counted */
    struct err err;

    uint8_t class_of[256], sample[256];
    uint32_t n_classes;
    /* of a class: as they stand, and after a backslash */
    struct grammar_set plain[256], letters[256];

    uint32_t *tuple; /* [n_states][n_parts] */
    int32_t *trans;  /* [n_states][n_classes] */
    uint8_t *alive;  /* [n_states] */
    size_t n_states, cap_tuple, cap_trans;
    uint32_t *slot; /* state + 1 */
    size_t n_slots;
};

static bool failed(struct meet *m)
{
    for (size_t i = 0; i < m->n_parts; i++)
        if (m->matcher[i]->status)
            grammar_g_fail(m->b, m->matcher[i]->status, "%s", m->err.msg);
    return !grammar_g_ok(m->b);
}

/* ---- bytes that are the same to all parts ---- */

static void split_classes(struct meet *m)
{
    memset(m->class_of, 0, sizeof m->class_of);
    m->n_classes = 1;
    for (size_t i = 0; i < m->n_parts; i++) {
        const struct grammar *g = m->part[i].g;
        int16_t number[256];
        uint8_t next[256];
        uint32_t n = 0;
        for (unsigned c = 0; c < 256; c++) {
            unsigned k = 0; /* an earlier byte of the same class in both */
            while (k < c && (m->class_of[k] != m->class_of[c] || g->class_of[k] != g->class_of[c]))
                k++;
            number[c] = k < c ? number[k] : (int16_t)n++;
            next[c] = (uint8_t)number[c];
        }
        memcpy(m->class_of, next, sizeof next);
        m->n_classes = n;
    }
    for (unsigned c = 256; c-- > 0;)
        m->sample[m->class_of[c]] = (uint8_t)c;
}

static void put_byte(struct grammar_set *s, unsigned c)
{
    s->bit[c >> 6] |= (uint64_t)1 << (c & 63);
}

/* How the bytes of each class are written. */
static void spell_classes(struct meet *m, const struct grammar_form *f)
{
    static const char plain[] = "\"\\\b\f\n\r\t", letter[] = "\"\\bfnrt";
    const bool json = f && (f->kind == FORM_JSON || f->kind == FORM_DSML);
    for (unsigned c = 0; c < 256; c++) {
        const char *special = json && c ? memchr(plain, (int)c, sizeof plain - 1) : NULL;
        if (special)
            put_byte(&m->letters[m->class_of[c]], (unsigned char)letter[special - plain]);
        else
            put_byte(&m->plain[m->class_of[c]], c);
    }
}

/* ---- states ---- */

static uint32_t hash_tuple(const uint32_t *t, size_t n)
{
    uint64_t h = n;
    for (size_t i = 0; i < n; i++)
        h = (h ^ t[i]) * 0x9E3779B97F4A7C15u ^ h >> 31;
    return (uint32_t)(h >> 32);
}

static bool grow_slots(struct meet *m)
{
    const size_t n = m->n_slots ? 2 * m->n_slots : 256;
    uint32_t *slot = mem_calloc(n, sizeof *slot);
    if (!slot)
        return false;
    for (size_t s = 0; s < m->n_states; s++) {
        size_t at = hash_tuple(m->tuple + s * m->n_parts, m->n_parts) & (n - 1);
        while (slot[at])
            at = (at + 1) & (n - 1);
        slot[at] = (uint32_t)s + 1;
    }
    mem_free(m->slot);
    m->slot = slot;
    m->n_slots = n;
    return true;
}

static bool is_dead(const struct meet *m, const uint32_t *t)
{
    for (size_t i = 0; i < m->n_parts; i++)
        if (!m->part[i].inverse && t[i] == MATCH_DEAD)
            return true;
    return false;
}

static bool accepts(const struct meet *m, size_t s)
{
    for (size_t i = 0; i < m->n_parts; i++)
        if (m->matcher[i]->states[m->tuple[s * m->n_parts + i]].may_end == m->part[i].inverse)
            return false;
    return true;
}

/* The number of a tuple, NOWHERE if nothing can follow. */
static int32_t state_of(struct meet *m, const uint32_t *t)
{
    if (is_dead(m, t))
        return NOWHERE;
    if (2 * (m->n_states + 1) > m->n_slots && !grow_slots(m)) {
        grammar_g_nomem(m->b);
        return NOWHERE;
    }
    size_t at = hash_tuple(t, m->n_parts) & (m->n_slots - 1);
    for (; m->slot[at]; at = (at + 1) & (m->n_slots - 1))
        if (memcmp(m->tuple + (m->slot[at] - 1) * m->n_parts, t, m->n_parts * sizeof *t) == 0)
            return (int32_t)(m->slot[at] - 1);
    if (m->n_states == MEET_MAX_STATES)
        grammar_g_fail(m->b, INGLE_UNSUP,
                       "look-ahead, lengths and formats of a text have together more than the "
                       "limit of %d states",
                       MEET_MAX_STATES);
    else if (!mem_grow(&m->tuple, &m->cap_tuple, (m->n_states + 1) * m->n_parts,
                       sizeof *m->tuple) ||
             !mem_grow(&m->trans, &m->cap_trans, (m->n_states + 1) * m->n_classes,
                       sizeof *m->trans))
        grammar_g_nomem(m->b);
    if (!grammar_g_ok(m->b))
        return NOWHERE;
    memcpy(m->tuple + m->n_states * m->n_parts, t, m->n_parts * sizeof *t);
    m->slot[at] = (uint32_t)++m->n_states;
    return (int32_t)(m->n_states - 1);
}

static void count_steps(struct meet *m)
{
    uint64_t n = 0;
    for (size_t i = 0; i < m->n_parts; i++)
        n += m->matcher[i]->n_steps;
    (void)grammar_g_step(m->b, n - m->n_steps);
    m->n_steps = n;
}

static void follow(struct meet *m, size_t s)
{
    uint32_t t[MEET_MAX_PARTS];
    for (uint32_t k = 0; k < m->n_classes && !failed(m); k++) {
        for (size_t i = 0; i < m->n_parts; i++)
            t[i] = grammar_match_step(m->matcher[i], m->tuple[s * m->n_parts + i], m->sample[k]);
        const int32_t to = failed(m) ? NOWHERE : state_of(m, t);
        m->trans[s * m->n_classes + k] = to;
    }
    (void)grammar_g_step(m->b, m->n_classes * m->n_parts / 4);
    count_steps(m);
}

/* ---- those that lead to an end ---- */

static bool find_alive(struct meet *m)
{
    const size_t n = m->n_states, n_edges = n * m->n_classes;
    uint32_t *first = mem_calloc(n + 2, sizeof *first),
             *from = mem_calloc(n_edges + 1, sizeof *from);
    uint32_t *todo = mem_calloc(n + 1, sizeof *todo);
    size_t n_todo = 0;
    m->alive = mem_calloc(n + 1, 1);
    const bool ok = first && from && todo && m->alive;
    for (size_t e = 0; ok && e < n_edges; e++)
        if (m->trans[e] >= 0)
            first[m->trans[e] + 2]++;
    for (size_t s = 2; ok && s < n + 2; s++)
        first[s] += first[s - 1];
    for (size_t e = 0; ok && e < n_edges; e++)
        if (m->trans[e] >= 0)
            from[first[m->trans[e] + 1]++] = (uint32_t)(e / m->n_classes);
    for (size_t s = 0; ok && s < n; s++)
        if (accepts(m, s)) {
            m->alive[s] = 1;
            todo[n_todo++] = (uint32_t)s;
        }
    while (ok && n_todo) {
        const uint32_t s = todo[--n_todo];
        for (uint32_t e = first[s]; e < first[s + 1]; e++)
            if (!m->alive[from[e]]) {
                m->alive[from[e]] = 1;
                todo[n_todo++] = from[e];
            }
    }
    mem_free(first);
    mem_free(from);
    mem_free(todo);
    if (!ok)
        grammar_g_nomem(m->b);
    return ok && grammar_g_step(m->b, n_edges / 4);
}

/* ---- as nodes ---- */

static bool is_empty(const struct grammar_set *s)
{
    return !(s->bit[0] | s->bit[1] | s->bit[2] | s->bit[3]);
}

static void add_set(struct grammar_set *to, const struct grammar_set *s)
{
    for (int i = 0; i < 4; i++)
        to->bit[i] |= s->bit[i];
}

/* One way out of a state: bytes that lead to `to`, joined to what is there already (0: nothing). */
static uint32_t add_way(struct meet *m, uint32_t at, const struct grammar_set *plain,
                        const struct grammar_set *letters, uint32_t to)
{
    struct grammar_set backslash = {{0}};
    put_byte(&backslash, '\\');
    for (int k = 0; k < 2; k++) {
        const struct grammar_set *s = k ? letters : plain;
        if (is_empty(s))
            continue;
        uint32_t node = grammar_g_node(m->b, GRAMMAR_BYTES, to, grammar_g_set(m->b, s));
        if (k)
            node = grammar_g_node(m->b, GRAMMAR_BYTES, node, grammar_g_set(m->b, &backslash));
        at = at ? grammar_g_node(m->b, GRAMMAR_SPLIT, node, at) : node;
    }
    return at;
}

/* in[]: a JUMP of each state that is alive. */
static void put_state(struct meet *m, size_t s, const uint32_t *in, uint32_t out)
{
    const int32_t *trans = m->trans + s * m->n_classes;
    uint32_t at = accepts(m, s) ? out : 0;
    for (uint32_t k = 0; k < m->n_classes && grammar_g_ok(m->b); k++) {
        struct grammar_set plain = {{0}}, letters = {{0}};
        bool first = trans[k] >= 0 && m->alive[trans[k]];
        for (uint32_t j = 0; j < k && first; j++)
            first = trans[j] != trans[k];
        for (uint32_t j = k; first && j < m->n_classes; j++)
            if (trans[j] == trans[k]) {
                add_set(&plain, &m->plain[j]);
                add_set(&letters, &m->letters[j]);
            }
        if (first)
            at = add_way(m, at, &plain, &letters, in[trans[k]]);
    }
    grammar_g_tie(m->b, (struct grammar_piece){in[s], in[s]}, at);
}

static struct grammar_piece put_states(struct meet *m)
{
    struct grammar_piece p = grammar_g_empty(m->b);
    uint32_t *in = mem_calloc(m->n_states + 1, sizeof *in);
    if (!in)
        grammar_g_nomem(m->b);
    for (size_t s = 0; in && s < m->n_states; s++)
        if (m->alive[s])
            in[s] = grammar_g_node(m->b, GRAMMAR_JUMP, 0, 0);
    for (size_t s = 0; in && s < m->n_states && grammar_g_step(m->b, m->n_classes); s++)
        if (m->alive[s])
            put_state(m, s, in, p.out);
    p.in = in ? in[0] : p.in;
    mem_free(in);
    return p;
}

/* ---- all of it ---- */

static bool open_matchers(struct meet *m)
{
    static const struct grammar_vocab none = {.n_words = 1};
    m->matcher = mem_calloc(m->n_parts, sizeof(struct grammar_matcher *));
    if (!m->matcher)
        grammar_g_nomem(m->b);
    for (size_t i = 0; m->matcher && i < m->n_parts; i++) {
        const ingle_status st =
            grammar_matcher_create(&m->matcher[i], m->part[i].g, &none, &m->err);
        if (st) {
            grammar_g_fail(m->b, st, "%s", m->err.msg);
            return false;
        }
        m->matcher[i]->err = &m->err;
    }
    return m->matcher != NULL;
}

static void release(struct meet *m)
{
    for (size_t i = 0; m->matcher && i < m->n_parts; i++)
        grammar_matcher_free(m->matcher[i]);
    mem_free(m->matcher);
    mem_free(m->tuple);
    mem_free(m->trans);
    mem_free(m->alive);
    mem_free(m->slot);
}

struct grammar_piece grammar_f_meet(struct grammar_builder *b, const struct grammar_form *f,
                                    const struct meet_part *part, size_t n, bool *empty)
{
    struct meet m = {.b = b, .part = part, .n_parts = n};
    struct grammar_piece p = {0};
    uint32_t start[MEET_MAX_PARTS];
    *empty = false;
    if (grammar_g_ok(b) && open_matchers(&m)) {
        split_classes(&m);
        spell_classes(&m, f);
        for (size_t i = 0; i < n; i++)
            start[i] = m.matcher[i]->state;
        *empty = state_of(&m, start) < 0;
        for (size_t s = 0; s < m.n_states && grammar_g_ok(b); s++)
            follow(&m, s);
        if (grammar_g_ok(b) && !*empty && find_alive(&m))
            *empty = !m.alive[0];
        if (grammar_g_ok(b))
            p = *empty ? grammar_g_never(b) : put_states(&m);
    }
    release(&m);
    return p;
}

/* ---- what is to meet ---- */

void grammar_f_meet_take(struct form_meeting *m, struct grammar_builder *own, const struct err *err,
                         struct grammar_piece p, bool inverse)
{
    struct grammar *g = NULL;
    const uint32_t root = grammar_g_rule(own, "text", 4);
    grammar_g_body(own, root, p);
    const ingle_status st = grammar_g_end(own, root, &g);
    if (st == INGLE_ARG && own->no_text)
        m->nothing = m->nothing || !inverse; /* no text fits: then none is forbidden */
    else if (st)
        grammar_g_fail(m->b, st, "%s", err->msg);
    else if (m->n == MEET_MAX_PARTS) {
        grammar_g_fail(m->b, INGLE_UNSUP,
                       "more than %d things that a text has to fit together are not supported",
                       MEET_MAX_PARTS);
        grammar_free(g);
    } else {
        m->part[m->n++] = (struct meet_part){g, inverse};
    }
}

bool grammar_f_meet_begin(struct form_meeting *m, struct grammar_builder *own, struct err *err)
{
    return grammar_g_ok(m->b) && !grammar_g_begin(own, m->b->work, err);
}

void grammar_f_meet_regex(struct form_meeting *m, const char *text, size_t n, bool whole,
                          bool inverse)
{
    struct grammar_builder own;
    struct err err = {0};
    if (grammar_f_meet_begin(m, &own, &err))
        grammar_f_meet_take(m, &own, &err,
                            grammar_f_regex(&own, NULL, text, n, whole, 0, GRAMMAR_INFINITE),
                            inverse);
}

/* All characters. */
static struct grammar_piece any_char(struct grammar_builder *b)
{
    struct grammar_class c = {0};
    grammar_g_range(b, &c, 0, 0x10FFFF);
    const struct grammar_piece p = grammar_g_class(b, &c);
    grammar_g_class_release(&c);
    return p;
}

void grammar_f_meet_length(struct form_meeting *m, uint32_t min, uint32_t max)
{
    struct grammar_builder own;
    struct err err = {0};
    if ((min || max != GRAMMAR_INFINITE) && grammar_f_meet_begin(m, &own, &err))
        grammar_f_meet_take(m, &own, &err, grammar_g_repeat(&own, any_char(&own), min, max), false);
}

void grammar_f_meet_words(struct form_meeting *m, struct json_object *words, bool inverse)
{
    struct grammar_builder own;
    struct err err = {0};
    if (!grammar_f_meet_begin(m, &own, &err))
        return;
    struct grammar_piece p = grammar_g_never(&own);
    json_object_object_foreach(words, key, value)
    {
        (void)value;
        p = grammar_g_alt(&own, grammar_g_word(&own, key), p);
    }
    grammar_f_meet_take(m, &own, &err, p, inverse);
}

/* The characters that can be written in a string of f, by themselves or after a backslash. */
static void put_chars(struct form_meeting *m, const struct grammar_form *f)
{
    static const char escaped[] = "\"\\\b\f\n\r\t";
    struct grammar_builder own;
    struct err err = {0};
    struct grammar_class c = {0};
    struct grammar_form of = *f;
    const struct form_mark mark = grammar_f_forbidden(f->kind);
    if (!grammar_f_meet_begin(m, &own, &err))
        return;
    of.b = &own;
    grammar_f_plain_chars(&of, &c);
    for (size_t i = 0; (f->kind == FORM_JSON || f->kind == FORM_DSML) && escaped[i]; i++)
        grammar_g_range(&own, &c, (unsigned char)escaped[i], (unsigned char)escaped[i]);
    if (mark.n) /* without its last character the mark cannot be written */
        grammar_g_without(&own, &c, mark.cp[mark.n - 1], mark.cp[mark.n - 1]);
    const struct grammar_piece p = grammar_g_star(&own, grammar_g_class(&own, &c));
    grammar_g_class_release(&c);
    grammar_f_meet_take(m, &own, &err, p, false);
}

/* The names of free members. */
static void put_names(struct form_meeting *m, const struct grammar_form *f)
{
    struct grammar_builder own;
    struct err err = {0};
    struct grammar_class first = {0}, other = {0};
    struct grammar_form of = *f;
    if (!grammar_f_meet_begin(m, &own, &err))
        return;
    of.b = &own;
    grammar_f_name_chars(&of, true, &first);
    grammar_f_name_chars(&of, false, &other);
    struct grammar_piece p = grammar_g_star(&own, grammar_g_class(&own, &other));
    if (f->kind == FORM_GEMMA)
        p = grammar_g_cat(&own, grammar_g_class(&own, &first), p);
    grammar_g_class_release(&first);
    grammar_g_class_release(&other);
    grammar_f_meet_take(m, &own, &err, p, false);
}

static struct grammar_piece meet_end(struct form_meeting *m, const struct grammar_form *f,
                                     bool *empty)
{
    struct grammar_piece p = {0};
    *empty = m->nothing;
    if (grammar_g_ok(m->b))
        p = m->nothing ? grammar_g_never(m->b) : grammar_f_meet(m->b, f, m->part, m->n, empty);
    while (m->n)
        grammar_free(m->part[--m->n].g);
    return p;
}

struct grammar_piece grammar_f_meet_raw(struct form_meeting *m, bool *empty)
{
    return meet_end(m, NULL, empty);
}

struct grammar_piece grammar_f_meet_string(struct form_meeting *m, struct grammar_form *f,
                                           bool *empty)
{
    put_chars(m, f);
    return meet_end(m, f, empty);
}

struct grammar_piece grammar_f_meet_name(struct form_meeting *m, struct grammar_form *f,
                                         bool *empty)
{
    put_names(m, f);
    return meet_end(m, NULL, empty);
}
