/*
 * way - how the rows of a timeline are computed, where that is not "each sees all before it".
 */
#ifndef INGLE_KV_WAY_H
#define INGLE_KV_WAY_H

#include "base/err.h"
#include "kern/kern.h"

enum kv_way_kind {
    KV_WAY_SPARSE, /* rows of prompts read the values of large weights (kern/sparse.h) */
    KV_WAY_SELECT, /* rows of answers choose pages (kern/select.h) */
    KV_WAY_GAPS,   /* parts of the text are left out */
    KV_WAYS
};

struct kv_gaps;
/* All zeros: each row sees all before it. */
struct kv_way {
    uint32_t sparse;           /* kv_sparse_of(); 0: prompts read all values */
    struct kern_select select; /* part 0: answers see all pages */
    struct kv_gaps *gaps;      /* NULL: nothing is left out */
};

/*
 * Which pages may serve whom.  salt: prefixes of different ones share nothing, so that nobody can
 * learn from an answer's speed what another user asked; 0: everybody's.  sparse: rows of prompts
 * from position kv_sparse_from() on read values of large weights only; what is after that
 * position is kept apart, what ends before it is everybody's.  0: none do.  shorten: the same of a
 * text of which parts are left out (kv_gaps_shorten()).
 */
struct kv_scope {
    uint64_t salt;
    struct kv_shorten {
        uint64_t name; /* a hash of the gaps; 0: there are none */
        int64_t from;  /* tokens before the first gap */
    } shorten;
    uint32_t sparse;
    /* how rows of answers choose pages, kv_select_of(): part of salt (kv_select_salt()), and here
     * for the names of files */
    uint32_t select;
};
static inline struct kv_scope kv_scope_of(uint64_t salt) { return (struct kv_scope){.salt = salt}; }
/* How the first `length` positions are computed, whoever may see them: what says nothing of them is
 * 0, and so is the salt. */
struct kv_scope kv_scope_at(struct kv_scope s, int64_t length);
/* Pages that are computed in this way, of prompts of this salt. */
struct kv_scope kv_way_scope(const struct kv_way *w, uint64_t salt);
/* So many positions are the same either way. */
int64_t kv_way_same(const struct kv_way *a, const struct kv_way *b);

/* What somebody says: "off" (or NULL), "on:eps=1/8,from=4096"; "1/16,least=16".  The other kinds
 * of *w stay.  what: whose value it is, in errors.  usual: that "on" means of selected pages, or
 * NULL: it is no such word. */
enum { KV_WAY_TEXT = 48 };
MUST_CHECK ingle_status kv_way_parse(enum kv_way_kind kind, const char *what, const char *text,
                                     const struct kern_select *usual, struct kv_way *w,
                                     struct err *err);
void kv_way_text(enum kv_way_kind kind, const struct kv_way *w, char *out, size_t n);

/* For files of sessions: as bytes [kv_way_bytes()], 0 of what no file needs to say, and back.  What
 * is sparse is not among it.  *w has a reference to gaps.  INGLE_FORMAT: it is no such mark. */
size_t kv_way_bytes(const struct kv_way *w);
void kv_way_write(const struct kv_way *w, void *to);
MUST_CHECK ingle_status kv_way_read(struct kv_way *w, const void *mark, size_t n, struct err *err);

/* ---- sparse ---- */

/* KV_SPARSE_PAGES: the last ones, read whole */
enum { KV_SPARSE_FROM_BITS = 25, KV_SPARSE_MOST_BITS = 10, KV_SPARSE_PAGES = 4 };
/* Weights below 2^-bits (0 .. KV_SPARSE_MOST_BITS) of the sum, from a position below 2^25 on. */
static inline uint32_t kv_sparse_of(int bits, int64_t from)
{
    return (uint32_t)(bits + 1) << KV_SPARSE_FROM_BITS | (uint32_t)from;
}
static inline int kv_sparse_bits(uint32_t sparse)
{
    return (int)(sparse >> KV_SPARSE_FROM_BITS) - 1;
}
static inline int64_t kv_sparse_from(uint32_t sparse)
{
    return sparse & ((1u << KV_SPARSE_FROM_BITS) - 1);
}
/* How the first `length` positions are computed. */
static inline uint32_t kv_sparse_at(uint32_t sparse, int64_t length)
{
    return sparse && length > kv_sparse_from(sparse) ? sparse : 0;
}

/* ---- selected pages ---- */

/* For kv_scope.salt: what keeps prefixes apart by how rows of answers choose pages; those that
 * choose all have the bits of those that do not choose. */
uint64_t kv_select_salt(uint64_t salt, const struct kern_select *p);
/* The same as a number, 0 where all are read, and back. */
static inline uint32_t kv_select_of(const struct kern_select *p)
{
    return p->part > 1 ? (uint32_t)p->least << 9 | (uint32_t)p->part : 0;
}
static inline struct kern_select kv_select_from(uint32_t select)
{
    return (struct kern_select){.part = select & 511, .least = select >> 9};
}

/* What they are called after the numerics, "+" before it: "few3-w4-f4096"; "sel16", "sel16-p5";
 * "" where all is read. */
struct kv_name {
    char at[32];
};
struct kv_name kv_sparse_name(uint32_t sparse);
struct kv_name kv_select_name(const struct kern_select *p);

#endif
