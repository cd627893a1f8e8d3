/*
 * build - inside the room: rules are made.
 */
#ifndef INGLE_GRAMMAR_BUILD_H
#define INGLE_GRAMMAR_BUILD_H

#include "grammar/impl.h"

/* ---- building ---- */

struct grammar_set_slot {
    uint32_t hash, set; /* set + 1; 0: empty */
};

struct grammar_builder {
    struct grammar *g;
    struct grammar_work *work; /* shared by the builders of one grammar */
    struct grammar_set_slot *slot;
    size_t n_slots;
    struct err *err; /* of the first failure */
    bool no_text;    /* it was that no text fits */
    ingle_status status;
};

/* A piece of a rule: entered at in, left through out, a JUMP that is not tied yet. */
struct grammar_piece {
    uint32_t in, out;
};

/* A range of code points. */
struct grammar_range {
    uint32_t first, last;
};

/* A list of ranges: sorted and disjoint except for those that were added since grammar_g_sorted().
 */
struct grammar_class {
    struct grammar_range *at;
    size_t n, cap;
    bool mixed; /* not sorted, or not disjoint */
};

/* work is borrowed until grammar_g_end(). */
MUST_CHECK ingle_status grammar_g_begin(struct grammar_builder *b, struct grammar_work *work,
                                     struct err *err);
/* Checks the grammar and hands it out, or frees it: returns b's status.  root: a rule. */
MUST_CHECK ingle_status grammar_g_end(struct grammar_builder *b, uint32_t root,
                                   struct grammar **out);
ATTR_PRINTF(3, 4)
void grammar_g_fail(struct grammar_builder *b, ingle_status st, const char *fmt, ...);
void grammar_g_nomem(struct grammar_builder *b);
static inline bool grammar_g_ok(const struct grammar_builder *b)
{
    return b->status == INGLE_OK;
}
/* Steps are done, bytes taken.  False: b has failed, by a limit, or because it is to stop. */
enum { GRAMMAR_CHECK_STEPS = 1 << 12 };
bool grammar_g_check_limits(struct grammar_builder *b);
static inline bool grammar_g_step(struct grammar_builder *b, uint64_t n)
{
    const uint64_t before = b->work->n_steps;
    b->work->n_steps += n;
    return (before ^ b->work->n_steps) < GRAMMAR_CHECK_STEPS ? grammar_g_ok(b)
                                                             : grammar_g_check_limits(b);
}
bool grammar_g_spend(struct grammar_builder *b, uint64_t n_bytes);

uint32_t grammar_g_node(struct grammar_builder *b, enum grammar_kind kind, uint32_t a, uint32_t x);
/* A rule without a body.  name (may be NULL) is copied. */
uint32_t grammar_g_rule(struct grammar_builder *b, const char *name, size_t n);
void grammar_g_body(struct grammar_builder *b, uint32_t rule, struct grammar_piece p);
uint32_t grammar_g_set(struct grammar_builder *b, const struct grammar_set *s);

/* What leaves p goes on at `to`. */
void grammar_g_tie(struct grammar_builder *b, struct grammar_piece p, uint32_t to);
struct grammar_piece grammar_g_empty(struct grammar_builder *b);
struct grammar_piece grammar_g_never(struct grammar_builder *b);
struct grammar_piece grammar_g_byte_range(struct grammar_builder *b, unsigned first, unsigned last);
struct grammar_piece grammar_g_literal(struct grammar_builder *b, const char *bytes, size_t n);
struct grammar_piece grammar_g_word(struct grammar_builder *b, const char *word);
struct grammar_piece grammar_g_class(struct grammar_builder *b, struct grammar_class *c);
struct grammar_piece grammar_g_token(struct grammar_builder *b, int32_t id);
struct grammar_piece grammar_g_call(struct grammar_builder *b, uint32_t rule);
struct grammar_piece grammar_g_cat(struct grammar_builder *b, struct grammar_piece x,
                                struct grammar_piece y);
struct grammar_piece grammar_g_alt(struct grammar_builder *b, struct grammar_piece x,
                                struct grammar_piece y);
struct grammar_piece grammar_g_opt(struct grammar_builder *b, struct grammar_piece x);
struct grammar_piece grammar_g_star(struct grammar_builder *b, struct grammar_piece x);
struct grammar_piece grammar_g_plus(struct grammar_builder *b, struct grammar_piece x);
/* max GRAMMAR_INFINITE: no end. */
struct grammar_piece grammar_g_repeat(struct grammar_builder *b, struct grammar_piece x,
                                      uint32_t min, uint32_t max);

/* A place from which each of the n rules (at most GRAMMAR_MAX_ONCE) may be taken, but once (in all
 * at most `most` of them; 0: any number), and `other` (may be NULL) any number of times; `before`
 * (may be NULL) comes in front of the one that is taken, so not when none is left; `behind` is
 * where each goes on.  In a rule of its own: its counter says which were used. */
uint32_t grammar_g_any_order(struct grammar_builder *b, const uint32_t *rule, size_t n,
                             uint32_t most, const uint32_t *other, const uint32_t *before,
                             uint32_t next_node);

/* Each fails b when memory is out. */
void grammar_g_sorted(struct grammar_builder *b, struct grammar_class *c);
void grammar_g_range(struct grammar_builder *b, struct grammar_class *c, uint32_t first,
                  uint32_t last);
void grammar_g_invert(struct grammar_builder *b, struct grammar_class *c);
/* Takes a range of code points out. */
void grammar_g_without(struct grammar_builder *b, struct grammar_class *c, uint32_t first,
                    uint32_t last);
/* Takes all of `other` out. */
void grammar_g_subtract(struct grammar_builder *b, struct grammar_class *c,
                        struct grammar_class *other);
void grammar_g_class_release(struct grammar_class *c);

/* Alternatives that begin alike share their beginning. */
void grammar_g_factor(struct grammar_builder *b);
/* Checks and finishes g; names rules. */
ingle_status grammar_g_check(struct grammar *g, bool *no_text, struct err *err);

#endif
